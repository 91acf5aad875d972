"""By how many bytes memory grows while something runs, in a process of its own; and that nothing is quadratic."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Grown = dict[tuple[str, int], int]  # (case, tokens) → bytes

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")


def grown_in(module: str, device: str) -> Grown:
    """What this module prints with `report`, in a process of its own, for a clean peak."""
    command = [sys.executable, "-m", module, device]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(name, tokens): size for name, tokens, size in json.loads(done.stdout)}


def assert_nothing_quadratic(grown: Grown, plain: str) -> None:
    """But in the plain code of this name: half a square of booleans is too much."""
    too_much = {
        f"{name}, {tokens} tokens": f"{size / 1e6:.0f} MB"
        for (name, tokens), size in grown.items()
        if name != plain and size > tokens**2 / 2
    }
    assert not too_much, too_much


def assert_seen(grown: Grown, plain: str) -> None:
    """The meter sees the square of scores that plain code builds."""
    ((tokens, size),) = ((tokens, size) for (name, tokens), size in grown.items() if name == plain)
    assert size > 4 * tokens**2, f"{plain} took {size} bytes for {tokens} tokens"


def report(runs: dict[tuple[str, int], Callable[[], None]], device: str) -> None:
    """Prints, as JSON, by how much memory grew in each."""
    print(json.dumps([(name, tokens, growth(run, device)) for (name, tokens), run in runs.items()]))


def growth(run: Callable[[], None], device: str) -> int:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
    before = peak(device)
    run()
    return peak(device) - before


def peak(device: str) -> int:
    """Not getrusage: its peak begins with that of the process that started this one."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    (line,) = (text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
