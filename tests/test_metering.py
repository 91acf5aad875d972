"""The meter of memory can see what it is to find."""

import pytest

from tests.metering import assert_nothing_quadratic, assert_seen

LINEAR = {("fast", 1000): 90_000, ("plain", 500): 3_000_000}


def test_half_a_square_of_booleans_is_too_much():
    assert_nothing_quadratic(LINEAR, plain="plain")
    with pytest.raises(AssertionError, match="fast, 1000 tokens"):
        assert_nothing_quadratic(LINEAR | {("fast", 1000): 510_000}, plain="plain")


def test_plain_code_that_is_not_seen_is_an_error():
    assert_seen(LINEAR, plain="plain")
    with pytest.raises(AssertionError):
        assert_seen(LINEAR | {("plain", 500): 900_000}, plain="plain")
