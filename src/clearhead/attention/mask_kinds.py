"""The kinds of masks, each defined by `at`, for single pairs of query and key, and `blocks`, for whole blocks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.attention.masks import AnyTensor, Blocks, Cells, Index, Mask, State, Tile, read_integer
from clearhead.errors import MaskError, ShapeError


class Band(Mask):
    """Causal masks and windows: keys from `left` before to `right` after the query's position."""

    kind, fields = "band", {"left": "left", "right": "right", "offset": "offset"}

    def __init__(self, left: int | None, right: int | None, offset: int | None) -> None:
        self.left, self.right, self.offset = left, right, offset

    def of_keys(self) -> Mask | None:
        return None

    def start(self, queries: int, keys: int) -> int:
        return keys - queries if self.offset is None else self.offset

    def span(self, query: int, queries: int, keys: int) -> range:
        position = query + self.start(queries, keys)
        low = 0 if self.left is None else max(0, position - self.left)
        return range(low, keys if self.right is None else min(keys, position + self.right + 1))

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Cells:
        ahead = j - (i + self.start(queries, keys))
        return self._within(ahead, ahead)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        (r0, r1), (c0, c1) = _block_edges(queries, rows, device), _block_edges(keys, columns, device)
        start = self.start(queries, keys)
        nearest = c0[None, :] - (r1[:, None] - 1 + start)
        furthest = (c1[None, :] - 1) - (r0[:, None] + start)
        return self._within(furthest, nearest)[None, None], self._within(nearest, furthest)[None, None]

    def _within(self, least: Tensor, most: Tensor) -> Tensor:
        seen = torch.ones_like(least, dtype=torch.bool)
        if self.left is not None:
            seen = seen & (least >= -self.left)
        if self.right is not None:
            seen = seen & (most <= self.right)
        return seen

    def __repr__(self) -> str:
        offset = "" if self.offset is None else f"offset={self.offset}"
        if self.left is None and self.right == 0:
            return f"Mask.causal({offset})"
        right = "" if self.right == 0 else str(self.right)
        return f"Mask.window({', '.join(part for part in (str(self.left), right, offset) if part)})"


class _ByLength(Mask):
    """Real tokens are visible: by default the first `lengths` keys, to all queries."""

    side, hide_queries = "right", False

    def __init__(self, lengths: Int[Tensor, " batch"]) -> None:
        self.lengths = lengths
        self.batch = len(lengths) if len(lengths) > 1 else None

    def _real(self, lengths: Tensor, position: Tensor, keys: int) -> Tensor:
        """Whether a position holds a real token."""
        return position < lengths if self.side == "right" else position >= keys - lengths

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Cells:
        lengths = _select_sample(self.lengths, b)
        seen = self._real(lengths, j, keys)
        return seen & self._real(lengths, i + (keys - queries), keys) if self.hide_queries else seen

    def visible_keys(self, keys: int) -> Bool[Tensor, "batch 1 1 keys"]:
        """The keys that are visible to every query."""
        return self._real(self.lengths.view(-1, 1, 1, 1), torch.arange(keys, device=self.lengths.device), keys)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        any_real, all_real = self._real_blocks(*_block_edges(keys, columns, device), keys)
        if self.hide_queries:
            first, end = (edge + keys - queries for edge in _block_edges(queries, rows, device))
            any_row, all_rows = self._real_blocks(first, end, keys)
            any_real, all_real = any_real & any_row.transpose(2, 3), all_real & all_rows.transpose(2, 3)
        return any_real, all_real

    def _real_blocks(self, first: Tensor, end: Tensor, keys: int) -> Blocks:
        lengths = self.lengths[:, None, None, None]
        if self.side == "right":
            return first < lengths, end <= lengths
        return end > keys - lengths, first >= keys - lengths

    def of_keys(self) -> Mask | None:
        return self.hiding_queries(False)


class Prefix(_ByLength):
    kind, fields = "prefix", {"lengths": "lengths"}

    def __repr__(self) -> str:
        return f"Mask.prefix({_format_tensor(self.lengths)})"


class Padding(_ByLength):
    kind, fields = "padding", {"lengths": "lengths", "side": "side", "queries": "hide_queries"}

    def __init__(self, lengths: Int[Tensor, " batch"], side: str, hide_queries: bool) -> None:
        super().__init__(lengths)
        self.side, self.hide_queries = side, hide_queries

    def real_queries(self, queries: int, keys: int) -> Bool[Tensor, "batch 1 queries 1"]:
        """The queries that are no padding."""
        position = torch.arange(keys - queries, keys, device=self.lengths.device).view(-1, 1)
        return self._real(self.lengths.view(-1, 1, 1, 1), position, keys)

    def hiding_queries(self, hide: bool) -> Mask:
        return Padding(self.lengths, self.side, hide)

    def __repr__(self) -> str:
        side = "" if self.side == "right" else f", side={self.side!r}"
        return f"Mask.padding({_format_tensor(self.lengths)}{side}{', queries=True' * self.hide_queries})"


