"""Long recordings in pieces that a model can take, cut in pauses, and the way back from pieces to the recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.errors import ConfigError

STEP = 0.01  # seconds between measurements of loudness


@dataclass(frozen=True)
class SplitSettings:
    """Where recordings are cut; all in seconds, `quiet` in dB.

    A piece is at most `longest`, and at least `shortest` if it is not the last. A pause is a stretch of `pause` or more
    that is `quiet` dB or more below the loud parts of the same piece.
    """

    longest: float = 20.0
    shortest: float = 1.0
    pause: float = 0.2
    quiet: float = 30.0

    def __post_init__(self) -> None:
        if not (0 < self.shortest <= self.longest / 2 and STEP <= self.pause <= self.longest and self.quiet > 0):
            raise ConfigError(
                f"longest must be at least twice shortest, and pause between {STEP} and longest; got {self}"
            )


@dataclass(frozen=True)
class SoundPiece:
    """A piece of a recording, with its first sample and the one after its last."""

    begin: int
    end: int
    rate: int

    @property
    def begin_seconds(self) -> float:
        return self.begin / self.rate

    @property
    def end_seconds(self) -> float:
        return self.end / self.rate

    def to_recording(self, seconds: int | float) -> float:
        """A time in the piece as a time in the recording, not after the end of the piece.

        >>> SoundPiece(16000, 48000, rate=16000).to_recording(0.5)
        1.5
        """
        return min(self.begin_seconds + seconds, self.end_seconds)


def split_at_silence(
    sound: Float[Tensor, " samples"], rate: int, settings: SplitSettings | None = None
) -> list[SoundPiece]:
    """The pieces of a recording, one after the other without gaps.

    A recording of at most `longest` is one piece. Otherwise each cut is in the middle of the last pause that leaves a
    piece short enough; where there is no pause, at the quietest moment in the second half of what fits.
    """
    settings = settings or SplitSettings()
    cuts, most = [0], round(settings.longest * rate)
    while len(sound) - cuts[-1] > most:
        cuts.append(cuts[-1] + _find_cut(sound[cuts[-1] : cuts[-1] + most], rate, settings))
    return [SoundPiece(begin, end, rate) for begin, end in pairwise([*cuts, len(sound)])]


def split_stream(
    blocks: Iterable[Float[Tensor, " _"]], rate: int, settings: SplitSettings | None = None
) -> Iterator[tuple[SoundPiece, Float[Tensor, " _"]]]:
    """The same pieces with their samples, from a recording that comes block by block and is never held as a whole."""
    settings = settings or SplitSettings()
    most, begin = round(settings.longest * rate), 0
    waiting = torch.zeros(0)
    for block in blocks:
        waiting = torch.cat([waiting.to(block), block])
        while len(waiting) > most:
            cut = _find_cut(waiting[:most], rate, settings)
            yield SoundPiece(begin, begin + cut, rate), waiting[:cut].clone()
            begin, waiting = begin + cut, waiting[cut:]
    yield SoundPiece(begin, begin + len(waiting), rate), waiting.clone()


def find_position(pieces: list[SoundPiece], seconds: int | float) -> tuple[int, float]:
    """Which piece a time of the recording lies in, and the time inside that piece; the inverse of `to_recording`.

    >>> find_position([SoundPiece(0, 8000, 8000), SoundPiece(8000, 24000, 8000)], 1.5)
    (1, 0.5)
    """
    for number, piece in enumerate(pieces):
        if seconds < piece.end_seconds or number == len(pieces) - 1:
            return number, min(seconds, piece.end_seconds) - piece.begin_seconds
    raise ConfigError("a recording without pieces has no positions")


def _find_cut(sound: Float[Tensor, " samples"], rate: int, settings: SplitSettings) -> int:
    """The sample to cut before, for the longest stretch that may become a piece."""
    step = max(1, round(STEP * rate))
    power = sound[: len(sound) // step * step].reshape(-1, step).double().square().mean(1)
    first = -(-round(settings.shortest * rate) // step)
    width = max(1, round(settings.pause * rate / step))
    # The level that a twentieth of the stretch exceeds: a single click does not make speech look quiet.
    loud = power.quantile(0.95)
    pauses = _find_runs(power <= loud * 10 ** (-settings.quiet / 10), width)
    middles = [(begin + end) // 2 for begin, end in pauses]
    inside = [place for place in middles if first <= place < len(power)]
    if inside and float(loud) > 0:
        return inside[-1] * step
    half = max(first, len(power) // 2)
    smooth = torch.nn.functional.avg_pool1d(power[None], width, 1, width // 2, count_include_pad=False)[0]
    rest = smooth[half : len(power)]
    quietest = int((rest == rest.min()).nonzero()[-1])  # of equal moments the last: fewer pieces
    return (half + quietest) * step


def _find_runs(quiet: Bool[Tensor, " steps"], least: int) -> list[tuple[int, int]]:
    """Begin and end of every run of True of at least `least`."""
    padded = torch.nn.functional.pad(quiet.int(), (1, 1))
    change = padded.diff()
    begins, ends = (change == 1).nonzero()[:, 0].tolist(), (change == -1).nonzero()[:, 0].tolist()
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if end - begin >= least]
