"""The page as one HTML file with everything inside: scripts, styles, scenes and encoded weights."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import ConfigError, RecordError
from clearhead.explore.attention_map import AttentionMap
from clearhead.explore.module_bundle import bundle_modules
from clearhead.explore.scene import Scene
from clearhead.explore.scene_json import BlockJson, NoteJson, SceneJson
from clearhead.explore.tensor_encoding import (
    LEVELS,
    MIN_LEVELS,
    EncodedTensor,
    choose_levels,
    encode_bytes,
    encode_floats,
    encode_keys,
    encode_weights,
    to_text,
)
from clearhead.lens.measures.thread_pool import run_in_threads
from clearhead.storage import atomic_file

PAGE = Path(__file__).parent / "page"
GENERATOR = b'<meta name="generator" content="clearhead">'  # in the first bytes of every page
SCRIPT, STYLE = '<script type="module" src="app.js"></script>', '<link rel="stylesheet" href="style.css">'
MAP_LEVELS, TOP_LEVELS = 4000, 10000
PRECISION_BYTES = 2_000_000  # that may be spent on finer levels than the promised ±0.0005
SAMPLED_ROWS = 128  # by which the size of all weights is estimated
BASE64_BYTES = 2_200_000  # up to which data are base64; more are written in the denser seven-bit coding
UNTRUSTED = (
    "The attention is not shown because this notebook is not trusted: run the cell again, or trust the notebook."
)
MAX_VIEWS = 64  # of one record in a file


class Limits(NamedTuple):
    """How much goes into a page."""

    tokens: int  # texts up to this length have every weight
    weights: int  # records with at most so many weights have all of them
    pixels: int  # of maps, a side
    entries: int  # top keys, norms and sums received, all heads together
    short_weights: int = 120_000_000  # from which on even a short text has maps only
    cells: int = 40_000_000  # pixels of all maps together


FILE_LIMITS = Limits(512, 40_000_000, 256, 6_000_000)
NOTEBOOK_LIMITS = Limits(128, 4_000_000, 128, 500_000)


def render_page(
    scene: Scene,
    *,
    heads: Mapping[str, Sequence[int]] | None = None,
    coding: str | None = None,
    limits: Limits = FILE_LIMITS,
    others: Sequence[Scene] = (),
    progress: Callable[[int], None] | None = None,
) -> str:
    """The HTML text. Up to 512 tokens and 120 million weights it has each within ±0.0005, else maps and top keys.

    `heads`, by the name of their attention, have every weight in any case. `others` are further views of the record.
    `progress` is called with the number of heads that are encoded, of `count_heads` in all.
    """
    scenes = [scene, *others]
    count = _Counter(progress)
    encoded = [_encode_scene(one, heads or {} if one is scene else {}, limits, count) for one in scenes]
    if len(scenes) < len(scene.views):
        encoded[0][1]["notes"].append({"say": "someViews", "held": len(scenes), "views": len(scene.views)})
    size = sum(len(block.data) for blocks, _ in encoded for _, block in blocks)
    coding = coding or ("base64" if size <= BASE64_BYTES else "seven")
    scene_texts, block_texts = list[str](), list[str]()
    for view, (blocks, description) in enumerate(encoded):
        numbers: dict[str, dict[str, BlockJson]] = {name: {} for name in scenes[view].maps}
        for (name, kind), block in blocks:
            numbers[name][kind] = {"id": f"data-{len(block_texts)}", "coding": coding, **block.layout}
            text = to_text(block.data, coding)
            block_texts.append(_script(f"data-{len(block_texts)}", text, "application/octet-stream"))
        labels = [one.describe_view(one.view) for one in scenes]
        scene_texts.append(to_inline_json({**description, "data": numbers, "views": labels, "view": view}))
    later = [_script(f"scene-{view}", text) for view, text in enumerate(scene_texts) if view]
    return _assemble_page(_script("scene", scene_texts[0]), [*block_texts, *later])


class _Counter:
    """Counts heads that worker threads have encoded."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self.progress, self.done, self.lock = progress, 0, threading.Lock()

    def add(self, heads: int) -> None:
        with self.lock:
            self.done += heads
            if self.progress is not None:
                self.progress(self.done)


def count_heads(scenes: Sequence[Scene]) -> int:
    """How many heads these views have together."""
    return sum(len(one.sight.heads) for scene in scenes for one in scene.maps.values())


