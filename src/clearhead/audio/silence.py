"""Long recordings in pieces that a model can take, cut in pauses, and the way back from pieces to the recording."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

STEP_SECONDS = 0.01  # between measurements of loudness
PAUSE_SECONDS = 0.2  # that a pause lasts at least
QUIET_DECIBELS = 30.0  # how far a pause is below the loud parts of the same piece


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
    sound: Float[Tensor, " samples"], rate: int, *, longest: float = 20.0, shortest: float = 1.0
) -> list[SoundPiece]:
    """The pieces of a recording, one after the other without gaps.

    A piece lasts at most `longest` seconds, and at least `shortest` (at most half of that) if it is not the last. Each
    cut is in the middle of the last pause that leaves a piece short enough; where there is no pause, at the quietest
    moment in the second half of what fits.
    """
    cuts, most = [0], round(longest * rate)
    while len(sound) - cuts[-1] > most:
        cuts.append(cuts[-1] + _find_cut(sound[cuts[-1] : cuts[-1] + most], rate, shortest))
    return [SoundPiece(begin, end, rate) for begin, end in pairwise([*cuts, len(sound)])]


def _find_cut(sound: Float[Tensor, " samples"], rate: int, shortest: float) -> int:
    """The sample to cut before, for the longest stretch that may become a piece."""
    step = max(1, round(STEP_SECONDS * rate))
    power = sound[: len(sound) // step * step].reshape(-1, step).double().square().mean(1)
    first = -(-round(shortest * rate) // step)
    width = max(1, round(PAUSE_SECONDS * rate / step))
    # The level that a twentieth of the stretch exceeds: a single click does not make speech look quiet.
    loud = power.quantile(0.95)
    pauses = _find_runs(power <= loud * 10 ** (-QUIET_DECIBELS / 10), width)
    middles = [(begin + end) // 2 for begin, end in pauses]
    inside = [middle for middle in middles if first <= middle < len(power)]
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
