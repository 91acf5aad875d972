"""The times of words in a recording, from CTC's alignment of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.audio import SoundPiece
from clearhead.decode import align_tokens
from clearhead.errors import DecodeError


class TimedWord(NamedTuple):
    """A word with its begin and end in seconds from the start of the recording."""

    text: str
    start: float
    end: float


class SpokenPart(NamedTuple):
    """The tokens written for a piece of a recording, and CTC's log-probabilities for its positions."""

    tokens: list[int]
    log_probs: Float[Tensor, "positions vocabulary"]
    piece: SoundPiece


class PositionTimes(NamedTuple):
    """When positions of the encoder are: the first begins at `first` seconds, and each is `each` seconds long."""

    first: float
    each: float

    def begin(self, position: int | float) -> float:
        return max(0.0, self.first + position * self.each)


def group_words(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[tuple[str, list[int]]]:
    """The words of a text, each with the places of its tokens; tokens that are only spaces belong to none.

    >>> letters = {1: "o", 2: "n", 3: " ", 4: "e"}
    >>> group_words([1, 2, 3, 3, 4], lambda tokens: "".join(letters[token] for token in tokens))
    [('on', [0, 1]), ('e', [4])]
    """
    places, before = list[list[int]](), ""
    for place in range(len(tokens)):
        text = decode(tokens[: place + 1]).rstrip()
        if text == before:  # a space, so far
            continue
        count = len(text.split())
        places += [[] for _ in range(count - len(places))]
        places[count - 1].append(place)
        before = text
    return list(zip(before.split(), places, strict=True))


def time_words(
    part: SpokenPart, decode: Callable[[Sequence[int]], str], times: PositionTimes, blank: int
) -> list[TimedWord] | None:
    """The words of a part with their times; None if CTC gives its tokens no probability at all."""
    try:
        aligned = align_tokens(part.log_probs, part.tokens, blank=blank)
    except DecodeError:
        return None
    found = []
    for text, places in group_words(part.tokens, decode):
        start = times.begin(aligned[places[0]].begin)
        end = max(start, times.begin(aligned[places[-1]].end))
        found.append(TimedWord(text, part.piece.to_recording(start), part.piece.to_recording(end)))
    return found


def find_spikes(
    log_probs: Float[Tensor, "positions vocabulary"], name: Callable[[int], str], blank: int
) -> list[tuple[int, str, float]]:
    """Positions whose most probable label is a token: the position, the token's text, its probability."""
    best = log_probs.detach().float().exp().max(-1)
    places = torch.nonzero(best.indices != blank)[:, 0].tolist()
    return [(place, name(int(best.indices[place])), float(best.values[place])) for place in places]
