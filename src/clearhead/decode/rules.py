"""Rules: constraints on decoding, such as the maximal length, forced prefixes and forbidden tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Required, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.writer import Writer
from clearhead.errors import DecodeError

Prefixes = Sequence[Sequence[int]]


class RuleOptions(TypedDict, total=False):
    """The keyword arguments of `Rules` that every decoding function takes."""

    end: Required[int]
    max_length: Required[int | Sequence[int]]
    start: int | None
    no_repeat_ngram: int
    forbidden: Sequence[int]


class PrefixedRuleOptions(RuleOptions, total=False):
    """The same with a prefix for each row; `stream` has one row, and so one prefix."""

    prefix: Prefixes | None


class Rules:
    """Which tokens a decoding function may produce.

    - `start`: the token before the first one; None if a prompt stands there.
    - `end`: the token that finishes a row.
    - `max_length`: the most tokens, the end included; one number, or one for each row.
    - `prefix`: for each row the tokens that its output must begin with.
    - `no_repeat_ngram=3`: no three consecutive tokens occur twice; 0 allows everything.
    - `forbidden`: tokens that are never produced, except in a prefix.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        end: int,
        max_length: int | Sequence[int],
        start: int | None = None,
        prefix: Prefixes | None = None,
        no_repeat_ngram: int = 0,
        forbidden: Sequence[int] = (),
    ) -> None:
        self.start, self.end, self.no_repeat_ngram = start, end, no_repeat_ngram
        self.limits = _expand_limits(max_length, writer.inputs)
        self.prefix = [] if prefix is None else [list(tokens) for tokens in prefix]
        self.forbidden = torch.tensor(list(forbidden), dtype=torch.long, device=writer.device)
        self._check(writer)

    def _check(self, writer: Writer) -> None:
        start = [] if self.start is None else [self.start]
        named = {"start": start, "end": [self.end], "forbidden": self.forbidden.tolist()}
        for name, tokens in (*named.items(), *_name_prefixes(self.prefix)):
            for token in tokens:
                if not 0 <= token < writer.vocabulary:
                    last = writer.vocabulary - 1
                    raise DecodeError(f"{name} holds token {token}, but the model's tokens go from 0 to {last}")
        if self.end in self.forbidden:
            raise DecodeError(
                f"the end token {self.end} is in forbidden, so no sequence could end; remove it from forbidden"
            )
        if self.no_repeat_ngram < 0:
            raise DecodeError(f"no_repeat_ngram must be 0 (off) or more, got {self.no_repeat_ngram}")
        if self.prefix and len(self.prefix) != writer.inputs:
            raise DecodeError(f"{len(self.prefix)} prefixes for {writer.inputs} rows; give one per row, [] for none")
        for (name, tokens), limit in zip(_name_prefixes(self.prefix), self.limits, strict=False):
            if len(tokens) > limit:
                raise DecodeError(f"{name} has {len(tokens)} tokens, but max_length is {limit}; raise it")
            if self.end in tokens:
                raise DecodeError(f"{name} contains the end token {self.end}, after which decoding stops; remove it")
        writer.check_positions(max(self.limits, default=1), self.start)

    def apply(
        self,
        logits: Float[Tensor, "rows beams vocabulary"],
        written: Int[Tensor, "rows beams tokens"],
        rows: Sequence[int],
    ) -> None:
        """Sets the logits of tokens that may not come next to -inf, in place.

        `rows` are the indices of these rows among the writer's inputs.
        """
        length = written.shape[-1]
        in_prefix = [(row, self.prefix[number]) for row, number in enumerate(rows) if self.prefix]
        forced = [(row, prefix[length]) for row, prefix in in_prefix if length < len(prefix)]
        forced_scores = [logits[row, :, token].clone() for row, token in forced]
        if len(self.forbidden):
            logits[..., self.forbidden] = -math.inf
        if 0 < self.no_repeat_ngram <= length:
            logits.masked_fill_(self._find_repeats(written, logits.shape[-1]), -math.inf)
        for (row, token), score in zip(forced, forced_scores, strict=True):
            logits[row] = -math.inf
            logits[row, :, token] = score

    def _find_repeats(self, written: Tensor, vocabulary: int) -> Tensor:
        """True for tokens that would repeat an n-gram: (rows, beams, vocabulary)."""
        grams = written.unfold(-1, self.no_repeat_ngram, 1)  # (rows, beams, places, n)
        tail = written[..., written.shape[-1] - self.no_repeat_ngram + 1 :]
        again = (grams[..., :-1] == tail[..., None, :]).all(-1)
        repeated = torch.zeros(*written.shape[:2], vocabulary + 1, dtype=torch.bool, device=written.device)
        repeated.scatter_(-1, grams[..., -1].masked_fill(~again, vocabulary), True)  # the last column takes the rest
        return repeated[..., :-1]


def _expand_limits(max_length: int | Sequence[int], rows: int) -> list[int]:
    limits = [max_length] * rows if isinstance(max_length, int) else [int(limit) for limit in max_length]
    if len(limits) != rows:
        raise DecodeError(f"max_length has {len(limits)} numbers for {rows} rows; give one, or one for each row")
    if any(limit < 1 for limit in limits):
        raise DecodeError(f"max_length must be at least 1, since the end counts too, got {min(limits)}")
    return limits


def _name_prefixes(prefixes: Prefixes) -> list[tuple[str, Sequence[int]]]:
    return [(f"the prefix of row {row}", tokens) for row, tokens in enumerate(prefixes)]
