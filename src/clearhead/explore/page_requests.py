"""Answers to the page's HTTP requests about the records that it shows: weights, new texts and ablations."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import Tensor

from clearhead.errors import LensError, RecordError
from clearhead.explore.attention_map import THUMBNAIL, AttentionMap, Grid, WeightLine
from clearhead.explore.live_model import MAX_CHARACTERS, LiveModel, end_if_left, free_memory_soon
from clearhead.explore.scene import Scene, finite_or_none
from clearhead.explore.token_axis import Axis
from clearhead.lens.measures.thread_pool import start_workers
from clearhead.lens.record.attention_record import Record

MAX_RECORDS = 8  # of texts that pages have read: one for each tab
LARGE_RECORD = 2**24  # bytes of a record whose memory is returned to the system at once
MAX_CELLS = 2**22  # of one window
MAX_NAME = 200  # characters of a file's name
MAX_BODY, MAX_FILE_BODY = 2**20, 2**25  # bytes of a request: with a text, or with a file as base64
HEADS_FORMAT = 'name the heads as [{"name": "decoder.0.cross", "heads": [2]}]'
NUMBER_FORMAT = "place and choice must be whole numbers"
TOKENS_FORMAT = 'name the tokens by text and position, as {"source": [3, 4]}'


class _HeadsOff(BaseModel):
    """Heads of one attention that are switched off."""

    name: str
    heads: list[int]


class Response(NamedTuple):
    """The body of an HTTP response and its content type."""

    body: bytes
    content_type: str = "application/octet-stream"

    @classmethod
    def from_json(cls, content: Any) -> Response:
        return cls(json.dumps(content, allow_nan=False).encode("ascii"), "application/json")

    @classmethod
    def from_numbers(cls, header: Mapping[str, Any], numbers: Float[Tensor, "..."] | None) -> Response:
        """One line of JSON followed by float32 numbers, little-endian."""
        raw = b"" if numbers is None else numbers.float().contiguous().numpy().astype("<f4").tobytes()
        return cls(json.dumps(header, allow_nan=False).encode("ascii") + b"\n" + raw)


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


class PageRequests:
    """Handles GET and POST requests by name. A request names the record that it is about by `scene`, its id."""

    def __init__(
        self,
        record: Record,
        *,
        live: LiveModel | None = None,
        title: str | None = None,
        axes: Mapping[str, Axis] | None = None,
    ) -> None:
        self.live, self.title, self.axes = live, title, axes
        self.records = KeptRecords(record, self._make_scene)
        self.records.first.find_scene(0)  # raises now if the record cannot be shown
        # The page's computations are small: split among threads that compete with the browser, they would mostly wait.
        self.workers = start_workers(1 if live is None else MAX_RECORDS + 1, threads=1)  # one for each record

    def _make_scene(self, record: Record, view: int) -> Scene:
        takes = None if self.live is None else self.live.input_kind
        return Scene(record, view, title=self.title, axes=self.axes, takes=takes)

    def prepare(self) -> None:
        """Computes what the first scene needs while the browser loads the page."""

        def describe_first() -> None:
            with suppress(Exception):  # which comes again when the page asks
                self.get("scene.json", {})

        threading.Thread(target=describe_first, daemon=True).start()

    def get(self, name: str, query: Mapping[str, str]) -> Response:
        entry = self.records.find(query.get("scene"))
        return self._get_effects(entry, query) if name == "effects" else self._compute(entry, name, query)

    def _compute(self, entry: KeptRecord, name: str, query: Mapping[str, str]) -> Response:
        """The response, once earlier computations on this record are done; those on other records go on."""
        with entry.lock:
            if name == "window" and _find_map(entry, query).is_large_window(*_read_window(query)):
                return self._respond(entry, name, query)  # here, with as many threads as PyTorch uses
            return self.workers.submit(self._respond, entry, name, query).result()

    def _respond(self, entry: KeptRecord, name: str, query: Mapping[str, str]) -> Response:
        with torch.inference_mode():
            if name == "scene.json":
                return self._describe_scene(entry, query)
            if name not in ("map", "window", "row", "column", "thumbs"):
                raise LensError(f"unknown request {name[:40]!r}")
            attention = _find_map(entry, query)
            if name == "thumbs":
                header = {"size": THUMBNAIL, "heads": len(attention.sight.heads)}
                return Response(json.dumps(header).encode("ascii") + b"\n" + attention.draw_thumbnails().tobytes())
            head = _read_integer(query, "head")
            attention.sight.place_of(head)
            if name == "map":
                return _grid_response(attention.sum_overview(head))
            respond = {"window": _window_response, "row": _row_response, "column": _column_response}[name]
            return respond(attention, head, query)

    def _describe_scene(self, entry: KeptRecord, query: Mapping[str, str]) -> Response:
        return Response.from_json(
            {
                **_find_scene(entry, query).to_json(),
                "id": entry.id,
                "limits": None if self.live is None else [MAX_CHARACTERS, self.live.max_tokens],
                "continues": self.live is not None and self.live.can_continue,
            }
        )

    @property
    def max_body(self) -> int:
        """The most bytes that the body of a request may have."""
        return MAX_BODY if self.live is None or self.live.input_kind == "text" else MAX_FILE_BODY

    def close(self) -> None:
        self.workers.shutdown()

    def post(self, name: str, content: Mapping[str, Any]) -> Response:
        if self.live is None:
            raise LensError("no model is loaded: start clearhead look with a model and a text")
        if name == "look":
            return self._show_record(self._look_at(self.live, content), content)
        if name not in ("ablate", "continue"):
            raise LensError(f"unknown action {name[:40]!r}")
        query = {key: str(content[key]) for key in ("scene", "view") if key in content}
        entry = self.records.find(query.get("scene"))
        with entry.lock:
            scene = _find_scene(entry, query)
        if name == "ablate":
            heads = _read_heads(content.get("off", []))
            hidden = _read_content(content.get("hide", {}), dict[str, list[int]], TOKENS_FORMAT)
            return Response.from_json(asdict(self.live.answer_without(scene.record, scene.call, heads, hidden)))
        step, choice = (_read_content(content.get(name), int, NUMBER_FORMAT) for name in ("place", "choice"))
        if content.get("open") is True:
            record = self.live.look_at_continuation(scene.record, scene.call, step, choice)
            return self._show_record(record, content, min(scene.view, len(record.calls) - 1))
        return Response.from_json(asdict(self.live.continue_answer(scene.record, scene.call, step, choice)))

    def _show_record(self, record: Record, content: Mapping[str, Any], view: int = 0) -> Response:
        """Keeps a record for the page that asked for it, in place of the one that it shows: `replaces`."""
        end_if_left()  # else nobody would ever ask for it
        replaces = content.get("replaces")
        entry = self.records.add(record, replaces if isinstance(replaces, str) else None)
        return self._compute(entry, "scene.json", {"view": str(view)})

    def _look_at(self, live: LiveModel, content: Mapping[str, Any]) -> Record:
        """Runs the model on a text, or on a file's content; a request cannot name a file to open."""
        if live.input_kind == "text":
            text = content.get("text")
            if not isinstance(text, str) or not text.strip():
                raise LensError("the text is empty")
            return live.look(text, check=live.check_length)
        name, data = content.get("name"), content.get("data")
        if not isinstance(name, str) or not isinstance(data, str):
            raise LensError(f"this model takes a {live.input_kind}: send its name and data, as base64")
        try:
            raw = base64.b64decode(data, validate=True)
        except ValueError:
            raise LensError("the data of the file are not base64") from None
        return live.look_at_file(name[:MAX_NAME], raw)

    def _get_effects(self, entry: KeptRecord, query: Mapping[str, str]) -> Response:
        with entry.lock:
            scene = _find_scene(entry, query)
        if self.live is not None and scene.about.effects is None:  # takes seconds: without the lock
            scene.about.effects = self.live.measure_effects(scene.record, scene.call)
        return Response.from_json({"effects": scene.about.effects})


