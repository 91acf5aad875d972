"""Bias: numbers added to the scores, evaluated tile by tile; dense only on request."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.masks import State, read_integer
from clearhead.errors import DtypeError, ShapeError

Index = Int[Tensor, "..."]  # indices that broadcast
Numbers = Float[Tensor, "..."]
Tile = Float[Tensor, "batch heads rows columns"]  # with 1 where nothing differs
Buckets = Callable[[Index], Index]  # from distances to rows of a table


class Bias(ABC):
    """Numbers added to the scores; each kind holds one tensor, `parameter`, which may need a gradient."""

    parameter: Numbers
    head_axis: ClassVar[int]  # of the parameter
    offset: int | None = None
    batch: int = 1

    def __init__(self, parameter: Numbers, offset: int | None = None) -> None:
        self.parameter, self.offset = parameter, offset

    @staticmethod
    def alibi(slopes: int | Float[Tensor, " heads"], offset: int | None = None) -> Bias:
        """Attention with linear biases (Press 2021): `−slope · |query's position − key's position|`.

        `slopes` is one number per head, or the number of heads for the paper's own slopes. Positions are those
        of `Mask.causal`: None aligns the last query with the last key.

        >>> Bias.alibi(torch.tensor([0.5])).dense(2, 3)
        tensor([[[[-0.5000, -0.0000, -0.5000],
                  [-1.0000, -0.5000, -0.0000]]]])
        """
        if isinstance(slopes, int):
            if slopes < 1:
                raise ShapeError(f"the number of heads must be at least 1, got {slopes}")
            slopes = alibi_slopes(slopes)
        return Alibi(_floats(slopes, 1, "slopes", "(heads,)"), offset)

    @staticmethod
    def relative(table: Float[Tensor, "buckets heads"], buckets: int | Buckets, offset: int | None = None) -> Bias:
        """A learned number for each bucket of distance and each head; `table` is `(buckets, heads)`.

        `buckets` turns distances (key's position − query's position) into rows of the table: a function of a
        tensor of distances, such as `t5_buckets(...)`, or a number `m`: one row for each distance
        from −m to m, with everything further away in the outermost rows.

        >>> table = torch.tensor([[-1.0], [0.0], [1.0]])
        >>> Bias.relative(table, 1).dense(2, 3)
        tensor([[[[-1.,  0.,  1.],
                  [-1., -1.,  0.]]]])
        """
        table = _floats(table, 2, "table", "(buckets, heads)")
        if isinstance(buckets, int):
            if len(table) != 2 * buckets + 1:
                raise ShapeError(
                    f"distances from {-buckets} to {buckets} need {2 * buckets + 1} rows, "
                    f"the table is {tuple(table.shape)} (buckets, heads)"
                )
            buckets = clipped_distance(buckets)
        return Relative(table, buckets, offset)

    def state(self) -> State | None:
        """The bias as plain values and tensors, as `Mask.state`; None for a class or for buckets of your own."""
        return None

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Bias:
        """The bias of a state, with every field checked; ShapeError or DtypeError if there is no such bias."""
        kind = state.get("kind")
        if kind == "dense" and state["tensor"].ndim == 4:
            return Dense(state["tensor"])
        if kind == "alibi":
            return Bias.alibi(state["slopes"], read_integer(state, "offset"))
        if kind == "relative":
            buckets = _build_buckets(state["buckets"], len(state["table"]))
            return Bias.relative(state["table"], buckets, read_integer(state, "offset"))
        raise ShapeError(f"cannot restore a bias from the saved state {state!r:.80}")

    @abstractmethod
    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Numbers:
        """The bias of query `i` and key `j` in sample `b`, head `h`: the definition, for indices that broadcast."""

    def tile(self, rows: slice, columns: slice, queries: int, keys: int) -> Tile:
        """The numbers of some rows and columns, `(1, heads, rows, columns)`; rows may be every n-th.

        They depend on the distance alone, which is constant along a diagonal: so one vector, for the last row and
        as many further columns as there are rows, holds the whole tile.
        """
        step, width = rows.step or 1, columns.stop - columns.start
        indices = functools.partial(torch.arange, device=self.parameter.device)
        heads = indices(self.heads).view(1, -1, 1)
        if torch.compiler.is_compiling():  # it fuses this, but would compile a kernel for every length of `unfold`
            across, down = indices(columns.start, columns.stop), indices(rows.start, rows.stop, step).view(-1, 1)
            return self.at(heads[..., None] * 0, heads[..., None], down, across, queries, keys)
        height = len(range(rows.start, rows.stop, step))
        last = rows.start + step * (height - 1)
        across, down = indices(columns.start, columns.stop + step * max(height - 1, 0)), indices(last, last + 1)
        line = self.at(heads * 0, heads, down, across, queries, keys)
        return line.unfold(-1, width, step)[..., :height, :].flip(-2)

    def dense(self, queries: int, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        return self.tile(slice(0, queries), slice(0, keys), queries, keys)

    def replace(self, parameter: Numbers) -> Bias:
        """The same bias with another tensor in it."""
        return type(self)(parameter, self.offset)

    def of_heads(self, heads: slice | Tensor) -> Bias:
        """The same bias for these heads; `heads` may be a tensor of numbers."""
        if self.heads == 1:
            return self
        return self.replace(self.parameter[(slice(None),) * self.head_axis + (heads,)])

    def to(self, device: Any) -> Bias:
        return self.replace(self.parameter.to(device))

    @property
    def heads(self) -> int:
        return self.parameter.shape[self.head_axis]

    def add_gradient(self, total: Numbers, of_tile: Tile, rows: slice, columns: slice, queries: int, keys: int) -> None:
        """Adds the gradient of `parameter` that follows from a tile's gradient to `total`."""
        with torch.enable_grad():
            leaf = self.parameter.detach().to(total.dtype).requires_grad_()
            tile = self.replace(leaf).tile(rows, columns, queries, keys)
        of_tile = of_tile.sum_to_size(tile.shape).to(tile.dtype)
        total += torch.autograd.grad(tile, leaf, of_tile)[0]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.heads not in (1, heads):
            raise ShapeError(f"{self!r} has numbers for {self.heads} heads, the attention has {heads}")

    def distance(self, i: Index, j: Index, queries: int, keys: int) -> Index:
        """Key's position minus query's."""
        return j - i - (keys - queries if self.offset is None else self.offset)


