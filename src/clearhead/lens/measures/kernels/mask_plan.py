"""A mask as the kernels read it: bounds to test within a tile, and the list of tiles to visit.

A mask becomes a disjunction of a few terms; a term bounds j − i, the keys j and the queries i, which covers bands,
padding and prefixes under `&`. One document mask and one dense mask may be added to the terms. A mask that does not
fit this form is made dense if it is small. The tile plan of a pass is one long run of fully visible tiles and a list
of the others; it is computed on the device, without synchronising.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from clearhead.attention.mask_kinds import Band, Both, Dense, Documents, Either, Padding, Prefix
from clearhead.attention.masks import Mask

FAR = 2**30
TERMS = 4  # most terms: each number of them compiles another kernel
DENSE = 2**28  # most cells of a mask that is made dense


class Bound(NamedTuple):
    """A bound: `number`, or `number + sign * lengths[sample]`; `kind` says what is bounded, coded as in `Term`."""

    kind: int
    number: int
    lengths: Int[Tensor, " samples"] | None = None
    sign: int = 1


class Term(NamedTuple):
    """A conjunction of bounds on query i and key j, and of document ids or a dense mask, if any.

    `Bound.kind` 0 and 1: minimum and maximum of j − i; 2 and 3: begin and end of j; 4 and 5: begin and end of i.
    """

    bounds: tuple[Bound, ...] = ()
    documents: Documents | None = None
    dense: Dense | None = None


class MaskArguments(NamedTuple):
    """The arguments and constants of `tile_operations.is_visible`."""

    arguments: tuple[Shaped[Tensor, "..."] | int, ...]
    terms: int
    bounds: int
    documents: int
    dense: int


def explain_refusal(mask: Mask | None, sizes: tuple[int, int, int, int]) -> str | None:
    """The reason why the kernels cannot read a mask, or None."""
    if mask is None or find_terms(mask, *sizes[2:]) is not None:
        return None
    cells = (mask.batch or 1) * (mask.heads or 1) * sizes[2] * sizes[3]
    if cells <= DENSE:
        return None
    return f"{mask!r} has too many parts for it, and {cells:,} cells are too many to build it whole"


def build_mask_arguments(mask: Mask | None, sizes: tuple[int, int, int, int], device: torch.device) -> MaskArguments:
    """A mask as kernel arguments, computed once for all layers that share it."""
    if mask is None:
        nothing = _empty_table(device)
        return MaskArguments((nothing, 0, nothing, 0, nothing, 0, nothing, 0, 0, 0, 0), 0, 0, 0, 0)
    key = ("lens rules", sizes, device)
    arguments: MaskArguments = mask.once(key, lambda: _build_mask_arguments(mask, sizes, device))
    return arguments


def find_terms(mask: Mask, queries: int, keys: int) -> list[Term] | None:
    """The terms of a mask, or None if there are too many, or it has several document or dense masks."""
    terms = _find_terms(mask, queries, keys)
    if terms is None or len(terms) > TERMS:
        return None
    for kind in ("documents", "dense"):
        if len({id(part) for term in terms if (part := getattr(term, kind)) is not None}) > 1:
            return None
    return terms


def _find_terms(mask: Mask, queries: int, keys: int) -> list[Term] | None:
    match mask:
        case Both():
            terms: list[Term] = [Term()]
            for part in mask.masks:
                more = _find_terms(part, queries, keys)
                joined = [] if more is None else [_join_terms(a, b) for a in terms for b in more]
                if more is None or None in joined or len(joined) > TERMS:
                    return None
                terms = [term for term in joined if term is not None]
            return terms
        case Either():
            sides = [_find_terms(part, queries, keys) for part in mask.masks]
            return None if None in sides else [term for side in sides for term in side or []]
        case Documents():
            return [Term(documents=mask)]
        case Dense():
            return [Term(dense=mask)]
    bounds = _find_bounds(mask, queries, keys)
    return None if bounds is None else [Term(bounds)]


def _join_terms(a: Term, b: Term) -> Term | None:
    """The conjunction of two terms; None if that takes two document or two dense masks."""
    if any(x is not None and y is not None and x is not y for x, y in zip(a[1:], b[1:], strict=True)):
        return None
    documents = b.documents if a.documents is None else a.documents
    return Term(a.bounds + b.bounds, documents, b.dense if a.dense is None else a.dense)


def _find_bounds(mask: Mask, queries: int, keys: int) -> tuple[Bound, ...] | None:
    match mask:
        case Band(left=left, right=right):
            start = mask.start(queries, keys)
            low = () if left is None else (Bound(0, start - left),)
            return low if right is None else (*low, Bound(1, start + right))
        case Prefix(lengths=lengths):
            return (Bound(3, 0, lengths),)
        case Padding(lengths=lengths, side="right", hide_queries=hides):
            of_queries = (Bound(5, queries - keys, lengths),) if hides else ()
            return (Bound(3, 0, lengths), *of_queries)
        case Padding(lengths=lengths, hide_queries=hides):
            of_queries = (Bound(4, queries, lengths, -1),) if hides else ()
            return (Bound(2, keys, lengths, -1), *of_queries)
    return None


def _build_mask_arguments(mask: Mask, sizes: tuple[int, int, int, int], device: torch.device) -> MaskArguments:
    queries, keys = sizes[2:]
    terms = find_terms(mask, queries, keys)
    if terms is None:
        terms = [Term(dense=Dense(mask.dense(queries, keys, device)))]
    bounds = _build_table(terms, device)
    documents = next((term.documents for term in terms if term.documents is not None), None)
    dense = next((term.dense for term in terms if term.dense is not None), None)
    of_queries = of_keys = seen = _empty_table(device)
    if documents is not None:
        of_queries, of_keys = documents.of_queries(queries).contiguous(), documents.ids.contiguous()
    if dense is not None:
        seen = dense.seen.view(torch.uint8)
    arguments: tuple[Tensor | int, ...] = (
        *(bounds, 0 if len(bounds) == 1 else bounds.stride(0)),
        *(of_queries, 0 if len(of_queries) == 1 else of_queries.stride(0)),
        *(of_keys, 0 if len(of_keys) == 1 else of_keys.stride(0)),
        seen,
        *((0, 0, 0, 0) if dense is None else broadcast_strides(seen)),
    )
    used = {6 * row + bound.kind for row, term in enumerate(terms) for bound in term.bounds}
    with_documents = {row for row, term in enumerate(terms) if term.documents is not None}
    with_dense = {row for row, term in enumerate(terms) if term.dense is not None}
    bits = (sum(1 << number for number in numbers) for numbers in (used, with_documents, with_dense))
    return MaskArguments(arguments, len(terms), *bits)


def _build_table(terms: list[Term], device: torch.device) -> Tensor:
    """The six bounds of each term, for each sample or for all: (samples, terms, 6)."""
    numbers: list[list[int]] = [[-FAR, FAR] * 3 for _ in terms]
    by_sample: list[tuple[int, int, Tensor]] = []
    for row, term in enumerate(terms):
        for kind, number, lengths, sign in term.bounds:
            if lengths is None:
                numbers[row][kind] = (min if kind % 2 else max)(numbers[row][kind], number)
            else:
                by_sample.append((row, kind, lengths if (number, sign) == (0, 1) else number + sign * lengths))
    table: Tensor = cache_on_device(
        ("bounds", tuple(map(tuple, numbers))),
        device,
        lambda: torch.tensor([numbers], dtype=torch.int32, device=device),
    )
    if by_sample:
        table = table.repeat(max(len(bound) for *_, bound in by_sample), 1, 1)
    for row, kind, bound in by_sample:
        column = table[:, row, kind]
        (torch.minimum if kind % 2 else torch.maximum)(column, bound.to(device), out=column)
    return table


def _empty_table(device: torch.device) -> Tensor:
    """A placeholder for an absent argument; never read."""
    table: Tensor = cache_on_device("nothing", device, lambda: torch.zeros(1, dtype=torch.int32, device=device))
    return table


def broadcast_strides(tensor: Shaped[Tensor, "..."]) -> tuple[int, ...]:
    """The strides of a tensor, with 0 for axes of size 1, which broadcast."""
    return tuple(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


VISIT_ALL_TILES = 4  # tiles up to which it is faster to visit all than to ask the mask: that takes 50 kernels

TilePlan = tuple[Tensor | int, ...]
Tile = tuple[int, int]  # queries, keys


def plan_rows(
    mask: Mask | None, sizes: tuple[int, int], rows: range, offset: int, tile: Tile, device: torch.device
) -> TilePlan:
    """For each tile of rows: its run of fully visible key tiles, a hole in that, and the list of other tiles.

    The hole holds the tiles with keys on both sides of their queries, where distances change sign.
    """

    def plan() -> TilePlan:
        visible, whole = _classify_tiles(mask, sizes, rows, tile, device)
        first, end = _find_longest_run(whole)
        low = torch.arange(0, len(rows), tile[0], device=device)
        high = (low + tile[0]).clamp(max=len(rows)) - 1
        lowest, highest = (offset + rows.start + rows.step * row for row in (low, high))
        hole = torch.minimum(torch.maximum(lowest.div(tile[1], rounding_mode="floor"), first), end)
        hole_end = torch.minimum(torch.maximum(highest.div(tile[1], rounding_mode="floor") + 1, hole), end)
        return _pack_plan(visible, first, end, hole, hole_end)

    tiles = (-(-len(rows) // tile[0]), -(-sizes[1] // tile[1]))
    return _cache_plan(mask, tiles, ("lens rows", sizes, rows, offset, tile, device), plan, device)


def plan_columns(mask: Mask | None, sizes: tuple[int, int], rows: range, tile: Tile, device: torch.device) -> TilePlan:
    """For each tile of keys: its run of fully visible row tiles, and the list of others."""

    def plan() -> TilePlan:
        visible, whole = (blocks.mT for blocks in _classify_tiles(mask, sizes, rows, tile, device))
        whole = whole & (torch.arange(1, visible.shape[-1] + 1, device=device) * tile[0] <= len(rows))
        first, end = _find_longest_run(whole)
        return _pack_plan(visible, first, end, end, end)

    tiles = (-(-sizes[1] // tile[1]), -(-len(rows) // tile[0]))
    return _cache_plan(mask, tiles, ("lens columns", sizes, rows, tile, device), plan, device)


def _cache_plan(
    mask: Mask | None, tiles: Tile, key: tuple[object, ...], make: Callable[[], TilePlan], device: torch.device
) -> TilePlan:
    """The plan of these tiles by others, made once for each mask and device."""
    if mask is not None and tiles[0] * tiles[1] <= VISIT_ALL_TILES:
        none = torch.zeros(1, 1, tiles[0], dtype=torch.long, device=device)
        everything = torch.ones(1, 1, *tiles, dtype=torch.bool, device=device)
        mask, key, make = None, ("all tiles", *tiles), lambda: _pack_plan(everything, none, none, none, none)
    plan: TilePlan = cache_on_device(key, device, make) if mask is None else mask.once(key, make)
    return plan


def _classify_tiles(
    mask: Mask | None, sizes: tuple[int, int], rows: range, tile: Tile, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which tiles may have something visible, and which have nothing hidden: (samples, heads, tiles, tiles)."""
    queries, keys = sizes
    shape = (-(-len(rows) // tile[0]), -(-keys // tile[1]))
    inside = torch.arange(1, shape[1] + 1, device=device) * tile[1] <= keys
    if mask is None:
        visible = torch.ones(1, 1, *shape, dtype=torch.bool, device=device)
        return visible, visible & inside
    # The first measured query lies within the first step, so that tiles of rows are blocks of queries.
    visible, whole = mask.blocks(queries, keys, tile[0] * rows.step, tile[1], device)
    high = max(visible.shape[2], whole.shape[2])
    visible, whole = (
        blocks.expand(-1, -1, max(high, shape[0]), shape[1])[:, :, : shape[0]] for blocks in (visible, whole)
    )
    return visible, whole & visible & inside


def _find_longest_run(marked: Tensor) -> tuple[Tensor, Tensor]:
    """First and end of the longest run of marks in each row."""
    number = torch.arange(marked.shape[-1], device=marked.device)
    gap = torch.where(marked, -1, number).cummax(-1).values
    length, last = (number - gap).max(-1)
    return last + 1 - length, last + 1


def _pack_plan(visible: Tensor, first: Tensor, end: Tensor, hole: Tensor, hole_end: Tensor) -> TilePlan:
    """The arguments of the kernels: (first, end, hole, its end, others) with strides, then the others with theirs."""
    number = torch.arange(visible.shape[-1], device=visible.device)
    in_run = (number >= first[..., None]) & (number < end[..., None])
    in_hole = (number >= hole[..., None]) & (number < hole_end[..., None])
    others = (visible & ~(in_run & ~in_hole)).contiguous()
    order = others.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).int()
    runs = torch.stack([*torch.broadcast_tensors(first, end, hole, hole_end, others.sum(-1))], -1).int().contiguous()
    by_sample, by_head = (0 if size == 1 else 1 for size in visible.shape[:2])
    strides = (runs.stride(0) * by_sample, runs.stride(1) * by_head)
    return (runs, *strides, order, order.stride(0) * by_sample, order.stride(1) * by_head, order.stride(2))


def cache_on_device(key: Hashable, device: torch.device, make: Callable[[], Any]) -> Any:
    """What `make` returned the first time; one entry per CUDA stream, since other streams would not wait for it."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    full_key = (key, device, stream)
    value = _cached.get(full_key)
    if value is None and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return make()  # it belongs to the graph
    if value is None:
        if len(_cached) > 63:
            _cached.clear()  # another thread may do so at any time: hence one lookup only
        value = _cached[full_key] = make()
    return value


_cached: dict[Hashable, Any] = {}
