"""Measuring takes O(n) memory: nothing that grows with tokens × tokens is built."""

import pytest

from tests.metering import assert_nothing_quadratic, assert_seen, grown_in, on_linux

pytestmark = on_linux


@pytest.fixture(scope="module")
def grown(device):
    return grown_in("tests.lens.memory_use", device)


def test_nothing_quadratic_is_built(grown):
    assert_nothing_quadratic(grown, plain="the definition")


def test_the_meter_sees_the_square_that_plain_code_builds(grown):
    assert_seen(grown, plain="the definition")
