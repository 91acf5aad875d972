"""For each block of queries, the run of keys that any of them may see, and where in it the mask must be evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.masks import Mask

PIECES = 4  # with more, evaluating the mask from the first to the last is faster


class VisibleRun(NamedTuple):
    """The first to the last visible key of a block of queries; within `partial` slices only some are visible."""

    columns: slice
    partial: tuple[slice, ...]


def find_visible_runs(
    mask: Mask, queries: int, keys: int, rows: int, width: int, device: Any = None
) -> list[VisibleRun]:
    """One VisibleRun for each block of `rows` queries, found at the resolution of `width` keys.

    >>> find_visible_runs(Mask.window(5), 8, 8, 2, 2)[3]
    VisibleRun(columns=slice(0, 8, None), partial=(slice(0, 2, None), slice(6, 8, None)))
    """
    shape = (-1, -1, -(-queries // rows), -(-keys // width))
    blocks = mask.blocks(queries, keys, rows, width, device)
    some, every = (t.expand(shape).flatten(0, 1) for t in blocks)
    runs = []
    for visible, not_all in zip(
        _find_marked_slices(some.any(0), width, keys), _find_marked_slices(~every.all(0), width, keys), strict=True
    ):
        run = slice(visible[0].start, visible[-1].stop) if visible else slice(0, 0)
        inside = [slice(max(p.start, run.start), min(p.stop, run.stop)) for p in not_all]
        partial = [p for p in inside if p.start < p.stop]
        if len(partial) > PIECES:
            partial = [slice(partial[0].start, partial[-1].stop)]
        runs.append(VisibleRun(run, tuple(partial)))
    return runs


def _find_marked_slices(marked: Tensor, width: int, size: int) -> list[list[slice]]:
    """For each row of blocks, the slices of keys in which consecutive blocks are marked."""
    edges = F.pad(marked.int(), (1, 1)).diff(dim=1).cpu()
    starts, stops = (edges == 1).nonzero().tolist(), (edges == -1).nonzero().tolist()
    slices: list[list[slice]] = [[] for _ in range(len(marked))]
    for (row, start), (_, stop) in zip(starts, stops, strict=True):
        slices[row].append(slice(start * width, min(stop * width, size)))
    return slices
