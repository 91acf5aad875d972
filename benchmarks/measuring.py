"""Side-by-side timing: every round runs all competitors in turn, so that a busy minute slows all of them.

A result is the median over rounds of (time / the peer's time in the same round), with its quartiles.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

RESULTS = Path(__file__).parent / "results"
HEADER = ["case", "shape", "competitor", "median ms", "ratio to peer", "quartiles", "extra memory MB"]


class Timing(NamedTuple):
    median: float  # seconds
    ratio: float
    low: float
    high: float
    memory: float | None  # bytes beyond what was there, on the GPU


def compare(competitors: dict[str, Callable[[], object]], *, rounds: int = 15, calls: int = 1) -> dict[str, Timing]:
    """Times of each competitor; ratios are to the first one, the peer. Order alternates from round to round."""
    memory = {name: _warm_up(run) for name, run in competitors.items()}
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for number in range(rounds):
        order = list(competitors) if number % 2 == 0 else list(reversed(competitors))
        for name in order:
            times[name].append(_seconds(competitors[name], calls))
    peer = times[next(iter(competitors))]
    result = {}
    for name, own in times.items():
        ratios = [mine / other for mine, other in zip(own, peer, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        result[name] = Timing(statistics.median(own), statistics.median(ratios), low, high, memory[name])
    return result


def _warm_up(run: Callable[[], object]) -> float | None:
    run()
    if not torch.cuda.is_available():
        return None
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _seconds(run: Callable[[], object], calls: int) -> float:
    if torch.cuda.is_available():
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


class Report:
    """A table and notes below it, printed as they grow and kept as a file named theme_hardware_date.md."""

    def __init__(self, theme: str, title: str) -> None:
        self.theme, self.title, self.rows, self.notes = theme, title, [], list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)

    def judge(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """Notes a value and whether it keeps a limit: "… 1.62 (within 1.8)" or "… 1.91 (OVER 1.8)"."""
        shown, line = (f"{value:.2f}", f"{limit:g}") if limit < 10 else (f"{value:,.0f}", f"{limit:,.0f}")
        self.note(f"{what} {shown}{unit} ({'within' if value <= limit else 'OVER'} {line})")

    def add(self, case: str, shape: str, timings: dict[str, Timing]) -> None:
        for name, t in timings.items():
            memory = "" if t.memory is None else f"{t.memory / 1e6:.0f}"
            row = [
                case,
                shape,
                name,
                f"{t.median * 1e3:.3f}",
                f"{t.ratio:.3f}",
                f"{t.low:.3f}–{t.high:.3f}",
                memory,
            ]
            self.rows.append(row)
            print(" | ".join(f"{cell:<12}" for cell in row), flush=True)

    def text(self) -> str:
        table = "\n".join(f"| {' | '.join(row)} |" for row in [HEADER, ["---"] * 7, *self.rows])
        about = [
            f"- date: {datetime.date.today()}",
            f"- hardware: {hardware()}",
            f"- versions: Python {platform.python_version()}, torch {torch.__version__}"
            + "".join(f", {name} {module.__version__}" for name, module in _peers()),
            f"- command: `python {' '.join(sys.argv)}`",
            "- ratio: median over rounds of time / time of the first competitor of the case in the same round",
        ]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"# {self.title}", "", *about, "", table, *notes, ""])

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        kind = "h200" if "H200" in hardware() else "gpu" if torch.cuda.is_available() else "cpu"
        path = RESULTS / f"{self.theme}_{kind}_{datetime.date.today()}.md"
        path.write_text(self.text(), encoding="utf-8")
        print(f"kept as {path}")
        return path


def hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    names = [line for line in _cpu_info() if line.startswith("model name")]
    model = names[0].split(":")[1].strip() if names else platform.processor()
    return f"{model}, {torch.get_num_threads()} threads"


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _peers() -> list[tuple[str, object]]:
    return [(name, sys.modules[name]) for name in ("transformers", "triton") if name in sys.modules]
