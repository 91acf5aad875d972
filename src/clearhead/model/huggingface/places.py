"""Place: where one of our parameters lies in a Hugging Face checkpoint, the same for reading and writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clearhead.model.config import ModelConfig

Layout = Literal["same", "turned", "row"]


@dataclass(frozen=True)
class Place:
    """One of our parameters and the tensors that it is made of, one below the other.

    Without `theirs` there is no such tensor: the parameter is zero. `rows` says how many each of several
    contributes. `copies` are other names of the same tensor, where weights are tied. `turned` matrices have
    their inputs first (GPT-2), a `row` is a vector with an axis too many. The first `skipped` rows of a table
    are left out (RoBERTa's positions). `features` is the axis that carries the model's width.
    """

    ours: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...] = ()
    copies: tuple[str, ...] = ()
    layout: Layout = "same"
    skipped: int = 0
    features: int | None = None

    def pieces(self, shape: Sequence[int]) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """For each of theirs: its name, its rows in ours, and the shape that it must have."""
        start = 0
        rows = self.rows or tuple(shape[0] for _ in self.theirs)
        for name, count in zip(self.theirs, rows, strict=True):
            theirs: tuple[int, ...] = (count + self.skipped, *shape[1:])
            if self.layout == "turned":
                theirs = theirs[::-1]
            yield name, slice(start, start + count), (1, *theirs) if self.layout == "row" else theirs
            start += count

    def ours_of(self, piece: Tensor, order: Tensor | None) -> Tensor:
        """Their tensor as rows of ours, its features in our order."""
        piece = piece.T if self.layout == "turned" else piece[0] if self.layout == "row" else piece[self.skipped :]
        if order is None or self.features is None:
            return piece
        return piece.index_select(self.features, order)

    def theirs_of(self, rows: Tensor, order: Tensor | None) -> Tensor:
        """Rows of ours as their tensor: the way back, into memory of its own."""
        assert not self.skipped, "nobody writes tables with rows that are left out"
        if order is not None and self.features is not None:
            rows = rows.index_select(self.features, order.argsort())
        rows = rows.T if self.layout == "turned" else rows[None] if self.layout == "row" else rows
        return rows.detach().cpu().clone(memory_format=torch.contiguous_format)


def words(theirs: str, *copies: str) -> Place:
    return Place("vocabulary.words.weight", (theirs,), copies=copies, features=1)


def output(theirs: str) -> Place:
    return Place("vocabulary.output.weight", (theirs,), features=1)


def inward(
    ours: str, *theirs: str, rows: tuple[int, ...] = (), bias: bool = True, layout: Layout = "same"
) -> Iterator[Place]:
    """A linear map from the model's features."""
    weights = tuple(f"{name}.weight" for name in theirs)
    yield Place(f"{ours}.weight", weights, rows, layout=layout, features=1)
    if bias:
        yield Place(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), rows)


def outward(ours: str, theirs: str, *, bias: bool = True, layout: Layout = "same") -> Iterator[Place]:
    """A linear map into the model's features."""
    yield Place(f"{ours}.weight", (f"{theirs}.weight",), layout=layout, features=0)
    if bias:
        yield Place(f"{ours}.bias", (f"{theirs}.bias",), features=0)


def norm(ours: str, theirs: str, *, bias: bool = True) -> Iterator[Place]:
    yield Place(f"{ours}.weight", (f"{theirs}.weight",), features=0)
    if bias:
        yield Place(f"{ours}.bias", (f"{theirs}.bias",), features=0)


def head_rows(config: ModelConfig) -> tuple[int, int, int]:
    """How many rows of a joint projection are queries, keys and values."""
    head_dim = config.head_dim or config.width // config.heads
    shared = (config.kv_heads or config.heads) * head_dim
    return config.heads * head_dim, shared, shared
