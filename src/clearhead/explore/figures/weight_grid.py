"""WeightGrid: one head's weights as a grid, from recorded attention or a tensor, with names and texts of its axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import RecordError, ShapeError
from clearhead.explore.scene import split_name
from clearhead.explore.token_axis import display_tokens, is_punctuation
from clearhead.lens import Forward, Record, Sight
from clearhead.lens.measures.definition import choose_blocks, sum_blocks

Texts = Sequence[str | None] | None
Source = Sight | Float[Tensor, "*heads queries keys"]
MAX_CELLS = 512  # a side: more cannot be distinguished in a figure
MAX_LABELS = 80  # tokens with readable labels


@dataclass(frozen=True)
class GridAxis:
    """The tokens along one side: their positions, how many share a cell, and their texts if known."""

    positions: Sequence[int]
    block: int = 1
    texts: Texts = None

    @property
    def cells(self) -> int:
        return -(-len(self.positions) // self.block)

    @property
    def labelled(self) -> bool:
        """Whether there is room for the label of each token."""
        return self.block == 1 and len(self.positions) <= MAX_LABELS


@dataclass(frozen=True)
class WeightGrid:
    """Weights to draw. A cell of several tokens is the mean over its queries of the sum over its keys."""

    values: NDArray[np.float64]
    queries: GridAxis
    keys: GridAxis

    @property
    def exact(self) -> bool:
        return self.queries.block == self.keys.block == 1


def make_grid(
    source: Source,
    head: int | None = None,
    *,
    sample: int = 0,
    queries: Texts = None,
    keys: Texts = None,
    named_by: str | None = None,
    most: int = MAX_CELLS,
) -> WeightGrid:
    """The weights of a head, by default the mean of all heads, in at most `most` cells a side.

    `queries` and `keys` are the texts of the tokens if the source does not know them; a decoder's rows are `named_by`
    the token "written" or "read", as `get_query_texts` does.
    """
    if isinstance(source, Sight):
        sums, positions, blocks = _read_sight(source, head, sample)
        count = source.keys
        queries = get_query_texts(source, sample, named_by) if queries is None else queries
        keys = get_key_texts(source, sample) if keys is None else keys
    else:
        sums = _select_weights(source, head, sample)
        positions, count, blocks = list(range(sums.shape[0])), sums.shape[1], (1, 1)
        queries = keys if queries is None and len(positions) == count else queries
    if not positions or not count:
        raise ShapeError(f"there is nothing to draw: {len(positions)} queries, {count} keys")
    times = choose_blocks(sums.shape[0], sums.shape[1], most)
    sums, blocks = sum_blocks(sum_blocks(sums, times[0], 0), times[1], 1), (blocks[0] * times[0], blocks[1] * times[1])
    return WeightGrid(
        _average_rows(sums, len(positions), blocks[0]),
        GridAxis(positions, blocks[0], _cut_texts(queries, len(positions), "queries")),
        GridAxis(range(count), blocks[1], _cut_texts(keys, count, "keys")),
    )


def describe_heads(source: Source, head: int | None) -> str:
    """A title: the name of the attention, and the head that is drawn; "" for a tensor without heads."""
    heads = "mean of all heads" if head is None else f"head {head}"
    if isinstance(source, Sight):
        return f"{source.name}, {heads}"
    return heads.capitalize() if source.ndim > 2 else ""


def _read_sight(
    sight: Sight, head: int | None, sample: int
) -> tuple[Float[Tensor, "rows columns"], list[int], tuple[int, int]]:
    """The summed weights, the positions of the queries, and how many queries and keys share a cell."""
    positions, heads = sight.queries.tolist(), sight.heads if head is None else (head,)
    if sight.kept is not None and sight.blocks != (1, 1) and max(len(positions), sight.keys) <= MAX_CELLS:
        return torch.stack([sight.weights(sample, number).double() for number in heads]).mean(0), positions, (1, 1)
    if sight.blocks == (0, 0):
        raise RecordError(f"no map of {sight.name!r} was measured; watch(…, pixels=256) measures one")
    if not 0 <= sample < sight.map.shape[0]:
        raise RecordError(f"{sight.name!r} has {sight.map.shape[0]} samples, numbered from 0; there is no {sample!r}")
    return sight.map[sample, [sight.place_of(number) for number in heads]].double().mean(0), positions, sight.blocks


def _select_weights(
    weights: Float[Tensor, "*heads queries keys"], head: int | None, sample: int
) -> Float[Tensor, "queries keys"]:
    """The weights (queries, keys) of one head and sample, or the mean of all heads."""
    if not 2 <= weights.ndim <= 4:
        raise ShapeError(
            "weights must be (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys), "
            f"got {tuple(weights.shape)}"
        )
    if weights.ndim == 4:
        _check_number(sample, weights.shape[0], "samples")
        weights = weights[sample]
    if weights.ndim == 3:
        if head is not None:
            _check_number(head, weights.shape[0], "heads")
        weights = weights.mean(0) if head is None else weights[head]
    return weights.detach().cpu().double()


def _average_rows(sums: Float[Tensor, "rows columns"], queries: int, block: int) -> NDArray[np.float64]:
    """Means over the queries of each block from sums; the last block may be short."""
    starts = torch.arange(0, queries, block)
    sizes = (queries - starts).clamp(max=block)
    shares: NDArray[np.float64] = (sums / sizes[:, None]).numpy()
    return shares


def _cut_texts(texts: Texts, count: int, what: str) -> Texts:
    if texts is not None and len(texts) < count:
        raise ShapeError(f"{len(texts)} tokens are given for {count} {what}; give one for each")
    return texts if texts is None else texts[:count]


def _check_number(number: int, count: int, what: str) -> None:
    if not 0 <= number < count:
        raise ShapeError(f"there are {count} {what}, numbered from 0; there is no {number!r}")


def group_by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Attention names by kind, in their order: {"encoder self": ["encoder.0.self", …], …}."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(split_name(name)[0], []).append(name)
    return kinds


def find_punctuation(texts: Texts) -> list[bool]:
    return list(map(is_punctuation, display_tokens([text or "" for text in texts or ()]).shown))


def get_call(source: Record | Forward) -> Forward:
    """The only call of a record; RecordError if it has several or none."""
    if isinstance(source, Record) and len(source.calls) != 1:
        raise RecordError(f"the record has {len(source.calls)} calls; pass one of them, such as record.calls[0]")
    return source.calls[0] if isinstance(source, Record) else source


def get_key_texts(sight: Sight, sample: int) -> Texts:
    """The texts of the keys; None if they are not known."""
    return _texts_or_none(sight.texts(sample))


def get_query_texts(sight: Sight, sample: int, named_by: str | None = None) -> Texts:
    """The texts of the measured queries.

    A decoder's rows are named by the token "written" there or the one "read" before; by default, cross-attention by the
    token written and self-attention by the token read.
    """
    positions, written = sight.queries.tolist(), get_written_texts(sight, named_by)
    if written is not None:
        return [written[position] if position < len(written) else None for position in positions]
    if sight.forward is None:
        return None
    texts = sight.texts(sample)
    if sight.cross:
        texts = sight.forward.texts(sight.forward.kind_of(sight.name, False), sample, sight.inputs)
    return _texts_or_none([texts[position] if position < len(texts) else None for position in positions])


def get_written_texts(sight: Sight, named_by: str | None = None) -> Texts:
    """The tokens that a decoder writes, if its rows are named by them and they are known; else None."""
    in_encoder = not sight.cross and "encoder" in sight.name.split(".")
    if sight.forward is None or in_encoder or (named_by or ("written" if sight.cross else "read")) == "read":
        return None
    return sight.forward.about.writes or None


def _texts_or_none(texts: list[str | None]) -> Texts:
    return texts if any(text is not None for text in texts) else None
