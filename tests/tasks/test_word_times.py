"""Words with their times, and error rates, on cases computed by hand."""

import pytest
import torch

from clearhead.audio import SoundPiece
from clearhead.errors import DataError
from clearhead.tasks.metrics import error_rates, normalise_text
from clearhead.tasks.transcription.word_times import (
    FrameTimes,
    SpokenPart,
    extend_words,
    find_spikes,
    group_words,
    time_words,
)

LETTERS = {1: "o", 2: "n", 3: " ", 4: "e"}


def decode(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def frames(labels: list[int]) -> torch.Tensor:
    return torch.full((len(labels), 5), 0.01).scatter(1, torch.tensor(labels)[:, None], 0.96).log()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], []),
        ([3, 3], []),
        ([1, 2], [("on", [0, 1])]),
        ([3, 1, 2, 3, 3, 4, 3], [("on", [1, 2]), ("e", [5])]),
    ],
)
def test_words_are_what_stands_between_spaces(tokens, words):
    assert group_words(tokens, decode) == words


def test_the_times_of_words_are_those_of_their_tokens_in_the_recording():
    loudness = torch.zeros(20)
    loudness[[2, 3, 4, 5, 6, 7, 8, 14, 15, 16, 17]] = 1.0  # two frames to a position; "on" goes on a frame longer
    log_probs = frames([0, 1, 1, 2, 0, 3, 0, 4, 4, 0])
    part = SpokenPart([1, 2, 3, 4], log_probs, loudness, SoundPiece(800, 1600, rate=800))
    words = time_words(part, decode, FrameTimes(0.005, 0.01, 2), blank=0)
    assert words is not None
    assert [one.text for one in words] == ["on", "e"]
    assert [one.start for one in words] == pytest.approx([1.025, 1.145])
    assert [one.end for one in words] == pytest.approx([1.095, 1.185])


def test_a_text_that_ctc_cannot_align_has_no_times():
    part = SpokenPart([1, 2, 4], frames([0, 1]), torch.zeros(4), SoundPiece(0, 800, rate=800))
    assert time_words(part, decode, FrameTimes(0.0, 0.01, 2), blank=0) is None


def test_words_never_extend_into_their_neighbours_or_beyond_the_recording():
    assert extend_words([(2, 3), (4, 5)], torch.ones(7)) == [(2, 3), (4, 5)]  # no louder than the quietest tenth
    loudness = torch.tensor([0.0, *[1.0] * 9])
    assert extend_words([(2, 3), (5, 6)], loudness) == [(1, 3), (3, 10)]
    assert extend_words([(8, 14)], loudness) == [(1, 10)]


def test_spikes_are_the_positions_without_a_blank():
    found = find_spikes(frames([0, 1, 1, 0, 4]), lambda token: LETTERS[token], blank=0)
    assert [(place, text) for place, text, _ in found] == [(1, "o"), (2, "o"), (4, "e")]
    assert found[0][2] == pytest.approx(0.96, abs=0.01)


def test_error_rates_are_edits_per_word_of_all_references():
    found = error_rates(["one two", "", "x"], ["One, two three!", "four", "…"])
    assert found["wer"] == 75.0  # one missing, one missing, one inserted, of four words
    assert found["cer"] == round(100 * (6 + 4 + 1) / 17, 2)
    assert normalise_text("It's  “ fine ”_") == "it's fine"
    with pytest.raises(DataError, match="no rows"):
        error_rates([], [])
    with pytest.raises(DataError, match="no reference"):
        error_rates(["a"], ["!"])


def test_words_without_a_pause_between_them_meet_at_the_quietest_frame():
    loudness = torch.tensor([0.0, 0.0, 5.0, 5.0, 5.0, 3.0, 4.0, 5.0, 5.0, 5.0, 0.0, 0.0, 0.0])
    assert extend_words([(2, 3), (8, 9)], loudness) == [(2, 5), (5, 10)]
