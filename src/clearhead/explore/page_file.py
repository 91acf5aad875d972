"""The page as one HTML file with everything inside: scripts, styles, scenes and encoded weights."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import ConfigError, RecordError
from clearhead.explore.attention_map import AttentionMap, is_hidden
from clearhead.explore.scene import Scene
from clearhead.explore.scene_json import BlockJson, SceneJson
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
MAP_LEVELS, TOP_LEVELS = 4000, 10000  # numbers of levels that sums of a map, and top weights, are rounded to
PRECISION_BYTES = 2_000_000  # that may be spent on finer levels than the promised ±0.0005
SAMPLED_ROWS = 128  # by which the size of all weights is estimated
BASE64_BYTES = 2_200_000  # up to which data are base64; more are written in the denser seven-bit coding
UNTRUSTED = (
    "The attention is not shown because this notebook is not trusted: run the cell again, or trust the notebook."
)
MAX_VIEWS = 64  # of one record in a file
IMPORT = re.compile(r"^import (\{[^}]*\}) from \"(\.{1,2}/[\w./-]+)\";$", re.M)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const|let)\b\s*\*?\s*(\w+))", re.M)


class Limits(NamedTuple):
    """How much goes into a page."""

    tokens: int  # texts up to this length have every weight
    weights: int  # of all heads together: longer texts with at most this number have every weight
    pixels: int  # of maps, a side
    entries: int  # top keys, norms and sums received, all heads together
    short_weights: int = 120_000_000  # from which on even a short text has maps only
    cells: int = 40_000_000  # pixels of all maps together


FILE_LIMITS = Limits(512, 40_000_000, 256, 6_000_000)
NOTEBOOK_LIMITS = Limits(128, 4_000_000, 128, 500_000)


def render_page(
    scene: Scene,
    *,
    others: Sequence[Scene] = (),
    heads: Mapping[str, Sequence[int]] | None = None,
    coding: str | None = None,
    limits: Limits = FILE_LIMITS,
    progress: Callable[[int], None] = lambda heads: None,
) -> str:
    """The HTML text. Up to 512 tokens and 120 million weights it has each within ±0.0005, else maps and top keys.

    `others` are further views of the record. `heads` of the scene, by the name of their attention, have every weight in
    any case. `progress` is called from any thread with the number of heads that were encoded just now.
    """
    scenes = [scene, *others]
    encoded = [_encode_scene(view, heads or {} if view is scene else {}, limits, progress) for view in scenes]
    if len(scenes) < len(scene.views):
        encoded[0][1]["notes"].append({"say": "someViews", "held": len(scenes), "views": len(scene.views)})
    size = sum(len(block.data) for blocks, _ in encoded for _, block in blocks)
    coding = coding or ("base64" if size <= BASE64_BYTES else "seven")
    labels = [view.describe_view(view.view) for view in scenes]
    scene_texts, block_texts = list[str](), list[str]()
    for number, (blocks, description) in enumerate(encoded):
        data: dict[str, dict[str, BlockJson]] = {name: {} for name in scenes[number].maps}
        for (name, kind), block in blocks:
            identity = f"data-{len(block_texts)}"
            data[name][kind] = {"id": identity, "coding": coding, **block.layout}
            block_texts.append(_script(identity, to_text(block.data, coding), "application/octet-stream"))
        text = to_inline_json({**description, "data": data, "views": labels, "view": number})
        scene_texts.append(_script(f"scene-{number}" if number else "scene", text))
    return _assemble_page(scene_texts[0], "".join([*block_texts, *scene_texts[1:]]))


def count_heads(scenes: Sequence[Scene]) -> int:
    return sum(len(attention.sight.heads) for scene in scenes for attention in scene.maps.values())


def write_scenes(scenes: Sequence[Scene], path: Path, **options: Any) -> Path:
    """Writes the page of these views of one record, with the options of `render_page`: complete, or no file at all."""
    text = render_page(scenes[0], others=scenes[1:], **options)
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
    others, room = list[Scene](), limits.weights - _count_weights(scene)
    for view in range(len(scene.views)):
        if view == scene.view:
            continue
        other = Scene(scene.record, view, title=scene.title, axes=scene.user_axes, takes=scene.takes)
        room -= _count_weights(other)
        if room < 0 or len(others) + 1 == MAX_VIEWS:
            break
        others.append(other)
    return others


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


def bundle_modules(folder: Path, entry: str) -> str:
    """One script with the ES module `entry` and everything that it imports, safe inside a script element.

    Browsers refuse module imports from file://. Each module becomes a function that returns its exports, in the order
    of their dependencies. Of imports `import { a, b } from "./path.js";` is supported, of exports those of one
    declaration.
    """
    order: list[str] = []
    _add_imports(folder, entry, order)
    numbers = {name: f"module{number}" for number, name in enumerate(order)}
    parts = [f"const {numbers[name]} = (() => {{\n{_convert_module(folder, name, numbers)}}})();" for name in order]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.I)


def _add_imports(folder: Path, name: str, order: list[str]) -> None:
    """Adds the modules that a module imports to the order, each once, and then itself."""
    if name in order:
        return
    for match in IMPORT.finditer((folder / name).read_text(encoding="utf-8")):
        _add_imports(folder, _resolve(name, match[2]), order)
    order.append(name)


def _resolve(name: str, imported: str) -> str:
    """The path of an imported module relative to the folder of the entry.

    >>> _resolve("panes/tips.js", "../data/tokens.js")
    'data/tokens.js'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _convert_module(folder: Path, name: str, numbers: dict[str, str]) -> str:
    code = (folder / name).read_text(encoding="utf-8")
    exports = ", ".join(EXPORT.findall(code))
    code = IMPORT.sub(lambda match: f"const {match[1]} = {numbers[_resolve(name, match[2])]};", EXPORT.sub("", code))
    return f"{code.rstrip()}\nreturn {{ {exports} }};\n"


