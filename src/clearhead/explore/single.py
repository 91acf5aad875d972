"""Single: a scene as one HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from clearhead.errors import ConfigError, RecordError
from clearhead.explore.joining import joined
from clearhead.explore.packing import Packed, as_text, levels_for, pack_bytes, pack_keys, pack_numbers, pack_weights
from clearhead.explore.panorama import Panorama
from clearhead.explore.scene import Scene

PAGE = Path(__file__).parent / "page"
GENERATOR = b'<meta name="generator" content="clearhead">'  # in the first bytes of every page
SCRIPT, STYLE = '<script type="module" src="app.js"></script>', '<link rel="stylesheet" href="style.css">'
MAP_LEVELS, TOP_LEVELS = 4000, 10000
ROOM = 2_000_000  # bytes that are well spent on digits nobody asked for
PLAIN = 2_200_000  # bytes that go as base64; more go denser, as text that only a browser can read


VIEWS = 64  # of one record that a file holds, at most


class Limits(NamedTuple):
    """How much goes into a page."""

    short: int  # tokens up to which it has every weight
    whole: int  # weights that it has all of, if there are no more
    pixels: int  # of its maps
    entries: int  # numbers for each query or key of all heads together, such as top keys


FILE = Limits(512, 40_000_000, 256, 6_000_000)
NOTEBOOK = Limits(128, 4_000_000, 128, 500_000)


def page(
    scene: Scene,
    *,
    heads: Mapping[str, Sequence[int]] | None = None,
    coding: str | None = None,
    limits: Limits = FILE,
    others: Sequence[Scene] = (),
) -> str:
    """The file. Up to 512 tokens it holds every weight within ±0.0005, for longer texts maps and the top keys.

    Of `heads`, by the name of their attention, it holds every weight in any case. `others` of the same record can be
    chosen in the page.
    """
    scenes = [scene, *others]
    packed = [_packed(scene, heads or {}, limits), *(_packed(one, {}, limits) for one in others)]
    if len(scenes) < len(scene.places):
        packed[0][1]["notes"].append({"say": "someViews", "held": len(scenes), "views": len(scene.places)})
    size = sum(len(block.data) for blocks, _ in packed for _, block in blocks)
    coding = coding or ("base64" if size <= PLAIN else "seven")
    told, texts = list[str](), list[str]()
    for view, (blocks, description) in enumerate(packed):
        numbers: dict[str, dict[str, Any]] = {name: {} for name in scenes[view].panoramas}
        for (name, kind), block in blocks:
            numbers[name][kind] = {"id": f"data-{len(texts)}", "coding": coding, **block.how}
            texts.append(_script(f"data-{len(texts)}", as_text(block.data, coding), "application/octet-stream"))
        labels = [one.label(one.view) for one in scenes]
        told.append(as_json({**description, "data": numbers, "views": labels, "view": view}))
    later = [_script(f"scene-{view}", text) for view, text in enumerate(told) if view]
    return _assembled(_script("scene", told[0]), [*texts, *later])


def check_page_place(path: Path) -> None:
    """Raises ConfigError where no page can be written, or where it would replace a file that is no page of clearhead's.

    An empty file may be replaced, and a device or a pipe may be written to.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file in it, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} to write {path.name} into; make it first")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if GENERATOR not in file.read(4096):
                raise ConfigError(f"{path} exists and is no page of clearhead's; name another file, or remove it first")


def together(scene: Scene, limits: Limits = FILE) -> list[Scene]:
    """The other views of its record, as many as one file can hold every weight of."""
    found, room = list[Scene](), limits.whole - _cells(scene)
    for view in range(len(scene.places)):
        other = scene.beside(view)
        room -= 0 if view == scene.view else _cells(other)
        if room < 0 or len(found) + 1 == VIEWS:
            break
        found += [] if view == scene.view else [other]
    return found


