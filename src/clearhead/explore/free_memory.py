"""free_memory_soon: gives the memory of long texts back to the system, once nothing uses them any more."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading

DELAY = 1.0  # seconds after which requests that are being answered no longer hold tensors of the text before

_waiting = threading.Event()


def free_memory_soon() -> None:
    """Calls `free_memory` in a second, from another thread; once for all that ask for it meanwhile."""
    if not _waiting.is_set():
        _waiting.set()
        timer = threading.Timer(DELAY, free_memory)
        timer.daemon = True
        timer.start()


def free_memory() -> None:
    """Frees unused objects, and returns free memory to the system.

    A forward pass and its attentions refer to each other, so that only the garbage collector frees them. glibc keeps
    what is freed below its largest blocks, a gigabyte after a few long texts.
    """
    _waiting.clear()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # musl has none
        trim(0)
