"""Greedy search, and the loop without beams that sampling and streaming share: one token per row and step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.rules import PrefixedRuleOptions, Rules
from clearhead.decode.writer import Hypothesis, Writer, select_active
from clearhead.errors import DecodeError
from clearhead.model.small_passes import lock_steps, pass_lock

# (logits (rows, vocabulary), indices of these rows among the inputs, tokens decoded so far) -> one token per row
TokenChooser = Callable[[Tensor, list[int], int], Tensor]


class Step(NamedTuple):
    """One decoding step of the rows that are not finished: their indices, tokens and log-probabilities."""

    rows: list[int]
    tokens: list[int]
    log_probabilities: list[float]


def greedy(writer: Writer, **options: Unpack[PrefixedRuleOptions]) -> list[Hypothesis]:
    """For each row, the hypothesis that takes the most probable token at every step.

    `Rules` explains the options: `start`, `end`, `max_length`, `prefix`, `no_repeat_ngram`, `forbidden`. `score` is
    the mean log-probability of a token.

    >>> import torch
    >>> from clearhead import EncoderDecoder, ModelConfig
    >>> model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11))
    >>> writer = Writer.translating(model, torch.tensor([[3, 4, 5]]), [3])
    >>> greedy(writer, start=1, end=2, max_length=5, prefix=[[7, 8]])[0].tokens[:2]
    [7, 8]
    """
    rules = Rules(writer, **options)
    return collect_hypotheses(writer, decode_steps(writer, rules, choose_likeliest), rules.end)


def choose_likeliest(logits: Float[Tensor, "rows vocabulary"], rows: list[int], length: int) -> Int[Tensor, " rows"]:
    """The token with the largest logit of each row."""
    return logits.argmax(-1)


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
        words, scores = tokens.tolist(), gains.tolist()
        if not all(map(math.isfinite, scores)):
            raise DecodeError("the model's logits are NaN or infinite; check its weights and its input")
        alive = [index for index, done in enumerate(over) if not done]
        for index in alive:
            over[index] = words[index] == rules.end or written.shape[1] >= rules.limits[rows[index]]
        yield Step(*([values[index] for index in alive] for values in (rows, words, scores)))
        if all(over):
            return
        if active := select_active(over):
            indices = torch.tensor(active, device=writer.device)
            writer.select_beams(indices[:, None], indices)
            tokens, written, rows = tokens[indices], written[indices], [rows[index] for index in active]
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
