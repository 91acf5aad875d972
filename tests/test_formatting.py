"""Sizes, durations, counts and suggestions, as messages show them."""

import pytest

from clearhead.formatting import format_bytes, format_duration, suggest_name


@pytest.mark.parametrize(
    ("count", "wanted"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2_499_999, "2.5 MB"), (7 * 10**12, "7,000.0 GB")],
)
def test_sizes_have_the_largest_unit_that_fits(count, wanted):
    assert format_bytes(count) == wanted


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.0, "59 min 59 s"), (86399.0, "23 h 59 min")],
)
def test_durations_are_rounded_to_seconds_before_they_are_split(seconds, wanted):
    assert format_duration(seconds) == wanted


def test_a_name_without_a_neighbour_lists_what_there_is():
    assert suggest_name("widht", ["width", "heads"]) == "did you mean 'width'?"
    assert suggest_name("zzz", ["width", "heads"]) == "choose from width, heads"
    assert suggest_name("zzz", [], "there are none") == "there are none"