class Documents(Mask):
    kind, fields = "documents", {"ids": "ids", "query_ids": "query_ids"}

    def __init__(self, ids: Int[Tensor, "#batch keys"], query_ids: Int[Tensor, "#batch queries"] | None) -> None:
        self.ids, self.query_ids = ids, query_ids
        self.keys = ids.shape[1]
        self.queries = None if query_ids is None else query_ids.shape[1]
        sizes = {len(t) for t in self.tensors()} - {1}
        if len(sizes) > 1:
            raise ShapeError(
                "ids and query_ids must have the same number of samples (or 1), "
                f"got {len(ids)} and {len(self.tensors()[1])}"
            )
        self.batch = sizes.pop() if sizes else None

    def of_queries(self, queries: int) -> Int[Tensor, "batch queries"]:
        if self.query_ids is not None:
            return self.query_ids
        if queries > self.ids.shape[1]:
            raise ShapeError(f"{queries} queries, but document ids for {self.ids.shape[1]} tokens only; pass query_ids")
        return self.ids[:, self.ids.shape[1] - queries :]

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Cells:
        return _select_sample(self.of_queries(queries), b, i) == _select_sample(self.ids, b, j)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        low_k, high_k = (t[:, None, None, :] for t in _find_extremes(self.ids, columns))
        low_q, high_q = (t[:, None, :, None] for t in _find_extremes(self.of_queries(queries), rows))
        return (low_q <= high_k) & (low_k <= high_q), (low_q == high_k) & (low_k == high_q)

    def __repr__(self) -> str:
        return f"Mask.documents({_format_tensor(self.ids)})"


class Dense(Mask):
    """A mask given as a boolean tensor."""

    kind, fields = "visible", {"tensor": "seen"}

    def __init__(self, seen: Bool[Tensor, "b h q k"]) -> None:
        self.seen = seen
        self.batch, self.heads, self.queries, self.keys = (n if n > 1 else None for n in seen.shape)

    @property
    def keys_only(self) -> bool:
        return self.seen.shape[1:3] == (1, 1) and self.seen.shape[3] > 1

    def of_keys(self) -> Mask | None:
        return self if self.keys_only else super().of_keys()

    def visible_keys(self, keys: int) -> Bool[Tensor, "batch 1 1 keys"]:
        """The keys that are visible to every query."""
        return self.seen

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Cells:
        indices = (b, h, i, j)
        return self.seen[tuple(x if n > 1 else x * 0 for x, n in zip(indices, self.seen.shape, strict=True))]

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: Any = None) -> Tile:
        tall, wide = self.seen.shape[2] > 1, self.seen.shape[3] > 1
        return self.seen[:, :, rows if tall else slice(None), columns if wide else slice(None)]

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        any_visible = _reduce_blocks(_reduce_blocks(self.seen, rows, 2), columns, 3)
        any_hidden = _reduce_blocks(_reduce_blocks(~self.seen, rows, 2), columns, 3)
        return any_visible, ~any_hidden

    def __repr__(self) -> str:
        return f"Mask.visible({'×'.join(map(str, self.seen.shape))} booleans)"


class _Several(Mask):
    """Masks that must all agree, or any of them: `combine` joins two."""

    sign = ""
    combine: ClassVar[Any]

    def __init__(self, masks: tuple[Mask, ...]) -> None:
        self.masks = masks
        self.batch, self.heads = self._common("batch"), self._common("heads")
        self.queries, self.keys = self._common("queries"), self._common("keys")

    def _common(self, name: str) -> int | None:
        common: int | None = None
        for mask in self.masks:  # torch.compile traces it: no sets, since sizes may be symbols
            size = getattr(mask, name)
            if size is not None and common is not None and size != common:
                raise ShapeError(f"masks for {common} and {size} {name} do not combine: {self!r}")
            common = size if common is None else common
        return common

    # Loops, not comprehensions: in these torch.compile takes sizes for constants.
    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Cells:
        seen = self.masks[0].at(b, h, i, j, queries, keys)
        for mask in self.masks[1:]:
            seen = self.combine(seen, mask.at(b, h, i, j, queries, keys))
        return seen

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: Any = None) -> Tile:
        device = self.device if device is None else device
        seen = self.masks[0].tile(rows, columns, queries, keys, device)
        for mask in self.masks[1:]:
            seen = self.combine(seen, mask.tile(rows, columns, queries, keys, device))
        return seen

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        any_visible, all_visible = self.masks[0].blocks(queries, keys, rows, columns, device)
        for mask in self.masks[1:]:
            blocks = mask.blocks(queries, keys, rows, columns, device)
            any_visible, all_visible = self.combine(any_visible, blocks[0]), self.combine(all_visible, blocks[1])
        return any_visible, all_visible

    def tensors(self) -> list[AnyTensor]:
        return [tensor for mask in self.masks for tensor in mask.tensors()]

    def map(self, change: Callable[[AnyTensor], AnyTensor]) -> Mask:
        return type(self)(tuple(mask.map(change) for mask in self.masks))

    def state(self) -> State | None:
        states = [mask.state() for mask in self.masks]
        return None if None in states else {"kind": self.kind, "masks": states}

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({m!r})" if isinstance(m, _Several) else repr(m) for m in self.masks)


