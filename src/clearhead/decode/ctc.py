"""CTC: token sequences from the log-probabilities of frames, greedily or by prefix beam search, alone or with a scorer.

A path has one label for each frame. It spells the tokens that are left after equal neighbours are merged and blanks are
removed; the probability of a token sequence is the sum over all paths that spell it (Graves et al., 2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import DecodeError

Prefix = tuple[int, ...]
# For each prefix the log-probability of every next token, by a language model or an attention decoder. The column of
# the blank, which is no token, holds the log-probability that the sequence ends here.
PrefixScorer = Callable[[list[Prefix]], Float[Tensor, "prefixes vocabulary"]]


class CtcHypothesis(NamedTuple):
    """A decoded sequence; `score` orders hypotheses: the log-probability, plus what scorer and bonus add.

    `log_probability` is that of the sequence (all paths that were kept) from a beam search, and that of the one best
    path from a greedy search.
    """

    tokens: list[int]
    score: float
    log_probability: float


def collapse_path(path: Sequence[int], blank: int = 0) -> list[int]:
    """The tokens that a path spells: equal neighbours merged, blanks removed.

    >>> collapse_path([0, 3, 3, 0, 3, 5])
    [3, 3, 5]
    """
    return [label for label, _ in groupby(path) if label != blank]


def ctc_greedy(
    log_probs: Float[Tensor, "batch frames vocabulary"], lengths: Int[Tensor, " batch"], *, blank: int = 0
) -> list[CtcHypothesis]:
    """The sequence of the most probable path of each sound; `lengths` are in frames.

    >>> frames = torch.tensor([[[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]]]).log()
    >>> ctc_greedy(frames, torch.tensor([3]))[0].tokens
    [1, 1]
    """
    _check_blank(log_probs, blank)
    best, labels = log_probs.double().max(-1)
    results = []
    for row, length in enumerate(lengths.tolist()):
        score = float(best[row, :length].sum())
        if math.isnan(score):
            raise DecodeError(f"the log-probabilities of sound {row} are NaN")
        results.append(CtcHypothesis(collapse_path(labels[row, :length].tolist(), blank), score, score))
    return results


def ctc_beam_search(
    log_probs: Float[Tensor, "frames vocabulary"],
    *,
    beams: int = 16,
    best: int = 1,
    blank: int = 0,
    candidates: int | None = None,
    scorer: PrefixScorer | None = None,
    weight: float = 0.5,
    bonus: float = 0.0,
) -> list[CtcHypothesis]:
    """The `best` most probable sequences of one sound, best first, by prefix beam search over its frames.

    - `beams`: how many prefixes are kept after each frame.
    - `candidates`: only so many most probable tokens of a frame may extend a prefix; None for all.
    - `scorer`, for joint decoding: scores are log P_ctc + `weight` · log P_scorer + `bonus` · tokens, where P_scorer
      includes the end of the sequence once all frames are read.

    With enough beams the result is exact: the sum over all paths.
    """
    _check_blank(log_probs, blank)
    if not 1 <= best <= beams:
        raise DecodeError(f"beams must be at least best, and best at least 1; got beams {beams}, best {best}")
    if weight < 0:
        raise DecodeError(f"weight must be at least 0, got {weight}")
    if candidates is not None and candidates < 1:
        raise DecodeError(f"candidates must be at least 1, or None for all; got {candidates}")
    search = _PrefixSearch(scorer if weight else None, weight, bonus, blank)
    prefixes: dict[Prefix, _PathSums] = {(): _PathSums(0.0, -math.inf)}
    for frame, tokens in zip(log_probs.double().tolist(), _choose_tokens(log_probs, blank, candidates), strict=True):
        if math.isnan(sum(frame)):
            raise DecodeError("log-probabilities are NaN")
        prefixes = search.prune(search.extend(prefixes, frame, tokens), beams)
    return search.finish(prefixes, best)


class _PathSums(NamedTuple):
    """Log-probabilities of all paths that spell one prefix: of those that end with a blank, and of the others."""

    blank: float
    token: float

    @property
    def total(self) -> float:
        return _add(self.blank, self.token)


class _PrefixSearch:
    """The steps of a prefix beam search, with the scores of prefixes that a scorer has given so far."""

    def __init__(self, scorer: PrefixScorer | None, weight: float, bonus: float, blank: int) -> None:
        self.scorer, self.weight, self.bonus, self.blank = scorer, weight, bonus, blank
        self.scores: dict[Prefix, float] = {(): 0.0}  # what scorer and bonus add to a prefix, without its end
        self.following: dict[Prefix, list[float]] = {}  # the scorer's row for a prefix

    def extend(
        self, prefixes: dict[Prefix, _PathSums], frame: list[float], tokens: list[int]
    ) -> dict[Prefix, _PathSums]:
        """All prefixes after one more frame: each as it is, and with each of `tokens` at its end."""
        self._ask_scorer(list(prefixes))
        sums: dict[Prefix, list[float]] = {}
        for prefix, (blank, token) in prefixes.items():
            last = prefix[-1] if prefix else None
            total = _add(blank, token)
            same = sums.setdefault(prefix, [-math.inf, -math.inf])
            same[0] = _add(same[0], total + frame[self.blank])
            if last is not None:  # the last token goes on for a frame
                same[1] = _add(same[1], token + frame[last])
            for new in tokens:
                # A token repeats itself only after a blank.
                come = blank if new == last else total
                if come == -math.inf or frame[new] == -math.inf:
                    continue
                longer = (*prefix, new)
                self._add_score(prefix, longer)
                entry = sums.setdefault(longer, [-math.inf, -math.inf])
                entry[1] = _add(entry[1], come + frame[new])
        return {prefix: _PathSums(*pair) for prefix, pair in sums.items()}

    def prune(self, prefixes: dict[Prefix, _PathSums], beams: int) -> dict[Prefix, _PathSums]:
        """The best prefixes; of equal ones the earlier."""
        totals = {prefix: sums.total + self.scores[prefix] for prefix, sums in prefixes.items()}
        possible = [prefix for prefix, total in totals.items() if total > -math.inf]
        ranked = sorted(possible, key=lambda prefix: -totals[prefix])[:beams]
        if not ranked:
            raise DecodeError("no sequence has a probability above zero")
        kept = {prefix: prefixes[prefix] for prefix in ranked}
        self.following = {prefix: row for prefix, row in self.following.items() if prefix in kept}
        self.scores = {prefix: self.scores[prefix] for prefix in kept}
        return kept

    def finish(self, prefixes: dict[Prefix, _PathSums], best: int) -> list[CtcHypothesis]:
        """The best hypotheses, with the scorer's probability of their end."""
        self._ask_scorer(list(prefixes))
        results = []
        for prefix, sums in prefixes.items():
            end = self.weight * self.following[prefix][self.blank] if self.scorer else 0.0
            results.append(CtcHypothesis(list(prefix), sums.total + self.scores[prefix] + end, sums.total))
        return sorted(results, key=lambda one: -one.score)[:best]

    def _ask_scorer(self, prefixes: list[Prefix]) -> None:
        """One call of the scorer for all prefixes that it has not scored yet."""
        new = [prefix for prefix in prefixes if prefix not in self.following]
        if self.scorer and new:
            rows = self.scorer(new).double().tolist()
            if len(rows) != len(new) or any(math.isnan(sum(row)) for row in rows):
                raise DecodeError(f"the scorer gave {len(rows)} rows for {len(new)} prefixes, or NaN")
            self.following |= dict(zip(new, rows, strict=True))

    def _add_score(self, prefix: Prefix, longer: Prefix) -> None:
        if longer not in self.scores:
            added = self.weight * self.following[prefix][longer[-1]] if self.scorer else 0.0
            self.scores[longer] = self.scores[prefix] + added + self.bonus


def _choose_tokens(log_probs: Float[Tensor, "frames vocabulary"], blank: int, most: int | None) -> list[list[int]]:
    """For each frame the tokens that may extend a prefix, all of them or the most probable."""
    vocabulary = log_probs.shape[1]
    if most is None or most >= vocabulary - 1:
        return [[token for token in range(vocabulary) if token != blank]] * len(log_probs)
    without = log_probs.clone()
    without[:, blank] = -math.inf
    chosen: list[list[int]] = torch.topk(without, most, dim=-1).indices.tolist()
    return [[token for token in tokens if token != blank] for tokens in chosen]


def _check_blank(log_probs: Tensor, blank: int) -> None:
    if not 0 <= blank < log_probs.shape[-1]:
        raise DecodeError(f"blank {blank} is none of the {log_probs.shape[-1]} labels")


def _add(one: float, other: float) -> float:
    """log(exp(one) + exp(other)), also for log 0."""
    larger, smaller = (one, other) if one >= other else (other, one)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))
