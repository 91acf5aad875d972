"""Mask: who may look at whom.

A mask here always says what may be *seen*, and it keeps its structure: a causal mask is two numbers, not a
square of booleans. Each kind is defined once, by `at`, for any broadcasting indices of query and key; dense
tensors, tiles and FlexAttention's mask function all come from that one definition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.errors import MaskError, ShapeError

Lengths = int | Sequence[int] | Tensor
Blocks = tuple[Tensor, Tensor]


class Mask:
    """Who may look at whom; compose with `&` and `|`.

    >>> print(Mask.causal() & Mask.padding([2, 4]))  # the first of two samples
    ■···
    ■■··
    ■■··
    ■■··
    """

    # What `check` compares with the tensors; None where any size will do.
    batch: int | None = None
    heads: int | None = None
    queries: int | None = None
    keys: int | None = None

    @staticmethod
    def causal(offset: int | None = None) -> Mask:
        """Each query sees itself and what came before.

        Query `i` stands at position `offset + i`. None means `keys − queries`: aligned at the bottom right, as
        when the keys come out of a growing cache. With more queries than keys the first ones see nothing.

        >>> print(Mask.causal().draw(2, 5))
        ■■■■·
        ■■■■■
        >>> print(Mask.causal().draw(5, 2))
        ··
        ··
        ··
        ■·
        ■■
        >>> print(Mask.causal(offset=0).draw(2, 5))
        ■····
        ■■···
        """
        return Band(None, 0, offset)

    @staticmethod
    def window(left: int | None, right: int | None = 0, offset: int | None = None) -> Mask:
        """Each query sees itself, `left` keys before and `right` keys after; None is no limit on that side.

        >>> print(Mask.window(1).draw(4, 4))
        ■···
        ■■··
        ·■■·
        ··■■
        """
        for side, value in (("left", left), ("right", right)):
            if value is not None and value < 0:
                raise MaskError(f"a window cannot reach {value} keys to the {side}; use 0 or more, or None")
        return Band(left, right, offset)

    @staticmethod
    def padding(lengths: Lengths, *, side: str = "right", queries: bool = False) -> Mask:
        """Hides pad keys; `lengths` holds the number of real tokens of each sample.

        With `queries=True` pad queries see nothing either, so their output is zero.

        >>> print(Mask.padding([2], queries=True).draw(3, 3))
        ■■·
        ■■·
        ···
        >>> print(Mask.padding([2], side="left").draw(3, 3))
        ·■■
        ·■■
        ·■■
        """
        if side not in ("left", "right"):
            raise MaskError(f"padding is on the 'left' or on the 'right', not {side!r}")
        return Padding(_lengths(lengths), side, queries)

    @staticmethod
    def prefix(n: Lengths) -> Mask:
        """Shows the first `n` keys to every query; `n` may differ from sample to sample.

        >>> print((Mask.causal() | Mask.prefix(3)).draw(4, 4))  # a prefix language model
        ■■■·
        ■■■·
        ■■■·
        ■■■■
        """
        return Prefix(_lengths(n))

    @staticmethod
    def documents(ids: Tensor, query_ids: Tensor | None = None) -> Mask:
        """Tokens of the same id look at each other; ids are `(batch, keys)`, or `(keys,)` for all samples.

        Without `query_ids` the queries are the last tokens of the same sequence.

        >>> print(Mask.documents(torch.tensor([7, 7, 8])).draw(3, 3))
        ■■·
        ■■·
        ··■
        """
        return Documents(_ids(ids), None if query_ids is None else _ids(query_ids))

    @staticmethod
    def visible(tensor: Tensor) -> Mask:
        """True may look (as in `scaled_dot_product_attention`); broadcasts to (batch, heads, queries, keys).

        >>> print(Mask.visible(torch.tensor([[True, False], [True, True]])))
        ■·
        ■■
        """
        return Dense(_boolean(tensor, "visible"))

    @staticmethod
    def hidden(tensor: Tensor) -> Mask:
        """True may *not* look (as in `nn.MultiheadAttention`); broadcasts to (batch, heads, queries, keys).

        >>> print(Mask.hidden(torch.tensor([[False, True], [False, False]])))
        ■·
        ■■
        """
        return Dense(~_boolean(tensor, "hidden"))

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        """Whether query `i` may look at key `j` in sample `b`, head `h`: the definition, for any indices."""
        raise NotImplementedError

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        """For each block of rows × columns: may anything in it be visible, and is surely all of it?

        Both are `(batch, heads, row blocks, column blocks)`, with 1 where nothing differs. A block said to be
        hidden is hidden, one said to be visible is visible; a block in between has to be looked at.
        """
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        return []

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        """The same mask with every tensor in it replaced by `change(tensor)`."""
        return self

    def to(self, device: Any) -> Mask:
        return self.map(lambda tensor: tensor.to(device))

    def parts(self) -> tuple[Mask, ...]:
        """The masks that must all agree; for most that is the mask itself."""
        return (self,)

    def hiding_queries(self, hide: bool) -> Mask:
        """The same mask, in which pad queries see nothing, or see what others see."""
        return self

    def of_keys(self) -> Mask | None:
        """What hides these keys from the queries of another sequence, or None; for attention over a context."""
        raise MaskError(
            f"{self!r} says which tokens of one sequence see each other, not what another sequence may see of it; "
            "pass that as context_mask="
        )

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: Any = None) -> Tensor:
        """The visible cells of some rows and columns, `(batch, heads, rows, columns)`, with 1 where equal."""
        device = self.device if device is None else device

        def index(start: int, stop: int, *shape: int) -> Tensor:
            return torch.arange(start, stop, device=device).view(shape)

        return self.at(
            index(0, self.batch or 1, -1, 1, 1, 1),
            index(0, self.heads or 1, 1, -1, 1, 1),
            index(rows.start, rows.stop, 1, 1, -1, 1),
            index(columns.start, columns.stop, 1, 1, 1, -1),
            queries,
            keys,
        )

    def dense(self, queries: int, keys: int, device: Any = None) -> Bool[Tensor, "batch heads queries keys"]:
        """The whole square, where True means *may look*; batch and heads are 1 where nothing differs.

        >>> Mask.causal().dense(2, 3)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        self.check(self.batch, self.heads, queries, keys)
        tile = self.tile(slice(0, queries), slice(0, keys), queries, keys, device)
        return tile.expand(self.batch or 1, self.heads or 1, queries, keys)

    def check(self, batch: int | None, heads: int | None, queries: int, keys: int) -> None:
        """Refuse a mask that was made for other sizes."""
        wanted = {"batch": batch, "heads": heads, "queries": queries, "keys": keys}
        for part in self.parts():
            for name, size in wanted.items():
                own = getattr(part, name)
                if own is not None and size is not None and own != size:
                    raise ShapeError(
                        f"the mask {part!r} was made for {own} {name}, the attention has {size}; "
                        f"build it for (batch, heads, queries, keys) = {tuple(wanted.values())}"
                    )

    @functools.cached_property
    def remembered(self) -> dict[Any, Any]:
        """What a backend worked out about this mask and wants to find again."""
        return {}

    @property
    def device(self) -> torch.device | None:
        return next((tensor.device for tensor in self.tensors()), None)

    def draw(self, queries: int | None = None, keys: int | None = None) -> str:
        """A picture of the first sample and head: ■ may look, · may not."""
        columns = keys or self.keys or queries or self.queries or self._longest() or 6
        rows = queries or self.queries or columns
        if rows > 64 or columns > 128:
            return f"{self!r} ({rows}×{columns}: too large to draw)"
        grid = self.dense(rows, columns)[0, 0].tolist()
        return "\n".join("".join("■" if cell else "·" for cell in row) for row in grid)

    def _longest(self) -> int:
        lengths = [part.lengths for part in self.parts() if isinstance(part, Padding)]
        return max((int(n.max()) for n in lengths if n.numel()), default=0)

    def __and__(self, other: Mask) -> Mask:
        return Both((*self.parts(), *as_mask(other).parts()))

    def __or__(self, other: Mask) -> Mask:
        return Either((self, as_mask(other)))

    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> bool:
        raise MaskError("a mask is neither true nor false; combine masks with & and |, not with and/or")

    def __str__(self) -> str:
        return self.draw()


