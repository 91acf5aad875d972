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
from jaxtyping import Bool, Float, Int
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
    frames = log_probs.detach().cpu().double()
    if frames.isnan().any():
        raise DecodeError("log-probabilities are NaN")
    kept = _Beam([()], torch.zeros(1).double(), torch.full((1,), -math.inf).double(), torch.zeros(1).double())
    for frame in frames:
        kept = search.read_frame(kept, frame, _possible_tokens(frame, blank, candidates), beams)
    return search.finish(kept, best)


class _Beam(NamedTuple):
    """The prefixes that are kept, with log-probabilities of all paths that spell them.

    Paths that end with a `blank` and paths that end with the last `token` are counted apart, because only the first may
    be followed by the same token again. `added` is what scorer and bonus add to the score, without the end.
    """

    prefixes: list[Prefix]
    blank: Float[Tensor, " prefixes"]
    token: Float[Tensor, " prefixes"]
    added: Float[Tensor, " prefixes"]

    @property
    def total(self) -> Float[Tensor, " prefixes"]:
        return torch.logaddexp(self.blank, self.token)


class _PrefixSearch:
    """The steps of a prefix beam search, with what the scorer has given for the prefixes that are kept."""

    def __init__(self, scorer: PrefixScorer | None, weight: float, bonus: float, blank: int) -> None:
        self.scorer, self.weight, self.bonus, self.blank = scorer, weight, bonus, blank
        self.following: dict[Prefix, Tensor] = {}

    def read_frame(self, kept: _Beam, frame: Float[Tensor, " vocabulary"], possible: Tensor, beams: int) -> _Beam:
        """The best prefixes after one more frame: those of `kept`, as they are or with a `possible` token appended."""
        last = torch.tensor([prefix[-1] if prefix else self.blank for prefix in kept.prefixes])
        rows = torch.arange(len(last))
        come = kept.total[:, None].repeat(1, len(frame))
        come[rows, last] = kept.blank  # a token repeats itself only after a blank
        longer = (come + frame).masked_fill(~possible, -math.inf)
        stay_blank, stay_token = kept.total + frame[self.blank], kept.token + frame[last]
        # A longer prefix that is kept already gets both sums; any other has one parent only.
        place_of = {prefix: place for place, prefix in enumerate(kept.prefixes)}
        pairs = [(place_of[one[:-1]], place) for one, place in place_of.items() if one and one[:-1] in place_of]
        if pairs:
            parents, children = torch.tensor(pairs).T
            stay_token[children] = torch.logaddexp(stay_token[children], longer[parents, last[children]])
            longer[parents, last[children]] = -math.inf
        added = kept.added[:, None] + self.bonus + self._next_scores(kept.prefixes, len(frame))
        stay_score = torch.logaddexp(stay_blank, stay_token) + kept.added
        ranks = torch.cat([stay_score, (longer + added).flatten()])
        best, order = ranks.sort(descending=True, stable=True)
        order = order[:beams][best[:beams] > -math.inf]
        if not len(order):
            raise DecodeError("no sequence has a probability above zero")
        nothing = torch.full((longer.numel(),), -math.inf, dtype=torch.float64)
        return _Beam(
            [_spell(place, kept.prefixes, len(frame)) for place in order.tolist()],
            torch.cat([stay_blank, nothing])[order],
            torch.cat([stay_token, longer.flatten()])[order],
            torch.cat([kept.added, added.flatten()])[order],
        )

    def finish(self, kept: _Beam, best: int) -> list[CtcHypothesis]:
        """The best hypotheses, with the scorer's probability of their end."""
        scores = kept.total + kept.added
        if self.scorer:
            scores = scores + self._next_scores(kept.prefixes, 0)[:, self.blank]
        totals, (ranked, order) = kept.total.tolist(), scores.sort(descending=True, stable=True)
        order = order[:best][ranked[:best] > -math.inf]
        if not len(order):
            raise DecodeError("the scorer lets none of the sequences end")
        return [
            CtcHypothesis(list(kept.prefixes[place]), float(scores[place]), totals[place]) for place in order.tolist()
        ]

    def _next_scores(self, prefixes: list[Prefix], vocabulary: int) -> Float[Tensor, "prefixes _"]:
        """What the scorer adds for each next token; it is called once for all prefixes that are new."""
        if self.scorer is None:
            return torch.zeros(len(prefixes), vocabulary, dtype=torch.float64)
        new = [prefix for prefix in prefixes if prefix not in self.following]
        if new:
            rows = self.scorer(new).detach().cpu().double() * self.weight
            if len(rows) != len(new) or rows.isnan().any():
                raise DecodeError(f"the scorer gave {len(rows)} rows for {len(new)} prefixes, or NaN")
            self.following |= dict(zip(new, rows, strict=True))
        self.following = {prefix: self.following[prefix] for prefix in prefixes}
        return torch.stack(list(self.following.values()))


def _spell(place: int, prefixes: list[Prefix], vocabulary: int) -> Prefix:
    """The prefix at a place of the ranking: first the prefixes as they are, then each with every token."""
    if place < len(prefixes):
        return prefixes[place]
    parent, token = divmod(place - len(prefixes), vocabulary)
    return (*prefixes[parent], token)


def _possible_tokens(frame: Float[Tensor, " vocabulary"], blank: int, most: int | None) -> Bool[Tensor, " vocabulary"]:
    """Which tokens may extend a prefix: all but the blank, or the most probable of them."""
    possible = torch.ones(len(frame), dtype=torch.bool)
    possible[blank] = False
    if most is not None and most < len(frame) - 1:
        chosen = frame.masked_fill(~possible, -math.inf).topk(most).indices
        possible = torch.zeros_like(possible).index_fill(0, chosen, True) & possible
    return possible


def _check_blank(log_probs: Tensor, blank: int) -> None:
    if not 0 <= blank < log_probs.shape[-1]:
        raise DecodeError(f"blank {blank} is none of the {log_probs.shape[-1]} labels")
