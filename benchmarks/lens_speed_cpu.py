"""What measuring an attention costs on a CPU, against the eager computation of its weights, which measures nothing.

    python benchmarks/lens_speed_cpu.py [--rounds 9] [--tokens 4096]

Memory is the peak of the resident set beyond what was there, of each competitor in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import Mask
from clearhead.lens import measure

from measuring import Report, compare

HEADS, D = 8, 64
MASKS = {"full": None, "causal": Mask.causal(), "window 256": Mask.window(255)}


def eager(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = q @ k.mT * (1 / math.sqrt(D))
    return (scores if hidden is None else scores.masked_fill(hidden, -math.inf)).softmax(-1)


def competitors(case: str, tokens: int) -> dict[str, Callable[[], object]]:
    """The eager weights first: the peer."""
    torch.manual_seed(0)
    q, k = torch.randn(1, HEADS, tokens, D), torch.randn(1, HEADS, tokens, D)
    mask = MASKS[case]
    hidden = None if mask is None else ~mask.dense(tokens, tokens)
    bare = {"pixels": 0, "top": 0, "received": False}
    return {
        "eager weights": lambda: eager(q, k, hidden),
        "measure": lambda: measure(q, k, mask),
        "measure, top=0": lambda: measure(q, k, mask, top=0),
        "measure, per query only": lambda: measure(q, k, mask, **bare),
        "measure, every 16th query": lambda: measure(q, k, mask, every=16),
        "for scale: sdpa": lambda: F.scaled_dot_product_attention(
            q, k, k, None if hidden is None or case == "causal" else ~hidden, is_causal=case == "causal"
        ),
    }


def grown(case: str, tokens: int, name: str) -> int:
    """Bytes by which the peak of this process grows while one competitor runs once."""
    competitors(case, 128)[name]()  # what PyTorch itself takes at the first call
    run = competitors(case, tokens)[name]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
    before = peak()
    run()
    return peak() - before


def peak() -> int:
    (line,) = (text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def grown_elsewhere(case: str, tokens: int, name: str) -> float:
    command = [sys.executable, __file__, "--grown", case, name, "--tokens", str(tokens)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--grown", nargs=2, metavar=("CASE", "COMPETITOR"))
    options = parser.parse_args()
    if options.grown:
        print(grown(options.grown[0], options.tokens[0], options.grown[1]))
        return
    report = Report("lens_speed", "measure against the eager computation of the weights, on a CPU")
    for tokens in options.tokens:
        for case in MASKS:
            timings = compare(competitors(case, tokens), rounds=options.rounds)
            memory = {name: grown_elsewhere(case, tokens, name) for name in timings}
            shape = str((1, HEADS, tokens, D))
            report.add(case, shape, {name: t._replace(memory=memory[name]) for name, t in timings.items()})
    report.save()


if __name__ == "__main__":
    main()
