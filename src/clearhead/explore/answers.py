"""Answers: what the page's server says about a record, and about new ones where a model is there to ask."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.errors import LensError, RecordError
from clearhead.explore.axes import Axis
from clearhead.explore.live import Live
from clearhead.explore.panorama import THUMB, Grid, Panorama
from clearhead.explore.scene import Scene
from clearhead.lens.record.attention_record import Record

REMEMBERED = 4  # records that pages may still show, after new texts
NUMBERS = "application/octet-stream"
CELLS = 2**22  # of a window that one may ask for


class Answer(NamedTuple):
    """Bytes and what they are."""

    body: bytes
    kind: str = NUMBERS

    @classmethod
    def words(cls, content: Any) -> Answer:
        return cls(json.dumps(content, allow_nan=False).encode("ascii"), "application/json")

    @classmethod
    def numbers(cls, header: Mapping[str, Any], numbers: Tensor | None) -> Answer:
        """One line of JSON, and then float32."""
        raw = b"" if numbers is None else numbers.float().contiguous().numpy().astype("<f4").tobytes()
        return cls(json.dumps(header, allow_nan=False).encode("ascii") + b"\n" + raw)


class Answers:
    """The questions that a page asks, by name. One is worked on at a time: the processor has no more than it has."""

    def __init__(
        self,
        record: Record,
        *,
        live: Live | None = None,
        title: str | None = None,
        axes: Mapping[str, Axis] | None = None,
    ) -> None:
        self.live, self.title, self.axes = live, title, axes
        self.lock, self.alone = threading.RLock(), _Alone()
        self.records: OrderedDict[str, Record] = OrderedDict()
        self.scenes: dict[tuple[str, int], Scene] = {}
        self.newest = self._add(record)
        self.scene({})  # what cannot be shown is said now

    def _add(self, record: Record) -> str:
        number = str(len(self.records) and int(next(reversed(self.records))) + 1)
        self.records[number] = record
        while len(self.records) > REMEMBERED:
            old, _ = self.records.popitem(last=False)
            self.scenes = {place: scene for place, scene in self.scenes.items() if place[0] != old}
        return number

    def scene(self, query: Mapping[str, str]) -> Scene:
        """The scene that a question is about: the newest, unless it says another."""
        name, view = query.get("scene", self.newest), _whole(query, "view", 0)
        if name not in self.records:
            raise RecordError("this text is no longer remembered; look at it again")
        if (name, view) not in self.scenes:
            scene = Scene(self.records[name], view, title=self.title, axes=self.axes, live=self.live is not None)
            self.scenes[name, view] = scene
        return self.scenes[name, view]

    def get(self, name: str, query: Mapping[str, str]) -> Answer:
        if name == "effects":
            return self._effects(query)
        with self.lock:
            alone = name != "window" or not self.scene(query).panorama(query.get("name", "")).is_much(*_sides(query))
            return self.alone.run(self._answer, name, query) if alone else self._answer(name, query)

    def _answer(self, name: str, query: Mapping[str, str]) -> Answer:
        with torch.inference_mode():
            if name == "scene.json":
                scene = self.scene(query)
                return Answer.words({**scene.to_dict(), "id": query.get("scene", self.newest)})
            if name not in ("map", "window", "row", "column", "thumbs"):
                raise LensError(f"there is no question called {name[:40]!r}")
            panorama = self.scene(query).panorama(query.get("name", ""))
            if name == "thumbs":
                header = {"size": THUMB, "heads": len(panorama.sight.heads)}
                return Answer(json.dumps(header).encode("ascii") + b"\n" + panorama.thumbs().tobytes())
            head = _whole(query, "head")
            panorama.sight.place_of(head)
            if name == "map":
                return _grid(panorama.map(head))
            if name == "window":
                return _window(panorama, head, query)
            return _row(panorama, head, query) if name == "row" else _column(panorama, head, query)

    def close(self) -> None:
        self.alone.close()

    def post(self, name: str, content: Mapping[str, Any]) -> Answer:
        if self.live is None:
            raise LensError("no model is loaded here: start clearhead look with a model and a text")
        if name == "look":
            text = content.get("text")
            if not isinstance(text, str) or not text.strip():
                raise LensError("write something to look at")
            record = self.live.look(text)
            with self.lock:
                self.newest = self._add(record)
                return self.alone.run(self._answer, "scene.json", {"scene": self.newest})
        if name == "ablate":
            with self.lock:
                scene = self.scene({key: str(content[key]) for key in ("scene", "view") if key in content})
            call, _ = scene.places[scene.view]
            return Answer.words(self.live.without(scene.record, call, _heads(content.get("off"))))
        raise LensError(f"there is nothing to do called {name[:40]!r}")

    def _effects(self, query: Mapping[str, str]) -> Answer:
        with self.lock:
            scene = self.scene(query)
        if self.live is not None and "effects" not in scene.about:  # takes seconds: windows go on being answered
            call, _ = scene.places[scene.view]
            found = self.live.effects(scene.record, call)
            scene.about |= {} if found is None else {"effects": found}
        return Answer.words({"effects": scene.about.get("effects")})


class _Alone:
    """A thread in which PyTorch computes without others.

    What a page asks for is little. Split among threads, which the browser keeps from running, it is mostly waiting.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self.thread = ThreadPoolExecutor(1, "clearhead-look")
        self.thread.submit(torch.get_num_threads).result()  # a new thread gets the number of all when it first asks
        self.thread.submit(torch.set_num_threads, 1).result()
        torch.set_num_threads(threads)  # or threads that are yet to come would have one as well

    def run(self, work: Callable[..., Answer], *given: Any) -> Answer:
        return self.thread.submit(work, *given).result()

    def close(self) -> None:
        self.thread.shutdown()