class Band(Mask):
    """Causal masks and windows: keys from `left` before to `right` after the query's position."""

    def __init__(self, left: int | None, right: int | None, offset: int | None) -> None:
        self.left, self.right, self.offset = left, right, offset

    def of_keys(self) -> Mask | None:
        return None

    def start(self, queries: int, keys: int) -> int:
        """The position of the first query."""
        return keys - queries if self.offset is None else self.offset

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        ahead = j - (i + self.start(queries, keys))
        return self._within(ahead, ahead)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        (r0, r1), (c0, c1) = _edges(queries, rows, device), _edges(keys, columns, device)
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
        return f"Mask.window({self.left}, {self.right}{', ' * bool(offset)}{offset})"


class Prefix(Mask):
    def __init__(self, lengths: Int[Tensor, " batch"]) -> None:
        self.lengths = lengths
        self.batch = len(lengths) if len(lengths) > 1 else None

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        return j < _of_sample(self.lengths, b)

    def visible_keys(self, keys: int) -> Tensor:
        """What may be seen of the keys, by everybody: `(batch, 1, 1, keys)`."""
        return torch.arange(keys, device=self.lengths.device) < self.lengths.view(-1, 1, 1, 1)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        c0, c1 = _edges(keys, columns, device)
        lengths = self.lengths[:, None, None, None]
        return c0 < lengths, c1 <= lengths

    def of_keys(self) -> Mask | None:
        return self

    def tensors(self) -> list[Tensor]:
        return [self.lengths]

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        return Prefix(change(self.lengths))

    def __repr__(self) -> str:
        return f"Mask.prefix({_short(self.lengths)})"


