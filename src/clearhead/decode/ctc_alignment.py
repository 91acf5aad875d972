"""Forced alignment by CTC: the frames in which each token of a known sequence stands, by the most probable path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import DecodeError


class AlignedToken(NamedTuple):
    """A token and its frames: from `begin` up to, without, `end`; `peak` is the most probable of them.

    `log_probability` is the mean over these frames: near 0 where the model is sure.
    """

    token: int
    begin: int
    end: int
    peak: int
    log_probability: float


def align_tokens(
    log_probs: Float[Tensor, "frames vocabulary"], tokens: Sequence[int], *, blank: int = 0
) -> list[AlignedToken]:
    """Where each of `tokens` stands in the most probable path of all that spell them.

    Frames between two tokens belong to neither: they are blanks. Of equally probable paths, that which goes on to the
    next token earliest is taken.

    >>> frames = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.7, 0.3]]).log()
    >>> [(one.token, one.begin, one.end, one.peak) for one in align_tokens(frames, [1])]
    [(1, 1, 3, 2)]
    """
    frames, vocabulary = log_probs.shape
    wrong = [token for token in (blank, *tokens) if not 0 <= token < vocabulary] + [t for t in tokens if t == blank]
    if wrong:
        raise DecodeError(
            f"label {wrong[0]} cannot be aligned; tokens lie below {vocabulary} and are not the blank {blank}"
        )
    repeats = sum(one == other for one, other in pairwise(tokens))
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
    return [_read_span(emissions[:, 2 * place + 1], path == 2 * place + 1, token) for place, token in enumerate(tokens)]


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
        one = torch.nn.functional.pad(score[:-1], (1, 0), value=-torch.inf)
        two = torch.nn.functional.pad(score[:-2], (2, 0), value=-torch.inf).masked_fill(~may_skip, -torch.inf)
        # Of equal ways in, staying comes first: argmax alone does not say which it takes.
        best = torch.maximum(score, torch.maximum(one, two))
        moves[frame] = torch.where(score == best, 0, torch.where(one == best, 1, 2))
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
