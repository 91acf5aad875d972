"""One token after the other: what every way of writing without beams shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.decode.hypotheses import Hypothesis
from clearhead.decode.rules import Rules
from clearhead.decode.writer import Writer, staying
from clearhead.errors import DecodeError

# From scores (rows, vocabulary), the numbers of these rows and how many tokens each has: one token each.
Choice = Callable[[Tensor, list[int], int], Tensor]


class Step(NamedTuple):
    """What some rows wrote: the number of each row, its token, and the log-probability of that."""

    rows: list[int]
    tokens: list[int]
    log_probabilities: list[float]


def steps(writer: Writer, rules: Rules, start: int | None, choose: Choice) -> Iterator[Step]:
    """Writes all rows to their end, and gives each step as it is made."""
    if not writer.inputs:
        return
    logits = writer.begin(start)
    rows = list(range(writer.rows))
    over = [False] * len(rows)
    written = torch.zeros(len(rows), 0, dtype=torch.long, device=writer.device)
    while True:
        tokens, gains = _chosen(logits, written, rows, rules, choose)
        written = torch.cat([written, tokens[:, None]], dim=1)
        alive = [place for place, done in enumerate(over) if not done]
        made = _step(alive, rows, tokens, gains)
        for place, token in zip(alive, made.tokens, strict=True):
            over[place] = token == rules.end or written.shape[1] >= rules.limits[rows[place]]
        yield made
        if all(over):
            return
        if kept := staying(over):
            places = torch.tensor(kept, device=writer.device)
            writer.follow(places[:, None], places)
            tokens, written, rows = tokens[places], written[places], [rows[place] for place in kept]
            over = [False] * len(rows)
        logits = writer.advance(tokens)


def gathered(writer: Writer, made: Iterator[Step], end: int) -> list[Hypothesis]:
    """All steps as one hypothesis for each row."""
    written: list[list[int]] = [[] for _ in range(writer.inputs)]
    totals = [0.0] * len(written)
    for step in made:
        for row, token, gain in zip(*step, strict=True):
            written[row].append(token)
            totals[row] += gain
    return [Hypothesis.of(tokens, total, end) for tokens, total in zip(written, totals, strict=True)]


@torch.inference_mode()
def _chosen(logits: Tensor, written: Tensor, rows: list[int], rules: Rules, choose: Choice) -> tuple[Tensor, Tensor]:
    """The next token of each row and its log-probability, which does not mind what the rules forbid."""
    normaliser = logits.logsumexp(-1)
    rules.bar(logits[:, None], written[:, None], rows)
    tokens = choose(logits, rows, written.shape[1])
    return tokens, logits.gather(1, tokens[:, None])[:, 0] - normaliser


def _step(alive: list[int], rows: list[int], tokens: Tensor, gains: Tensor) -> Step:
    numbers: list[float] = gains.tolist()
    if not all(map(math.isfinite, numbers)):
        raise DecodeError("the model's scores are not numbers (NaN or infinite); is it trained, and its input sound?")
    words: list[int] = tokens.tolist()
    return Step(
        [rows[place] for place in alive], [words[place] for place in alive], [numbers[place] for place in alive]
    )
