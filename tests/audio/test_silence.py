"""Cuts at silence: in the pauses, never too long, without gaps, and with a way back to the recording."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.audio import SoundPiece, split_at_silence

RATE = 1000
SETTINGS = {"longest": 5.0, "shortest": 0.5}


def speech(*parts: tuple[float, float]) -> torch.Tensor:
    """Noise of given durations, each followed by a quiet pause."""
    generator = torch.Generator().manual_seed(11)
    pieces = []
    for loud, quiet in parts:
        pieces.append(0.3 * torch.randn(round(loud * RATE), generator=generator))
        pieces.append(0.001 * torch.randn(round(quiet * RATE), generator=generator))
    return torch.cat(pieces)


def bounds(pieces):
    return [(piece.begin_seconds, piece.end_seconds) for piece in pieces]


def test_a_short_recording_is_one_piece():
    assert split_at_silence(speech((2, 1), (1.5, 0.5)), RATE, **SETTINGS) == [SoundPiece(0, 5000, RATE)]


def test_cuts_are_in_the_middle_of_the_last_pause_that_fits():
    # Pauses: 1.0 to 1.4, 3.4 to 4.0, 6.0 to 6.5, 9.5 to 9.9.
    pieces = split_at_silence(speech((1, 0.4), (2, 0.6), (2, 0.5), (3, 0.4), (1, 0)), RATE, **SETTINGS)
    assert bounds(pieces) == [
        (0, pytest.approx(3.7, abs=0.02)),
        (pytest.approx(3.7, abs=0.02), pytest.approx(6.25, abs=0.02)),
        (pytest.approx(6.25, abs=0.02), 10.9),
    ]


def test_a_pause_that_is_too_short_is_none():
    # 0.1 s at 4 s is no pause; that of 0.3 s at 2 s is.
    pieces = split_at_silence(speech((2, 0.3), (1.7, 0.1), (2, 0)), RATE, **SETTINGS)
    assert pieces[0].end_seconds == pytest.approx(2.15, abs=0.02)


def test_without_a_pause_the_quietest_moment_of_the_second_half_is_cut():
    sound = speech((9, 0))
    sound[1000:1300] *= 0.3
    sound[3400:3700] *= 0.3  # 10 dB, no pause
    assert split_at_silence(sound, RATE, **SETTINGS)[0].end_seconds == pytest.approx(3.55, abs=0.06)


def test_a_click_does_not_make_speech_quiet():
    sound = speech((2, 0.3), (7, 0))
    sound[700] = 90.0
    assert split_at_silence(sound, RATE, **SETTINGS)[0].end_seconds == pytest.approx(2.15, abs=0.02)


def test_silence_without_end_is_cut_too():
    pieces = split_at_silence(torch.zeros(12_000), RATE, **SETTINGS)
    assert len(pieces) == 3
    assert max(piece.end - piece.begin for piece in pieces) <= 5000


@given(st.lists(st.tuples(st.floats(0.05, 4), st.floats(0, 1)), min_size=1, max_size=9))
def test_pieces_have_no_gaps_and_keep_the_limits(parts):
    sound = speech(*parts)
    pieces = split_at_silence(sound, RATE, **SETTINGS)
    assert pieces[0].begin == 0
    assert pieces[-1].end == len(sound)
    assert all(one.end == other.begin for one, other in itertools.pairwise(pieces))
    assert all(piece.end - piece.begin <= 5000 for piece in pieces)
    assert all(piece.end - piece.begin >= 500 for piece in pieces[:-1])


def test_times_go_to_the_recording():
    first, second, *_ = split_at_silence(speech((3, 0.4), (4, 0.6), (2, 0.5)), RATE, **SETTINGS)
    assert second.to_recording(0.3) == pytest.approx(first.end_seconds + 0.3)
    assert first.to_recording(99.0) == first.end_seconds
