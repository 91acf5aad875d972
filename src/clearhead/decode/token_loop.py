"""The decoding loop without beams, shared by greedy search, sampling and streaming: one token per row and step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.decode.hypotheses import Hypothesis
from clearhead.decode.rules import Rules
from clearhead.decode.writer import Writer, select_active
from clearhead.errors import DecodeError
from clearhead.model.small_passes import lock_steps, pass_lock

# (logits (rows, vocabulary), indices of these rows among the inputs, tokens decoded so far) -> one token per row
TokenChooser = Callable[[Tensor, list[int], int], Tensor]


class Step(NamedTuple):
    """One decoding step of the rows that are not finished: their indices, tokens and log-probabilities."""

    rows: list[int]
    tokens: list[int]
    log_probabilities: list[float]


def decode_steps(writer: Writer, rules: Rules, choose: TokenChooser) -> Iterator[Step]:
    """Decodes until all rows are finished; yields each step as soon as it is computed."""
    return lock_steps(_compute_steps(writer, rules, choose), pass_lock(writer.model, writer.inputs))


def _compute_steps(writer: Writer, rules: Rules, choose: TokenChooser) -> Iterator[Step]:
    if not writer.inputs:
        return
    logits = writer.begin(rules.start)
    rows = list(range(writer.rows))
    over = [False] * len(rows)
    written = torch.zeros(len(rows), 0, dtype=torch.long, device=writer.device)
    while True:
        tokens, gains = _choose_tokens(writer, logits, written, rows, rules, choose)
        written = torch.cat([written, tokens[:, None]], dim=1)
        alive = [place for place, done in enumerate(over) if not done]
        made = _make_step(alive, rows, tokens, gains)
        for place, token in zip(alive, made.tokens, strict=True):
            over[place] = token == rules.end or written.shape[1] >= rules.limits[rows[place]]
        yield made
        if all(over):
            return
        if kept := select_active(over):
            places = torch.tensor(kept, device=writer.device)
            writer.select_beams(places[:, None], places)
            tokens, written, rows = tokens[places], written[places], [rows[place] for place in kept]
            over = [False] * len(rows)
        logits = writer.advance(tokens)


def collect_hypotheses(writer: Writer, steps: Iterator[Step], end: int) -> list[Hypothesis]:
    """Runs all steps; one hypothesis for each row."""
    written: list[list[int]] = [[] for _ in range(writer.inputs)]
    totals = [0.0] * len(written)
    for step in steps:
        for row, token, gain in zip(*step, strict=True):
            written[row].append(token)
            totals[row] += gain
    return [Hypothesis.of(tokens, total, end) for tokens, total in zip(written, totals, strict=True)]


@torch.inference_mode()
def _choose_tokens(
    writer: Writer, logits: Tensor, written: Tensor, rows: list[int], rules: Rules, choose: TokenChooser
) -> tuple[Tensor, Tensor]:
    """The next token of each row, and its log-probability under the model, before the rules forbid any token."""
    normaliser = writer.normaliser(logits)
    rules.apply(logits[:, None], written[:, None], rows)
    tokens = choose(logits, rows, written.shape[1])
    return tokens, logits.gather(1, tokens[:, None])[:, 0] - normaliser


def _make_step(alive: list[int], rows: list[int], tokens: Tensor, gains: Tensor) -> Step:
    numbers: list[float] = gains.tolist()
    if not all(map(math.isfinite, numbers)):
        raise DecodeError("the model's logits are NaN or infinite; check its weights and its input")
    words: list[int] = tokens.tolist()
    return Step(
        [rows[place] for place in alive], [words[place] for place in alive], [numbers[place] for place in alive]
    )
