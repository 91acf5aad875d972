"""Which tiles a pass has to visit: one long run of tiles in which nothing is hidden, and a list of the others.

All of it is worked out where the tensors are, without waiting for them.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from clearhead.attention.masks import Mask
from clearhead.lens.measures.kernels.reusing import reused

FEW = 4  # so few tiles are visited sooner than a mask says which of them it hides: that takes the time of 50 kernels

Plan = tuple[Tensor | int, ...]
Tile = tuple[int, int]  # queries, keys


def along_rows(
    mask: Mask | None, sizes: tuple[int, int], rows: range, offset: int, tile: Tile, device: torch.device
) -> Plan:
    """For each tile of rows: first and end of its run of keys, a hole in it, the number of other tiles; and these.

    In the hole are the tiles with keys on both sides of their queries: their distances take a closer look.
    """
    tiles = (-(-len(rows) // tile[0]), -(-sizes[1] // tile[1]))
    if mask is not None and tiles[0] * tiles[1] <= FEW:
        return _all(*tiles, device)
    key = ("lens rows", sizes, rows, offset, tile, device)
    return _kept(mask, key, functools.partial(_along_rows, mask, sizes, rows, offset, tile, device), device)


def along_columns(mask: Mask | None, sizes: tuple[int, int], rows: range, tile: Tile, device: torch.device) -> Plan:
    """For each tile of keys the same, of whole tiles of rows, and without a hole."""
    tiles = (-(-sizes[1] // tile[1]), -(-len(rows) // tile[0]))
    if mask is not None and tiles[0] * tiles[1] <= FEW:
        return _all(*tiles, device)
    key = ("lens columns", sizes, rows, tile, device)
    return _kept(mask, key, functools.partial(_along_columns, mask, sizes, rows, tile, device), device)


def _kept(mask: Mask | None, key: tuple[object, ...], make: functools.partial[Plan], device: torch.device) -> Plan:
    found: Plan = reused(key, device, make) if mask is None else mask.once(key, make)
    return found


def _all(tiles: int, others: int, device: torch.device) -> Plan:
    """The plan to visit every tile, and to ask the mask about all of it."""

    def make() -> Plan:
        some = torch.ones(1, 1, tiles, others, dtype=torch.bool, device=device)
        none = torch.zeros(1, 1, tiles, dtype=torch.long, device=device)
        return _plan(some, none, none, none, none)

    found: Plan = reused(("all tiles", tiles, others), device, make)
    return found


def _along_rows(
    mask: Mask | None, sizes: tuple[int, int], rows: range, offset: int, tile: Tile, device: torch.device
) -> Plan:
    some, sure = _tiles(mask, sizes, rows, tile, device)
    first, end = _longest_run(sure)
    low = torch.arange(0, len(rows), tile[0], device=device)
    high = (low + tile[0]).clamp(max=len(rows)) - 1
    lowest, highest = (offset + rows.start + rows.step * row for row in (low, high))
    hole = torch.minimum(torch.maximum(lowest.div(tile[1], rounding_mode="floor"), first), end)
    hole_end = torch.minimum(torch.maximum(highest.div(tile[1], rounding_mode="floor") + 1, hole), end)
    return _plan(some, first, end, hole, hole_end)


def _along_columns(mask: Mask | None, sizes: tuple[int, int], rows: range, tile: Tile, device: torch.device) -> Plan:
    some, sure = (blocks.mT for blocks in _tiles(mask, sizes, rows, tile, device))
    sure = sure & (torch.arange(1, some.shape[-1] + 1, device=device) * tile[0] <= len(rows))
    first, end = _longest_run(sure)
    return _plan(some, first, end, end, end)


def _tiles(
    mask: Mask | None, sizes: tuple[int, int], rows: range, tile: Tile, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which tiles may have something visible, and which have nothing hidden: (samples, heads, tiles, tiles)."""
    queries, keys = sizes
    shape = (-(-len(rows) // tile[0]), -(-keys // tile[1]))
    whole = torch.arange(1, shape[1] + 1, device=device) * tile[1] <= keys
    if mask is None:
        some = torch.ones(1, 1, *shape, dtype=torch.bool, device=device)
        return some, some & whole
    # The first query taken is before the first step's end, so that tiles of rows are blocks of queries.
    some, sure = mask.blocks(queries, keys, tile[0] * rows.step, tile[1], device)
    high = max(some.shape[2], sure.shape[2])
    some, sure = (blocks.expand(-1, -1, max(high, shape[0]), shape[1])[:, :, : shape[0]] for blocks in (some, sure))
    return some, sure & some & whole


def _longest_run(marked: Tensor) -> tuple[Tensor, Tensor]:
    """First and end of the longest run of marks in each row.

    >>> _longest_run(torch.tensor([[True, False, True, True], [False, False, False, False]]))
    (tensor([2, 1]), tensor([4, 1]))
    """
    number = torch.arange(marked.shape[-1], device=marked.device)
    gap = torch.where(marked, -1, number).cummax(-1).values
    length, last = (number - gap).max(-1)
    return last + 1 - length, last + 1


def _plan(some: Tensor, first: Tensor, end: Tensor, hole: Tensor, hole_end: Tensor) -> Plan:
    """The arguments of the kernels: (first, end, hole, its end, others) with strides, then the others with theirs."""
    number = torch.arange(some.shape[-1], device=some.device)
    in_run = (number >= first[..., None]) & (number < end[..., None])
    in_hole = (number >= hole[..., None]) & (number < hole_end[..., None])
    others = (some & ~(in_run & ~in_hole)).contiguous()
    order = others.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).int()
    runs = torch.stack([*torch.broadcast_tensors(first, end, hole, hole_end, others.sum(-1))], -1).int().contiguous()
    by_sample, by_head = (0 if size == 1 else 1 for size in some.shape[:2])
    strides = (runs.stride(0) * by_sample, runs.stride(1) * by_head)
    return (runs, *strides, order, order.stride(0) * by_sample, order.stride(1) * by_head, order.stride(2))