def _grid(grid: Grid) -> Answer:
    rows, columns = grid.sums.shape
    header = {"rows": rows, "columns": columns, "exact": grid.exact, "blocks": list(grid.blocks)}
    return Answer.numbers(header, grid.sums)


def _window(panorama: Panorama, head: int, query: Mapping[str, str]) -> Answer:
    queries, keys = _sides(query)
    rows, columns = _whole(query, "rows"), _whole(query, "columns")
    if not queries or not keys or rows < 1 or columns < 1 or rows * columns > CELLS:
        raise RecordError("a window has at least one query, one key, one row and one column, and not too many of them")
    return _grid(panorama.window(head, queries, keys, rows, columns))


def _sides(query: Mapping[str, str]) -> tuple[range, range]:
    """The queries and the keys of a window."""
    q0, q1, k0, k1 = (_whole(query, name) for name in ("q0", "q1", "k0", "k1"))
    return range(q0, q1), range(k0, k1)


def _row(panorama: Panorama, head: int, query: Mapping[str, str]) -> Answer:
    position = _position(panorama, query, "query", 0)
    line, norms, place = panorama.row(head, position), panorama.sight.norms, panorama.sight.place_of(head)
    own = None if norms is None else norms[panorama.sample, place]
    top = [[key, weight, None if own is None else float(own[key])] for key, weight in line.top]
    return Answer.numbers({"top": top, "length": 0 if line.weights is None else len(line.weights)}, line.weights)


def _column(panorama: Panorama, head: int, query: Mapping[str, str]) -> Answer:
    key = _position(panorama, query, "key", 1)
    line = panorama.column(head, key)
    header = {"top": line.top, "received": float(panorama.received(head)[key])}
    return Answer.numbers({**header, "length": 0 if line.weights is None else len(line.weights)}, line.weights)


def _position(panorama: Panorama, query: Mapping[str, str], name: str, axis: int) -> int:
    place, first, count = _whole(query, name), panorama.first[axis], panorama.counts[axis]
    if not first <= place < first + count:
        raise RecordError(f"there is a {name} at positions {first} to {first + count - 1}, not at {place}")
    return place


def _whole(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.removeprefix("-").isdecimal() or len(text) > 12:
        raise RecordError(f"{name} must be a whole number, got {text!r:.40}")
    return int(text)


def _heads(off: Any) -> dict[str, list[int]]:
    """[{"name": …, "heads": […]}] as a dictionary, or an error; whether there are such heads, ablate says."""
    if not isinstance(off, list) or not all(isinstance(one, dict) for one in off):
        raise LensError('say which heads, as [{"name": "decoder.0.cross", "heads": [2]}]')
    found: dict[str, list[int]] = {}
    for one in off:
        name, heads = one.get("name"), one.get("heads")
        if not isinstance(name, str) or not isinstance(heads, list):
            raise LensError('say which heads, as [{"name": "decoder.0.cross", "heads": [2]}]')
        found[name] = sorted({*found.get(name, []), *heads}, key=repr)
    return found
