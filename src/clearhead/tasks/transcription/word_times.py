"""The times of words in a recording: CTC's alignment of their tokens, extended to where the sound falls silent.

CTC says which tokens stand where, but its spikes are short: a word begins before its first and ends after its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.audio import SoundPiece
from clearhead.decode import align_tokens
from clearhead.errors import DecodeError

PAUSE = 0.15  # of the way from QUIET to LOUD: below this nobody speaks
QUIET, LOUD = 0.1, 0.9  # quantiles of the loudness that PAUSE lies between


class TimedWord(NamedTuple):
    """A word with its begin and end in seconds from the start of the recording."""

    text: str
    start: float
    end: float


class SpokenPart(NamedTuple):
    """The tokens written for a piece of a recording, CTC's log-probabilities, and the mean of each frame's bands."""

    tokens: list[int]
    log_probs: Float[Tensor, "positions vocabulary"]
    loudness: Float[Tensor, " frames"]
    piece: SoundPiece


class FrameTimes(NamedTuple):
    """When frames are, in seconds: the first begins at `first`, each is `hop` long; `stride` of them are a position."""

    first: float
    hop: float
    stride: int

    def begin(self, frame: int | float) -> float:
        return max(0.0, self.first + frame * self.hop)

    def begin_of_position(self, position: int | float) -> float:
        return self.begin(position * self.stride)


def group_words(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[tuple[str, list[int]]]:
    """The words of a text, each with the indices of its tokens; tokens that are only spaces belong to none.

    >>> letters = {1: "o", 2: "n", 3: " ", 4: "e"}
    >>> group_words([1, 2, 3, 3, 4], lambda tokens: "".join(letters[token] for token in tokens))
    [('on', [0, 1]), ('e', [4])]
    """
    indices, before = list[list[int]](), ""
    for index in range(len(tokens)):
        text = decode(tokens[: index + 1]).rstrip()
        if text == before:  # a space, so far
            continue
        count = len(text.split())
        indices += [[] for _ in range(count - len(indices))]
        indices[count - 1].append(index)
        before = text
    return list(zip(before.split(), indices, strict=True))


def time_words(
    part: SpokenPart, decode: Callable[[Sequence[int]], str], times: FrameTimes, blank: int
) -> list[TimedWord] | None:
    """The words of a part with their times; None if CTC gives its tokens no probability at all."""
    try:
        aligned = align_tokens(part.log_probs, part.tokens, blank=blank)
    except DecodeError:
        return None
    words = group_words(part.tokens, decode)
    frames = [(aligned[of[0]].begin * times.stride, aligned[of[-1]].end * times.stride) for _, of in words]
    timed = []
    for (text, _), (begin, end) in zip(words, extend_words(frames, part.loudness), strict=True):
        start = part.piece.to_recording(times.begin(begin))
        timed.append(TimedWord(text, start, max(start, part.piece.to_recording(times.begin(end)))))
    return timed


def extend_words(words: Sequence[tuple[int, int]], loudness: Float[Tensor, " frames"]) -> list[tuple[int, int]]:
    """Begin and end of each word in frames, moved to where the sound falls silent, but not into another word.

    Where it does not fall silent between two words, the first ends and the second begins at the quietest frame.

    >>> loudness = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    >>> extend_words([(3, 4), (8, 10)], loudness)
    [(2, 6), (9, 11)]
    """
    quiet, loud = loudness.quantile(QUIET), loudness.quantile(LOUD)
    speaks = (loudness > quiet + PAUSE * (loud - quiet)).tolist()
    extended = list[tuple[int, int]]()
    for number, (first, last) in enumerate(words):
        begin, end = min(first, len(speaks) - 1), min(last, len(speaks))
        before = words[number - 1][1] if number else 0
        after = words[number + 1][0] if number + 1 < len(words) else len(speaks)
        while begin > before and speaks[begin - 1]:
            begin -= 1
        while begin < end - 1 and not speaks[begin]:
            begin += 1
        while end < min(after, len(speaks)) and speaks[end]:
            end += 1
        if extended and begin < extended[-1][1]:  # both were extended over what is between them
            begin += int(loudness[begin : extended[-1][1]].argmin())
            extended[-1] = (extended[-1][0], begin)
        extended.append((begin, end))
    return extended


def find_spikes(
    log_probs: Float[Tensor, "positions vocabulary"], name: Callable[[int], str], blank: int
) -> list[tuple[int, str, float]]:
    """Positions whose most probable label is a token: the position, the token's text, its probability."""
    best = log_probs.detach().float().exp().max(-1)
    positions = torch.nonzero(best.indices != blank)[:, 0].tolist()
    return [(position, name(int(best.indices[position])), float(best.values[position])) for position in positions]
