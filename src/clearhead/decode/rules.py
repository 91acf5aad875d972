"""Rules: how long may be written, what must come first, and what may not come next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.decode.writer import Writer
from clearhead.errors import DecodeError

Prefixes = Sequence[Sequence[int]]


class Rules:
    """What the rows of a writer may write.

    - `max_length`: the most tokens, the end included; one number, or one for each row.
    - `prefix`: for each row the tokens that it must write first.
    - `no_repeat_ngram=3`: no three tokens in a row come twice; 0 allows everything.
    - `forbidden`: tokens never written, except in a prefix.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        start: int | None,
        end: int,
        max_length: int | Sequence[int],
        prefix: Prefixes | None = None,
        no_repeat_ngram: int = 0,
        forbidden: Sequence[int] = (),
    ) -> None:
        self.end, self.no_repeat_ngram = end, no_repeat_ngram
        self.limits = _limits(max_length, writer.inputs)
        self.prefix = [] if prefix is None else [list(tokens) for tokens in prefix]
        self.forbidden = torch.tensor(list(forbidden), dtype=torch.long, device=writer.device)
        self._check(writer, start)

    def _check(self, writer: Writer, start: int | None) -> None:
        named = {"start": [] if start is None else [start], "end": [self.end], "forbidden": self.forbidden.tolist()}
        for name, tokens in (*named.items(), *_named(self.prefix)):
            for token in tokens:
                if not 0 <= token < writer.vocabulary:
                    last = writer.vocabulary - 1
                    raise DecodeError(f"{name} holds token {token}, but the model's tokens go from 0 to {last}")
        if self.end in self.forbidden:
            raise DecodeError(f"the end, token {self.end}, is forbidden: nothing could ever be finished")
        if self.no_repeat_ngram < 0:
            raise DecodeError(f"no_repeat_ngram must be 0 (off) or more, got {self.no_repeat_ngram}")
        if self.prefix and len(self.prefix) != writer.inputs:
            raise DecodeError(
                f"{len(self.prefix)} prefixes for {writer.inputs} rows; give each row one, if an empty one"
            )
        for (name, tokens), limit in zip(_named(self.prefix), self.limits, strict=False):
            if len(tokens) > limit:
                raise DecodeError(f"{name} has {len(tokens)} tokens, but max_length is {limit}; raise it")
            if self.end in tokens:
                raise DecodeError(f"{name} holds the end, token {self.end}, after which nothing is written")
        writer.check_room(max(self.limits, default=1), start)

    def bar(self, logits: Tensor, written: Tensor, rows: Sequence[int]) -> None:
        """Sets to -inf what may not be written next.

        `logits` are `(rows, beams, vocabulary)`, `written` are `(rows, beams, tokens)`, and `rows` says which of
        the writer's first rows these are.
        """
        place = written.shape[-1]
        forced = [(row, self.prefix[number][place]) for row, number in self._forced(rows, place)]
        kept = [logits[row, :, token].clone() for row, token in forced]
        if len(self.forbidden):
            logits[..., self.forbidden] = -math.inf
        if 0 < self.no_repeat_ngram <= place:
            logits.masked_fill_(self._repeating(written, logits.shape[-1]), -math.inf)
        for (row, token), score in zip(forced, kept, strict=True):
            logits[row] = -math.inf
            logits[row, :, token] = score

    def _forced(self, rows: Sequence[int], place: int) -> list[tuple[int, int]]:
        """Rows of the step, and their numbers, that are still within their prefix."""
        if not self.prefix:
            return []
        return [(row, number) for row, number in enumerate(rows) if place < len(self.prefix[number])]

    def _repeating(self, written: Tensor, vocabulary: int) -> Tensor:
        """Which tokens would complete an n-gram that has been written before."""
        grams = written.unfold(-1, self.no_repeat_ngram, 1)  # (rows, beams, places, n)
        tail = written[..., written.shape[-1] - self.no_repeat_ngram + 1 :]
        again = (grams[..., :-1] == tail[..., None, :]).all(-1)
        found = torch.zeros(*written.shape[:2], vocabulary + 1, dtype=torch.bool, device=written.device)
        found.scatter_(-1, grams[..., -1].masked_fill(~again, vocabulary), True)  # what is free goes past the end
        return found[..., :-1]


def _limits(max_length: int | Sequence[int], rows: int) -> list[int]:
    limits = [max_length] * rows if isinstance(max_length, int) else [int(limit) for limit in max_length]
    if len(limits) != rows:
        raise DecodeError(f"max_length has {len(limits)} numbers for {rows} rows; give one, or one for each row")
    if any(limit < 1 for limit in limits):
        raise DecodeError(f"max_length must be at least 1, since the end counts too, got {min(limits)}")
    return limits


def _named(prefixes: Prefixes) -> list[tuple[str, Sequence[int]]]:
    return [(f"the prefix of row {row}", tokens) for row, tokens in enumerate(prefixes)]