class Both(_Several):
    kind, sign, combine = "both", "&", staticmethod(operator.and_)

    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    def hiding_queries(self, hide: bool) -> Mask:
        return Both(tuple(mask.hiding_queries(hide) for mask in self.masks))

    def of_keys(self) -> Mask | None:
        masks = tuple(part for mask in self.masks if (part := mask.of_keys()) is not None)
        return Both(masks) if masks else None


class Either(_Several):
    kind, sign, combine = "either", "|", staticmethod(operator.or_)


def build_mask(state: Mapping[str, Any], depth: int = 0) -> Mask:
    """The mask of a state; raises MaskError or ShapeError for fields that make no sense."""
    kind = state.get("kind")
    if kind == "band":
        return Mask.window(*(read_integer(state, name) for name in ("left", "right", "offset")))
    if kind == "prefix":
        return Mask.prefix(_check_axes(state["lengths"], 1))
    if kind == "padding" and isinstance(state["queries"], bool):
        return Mask.padding(_check_axes(state["lengths"], 1), side=state["side"], queries=state["queries"])
    if kind == "documents":
        others = state["query_ids"]
        return Documents(_check_axes(state["ids"], 2), None if others is None else _check_axes(others, 2))
    if kind == "visible" and state["tensor"].ndim == 4:
        return Mask.visible(state["tensor"])
    if kind in ("both", "either") and depth < 8:  # a file may claim any depth
        masks = tuple(build_mask(part, depth + 1) for part in state["masks"])
        if len(masks) > 1:
            return Both(masks) if kind == "both" else Either(masks)
    raise MaskError(f"cannot restore a mask from the saved state {state!r:.80}")


def _check_axes(tensor: Tensor, axes: int) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool or tensor.ndim != axes:
        raise MaskError(f"whole numbers with {axes} axes were expected, got {tensor.dtype} with {tensor.ndim}")
    return tensor


def _select_sample(tensor: Tensor, b: Tensor, *rest: Tensor) -> Tensor:
    """The part of sample `b`; a tensor of one sample is shared by all."""
    return tensor[(b if len(tensor) > 1 else b * 0, *rest)]


def _format_tensor(tensor: Tensor) -> str:
    if tensor.device.type != "cpu" or tensor.numel() > 8:
        return f"<{'×'.join(map(str, tensor.shape))}>"
    return str(tensor.tolist())


def _block_edges(size: int, block: int, device: Any) -> tuple[Tensor, Tensor]:
    """First index of each block, and the one after its last."""
    first = torch.arange(0, size, block, device=device)
    return first, (first + block).clamp(max=size)


def _split_blocks(tensor: Tensor, block: int, axis: int, fill: Any) -> Tensor:
    """The axis cut into blocks, the last one filled up: (…, blocks, block, …)."""
    missing = -tensor.shape[axis] % block
    if missing:
        shape = [missing if a == axis else n for a, n in enumerate(tensor.shape)]
        tensor = torch.cat([tensor, tensor.new_full(shape, fill)], axis)
    blocked: Tensor = tensor.unflatten(axis, (-1, block))
    return blocked


def _reduce_blocks(seen: Tensor, block: int, axis: int) -> Tensor:
    return seen if seen.shape[axis] == 1 else _split_blocks(seen, block, axis, False).any(axis + 1)


def _find_extremes(ids: Tensor, block: int) -> tuple[Tensor, Tensor]:
    limits = torch.iinfo(ids.dtype)
    return _split_blocks(ids, block, 1, limits.max).amin(2), _split_blocks(ids, block, 1, limits.min).amax(2)