class Padding(Mask):
    def __init__(self, lengths: Int[Tensor, " batch"], side: str, hide_queries: bool) -> None:
        self.lengths, self.side, self.hide_queries = lengths, side, hide_queries
        self.batch = len(lengths) if len(lengths) > 1 else None

    def _real(self, lengths: Tensor, position: Tensor, keys: int) -> Tensor:
        """Whether a position holds a real token."""
        return position < lengths if self.side == "right" else position >= keys - lengths

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        lengths = _of_sample(self.lengths, b)
        seen = self._real(lengths, j, keys)
        return seen & self._real(lengths, i + (keys - queries), keys) if self.hide_queries else seen

    def visible_keys(self, keys: int) -> Tensor:
        """What may be seen of the keys, by everybody: `(batch, 1, 1, keys)`."""
        return self._real(self.lengths.view(-1, 1, 1, 1), torch.arange(keys, device=self.lengths.device), keys)

    def real_queries(self, queries: int, keys: int) -> Tensor:
        """Which queries are real tokens: `(batch, 1, queries, 1)`."""
        position = torch.arange(keys - queries, keys, device=self.lengths.device).view(-1, 1)
        return self._real(self.lengths.view(-1, 1, 1, 1), position, keys)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        c0, c1 = _edges(keys, columns, device)
        some, every = self._real_blocks(c0, c1, keys)
        if self.hide_queries:
            r0, r1 = (edge + keys - queries for edge in _edges(queries, rows, device))
            some_rows, every_row = self._real_blocks(r0, r1, keys)
            some, every = some & some_rows.transpose(2, 3), every & every_row.transpose(2, 3)
        return some, every

    def _real_blocks(self, first: Tensor, end: Tensor, keys: int) -> Blocks:
        lengths = self.lengths[:, None, None, None]
        if self.side == "right":
            return first < lengths, end <= lengths
        return end > keys - lengths, first >= keys - lengths

    def hiding_queries(self, hide: bool) -> Mask:
        return Padding(self.lengths, self.side, hide)

    def of_keys(self) -> Mask | None:
        return self.hiding_queries(False)

    def tensors(self) -> list[Tensor]:
        return [self.lengths]

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        return Padding(change(self.lengths), self.side, self.hide_queries)

    def __repr__(self) -> str:
        side = "" if self.side == "right" else f", side={self.side!r}"
        return f"Mask.padding({_short(self.lengths)}{side}{', queries=True' * self.hide_queries})"