def _find_scene(entry: KeptRecord, query: Mapping[str, str]) -> Scene:
    return entry.find_scene(_read_integer(query, "view", 0))


def _find_map(entry: KeptRecord, query: Mapping[str, str]) -> AttentionMap:
    return _find_scene(entry, query).find_map(query.get("name", ""))


def _grid_response(grid: Grid) -> Response:
    rows, columns = grid.sums.shape
    area = [end for part in grid.area for end in (part.start, part.stop)]
    header = {"rows": rows, "columns": columns, "exact": grid.exact, "blocks": list(grid.blocks), "area": area}
    return Response.from_numbers(header, grid.sums)


def _window_response(attention: AttentionMap, head: int, query: Mapping[str, str]) -> Response:
    queries, keys = _read_window(query)
    height, width = _read_integer(query, "height"), _read_integer(query, "width")
    if not queries or not keys or height < 1 or width < 1:
        raise RecordError("a window and its blocks have at least one query and one key")
    if max(height, width) > (most := 2 * max(attention.counts)):
        raise RecordError(f"a block has at most {most:,} queries or keys, got {height:,} × {width:,}")
    if -(-len(queries) // height) * -(-len(keys) // width) > MAX_CELLS:
        raise RecordError(f"a window has at most {MAX_CELLS:,} blocks")
    return _grid_response(attention.sum_window(head, queries, keys, (height, width)))


def _read_window(query: Mapping[str, str]) -> tuple[range, range]:
    q0, q1, k0, k1 = (_read_integer(query, name) for name in ("q0", "q1", "k0", "k1"))
    return range(q0, q1), range(k0, k1)


def _row_response(attention: AttentionMap, head: int, query: Mapping[str, str]) -> Response:
    line, norms = attention.compute_row(head, _read_position(attention, query, "query", 0)), attention.sight.norms
    of_keys = None if norms is None else norms[attention.sample, attention.sight.place_of(head)]
    top = [[key, weight, None if of_keys is None else finite_or_none(float(of_keys[key]))] for key, weight in line.top]
    return _line_response({"top": top}, line)


def _column_response(attention: AttentionMap, head: int, query: Mapping[str, str]) -> Response:
    key = _read_position(attention, query, "key", 1)
    line = attention.compute_column(head, key)
    received = finite_or_none(float(attention.compute_received(head)[key]))
    return _line_response({"top": line.top, "received": received}, line)


def _line_response(header: dict[str, Any], line: WeightLine) -> Response:
    return Response.from_numbers({**header, "length": 0 if line.weights is None else len(line.weights)}, line.weights)


def _read_position(attention: AttentionMap, query: Mapping[str, str], name: str, axis: int) -> int:
    position, first, count = _read_integer(query, name), attention.first[axis], attention.counts[axis]
    if not first <= position < first + count:
        raise RecordError(f"{name} must be a position from {first} to {first + count - 1}, got {position}")
    return position


def _read_integer(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.removeprefix("-").isdecimal() or len(text) > 12:
        raise RecordError(f"{name} must be a whole number, got {text!r:.40}")
    return int(text)


def _read_content(content: Any, kind: Any, description: str) -> Any:
    """A part of a request, checked to be of this kind."""
    try:
        return TypeAdapter(kind).validate_python(content, strict=True)
    except ValidationError:
        raise LensError(description) from None


def _read_heads(off: Any) -> dict[str, list[int]]:
    """[{"name": …, "heads": […]}] as a dictionary; `ablate` checks that these heads exist."""
    heads: dict[str, list[int]] = {}
    for part in _read_content(off, list[_HeadsOff], HEADS_FORMAT):
        heads[part.name] = sorted({*heads.get(part.name, []), *part.heads})
    return heads
