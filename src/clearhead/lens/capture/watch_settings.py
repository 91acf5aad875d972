"""The checked options of watch(), and the memory that a record with them will take."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.attention.biases import Dense
from clearhead.attention.call import Call
from clearhead.formatting import format_bytes
from clearhead.lens.measures.selections import Selected, find_query_runs

LARGE_SHARE = 0.25  # of the free memory: more gives a warning


Probe = Callable[[Int[Tensor, " queries"]], Int[Tensor, " queries"]]  # one key position for each query, or −1


def stay_at_query(positions: Int[Tensor, " queries"]) -> Int[Tensor, " queries"]:
    """The probe of `itself`: the key at the query's own position."""
    return positions


class MeasureDetail(NamedTuple):
    """Which measures to take of every attention."""

    pixels: int = 256
    top: int = 8
    every: int = 1
    keep: str = "none"
    probes: Mapping[str, Probe] | None = None
    norms: bool = False
    queries: Selected | None = None  # positions in the document; None for all
    spans: Mapping[str, slice] | None = None

    @property
    def measures_all_queries(self) -> bool:
        return self.every == 1 and self.queries is None

    @property
    def has_own_probes(self) -> bool:
        """Whether there are functions of the user, which may give other keys when they are called later."""
        return any(probe is not stay_at_query for probe in (self.probes or {}).values())


class WatchSettings(NamedTuple):
    """The checked options of watch(): names of the layers, numbers of the heads (None: all), and the detail."""

    layers: tuple[str, ...]
    heads: tuple[int, ...] | None = None
    detail: MeasureDetail = MeasureDetail()
    own_thread: bool = False


class AttentionShape(NamedTuple):
    """The sizes of one attention module; `itemsize` is the bytes per element of its parameters."""

    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int


def read_itemsize(model: nn.Module) -> int:
    """The bytes per element of a model's first floating-point parameter."""
    sizes = (parameter.itemsize for parameter in model.parameters() if parameter.is_floating_point())
    return next(sizes, torch.float32.itemsize)


def estimate_bytes(detail: MeasureDetail, shape: AttentionShape, batch: int, queries: int, keys: int) -> int:
    """The bytes that a record takes for one such attention.

    >>> estimate_bytes(MeasureDetail(pixels=0, top=0), AttentionShape(2, 2, 64, itemsize=4), 1, queries=10, keys=10)
    648
    """
    rows, samples = -(-queries // detail.every), batch * shape.heads
    if detail.queries is not None:
        rows = sum(map(len, find_query_runs(detail.queries, max(0, keys - queries), queries)))
    number = max(shape.itemsize, 4)
    per_query = 5 * number + 4 + detail.top * (number + 4)
    per_query += (len(detail.probes or {}) + len(detail.spans or {})) * number
    per_key = number * (2 if detail.norms else 1)
    pixels = min(rows, detail.pixels) * min(keys, detail.pixels)
    total = samples * (rows * per_query + keys * per_key + pixels * number + number)
    total += 4 * batch * (rows + keys)  # counts of visible keys, and of queries that see a key
    if detail.keep == "qk":
        q, k = shape.heads * queries, shape.kv_heads * keys
        total += batch * (q + k) * shape.head_dim * shape.itemsize
    return total


def count_dense_bytes(call: Call) -> int:
    """The bytes of a dense mask and a dense bias; structured ones count as nothing."""
    numbers = [] if call.mask is None else [tensor for tensor in call.mask.tensors() if tensor.ndim == 4]
    numbers += [call.bias.parameter] if isinstance(call.bias, Dense) else []
    return sum(tensor.nbytes for tensor in numbers)


def get_free_bytes() -> int | None:
    """The available memory of this machine; None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def warn_if_large(expected: int, what: str) -> bool:
    """Warns if this is more than a quarter of the free memory; returns whether it warned."""
    free = get_free_bytes()
    if free is None or expected <= LARGE_SHARE * free:
        return False
    warnings.warn(
        f"{what} will take about {format_bytes(expected)} of memory, and {format_bytes(free)} are free; "
        "choose some layers= or heads=, or keep='none'. clearhead.lens.expected_bytes estimates it without a run",
        stacklevel=2,
    )
    return True