class Documents(Mask):
    def __init__(self, ids: Int[Tensor, "#batch keys"], query_ids: Int[Tensor, "#batch queries"] | None) -> None:
        self.ids, self.query_ids = ids, query_ids
        self.keys = ids.shape[1]
        self.queries = None if query_ids is None else query_ids.shape[1]
        sizes = {len(t) for t in self.tensors()} - {1}
        if len(sizes) > 1:
            raise ShapeError(f"ids are for {len(ids)} samples, query_ids for {len(self.tensors()[1])}")
        self.batch = sizes.pop() if sizes else None

    def of_queries(self, queries: int) -> Tensor:
        if self.query_ids is not None:
            return self.query_ids
        if queries > self.ids.shape[1]:
            raise ShapeError(f"{queries} queries, but document ids for {self.ids.shape[1]} tokens only; pass query_ids")
        return self.ids[:, self.ids.shape[1] - queries :]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        return _of_sample(self.of_queries(queries), b, i) == _of_sample(self.ids, b, j)

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        low_k, high_k = (t[:, None, None, :] for t in _extremes(self.ids, columns))
        low_q, high_q = (t[:, None, :, None] for t in _extremes(self.of_queries(queries), rows))
        return (low_q <= high_k) & (low_k <= high_q), (low_q == high_k) & (low_k == high_q)

    def tensors(self) -> list[Tensor]:
        return [self.ids] if self.query_ids is None else [self.ids, self.query_ids]

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        return Documents(change(self.ids), None if self.query_ids is None else change(self.query_ids))

    def __repr__(self) -> str:
        return f"Mask.documents({_short(self.ids)})"


class Dense(Mask):
    """A boolean that somebody built."""

    def __init__(self, seen: Bool[Tensor, "b h q k"]) -> None:
        self.seen = seen
        self.batch, self.heads, self.queries, self.keys = (n if n > 1 else None for n in seen.shape)

    @property
    def keys_only(self) -> bool:
        return self.seen.shape[1:3] == (1, 1) and self.seen.shape[3] > 1

    def of_keys(self) -> Mask | None:
        return self if self.keys_only else super().of_keys()

    def visible_keys(self, keys: int) -> Tensor:
        """What may be seen of the keys, by everybody: `(batch, 1, 1, keys)`."""
        return self.seen

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        indices = (b, h, i, j)
        return self.seen[tuple(x if n > 1 else x * 0 for x, n in zip(indices, self.seen.shape, strict=True))]

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: Any = None) -> Tensor:
        tall, wide = self.seen.shape[2] > 1, self.seen.shape[3] > 1
        return self.seen[:, :, rows if tall else slice(None), columns if wide else slice(None)]

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        some = _reduced(_reduced(self.seen, rows, 2), columns, 3)
        every = ~_reduced(_reduced(~self.seen, rows, 2), columns, 3)
        return some, every

    def tensors(self) -> list[Tensor]:
        return [self.seen]

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        return Dense(change(self.seen))

    def __repr__(self) -> str:
        return f"Mask.visible({'×'.join(map(str, self.seen.shape))} booleans)"


class _Several(Mask):
    sign = ""

    def __init__(self, masks: tuple[Mask, ...]) -> None:
        self.masks = masks
        self.batch, self.heads = self._common("batch"), self._common("heads")
        self.queries, self.keys = self._common("queries"), self._common("keys")

    def _common(self, name: str) -> int | None:
        found: int | None = None
        for mask in self.masks:
            size = getattr(mask, name)
            if size is not None and found is not None and size != found:
                raise ShapeError(f"masks for {found} and {size} {name} do not combine: {self!r}")
            found = size if found is None else found
        return found

    def tensors(self) -> list[Tensor]:
        return [tensor for mask in self.masks for tensor in mask.tensors()]

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        return type(self)(tuple(mask.map(change) for mask in self.masks))

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({m!r})" if isinstance(m, _Several) else repr(m) for m in self.masks)


