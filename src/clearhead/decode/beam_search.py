"""Beam search: keeps the `beams` most probable partial sequences of each row at every step."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.rules import PrefixedRuleOptions, Rules
from clearhead.decode.writer import Hypothesis, Writer, select_active
from clearhead.errors import DecodeError
from clearhead.model.small_passes import lock_steps, pass_lock

BLOCK = 64  # tokens of the vocabulary whose maximum is taken first


def beam(
    writer: Writer,
    *,
    beams: int = 5,
    best: int = 1,
    length_penalty: float = 1.0,
    **options: Unpack[PrefixedRuleOptions],
) -> list[list[Hypothesis]]:
    """For each row its `best` hypotheses, best first, of a search with `beams`; `Rules` explains the other options.

    Each step extends every beam by every token, and takes the `2 · beams` most probable results. An end among the
    first `beams` of them is kept as a hypothesis. Its score is `log-probability / length**length_penalty`. The most
    probable results without an end are the next beams. A row is finished when `beams` hypotheses are kept, and no beam
    would beat the worst of them if it ended now.

    These are the rules of `generate` in transformers, so that outputs can be compared line by line.
    """
    rules = Rules(writer, **options)
    _check_options(beams, best, length_penalty)
    if beams > writer.vocabulary:  # it would only fill the memory
        raise DecodeError(f"{beams} beams are more than the model has tokens, {writer.vocabulary}; use fewer")
    rows = [_BestHypotheses(beams, length_penalty) for _ in range(writer.inputs)]
    if rows:
        with torch.inference_mode():
            for _ in lock_steps(_search(writer, rules, rows), pass_lock(writer.model, writer.inputs * beams)):
                pass
    if any(not hypotheses.best for hypotheses in rows):
        raise DecodeError("the model's logits are NaN or infinite; check its weights and its input")
    return [hypotheses.best[:best] for hypotheses in rows]


class _BestHypotheses:
    """The best hypotheses of one input so far, best first; of equal ones the earlier comes first."""

    def __init__(self, beams: int, length_penalty: float) -> None:
        self.beams, self.length_penalty = beams, length_penalty
        self.best: list[Hypothesis] = []

    def add(self, hypothesis: Hypothesis) -> None:
        insort(self.best, hypothesis, key=lambda other: -other.score)
        del self.best[self.beams :]

    def is_done(self, score: float, length: int, limit: int) -> bool:
        """Whether the search may stop, when the best beam has this log-probability and length."""
        if length >= limit or score == -math.inf:
            return True
        return len(self.best) == self.beams and score / length**self.length_penalty <= self.best[-1].score


def _search(writer: Writer, rules: Rules, inputs: Sequence[_BestHypotheses]) -> Iterator[None]:
    """Adds hypotheses step by step. Finished inputs leave the batch: `numbers` are the inputs of the rows left."""
    beams, length_penalty = inputs[0].beams, inputs[0].length_penalty
    numbers, over = list(range(writer.inputs)), [False] * writer.inputs
    limits = torch.tensor(rules.limits, device=writer.device)
    logits = writer.begin(rules.start)[:, None]  # (rows, beams, vocabulary): at first one beam
    scores = torch.zeros_like(logits[..., 0])
    written = torch.zeros(*scores.shape, 0, dtype=torch.long, device=writer.device)
    while True:
        offsets = scores - writer.normaliser(logits)
        rules.apply(logits, written, numbers)
        totals, indices = top_continuations(logits, offsets, 2 * beams)
        parents, tokens = indices // logits.shape[2], indices % logits.shape[2]
        written = torch.cat([_gather_beams(written, parents), tokens[..., None]], dim=2)
        length = written.shape[2]
        ended = (tokens == rules.end) | (limits <= length)[:, None]
        finished = ended[:, :beams] & (totals[:, :beams] > -math.inf)
        for row, tokens_of, total in _list_finished(finished, written, totals):
            if not over[row]:
                inputs[numbers[row]].add(Hypothesis.of(tokens_of, total, rules.end, length_penalty))
        going = ended.int().argsort(dim=1, stable=True)[:, :beams]  # the best that did not end come first
        scores = totals.masked_fill(ended, -math.inf).gather(1, going)
        for row, score in enumerate(scores[:, 0].tolist()):
            number = numbers[row]
            over[row] = over[row] or inputs[number].is_done(score, length, rules.limits[number])
        if all(over):
            return
        parents, tokens, written = parents.gather(1, going), tokens.gather(1, going), _gather_beams(written, going)
        parents += torch.arange(len(parents), device=writer.device)[:, None] * logits.shape[1]
        rows = None
        if remaining := select_active(over):
            rows = torch.tensor(remaining, device=writer.device)
            parents, tokens, written, scores, limits = (t[rows] for t in (parents, tokens, written, scores, limits))
            numbers, over = [numbers[row] for row in remaining], [False] * len(remaining)
        writer.select_beams(parents, rows)
        yield
        logits = writer.advance(tokens.flatten()).unflatten(0, tokens.shape)


def top_continuations(
    logits: Float[Tensor, "rows beams vocabulary"], offsets: Float[Tensor, "rows beams"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """Each row's `count` largest `logits + offsets`, best first, and their indices in beams × vocabulary.

    Faster than `topk` over everything: the `count` largest values lie in the `count` blocks of the vocabulary that
    have the largest maxima.
    """
    rows, beams, vocabulary = logits.shape
    blocks = vocabulary // BLOCK
    if blocks < 2 * count:
        totals = (logits + offsets[..., None]).view(rows, -1)
        return totals.topk(min(count, totals.shape[1]))
    device = logits.device
    peaks = logits[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK)).amax(-1) + offsets[..., None]
    highest = peaks.view(rows, -1).topk(count).indices
    first = highest // blocks * vocabulary + highest % blocks * BLOCK
    inside = (first[..., None] + torch.arange(BLOCK, device=device)).view(rows, -1)
    beyond = torch.arange(beams, device=device)[:, None] * vocabulary + torch.arange(
        blocks * BLOCK, vocabulary, device=device
    )
    indices = torch.cat([inside, beyond.view(1, -1).expand(rows, -1)], dim=1)
    candidates = logits.view(rows, -1).gather(1, indices) + offsets.gather(1, indices // vocabulary)
    totals, best = candidates.topk(count)
    return totals, indices.gather(1, best)


def _gather_beams(written: Tensor, beams: Tensor) -> Tensor:
    """The tokens that these beams of each row have so far."""
    return written.gather(1, beams[..., None].expand(-1, -1, written.shape[2]))


def _list_finished(finished: Tensor, written: Tensor, totals: Tensor) -> Iterator[tuple[int, list[int], float]]:
    """The row, tokens and log-probability of every finished hypothesis."""
    rows, beams = finished.nonzero(as_tuple=True)
    return zip(rows.tolist(), written[rows, beams].tolist(), totals[rows, beams].tolist(), strict=True)


def _check_options(beams: int, best: int, length_penalty: float) -> None:
    if beams < 1:
        raise DecodeError(f"a search needs at least 1 beam, got {beams}")
    if not 1 <= best <= beams:
        raise DecodeError(f"best={best} is not possible with {beams} beams; choose 1 to {beams}")
    if not math.isfinite(length_penalty):
        raise DecodeError(f"length_penalty must be a number, got {length_penalty}")