class Alibi(Bias):
    head_axis = 0

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Numbers:
        return -self.parameter[h if self.heads > 1 else h * 0] * self.distance(i, j, queries, keys).abs()

    def state(self) -> State:
        return {"kind": "alibi", "slopes": self.parameter, "offset": self.offset}

    def __repr__(self) -> str:
        return f"Bias.alibi(<{self.heads}>)"


class Relative(Bias):
    head_axis = 1

    def __init__(self, table: Float[Tensor, "buckets heads"], buckets: Buckets, offset: int | None) -> None:
        super().__init__(table, offset)
        self.buckets = buckets

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Numbers:
        return self.parameter[self.buckets(self.distance(i, j, queries, keys)), h if self.heads > 1 else h * 0]

    def replace(self, parameter: Numbers) -> Bias:
        return Relative(parameter, self.buckets, self.offset)

    def state(self) -> State | None:
        buckets = self.buckets
        if not isinstance(buckets, functools.partial) or buckets.func not in (_t5, _clipped):
            return None
        named = {"name": "t5" if buckets.func is _t5 else "clipped", **buckets.keywords}
        return {"kind": "relative", "table": self.parameter, "buckets": named, "offset": self.offset}

    def __repr__(self) -> str:
        return f"Bias.relative(<{'×'.join(map(str, self.parameter.shape))}>)"


