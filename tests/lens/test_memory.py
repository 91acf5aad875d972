"""Measuring takes O(n) memory: nothing that grows with tokens × tokens is built."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")


@pytest.fixture(scope="module")
def grown(device):
    """By how many bytes memory grew: (case, tokens) → bytes, measured in a process of its own."""
    command = [sys.executable, "-m", "tests.lens.memory_use", device]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(name, tokens): size for name, tokens, size in json.loads(done.stdout)}


def test_nothing_quadratic_is_built(grown):
    too_much = {
        f"{name}, {tokens} tokens": f"{size / 1e6:.0f} MB"
        for (name, tokens), size in grown.items()
        if name != "the definition" and size > tokens**2 / 2  # half a square of booleans
    }
    assert not too_much


def test_the_meter_sees_the_square_that_the_definition_builds(grown):
    ((tokens, size),) = ((tokens, size) for (name, tokens), size in grown.items() if name == "the definition")
    assert size > 4 * tokens**2
