"""What the attentions of a Hugging Face model are called: "encoder.0.self", "decoder.3.cross", "vision.encoder.0.self".

The rule reads paths and knows no family. Of "model.decoder.layers.3.encoder_attn" the number says the layer, "decoder"
the stack, "encoder_attn" that it looks at another sequence; the rest is dropped, as long as names stay apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import nn

from clearhead.lens.attention_names import WRAPPERS
from clearhead.lens.huggingface.discovery import attending

CROSS = re.compile(r"cross|\bx_attn|encoder_attn|encoder_attention|encoder_decoder|enc_?dec|src_attn", re.IGNORECASE)
# Words that say nothing: what every model calls its parts.
PLAIN = {"model", "models", "transformer", "layers", "layer", "blocks", "block", "h", "backbone", "base_model"}
SIDES = re.compile(r"^(?:.+_)?(encoder|decoder)(?:_transformer|_model)?$")
TOWER = re.compile(r"_(?:model|tower|encoder|decoder|transformer|backbone|embed|embeddings)$")
SENSES = {"text", "language", "vision", "visual", "image", "audio", "speech", "video", "qformer"}


class Place(NamedTuple):
    """Where an attention stands in a model."""

    path: str
    towers: tuple[str, ...]
    stack: str
    numbers: tuple[str, ...]
    leaf: str
    cross: bool

    def name(self, towers: Sequence[str], *, leaf: bool = False) -> str:
        if not self.numbers:
            return self.path or "attention"
        kind = self.leaf if leaf else "cross" if self.cross else "self"
        return ".".join([*towers, self.stack, *self.numbers, kind])


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Every attention of a Hugging Face model by its name, in the order in which it holds them; {} if there is none."""
    found = {_stripped(path): module for path, module in attending(model).items()}
    places = [_place(path, module, kept) for (path, module), kept in zip(found.items(), _telling(found), strict=True)]
    names = [place.name(()) for place in places]
    senses = [[word for word in place.towers if word in SENSES] for place in places]
    if len({tuple(words) for words in senses}) > 1:
        names = [place.name(words) for place, words in zip(places, senses, strict=True)]
    names = _apart(places, names, [place.name(place.towers) for place in places])
    names = _apart(places, names, [place.name(place.towers, leaf=True) for place in places])
    names = _apart(places, names, [place.path for place in places])
    return dict(zip(names, found.values(), strict=True))


def is_cross(path: str, module: nn.Module) -> bool:
    """Whether this attention looks at another sequence, as far as its names tell."""
    leaf = re.split(r"\.\d+\.", f".{path}")[-1]
    return bool(
        CROSS.search(leaf) or "CrossAttention" in type(module).__name__ or getattr(module, "is_cross_attention", False)
    )


def _stripped(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def _telling(paths: Iterable[str]) -> list[list[int]]:
    """For each path, which of its numbers tell layers apart: T5's "block.3.layer.1" has one, Swin's two."""
    split = [path.split(".") for path in paths]
    patterns = [tuple("#" if part.isdigit() else part for part in parts) for parts in split]
    values: dict[tuple[tuple[str, ...], int], set[str]] = {}
    for parts, pattern in zip(split, patterns, strict=True):
        for position, part in enumerate(parts):
            if part.isdigit():
                values.setdefault((pattern, position), set()).add(part)
    kept = []
    for pattern in patterns:
        numbers = [position for position, part in enumerate(pattern) if part == "#"]
        several = [position for position in numbers if len(values[pattern, position]) > 1]
        kept.append(several or numbers[:1])
    return kept


def _place(path: str, module: nn.Module, kept: list[int]) -> Place:
    parts = path.split(".")
    if not kept:
        return Place(path, (), "", (), path, is_cross(path, module))
    before = [part for part in parts[: kept[-1]] if not part.isdigit()]
    leaf = ".".join(part for part in parts[kept[-1] + 1 :] if not part.isdigit())
    cross, sides = is_cross(path, module), [found[1] for part in before if (found := SIDES.match(part))]
    stack = sides[0] if sides else "decoder" if cross or _looks_back(module) else "encoder"
    towers = [TOWER.sub("", part) for part in before if part not in PLAIN and part not in ("encoder", "decoder")]
    apart = tuple(word for n, word in enumerate(towers) if towers[n - 1 : n] != [word])
    return Place(path, apart, stack, tuple(parts[position] for position in kept), leaf, cross)


def _looks_back(module: nn.Module) -> bool:
    """Whether it is causal: as it says itself, or else as a layer that keeps its keys is."""
    config = getattr(module, "config", None)
    keeps = getattr(config, "use_cache", False) and getattr(module, "layer_idx", None) is not None
    return bool(getattr(module, "is_causal", keeps))


def _apart(places: list[Place], names: list[str], longer: list[str]) -> list[str]:
    """The names, with the longer ones for every stack in which one is taken twice."""
    counts = Counter(names)
    stacks = [(place.towers, place.stack, place.leaf, place.cross) for place in places]
    taken = {stack for stack, name in zip(stacks, names, strict=True) if counts[name] > 1}
    return [long if stack in taken else name for stack, name, long in zip(stacks, names, longer, strict=True)]