def notebook(scene: Scene, height: int = 640) -> str:
    """The page in a frame of its own, which can reach neither the notebook nor the network."""
    inside = html.escape(page(scene, coding="base64", limits=NOTEBOOK), quote=True)
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{inside}" title="clearhead" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def as_json(content: Any) -> str:
    """JSON that can stand inside HTML: a token may spell "</script>", and half a surrogate pair is no UTF-8.

    >>> as_json({"token": "</script>"})
    '{"token": "\\\\u003c/script>"}'
    """
    return json.dumps(content, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def _script(name: str, content: str, kind: str = "application/json") -> str:
    return f'<script type="{kind}" id="{name}">{content}</script>\n'


def _assembled(scene: str, blocks: Sequence[str]) -> str:
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    script = joined(PAGE, "app.js")
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
    rest, whole = (PAGE / "index.html").read_text(encoding="utf-8"), []
    for mark, text in parts.items():
        before, found, rest = rest.partition(mark)
        if not found:
            raise AssertionError(f"index.html has no {mark} where it is wanted")
        whole += [before, text]
    return "".join([*whole, rest])


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


def _packed(
    scene: Scene, heads: Mapping[str, Sequence[int]], limits: Limits
) -> tuple[list[tuple[tuple[str, str], Packed]], dict[str, Any]]:
    """All blocks, what is shown first in front, and the scene that tells of them."""
    panoramas, whole = scene.panoramas, _whole(scene, heads, limits)
    description = scene.to_dict(pixels=limits.pixels)
    for one in description["attentions"]:
        for head in one["heads"]:
            head["exact"] = head["number"] in whole[one["name"]]
    complete = all(len(whole[name]) == len(one.sight.heads) for name, one in panoramas.items())
    description |= {"live": False, "exact": complete}
    description["notes"] = [*description["notes"], *_notes(complete, whole, limits)]
    cells = sum(len(whole[name]) * one.counts[0] * one.counts[1] for name, one in panoramas.items())
    keys = sum(one.counts[1] for one in panoramas.values()) / max(len(panoramas), 1)
    levels, first = levels_for(cells, keys, ROOM), description["start"]["name"]
    room = limits.entries // max(1, sum(len(one.sight.heads) * max(one.counts) for one in panoramas.values()))
    blocks = [
        ((name, kind), packed)
        for name, panorama in panoramas.items()
        for kind, packed in _attention(panorama, whole[name], levels, limits.pixels, room)
    ]
    return sorted(blocks, key=lambda block: (block[0][0] != first, block[0][1] != "thumbs")), description


def _whole(scene: Scene, heads: Mapping[str, Sequence[int]], limits: Limits) -> dict[str, list[int]]:
    """The heads of each attention that the file holds every weight of."""
    panoramas = scene.panoramas
    for name, numbers in heads.items():
        for head in numbers:
            scene.panorama(name).sight.place_of(head)
        if numbers and not panoramas[name].exact:
            raise RecordError(
                f"exact weights of {name!r} cannot be had: its q and k were not kept; keep='qk' keeps them"
            )
    longest = max((max(one.counts) for one in panoramas.values()), default=0)
    if longest <= limits.short or _cells(scene) <= limits.whole:
        return {name: list(one.sight.heads) if one.exact else [] for name, one in panoramas.items()}
    return {name: sorted(heads.get(name, ())) for name in panoramas}


def _attention(
    panorama: Panorama, exact: list[int], levels: int, pixels: int, room: int
) -> Iterator[tuple[str, Packed]]:
    """What the file holds of one attention; there is `room` for so many numbers a query or key."""
    sight, sample = panorama.sight, panorama.sample
    yield "thumbs", pack_bytes(panorama.thumbs())
    if exact:
        packed = pack_weights(torch.stack([panorama.everything(head) for head in exact]), levels)
        yield "weights", packed._replace(how={**packed.how, "heads": exact})
    if sight.norms is not None and room:
        yield "norms", pack_numbers(sight.norms[sample])
    if len(exact) == len(sight.heads):
        return
    grids = [panorama.map(head, pixels) for head in sight.heads]
    most = float(grids[0].blocks[0])  # every query gives 1 in all: a pixel holds at most as much as it has queries
    yield "map", pack_weights(torch.stack([grid.sums for grid in grids]), MAP_LEVELS, [most] * len(grids))
    if room:
        yield "received", pack_numbers(torch.stack([panorama.received(head) for head in sight.heads]))
    top = min(sight.top_keys.shape[-1], room)
    if panorama.step == 1 and top:
        yield "top_keys", pack_keys(sight.top_keys[sample, :, :, :top])
        yield "top_weights", pack_weights(sight.top_weights[sample, :, :, :top], TOP_LEVELS)


def _cells(scene: Scene) -> int:
    """How many weights there are."""
    return sum(len(one.sight.heads) * one.counts[0] * one.counts[1] for one in scene.panoramas.values())


def _notes(complete: bool, whole: Mapping[str, Sequence[int]], limits: Limits) -> list[dict[str, Any]]:
    """What is not in the file, as the page says it in its reader's language."""
    if complete:
        return []
    chosen = sum(map(len, whole.values()))
    return [{"say": "chosenOnly" if chosen else "mapsOnly", "pixels": limits.pixels, "chosen": chosen}]
