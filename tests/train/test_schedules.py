"""The learning rate: up, and down again, by numbers that one can check on paper."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.train.updater import learning_rate

FALLING = ("inverse-sqrt", "cosine", "linear", "constant")


def rates(kind: str, steps: int, warmup: int, peak: float = 1.0) -> list[float]:
    """Those of a whole run: before step n, n − 1 steps are done."""
    return [learning_rate(kind, peak, step, warmup=warmup, done=(step - 1) / steps) for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("inverse-sqrt", [0.25, 0.5, 0.75, 1, math.sqrt(4 / 5), math.sqrt(4 / 6), math.sqrt(4 / 7), math.sqrt(4 / 8)]),
        ("linear", [0.25, 0.5 * 7 / 8, 0.75 * 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ("cosine", [0.25, 0.5 * 0.961940, 0.75 * 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060]),
    ],
)
def test_the_rates_of_eight_steps_by_hand(kind, wanted):
    assert rates(kind, steps=8, warmup=4) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("kind", FALLING)
def test_without_a_warm_up_the_first_step_is_at_the_peak(kind):
    for warmup in (0, 1):
        assert learning_rate(kind, 3e-4, 1, warmup=warmup, done=0.0) == pytest.approx(3e-4)


def test_cosine_and_linear_end_at_zero_and_stay_there():
    for kind in ("cosine", "linear"):
        for done in (1.0, 1.0 + 1e-9, 1.5):
            assert learning_rate(kind, 1.0, 100, warmup=10, done=done) == pytest.approx(0.0, abs=1e-15)


@given(st.sampled_from(FALLING), st.integers(1, 400), st.integers(0, 400), st.floats(1e-6, 10))
def test_a_rate_is_never_negative_nor_above_the_peak(kind, steps, warmup, peak):
    found = rates(kind, steps, warmup, peak)
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in found)


@given(st.sampled_from(FALLING), st.integers(10, 400), st.floats(0, 0.4))
def test_it_rises_in_the_warm_up_and_falls_after_it(kind, steps, share):
    warmup = int(share * steps)
    found = rates(kind, steps, warmup)
    rising, falling = found[:warmup], found[max(warmup, 1) - 1 :]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)


@given(st.sampled_from(FALLING), st.integers(1, 300), st.integers(0, 300))
def test_the_peak_is_only_a_factor(kind, step, warmup):
    one, other = (learning_rate(kind, peak, step, warmup=warmup, done=step / 300) for peak in (1.0, 7.0))
    assert other == pytest.approx(7 * one)
