"""KeptRecords: the record that a server began with, and the records of the texts that its pages have read since."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable

from clearhead.errors import RecordError
from clearhead.explore.model_lane import free_memory_soon
from clearhead.explore.scene import Scene
from clearhead.lens.record.attention_record import Record

MAX_RECORDS = 8  # of texts that pages have read: one for each tab
LARGE_RECORD = 2**24  # bytes of a record whose memory is returned to the system at once


class RecordGone(RecordError):
    """The record that a page shows was replaced, or other pages have read too many texts since."""


class KeptRecord:
    """A record with its scenes, under an id that cannot be guessed.

    Whoever computes with it holds `lock`: computations on one record run one at a time, those on several side by side.
    """

    def __init__(self, record: Record, make_scene: Callable[[Record, int], Scene], replaces: str | None = None) -> None:
        self.id, self.replaces = secrets.token_urlsafe(12), replaces
        self.record, self.lock = record, threading.Lock()
        self._make_scene, self._scenes = make_scene, dict[int, Scene]()

    def find_scene(self, view: int) -> Scene:
        if view not in self._scenes:
            self._scenes[view] = self._make_scene(self.record, view)
        return self._scenes[view]


class KeptRecords:
    """The records that pages show, by id. The first one stays; of the others those stay that were used last."""

    def __init__(self, record: Record, make_scene: Callable[[Record, int], Scene]) -> None:
        self.first, self._make_scene = KeptRecord(record, make_scene), make_scene
        self._others, self._lock = OrderedDict[str, KeptRecord](), threading.Lock()

    def find(self, name: str | None) -> KeptRecord:
        """The record with this id, by default the first; a record that it replaces is dropped now."""
        if name is None or name == self.first.id:
            return self.first
        with self._lock:
            if name not in self._others:
                raise RecordGone("this text is no longer kept by the server; enter it again")
            self._others.move_to_end(name)
            entry = self._others[name]
            if entry.replaces is not None and entry.replaces in self._others:
                self._drop(entry.replaces)
            return entry

    def add(self, record: Record, replaces: str | None) -> KeptRecord:
        """Keeps the record of another text. The page shows `replaces` until it has this one, and asks about it."""
        with self._lock:
            entry = KeptRecord(record, self._make_scene, replaces)
            self._others[entry.id] = entry
            while len(self._others) > MAX_RECORDS:
                self._drop(next(iter(self._others)))
            return entry

    def _drop(self, name: str) -> None:
        if self._others.pop(name).record.expected_bytes > LARGE_RECORD:
            free_memory_soon()
