"""CTC: the most probable token sequence of a sound's frames, and the frames of known tokens (forced alignment).

A path has one label for each frame. It spells the tokens that are left after equal neighbours are merged and blanks are
removed (Graves et al., 2006). `JointWriter` sums over all paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.greedy_search import Hypothesis
from clearhead.errors import DecodeError


class AlignedToken(NamedTuple):
    """A token and its frames: from `begin` up to, without, `end`."""

    token: int
    begin: int
    end: int


def collapse_path(path: Sequence[int], blank: int = 0) -> list[int]:
    """The tokens that a path spells: equal neighbours merged, blanks removed.

    >>> collapse_path([0, 3, 3, 0, 3, 5])
    [3, 3, 5]
    """
    return [label for label, _ in groupby(path) if label != blank]


def ctc_greedy(log_probs: Float[Tensor, "frames vocabulary"], *, blank: int = 0) -> Hypothesis:
    """The tokens of the most probable path of one sound, with the log-probability of that path.

    >>> ctc_greedy(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]]).log()).tokens
    [1, 1]
    """
    best, labels = log_probs.double().max(-1)
    total = float(best.sum())
    if math.isnan(total):
        raise DecodeError("log-probabilities are NaN")
    tokens = collapse_path(labels.tolist(), blank)
    return Hypothesis(tokens, total / (len(tokens) + 1), total, True)


def align_tokens(
    log_probs: Float[Tensor, "frames vocabulary"], tokens: Sequence[int], *, blank: int = 0
) -> list[AlignedToken]:
    """Where each of `tokens` stands in the most probable path of all that spell them.

    Frames between two tokens belong to neither: they are blanks. Of equally probable paths, that which goes on to the
    next token earliest is taken.

    >>> frames = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.7, 0.3]]).log()
    >>> align_tokens(frames, [1])
    [AlignedToken(token=1, begin=1, end=3)]
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
    frames_of_tokens = [(path == 2 * number + 1).nonzero()[:, 0].tolist() for number in range(len(tokens))]
    return [AlignedToken(token, of[0], of[-1] + 1) for token, of in zip(tokens, frames_of_tokens, strict=True)]


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
