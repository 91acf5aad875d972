"""Imports PyTorch: sets its threads and their wait policy first, and handles Ctrl-C during the import.

The threads were measured in benchmarks/results/threads_cpu_2026-11-16.md.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clearhead.cli.output import print_message, rank

# How OpenMP's threads wait for each other, unless the user set one of these. By itself GNU's OpenMP spins for 300,000
# iterations, and keeps a core busy that the awaited thread may need: beside another program, up to six times slower.
WAIT_POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def limit_spinning() -> None:
    """Lets waiting threads sleep, unless the user set something else; OpenMP reads this when PyTorch is imported."""
    if "torch" not in sys.modules and WAIT_POLICY not in os.environ and SPINS not in os.environ:
        os.environ[WAIT_POLICY] = "PASSIVE"


def import_torch(threads: int | None) -> None:
    """Imports PyTorch and sets its number of CPU threads; None keeps the defaults of PyTorch and the tokenizers."""
    limit_spinning()
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizers' threads, which start at their first use
    with _exit_on_interrupt():
        import torch
    if threads is not None:
        torch.set_num_threads(threads)


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process at once: PyTorch's import of NumPy swallows a KeyboardInterrupt."""
    if "torch" in sys.modules or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(*_: Any) -> None:
    if rank() == 0:
        print_message("interrupted")
    os._exit(INTERRUPTED)