def write_scenes(
    scenes: Sequence[Scene],
    path: Path,
    *,
    heads: Mapping[str, Sequence[int]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes the page of these views of one record; the first is shown first. The file is complete or not there."""
    text = render_page(scenes[0], heads=heads, others=scenes[1:], progress=progress)
    with atomic_file(path, needs=len(text)) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")
    return path


def check_page_path(path: Path) -> None:
    """Raises ConfigError if no page can be written there, or if it would replace a file that is not a clearhead page.

    An empty file may be replaced; a device or a pipe may be written to.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file in it, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}; create it first")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if GENERATOR not in file.read(4096):
                raise ConfigError(f"{path} exists and is not a clearhead page; name another file, or remove it first")


def select_other_views(scene: Scene, limits: Limits = FILE_LIMITS) -> list[Scene]:
    """The other views of the record, as many as fit into one file with all their weights."""
    found, room = list[Scene](), limits.weights - _count_weights(scene)
    for view in range(len(scene.views)):
        other = scene.with_view(view)
        room -= 0 if view == scene.view else _count_weights(other)
        if room < 0 or len(found) + 1 == MAX_VIEWS:
            break
        found += [] if view == scene.view else [other]
    return found


def render_notebook(scene: Scene, height: int = 640) -> str:
    """The page in a sandboxed iframe, which can access neither the notebook nor the network.

    A notebook that is not trusted removes frames and styles; what it leaves then is a sentence that says what to do.
    """
    inside = html.escape(render_page(scene, coding="base64", limits=NOTEBOOK_LIMITS), quote=True)
    return (
        f'<p class="clearhead-untrusted">{UNTRUSTED}</p><style>.clearhead-untrusted {{ display: none }}</style>'
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{inside}" title="clearhead" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def to_inline_json(content: Any) -> str:
    """JSON that is safe inside a script element: a token may contain "</script>" or half a surrogate pair.

    >>> to_inline_json({"token": "</script>"})
    '{"token": "\\\\u003c/script>"}'
    """
    return json.dumps(content, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def _script(name: str, content: str, kind: str = "application/json") -> str:
    return f'<script type="{kind}" id="{name}">{content}</script>\n'


@cache
def bundle_page() -> str:
    """All scripts of the page as one."""
    return bundle_modules(PAGE, "app.js")


def _assemble_page(scene: str, blocks: Sequence[str]) -> str:
    style = _strip_indentation((PAGE / "style.css").read_text(encoding="utf-8"))
    script = bundle_page()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "<head>": f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        STYLE: f"<style>{style}</style>",
        "<!--scene-->": scene,
        SCRIPT: f"<script>{script}</script>",
        "<!--data-->": "".join(blocks),
    }
    rest, whole = _strip_indentation((PAGE / "index.html").read_text(encoding="utf-8")), []
    for mark, text in parts.items():
        before, found, rest = rest.partition(mark)
        if not found:
            raise AssertionError(f"index.html has no placeholder {mark}, or it is out of order")
        whole += [before, text]
    return "".join([*whole, rest])


def _strip_indentation(text: str) -> str:
    return re.sub(r"^[^\S\n]+", "", text, flags=re.M)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


def _encode_scene(
    scene: Scene, heads: Mapping[str, Sequence[int]], limits: Limits, count: _Counter
) -> tuple[list[tuple[tuple[str, str], EncodedTensor]], SceneJson]:
    """The encoded blocks by attention and kind, those that are shown first in front, and the scene."""
    pixels = max(1, math.isqrt(limits.cells // max(1, count_heads([scene]))))
    limits = limits._replace(pixels=min(limits.pixels, pixels))
    maps, whole = scene.maps, _select_exact_heads(scene, heads, limits)
    description = scene.to_json(pixels=limits.pixels)
    for one in description["attentions"]:
        for head in one["heads"]:
            head["exact"] = head["number"] in whole[one["name"]]
    complete = all(len(whole[name]) == len(one.sight.heads) for name, one in maps.items())
    description["live"], description["exact"] = False, complete
    description["notes"] = [*description["notes"], *_describe_omissions(complete, whole, limits)]
    cells = sum(len(whole[name]) * one.counts[0] * one.counts[1] for name, one in maps.items())
    levels, first = choose_levels(_sample_rows(maps, whole), cells, PRECISION_BYTES), description["start"]["name"]
    room = limits.entries // max(1, sum(len(one.sight.heads) * max(one.counts) for one in maps.values()))
    found: dict[str, list[tuple[str, EncodedTensor]]] = {}

    def encode(name: str) -> None:
        found[name] = list(_encode_attention(maps[name], whole[name], levels, limits.pixels, room))
        count.add(len(maps[name].sight.heads))

    run_in_threads(encode, list(maps))
    blocks = [((name, kind), packed) for name in maps for kind, packed in found[name]]
    return sorted(blocks, key=lambda block: (block[0][0] != first, block[0][1] != "thumbs")), description


def _select_exact_heads(scene: Scene, heads: Mapping[str, Sequence[int]], limits: Limits) -> dict[str, list[int]]:
    """The heads of each attention that get every weight."""
    maps = scene.maps
    for name, numbers in heads.items():
        for head in numbers:
            scene.find_map(name).sight.place_of(head)
        if numbers and not maps[name].exact:
            raise RecordError(
                f"exact weights of {name!r} are not available: its q and k were not kept; watch with keep='qk'"
            )
    longest = max((max(one.counts) for one in maps.values()), default=0)
    most = limits.short_weights if longest <= limits.tokens else limits.weights
    if _count_weights(scene) <= most:
        return {name: list(one.sight.heads) if one.exact else [] for name, one in maps.items()}
    return {name: sorted(heads.get(name, ())) for name in maps}


def _sample_rows(maps: Mapping[str, AttentionMap], exact: Mapping[str, Sequence[int]]) -> Float[Tensor, "rows keys"]:
    """Rows from all over those heads, of the attentions with the most keys."""
    keys = max((maps[name].counts[1] for name, heads in exact.items() if heads), default=0)
    every = [(maps[name], head) for name, heads in exact.items() for head in heads if maps[name].counts[1] == keys]
    rows = list[Tensor]()
    for number in range(SAMPLED_ROWS if keys else 0):
        attention, head = every[number * len(every) // SAMPLED_ROWS]
        place = number * 89 % SAMPLED_ROWS * attention.counts[0] // SAMPLED_ROWS
        weights = attention.compute_row(head, attention.first[0] + place).weights if attention.counts[0] else None
        rows += [] if weights is None else [weights]
    return torch.stack(rows) if rows else torch.zeros(0, keys)


def _encode_attention(
    attention: AttentionMap, exact: list[int], levels: int, pixels: int, room: int
) -> Iterator[tuple[str, EncodedTensor]]:
    """The blocks of one attention; `room` limits the numbers for each query or key."""
    sight, sample = attention.sight, attention.sample
    yield "thumbs", encode_bytes(attention.draw_thumbnails())
    if exact:
        weights = torch.stack([attention.compute_weights(head) for head in exact])
        encoded = encode_weights(weights, levels)
        yield "weights", encoded._replace(layout={**encoded.layout, "heads": exact})
        if MIN_LEVELS < levels < LEVELS[0] and room:  # sums of rounded weights would be worse, and these are small
            sums = encode_floats(weights.sum(1))
            yield "sums", sums._replace(layout={**sums.layout, "heads": exact})
        hidden = weights.signbit() & (weights == 0)
        if bool(hidden.any()):
            alike = bool((hidden == hidden[:1]).all())
            yield "hidden", encode_bytes((hidden[:1] if alike else hidden).numpy().astype(np.uint8))
    if sight.norms is not None and room:
        yield "norms", encode_floats(sight.norms[sample])
    if len(exact) == len(sight.heads):
        return
    grids = [attention.sum_overview(head, pixels) for head in sight.heads]
    most = float(grids[0].blocks[0])  # each query's weights sum to 1, so a pixel is at most the number of its queries
    yield "map", encode_weights(torch.stack([grid.sums for grid in grids]), MAP_LEVELS, [most] * len(grids))
    if room:
        yield "received", encode_floats(torch.stack([attention.compute_received(head) for head in sight.heads]))
    top = min(sight.top_keys.shape[-1], room)
    if attention.step == 1 and top:
        yield "top_keys", encode_keys(sight.top_keys[sample, :, :, :top])
        yield "top_weights", encode_weights(sight.top_weights[sample, :, :, :top], TOP_LEVELS)


def _count_weights(scene: Scene) -> int:
    """How many weights all heads of a scene have."""
    return sum(len(one.sight.heads) * one.counts[0] * one.counts[1] for one in scene.maps.values())


def _describe_omissions(complete: bool, whole: Mapping[str, Sequence[int]], limits: Limits) -> list[NoteJson]:
    """Notes on weights that are not in the file, as phrases that the page translates."""
    if complete:
        return []
    chosen = sum(map(len, whole.values()))
    return [{"say": "chosenOnly" if chosen else "mapsOnly", "pixels": limits.pixels, "chosen": chosen}]
