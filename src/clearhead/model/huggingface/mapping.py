"""Mapping of our parameters to the tensors of a Hugging Face checkpoint, the same for reading and writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.model.config import ModelConfig
from clearhead.model.huggingface.config_json import HuggingFaceConfig
from clearhead.model.transformer import Decoder, Encoder, EncoderDecoder

Layout = Literal["same", "transposed", "row"]


@dataclass(frozen=True)
class ParameterMapping:
    """One of our parameters, and the checkpoint's tensors that are stacked (along axis 0) to make it.

    Without `theirs` there is no such tensor: the parameter is zero.
    """

    ours: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...] = ()  # of each of several tensors
    copies: tuple[str, ...] = ()  # other names of the same tensor, where weights are tied
    layout: Layout = "same"  # transposed: a matrix with its inputs first (GPT-2); row: a vector with one more axis
    skipped: int = 0  # first rows of a table that are left out (RoBERTa's positions)
    features: int | None = None  # the axis of the model's width

    def pieces(self, shape: Sequence[int]) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """For each of their tensors: its name, its rows in our parameter, and the shape that it must have."""
        start = 0
        rows = self.rows or tuple(shape[0] for _ in self.theirs)
        for name, count in zip(self.theirs, rows, strict=True):
            theirs: tuple[int, ...] = (count + self.skipped, *shape[1:])
            if self.layout == "transposed":
                theirs = theirs[::-1]
            yield name, slice(start, start + count), (1, *theirs) if self.layout == "row" else theirs
            start += count

    def to_ours(self, piece: Float[Tensor, "..."], order: Int[Tensor, " width"] | None) -> Float[Tensor, "..."]:
        """Their tensor as rows of our parameter, its features in our order."""
        piece = piece.T if self.layout == "transposed" else piece[0] if self.layout == "row" else piece[self.skipped :]
        if order is None or self.features is None:
            return piece
        return piece.index_select(self.features, order)

    def to_theirs(self, rows: Float[Tensor, "..."], order: Int[Tensor, " width"] | None) -> Float[Tensor, "..."]:
        """Rows of our parameter as their tensor, copied: the inverse of `to_ours`."""
        assert not self.skipped, "tables with skipped rows are only read"
        rows = rows.detach().cpu()
        if order is not None and self.features is not None:
            rows = rows.index_select(self.features, order.argsort())
        rows = rows.T if self.layout == "transposed" else rows[None] if self.layout == "row" else rows
        return rows.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class CheckpointMapping:
    """The model to build from a checkpoint, and the mapping of all its parameters."""

    kind: type[Encoder] | type[Decoder] | type[EncoderDecoder]
    config: ModelConfig
    parameters: Iterable[ParameterMapping]
    trunk: str  # prefix of the model's own tensors; all others belong to task heads
    harmless: str  # pattern of names, without trunk, that are ignored without a warning
    order: Callable[[int], Int[Tensor, " width"]] | None = None  # for a width, their features in our order


@dataclass(frozen=True)
class CheckpointForm:
    """What a model is written as: its config.json, and `read`, which maps such a checkpoint to one of our models."""

    format: str
    config: ModelConfig  # resolved, with what the format adds
    settings: dict[str, Any]  # of config.json
    names: frozenset[str]  # of some tensors, enough for `read` to tell variants of the format apart
    read: Callable[[HuggingFaceConfig, frozenset[str]], CheckpointMapping]


def find_trunk(names: frozenset[str], prefix: str) -> str:
    """The prefix, if a model with a task head was saved; an empty string, if only the model was."""
    return prefix if any(name.startswith(prefix) for name in names) else ""


def words(theirs: str, *copies: str) -> ParameterMapping:
    return ParameterMapping("vocabulary.words.weight", (theirs,), copies=copies, features=1)


def output(theirs: str) -> ParameterMapping:
    return ParameterMapping("vocabulary.output.weight", (theirs,), features=1)


def linear_in(
    ours: str, *theirs: str, rows: tuple[int, ...] = (), bias: bool = True, layout: Layout = "same"
) -> Iterator[ParameterMapping]:
    """Maps a linear layer whose inputs are the model's features."""
    weights = tuple(f"{name}.weight" for name in theirs)
    yield ParameterMapping(f"{ours}.weight", weights, rows, layout=layout, features=1)
    if bias:
        yield ParameterMapping(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), rows)


def linear_out(ours: str, theirs: str, *, bias: bool = True, layout: Layout = "same") -> Iterator[ParameterMapping]:
    """Maps a linear layer whose outputs are the model's features."""
    yield ParameterMapping(f"{ours}.weight", (f"{theirs}.weight",), layout=layout, features=0)
    if bias:
        yield ParameterMapping(f"{ours}.bias", (f"{theirs}.bias",), features=0)


norm = linear_out  # whose weight and bias have one number for each of the model's features, too


def count_head_rows(config: ModelConfig) -> tuple[int, int, int]:
    """How many rows of a joint projection are queries, keys and values."""
    head_dim = config.head_dim or config.width // config.heads
    shared = (config.kv_heads or config.heads) * head_dim
    return config.heads * head_dim, shared, shared