class Dense(Bias):
    """A dense bias: a tensor with four axes, any of which may be 1."""

    head_axis = 1

    def __init__(self, tensor: Numbers, offset: None = None) -> None:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise DtypeError(
                f"a bias is a floating-point tensor that is added to the scores, or a Bias, got {kind}; "
                "a boolean that shows or hides goes to mask=, as Mask.visible or Mask.hidden"
            )
        if tensor.ndim > 4:
            raise ShapeError(f"a bias has at most 4 axes (batch, heads, queries, keys), got {tuple(tensor.shape)}")
        super().__init__(tensor[(None,) * (4 - tensor.ndim)])
        self.batch = self.parameter.shape[0]

    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Numbers:
        sizes = self.parameter.shape
        return self.parameter[tuple(x if n > 1 else x * 0 for x, n in zip((b, h, i, j), sizes, strict=True))]

    def tile(self, rows: slice, columns: slice, queries: int, keys: int) -> Tile:
        return self.parameter[self._cut(rows, columns)]

    def add_gradient(self, total: Numbers, of_tile: Tile, rows: slice, columns: slice, queries: int, keys: int) -> None:
        part = total[self._cut(rows, columns)]
        part += of_tile.sum_to_size(part.shape)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        wanted = (batch, heads, queries, keys)
        if any(n not in (1, size) for n, size in zip(self.parameter.shape, wanted, strict=True)):
            raise ShapeError(
                f"a bias of shape {tuple(self.parameter.shape)} does not broadcast to "
                f"(batch, heads, queries, keys) = {wanted}"
            )

    def _cut(self, rows: slice, columns: slice) -> tuple[slice, ...]:
        every = slice(None)
        _, _, height, width = self.parameter.shape
        return (every, every, rows if height > 1 else every, columns if width > 1 else every)

    def state(self) -> State:
        return {"kind": "dense", "tensor": self.parameter}

    def __repr__(self) -> str:
        return f"a bias of {'×'.join(map(str, self.parameter.shape))}"


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """The paper's slopes: a geometric sequence from 2^(−8/heads) down to 2^−8.

    Where the number of heads is no power of two, every second slope of the next power fills the gap.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    slopes += [2 ** (-4 * (2 * n + 1) / power) for n in range(heads - power)]
    return torch.tensor(slopes)


# Both are partial functions, not closures: these can be pickled, and so can a model that holds one.
def clipped_distance(furthest: int) -> Buckets:
    """One bucket a distance, everything beyond `furthest` in the last one (Shaw 2018)."""
    return functools.partial(_clipped, furthest=furthest)


def t5_buckets(count: int = 32, furthest: int = 128, *, both_ways: bool = True) -> Buckets:
    """T5's buckets: one each for short distances, then ever wider ones up to `furthest` (Raffel 2019).

    >>> t5_buckets(8, 20)(torch.tensor([-30, -2, -1, 0, 1, 2, 30]))
    tensor([3, 2, 1, 0, 5, 6, 7])
    """
    return functools.partial(_t5, count=count, furthest=furthest, both_ways=both_ways)


def _clipped(distance: Tensor, furthest: int) -> Tensor:
    return distance.clamp(-furthest, furthest) + furthest


def _t5(distance: Tensor, count: int, furthest: int, both_ways: bool) -> Tensor:
    per_side = count // 2 if both_ways else count
    exact = per_side // 2
    ahead = (distance > 0).long() * per_side if both_ways else 0
    back = distance.abs() if both_ways else (-distance).clamp(min=0)
    growth = torch.log(back.clamp(min=1).float() / exact) / math.log(furthest / exact)
    wide = (exact + (growth * (per_side - exact)).long()).clamp(max=per_side - 1)
    return ahead + torch.where(back < exact, back, wide)


def _build_buckets(state: Mapping[str, Any], rows: int) -> Callable[[Tensor], Tensor]:
    """The bucket function of a state, if it fits a table of so many rows."""
    name, furthest = state.get("name"), read_integer(state, "furthest") or 0
    if name == "clipped" and 2 * furthest + 1 == rows:
        return clipped_distance(furthest)
    if name == "t5" and isinstance(both_ways := state["both_ways"], bool):
        count = read_integer(state, "count") or 0
        exact = (count // 2 if both_ways else count) // 2
        if 0 < exact < furthest and count <= rows:
            return t5_buckets(count, furthest, both_ways=both_ways)
    raise ShapeError(f"cannot restore a bias: its saved buckets {state!r:.80} do not fit a table of {rows} rows")


def _floats(tensor: Tensor, axes: int, name: str, shape: str) -> Tensor:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise DtypeError(f"{name} must be a floating-point tensor {shape}, got {tensor!r}")
    if tensor.ndim != axes:
        raise ShapeError(f"{name} must be shaped {shape}, got {tuple(tensor.shape)}")
    return tensor