class Both(_Several):
    sign = "&"

    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    def hiding_queries(self, hide: bool) -> Mask:
        return Both(tuple(mask.hiding_queries(hide) for mask in self.masks))

    def of_keys(self) -> Mask | None:
        kept = tuple(part for mask in self.masks if (part := mask.of_keys()) is not None)
        return Both(kept) if kept else None

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        seen = self.masks[0].at(b, h, i, j, queries, keys)
        for mask in self.masks[1:]:
            seen = seen & mask.at(b, h, i, j, queries, keys)
        return seen

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        some, every = self.masks[0].blocks(queries, keys, rows, columns, device)
        for mask in self.masks[1:]:
            more = mask.blocks(queries, keys, rows, columns, device)
            some, every = some & more[0], every & more[1]
        return some, every


class Either(_Several):
    sign = "|"

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        first, second = (mask.at(b, h, i, j, queries, keys) for mask in self.masks)
        return first | second

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        first, second = (mask.blocks(queries, keys, rows, columns, device) for mask in self.masks)
        return first[0] | second[0], first[1] | second[1]


def as_mask(value: object) -> Mask:
    if isinstance(value, Mask):
        return value
    if isinstance(value, Tensor):
        raise MaskError(
            f"a bare {value.dtype} tensor of shape {tuple(value.shape)} does not say whether True shows or "
            "hides; wrap it as Mask.visible(tensor) (True may look) or Mask.hidden(tensor) (True may not)"
        )
    raise MaskError(f"expected a Mask or None, got {type(value).__name__}: {value!r}")


def _lengths(lengths: Lengths) -> Tensor:
    tensor = torch.as_tensor(lengths)
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.ndim > 1:
        raise MaskError(
            f"lengths must be one whole number a sample, got {tensor.dtype} of shape {tuple(tensor.shape)}; "
            "for a boolean use Mask.visible or Mask.hidden"
        )
    if tensor.device.type == "cpu" and not torch.compiler.is_compiling() and (tensor < 0).any():
        raise MaskError(f"lengths must not be negative, got {tensor.tolist()}")
    return tensor.reshape(-1)


def _ids(ids: Tensor) -> Tensor:
    tensor = torch.as_tensor(ids)
    if tensor.is_floating_point() or tensor.ndim not in (1, 2):
        raise MaskError(
            f"document ids must be whole numbers shaped (batch, tokens) or (tokens,), "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    return tensor if tensor.ndim == 2 else tensor[None]


def _boolean(tensor: Tensor, name: str) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise MaskError(
            f"Mask.{name} takes a boolean tensor, got {kind}; additive masks of 0 and -inf go to bias=, "
            "other numbers want a comparison first"
        )
    if tensor.ndim > 4:
        raise ShapeError(f"a mask has at most 4 axes (batch, heads, queries, keys), got {tuple(tensor.shape)}")
    return tensor[(None,) * (4 - tensor.ndim)]


def _of_sample(tensor: Tensor, b: Tensor, *rest: Tensor) -> Tensor:
    """What belongs to sample `b`; a tensor of one sample belongs to all."""
    return tensor[(b if len(tensor) > 1 else b * 0, *rest)]


def _short(tensor: Tensor) -> str:
    if tensor.device.type != "cpu" or tensor.numel() > 8:
        return f"<{'×'.join(map(str, tensor.shape))}>"
    return str(tensor.tolist())


def _edges(size: int, block: int, device: Any) -> tuple[Tensor, Tensor]:
    """First index of each block, and the one after its last."""
    first = torch.arange(0, size, block, device=device)
    return first, (first + block).clamp(max=size)


def _blocked(tensor: Tensor, block: int, axis: int, fill: Any) -> Tensor:
    """The axis cut into blocks, the last one filled up: (…, blocks, block, …)."""
    missing = -tensor.shape[axis] % block
    if missing:
        shape = [missing if a == axis else n for a, n in enumerate(tensor.shape)]
        tensor = torch.cat([tensor, tensor.new_full(shape, fill)], axis)
    blocked: Tensor = tensor.unflatten(axis, (-1, block))
    return blocked


def _reduced(seen: Tensor, block: int, axis: int) -> Tensor:
    return seen if seen.shape[axis] == 1 else _blocked(seen, block, axis, False).any(axis + 1)


def _extremes(ids: Tensor, block: int) -> tuple[Tensor, Tensor]:
    limits = torch.iinfo(ids.dtype)
    return _blocked(ids, block, 1, limits.max).amin(2), _blocked(ids, block, 1, limits.min).amax(2)
