"""KeptRecords: the record that a server began with, and the records of the texts that its pages have read since."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable

from clearhead.errors import RecordError
from clearhead.explore.free_memory import free_memory_soon
from clearhead.explore.page_response import Response
from clearhead.explore.scene import Scene
from clearhead.lens.record.attention_record import Record

MAX_RECORDS = 8  # of texts that pages have read: one for each tab
CACHE = 2**24  # bytes of responses that are cached for a record
LARGE = 2**24  # bytes of a record whose memory is returned to the system at once


class RecordGone(RecordError):
    """The record that a page shows was replaced, or other pages have read too many texts since."""


class KeptRecord:
    """A record with its scenes and cached responses, under an id that cannot be guessed.

    Whoever computes with it holds `lock`: computations on one record run one at a time, those on several side by side.
    """

    def __init__(self, record: Record, make_scene: Callable[[Record, int], Scene], replaces: str | None = None) -> None:
        self.id, self.replaces = secrets.token_urlsafe(12), replaces
        self.record, self.lock = record, threading.Lock()
        self._make_scene, self._scenes = make_scene, dict[int, Scene]()
        self._cache, self._cache_lock = OrderedDict[str, Response](), threading.Lock()

    def find_scene(self, view: int) -> Scene:
        if view not in self._scenes:
            self._scenes[view] = self._make_scene(self.record, view)
        return self._scenes[view]

    def find_response(self, request: str) -> Response | None:
        """The cached response to a request; without `lock`, so that it need not wait."""
        with self._cache_lock:
            if request in self._cache:
                self._cache.move_to_end(request)
            return self._cache.get(request)

    def cache_response(self, request: str, response: Response) -> None:
        with self._cache_lock:
            self._cache[request] = response
            while sum(len(one.body) for one in self._cache.values()) > CACHE and len(self._cache) > 1:
                self._cache.popitem(last=False)


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
            found = self._others[name]
            if found.replaces is not None and found.replaces in self._others:
                self._drop(found.replaces)
            return found

    def add(self, record: Record, replaces: str | None) -> KeptRecord:
        """Keeps the record of another text. The page shows `replaces` until it has this one, and asks about it."""
        with self._lock:
            kept = KeptRecord(record, self._make_scene, replaces)
            self._others[kept.id] = kept
            while len(self._others) > MAX_RECORDS:
                self._drop(next(iter(self._others)))
            return kept

    def _drop(self, name: str) -> None:
        dropped = self._others.pop(name)
        if dropped.record.expected_bytes > LARGE:
            free_memory_soon()