def _assemble_page(scene: str, data: str) -> str:
    style, script = (PAGE / "style.css").read_text(encoding="utf-8"), bundle_page()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "<head>": f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        STYLE: f"<style>{style}</style>",
        "<!--scene-->": scene,
        SCRIPT: f"<script>{script}</script>",
        "<!--data-->": data,
    }
    rest, pieces = (PAGE / "index.html").read_text(encoding="utf-8"), list[str]()
    for mark, text in parts.items():
        before, mark_there, rest = rest.partition(mark)
        assert mark_there, f"index.html has no placeholder {mark}, or it is out of order"
        pieces += [before, text]
    return "".join([*pieces, rest])


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


def _encode_scene(
    scene: Scene, heads: Mapping[str, Sequence[int]], limits: Limits, progress: Callable[[int], None]
) -> tuple[list[tuple[tuple[str, str], EncodedTensor]], SceneJson]:
    """The encoded blocks by attention and kind, those that are shown first in front, and the scene."""
    pixels = max(1, math.isqrt(limits.cells // max(1, count_heads([scene]))))
    limits = limits._replace(pixels=min(limits.pixels, pixels))
    maps, exact = scene.maps, _select_exact_heads(scene, heads, limits)
    description = scene.to_json(pixels=limits.pixels)
    for attention in description["attentions"]:
        for head in attention["heads"]:
            head["exact"] = head["number"] in exact[attention["name"]]
    complete = all(len(exact[name]) == len(attention.sight.heads) for name, attention in maps.items())
    description["live"], description["exact"] = False, complete
    if not complete:
        heads_inside = sum(map(len, exact.values()))
        phrase = "chosenOnly" if heads_inside else "mapsOnly"
        description["notes"].append({"say": phrase, "pixels": limits.pixels, "chosen": heads_inside})
    cells = sum(len(exact[name]) * math.prod(attention.counts) for name, attention in maps.items())
    levels, first = choose_levels(_sample_rows(maps, exact), cells, PRECISION_BYTES), description["start"]["name"]
    entries = sum(len(attention.sight.heads) * max(attention.counts) for attention in maps.values())
    blocks: dict[str, list[tuple[str, EncodedTensor]]] = {}

    def encode(name: str) -> None:
        room = limits.entries // max(1, entries)
        blocks[name] = list(_encode_attention(maps[name], exact[name], levels, limits.pixels, room))
        progress(len(maps[name].sight.heads))

    run_in_threads(encode, list(maps))
    every = [((name, kind), block) for name in maps for kind, block in blocks[name]]
    return sorted(every, key=lambda block: (block[0][0] != first, block[0][1] != "thumbs")), description


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
    longest = max((max(attention.counts) for attention in maps.values()), default=0)
    if _count_weights(scene) <= (limits.short_weights if longest <= limits.tokens else limits.weights):
        return {name: list(attention.sight.heads) if attention.exact else [] for name, attention in maps.items()}
    return {name: sorted(heads.get(name, ())) for name in maps}


def _sample_rows(maps: Mapping[str, AttentionMap], exact: Mapping[str, Sequence[int]]) -> Float[Tensor, "rows keys"]:
    """Rows from all over those heads, of the attentions with the most keys."""
    keys = max((maps[name].counts[1] for name, heads in exact.items() if heads), default=0)
    sources = [(maps[name], head) for name, heads in exact.items() for head in heads if maps[name].counts[1] == keys]
    rows = list[Tensor]()
    for number in range(SAMPLED_ROWS if keys else 0):
        attention, head = sources[number * len(sources) // SAMPLED_ROWS]
        row = number * 89 % SAMPLED_ROWS * attention.counts[0] // SAMPLED_ROWS
        weights = attention.compute_row(head, attention.first[0] + row).weights if attention.counts[0] else None
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
        hidden = is_hidden(weights)
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
    return sum(len(attention.sight.heads) * math.prod(attention.counts) for attention in scene.maps.values())
