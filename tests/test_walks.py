"""What a reader opens to follow one command: limits for its files, and for returns to files left before."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Most files, and most returns.
LIMITS = {"predict": (28, None), "train": (45, None), "watch": (34, 150), "look": (60, 200)}


@pytest.fixture(scope="module")
def counts() -> dict[str, tuple[int, int]]:
    """Files and returns of each walk, in a fresh process without shape checks."""
    run = [sys.executable, str(Path(__file__).with_name("walks.py"))]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(\w+): (\d+) files, (\d+) returns", printed, re.MULTILINE)
    return {name: (int(files), int(returns)) for name, files, returns in found}


@pytest.mark.parametrize("name", LIMITS)
def test_a_command_is_followed_through_few_files(counts: dict[str, tuple[int, int]], name: str) -> None:
    (files, returns), (most_files, most_returns) = counts[name], LIMITS[name]
    assert 1 < files <= most_files, f"`python tests/walks.py {name}` lists the {files} files"
    assert most_returns is None or returns <= most_returns, f"{returns} returns"
