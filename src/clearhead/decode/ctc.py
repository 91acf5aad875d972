"""CTC: token sequences from the log-probabilities of frames, by greedy or prefix beam search; forced alignment.

A path has one label for each frame. It spells the tokens that are left after equal neighbours are merged and blanks are
removed; the probability of a token sequence is the sum over all paths that spell it (Graves et al., 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.errors import DecodeError

Prefix = tuple[int, ...]


class CtcHypothesis(NamedTuple):
    """A decoded sequence, with the log-probability of all its paths that were kept; of the best path if greedy."""

    tokens: list[int]
    log_probability: float


class AlignedToken(NamedTuple):
    """A token and its frames: from `begin` up to, without, `end`; `peak` is the most probable of them.

    `log_probability` is the mean over these frames: near 0 where the model is sure.
    """

    token: int
    begin: int
    end: int
    peak: int
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
        results.append(CtcHypothesis(collapse_path(labels[row, :length].tolist(), blank), score))
    return results


def ctc_beam_search(
    log_probs: Float[Tensor, "frames vocabulary"],
    *,
    beams: int = 16,
    best: int = 1,
    blank: int = 0,
    candidates: int | None = None,
) -> list[CtcHypothesis]:
    """The `best` most probable sequences of one sound, best first, by prefix beam search over its frames.

    `beams` prefixes are kept after each frame; the `candidates` most probable tokens of a frame may extend them (None:
    all may). With enough beams the result is exact: the sum over all paths.
    """
    _check_blank(log_probs, blank)
    if not 1 <= best <= beams:
        raise DecodeError(f"beams must be at least best, and best at least 1; got beams {beams}, best {best}")
    if candidates is not None and candidates < 1:
        raise DecodeError(f"candidates must be at least 1, or None for all; got {candidates}")
    frames = log_probs.detach().cpu().double()
    if frames.isnan().any():
        raise DecodeError("log-probabilities are NaN")
    beam = _Beam([()], torch.zeros(1).double(), torch.full((1,), -math.inf).double())
    for frame in frames:
        beam = _read_frame(beam, frame, _possible_tokens(frame, blank, candidates), beams, blank)
    ranked, order = beam.total.sort(descending=True, stable=True)
    rows = zip(order[:best].tolist(), ranked[:best].tolist(), strict=True)
    return [CtcHypothesis(list(beam.prefixes[row]), total) for row, total in rows if total > -math.inf]


class _Beam(NamedTuple):
    """The prefixes that are kept, with log-probabilities of all paths that spell them.

    Paths that end with a `blank` and paths that end with the last `token` are counted apart, because only the first may
    be followed by the same token again.
    """

    prefixes: list[Prefix]
    blank: Float[Tensor, " prefixes"]
    token: Float[Tensor, " prefixes"]

    @property
    def total(self) -> Float[Tensor, " prefixes"]:
        return torch.logaddexp(self.blank, self.token)


def _read_frame(beam: _Beam, frame: Float[Tensor, " vocabulary"], possible: Tensor, beams: int, blank: int) -> _Beam:
    """The best prefixes after one more frame: those of `beam`, as they are or with a `possible` token appended."""
    last = torch.tensor([prefix[-1] if prefix else blank for prefix in beam.prefixes])
    come = beam.total[:, None].repeat(1, len(frame))
    come[torch.arange(len(last)), last] = beam.blank  # a token repeats itself only after a blank
    longer = (come + frame).masked_fill(~possible, -math.inf)
    stay_blank, stay_token = beam.total + frame[blank], beam.token + frame[last]
    # A longer prefix that is kept already gets both sums; any other has one parent only.
    row_of = {prefix: row for row, prefix in enumerate(beam.prefixes)}
    pairs = [(row_of[prefix[:-1]], row) for prefix, row in row_of.items() if prefix and prefix[:-1] in row_of]
    if pairs:
        parents, children = torch.tensor(pairs).T
        stay_token[children] = torch.logaddexp(stay_token[children], longer[parents, last[children]])
        longer[parents, last[children]] = -math.inf
    ranks = torch.cat([torch.logaddexp(stay_blank, stay_token), longer.flatten()])
    best, order = ranks.sort(descending=True, stable=True)
    order = order[:beams][best[:beams] > -math.inf]
    if not len(order):
        raise DecodeError("no sequence has a probability above zero")
    nothing = torch.full((longer.numel(),), -math.inf, dtype=torch.float64)
    return _Beam(
        [_spell(rank, beam.prefixes, len(frame)) for rank in order.tolist()],
        torch.cat([stay_blank, nothing])[order],
        torch.cat([stay_token, longer.flatten()])[order],
    )


def _spell(rank: int, prefixes: list[Prefix], vocabulary: int) -> Prefix:
    """A prefix by its index among the ranked: first the prefixes as they are, then each with every token."""
    if rank < len(prefixes):
        return prefixes[rank]
    parent, token = divmod(rank - len(prefixes), vocabulary)
    return (*prefixes[parent], token)


def _possible_tokens(frame: Float[Tensor, " vocabulary"], blank: int, most: int | None) -> Bool[Tensor, " vocabulary"]:
    """Which tokens may extend a prefix: all but the blank, or the most probable of them."""
    possible = torch.ones(len(frame), dtype=torch.bool)
    possible[blank] = False
    if most is not None and most < len(frame) - 1:
        likeliest = frame.masked_fill(~possible, -math.inf).topk(most).indices
        possible = torch.zeros_like(possible).index_fill(0, likeliest, True) & possible
    return possible


def _check_blank(log_probs: Tensor, blank: int) -> None:
    if not 0 <= blank < log_probs.shape[-1]:
        raise DecodeError(f"blank {blank} is none of the {log_probs.shape[-1]} labels")


def align_tokens(
    log_probs: Float[Tensor, "frames vocabulary"], tokens: Sequence[int], *, blank: int = 0
) -> list[AlignedToken]:
    """Where each of `tokens` stands in the most probable path of all that spell them.

    Frames between two tokens belong to neither: they are blanks. Of equally probable paths, that which goes on to the
    next token earliest is taken.

    >>> frames = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.7, 0.3]]).log()
    >>> align_tokens(frames, [1])[0][:4]
    (1, 1, 3, 2)
    """
    frames, vocabulary = log_probs.shape
    wrong = [token for token in (blank, *tokens) if not 0 <= token < vocabulary] + [t for t in tokens if t == blank]
    if wrong:
        raise DecodeError(
            f"label {wrong[0]} cannot be aligned; tokens lie below {vocabulary} and are not the blank {blank}"
        )
    repeats = sum(token == following for token, following in pairwise(tokens))
    if frames < len(tokens) + repeats:
        raise DecodeError(
            f"{len(tokens)} tokens, {repeats} of them like the one before, need {len(tokens) + repeats} frames; "
            f"there are {frames}"
        )
    if not tokens:
        return []
    states = torch.full((2 * len(tokens) + 1,), blank)
    states[1::2] = torch.tensor(list(tokens))
    emissions = log_probs.detach().cpu().double()[:, states]
    if emissions.isnan().any():
        raise DecodeError("log-probabilities are NaN")
    path = _best_path(emissions, states, blank)
    states_of_tokens = range(1, 2 * len(tokens), 2)
    spans = zip(states_of_tokens, tokens, strict=True)
    return [_read_span(emissions[:, state], path == state, token) for state, token in spans]


def _best_path(
    emissions: Float[Tensor, "frames states"], states: Int[Tensor, " states"], blank: int
) -> Int[Tensor, " frames"]:
    """The state of each frame in the most probable path (Viterbi).

    States are a blank before, between and after the tokens. A path stays, goes to the next state, or skips a blank
    between two different tokens.
    """
    frames, count = emissions.shape
    may_skip = torch.zeros(count, dtype=torch.bool)
    may_skip[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
    score = torch.full((count,), -torch.inf, dtype=torch.float64)
    score[:2] = emissions[0, :2]
    moves = torch.zeros(frames, count, dtype=torch.long)
    for frame in range(1, frames):
        step = torch.nn.functional.pad(score[:-1], (1, 0), value=-torch.inf)
        skip = torch.nn.functional.pad(score[:-2], (2, 0), value=-torch.inf).masked_fill(~may_skip, -torch.inf)
        # Of equal ways in, staying comes first: argmax alone does not say which it takes.
        best = torch.maximum(score, torch.maximum(step, skip))
        moves[frame] = torch.where(score == best, 0, torch.where(step == best, 1, 2))
        score = best + emissions[frame]
    state = count - 1 if score[-1] > score[-2] else count - 2
    if score[state] == -torch.inf:
        raise DecodeError("the sequence has probability zero, so no alignment is better than another")
    path = torch.zeros(frames, dtype=torch.long)
    for frame in range(frames - 1, -1, -1):
        path[frame] = state
        state -= int(moves[frame, state])
    return path


def _read_span(emission: Float[Tensor, " frames"], inside: Tensor, token: int) -> AlignedToken:
    places = inside.nonzero()[:, 0]
    begin, end = int(places[0]), int(places[-1]) + 1
    values = emission[begin:end]
    return AlignedToken(token, begin, end, begin + int(values.argmax()), float(values.mean()))
