"""Mask: which keys each query may see.

A mask keeps its structure: a causal mask is two numbers, not a square of booleans. Each kind is defined once, by
`at`, for broadcasting indices of query and key; dense tensors, tiles and FlexAttention's mask function all come from
that definition.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from clearhead.errors import MaskError, ShapeError

Lengths = int | Sequence[int] | Int[Tensor, "*batch"]  # one for all samples, or one each
Ids = Int[Tensor, "..."] | Bool[Tensor, "..."]  # (batch, tokens), or (tokens,) for all samples
Index = Int[Tensor, "..."]  # indices that broadcast
Cells = Bool[Tensor, "..."]  # booleans of the shape to which they broadcast
Tile = Bool[Tensor, "batch heads rows columns"]  # with 1 where nothing differs
Blocks = tuple[Bool[Tensor, "_ _ _ _"], Bool[Tensor, "_ _ _ _"]]
AnyTensor = Shaped[Tensor, "..."]
State = dict[str, Any]  # plain values and tensors, by the name of the field; "kind" says what it describes
MAX_TOKENS = 2**40  # in a state: no sequence is longer


class Mask(ABC):
    """Which keys each query may see; compose with `&` and `|`.

    >>> print(Mask.causal() & Mask.padding([2, 4]))
    ■···
    ■■··
    ■■··
    ■■··
    (the first of 2 samples)
    """

    kind: ClassVar[str] = ""  # in a state; empty for a class of your own
    # The name in a state of each argument of the constructor, in order, and that of the attribute which holds it.
    fields: ClassVar[Mapping[str, str]] = {}
    # The sizes that the mask was made for; None where any size fits.
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
        return kinds.Band(None, 0, offset)

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
        return kinds.Band(left, right, offset)

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
        return kinds.Padding(_check_lengths(lengths), side, queries)

    @staticmethod
    def prefix(n: Lengths) -> Mask:
        """Shows the first `n` keys to every query; `n` may differ from sample to sample.

        >>> print((Mask.causal() | Mask.prefix(3)).draw(4, 4))  # a prefix language model
        ■■■·
        ■■■·
        ■■■·
        ■■■■
        """
        return kinds.Prefix(_check_lengths(n))

    @staticmethod
    def documents(ids: Ids, query_ids: Ids | None = None) -> Mask:
        """Tokens with the same id see each other; ids are `(batch, keys)`, or `(keys,)` for all samples.

        Without `query_ids` the queries are the last tokens of the same sequence.

        >>> print(Mask.documents(torch.tensor([7, 7, 8])).draw(3, 3))
        ■■·
        ■■·
        ··■
        """
        return kinds.Documents(_check_ids(ids), None if query_ids is None else _check_ids(query_ids))

    @staticmethod
    def visible(tensor: Cells) -> Mask:
        """True is visible (as in `scaled_dot_product_attention`); broadcasts to (batch, heads, queries, keys).

        >>> print(Mask.visible(torch.tensor([[True, False], [True, True]])))
        ■·
        ■■
        """
        return kinds.Dense(_check_boolean(tensor, "visible"))

    @staticmethod
    def hidden(tensor: Cells) -> Mask:
        """True is *hidden* (as in `nn.MultiheadAttention`); broadcasts to (batch, heads, queries, keys).

        >>> print(Mask.hidden(torch.tensor([[False, True], [False, False]])))
        ■·
        ■■
        """
        return kinds.Dense(~_check_boolean(tensor, "hidden"))

    @abstractmethod
    def at(self, b: Index, h: Index, i: Index, j: Index, queries: int, keys: int) -> Cells:
        """Whether query `i` may see key `j` in sample `b`, head `h`: the definition, for indices that broadcast."""

    @abstractmethod
    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        """For each block of rows × columns, whether any cell may be visible, and whether all certainly are.

        Both are `(batch, heads, row blocks, column blocks)`, with 1 where nothing differs. Blocks with neither
        answer certain (some, but not all) have to be evaluated cell by cell.
        """

    def tensors(self) -> list[AnyTensor]:
        values = [getattr(self, name) for name in self.fields.values()]
        return [value for value in values if isinstance(value, Tensor)]

    def map(self, change: Callable[[AnyTensor], AnyTensor]) -> Mask:
        """The same mask with every tensor in it replaced by `change(tensor)`."""
        values = [getattr(self, name) for name in self.fields.values()]
        return type(self)(*[change(value) if isinstance(value, Tensor) else value for value in values])

    def state(self) -> State | None:
        """The mask as plain values and tensors, for a file or a compiled graph; None for a class of your own.

        >>> Mask.window(3).state()
        {'kind': 'band', 'left': 3, 'right': 0, 'offset': None}
        """
        values = {key: getattr(self, name) for key, name in self.fields.items()}
        return {"kind": self.kind, **values} if self.kind else None

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Mask:
        """The mask of a state, with every field checked; MaskError or ShapeError if there is no such mask.

        >>> Mask.from_state({"kind": "band", "left": 3, "right": 0, "offset": None})
        Mask.window(3)
        """
        return kinds.build_mask(state)

    def to(self, device: Any) -> Mask:
        return self.map(lambda tensor: tensor.to(device))

    def parts(self) -> tuple[Mask, ...]:
        """The masks that must all agree; for most that is the mask itself."""
        return (self,)

    def hiding_queries(self, hide: bool) -> Mask:
        """The same mask, in which pad queries see nothing (`hide`), or see what other queries see."""
        return self

    def of_keys(self) -> Mask | None:
        """The mask of these keys for queries of another sequence, or None; for attention over a context."""
        raise MaskError(
            f"{self!r} is a mask for self-attention and cannot be applied to cross-attention; "
            "pass a mask over the context's keys as context_mask="
        )

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: Any = None) -> Tile:
        """The visible cells of some rows and columns, `(batch, heads, rows, columns)`, with 1 where equal.

        The rows may be every n-th: a slice with a step.
        """
        device = self.device if device is None else device

        def index(part: slice, *shape: int) -> Tensor:
            return torch.arange(part.start, part.stop, part.step or 1, device=device).view(shape)

        return self.at(
            index(slice(0, self.batch or 1), -1, 1, 1, 1),
            index(slice(0, self.heads or 1), 1, -1, 1, 1),
            index(rows, 1, 1, -1, 1),
            index(columns, 1, 1, 1, -1),
            queries,
            keys,
        )

    def dense(self, queries: int, keys: int, device: Any = None) -> Bool[Tensor, "batch heads queries keys"]:
        """The dense boolean, where True is visible; batch and heads are 1 where nothing differs.

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
                fits = getattr(part, name)
                if fits is not None and size is not None and fits != size:
                    things = "samples" if name == "batch" else name
                    hint = "; for a mask of (batch, keys) write mask[:, None, None]" if name == "queries" else ""
                    raise ShapeError(
                        f"the mask {part!r} was made for {fits} {things}, the attention has {size}; build it for "
                        f"(batch, heads, queries, keys) = {tuple(wanted.values())}{hint}"
                    )

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """A value that a backend derives from this mask, computed by `make` once and cached for all layers."""
        tensors = self.tensors()
        if torch.compiler.is_compiling() or any(tensor.is_inference() for tensor in tensors):
            return make()
        changes = tuple(tensor._version for tensor in tensors)
        key = (key, changes, torch.is_inference_mode_enabled())
        cached = self._cached.get(key)
        if cached is None:
            if len(self._cached) > 7:
                self._cached.clear()  # of sizes that will not recur, as with a growing cache
            cached = self._cached[key] = (make(),)
        return cached[0]

    @functools.cached_property
    def _cached(self) -> dict[Any, Any]:
        return {}

    @property
    def device(self) -> torch.device | None:
        return next((tensor.device for tensor in self.tensors()), None)

    def draw(self, queries: int | None = None, keys: int | None = None) -> str:
        """The first sample and head as text: ■ visible, · hidden."""
        usual = self.keys or self.queries or self._longest() or 6
        columns = keys if keys is not None else self.keys or (usual if queries is None else queries)
        rows = queries if queries is not None else self.queries or columns
        if rows > 64 or columns > 128:
            return f"{self!r} ({rows}×{columns}: too large to draw)"
        grid = self.dense(rows, columns)[0, 0].tolist()
        return "\n".join("".join("■" if cell else "·" for cell in row) for row in grid)

    def _longest(self) -> int:
        lengths = [part.lengths for part in self.parts() if isinstance(part, kinds.Padding)]
        longest = max((int(n.max()) for n in lengths if n.numel()), default=0)
        return longest + 1 if longest and not self.batch else longest  # of one sample, show where padding begins

    def __and__(self, other: Mask) -> Mask:
        return kinds.Both((*self.parts(), *as_mask(other).parts()))

    def __or__(self, other: Mask) -> Mask:
        return kinds.Either((self, as_mask(other)))

    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> bool:
        raise MaskError("a mask is neither true nor false; combine masks with & and |, not with and/or")

    def __str__(self) -> str:
        several = f"\n(the first of {self.batch} samples)" if self.batch else ""
        return self.draw() + several


def as_mask(value: object) -> Mask:
    if isinstance(value, Mask):
        return value
    if isinstance(value, Tensor):
        raise MaskError(
            f"a bare {value.dtype} tensor of shape {tuple(value.shape)} does not say whether True shows or "
            "hides; wrap it as Mask.visible(tensor) (True shows) or Mask.hidden(tensor) (True hides)"
        )
    raise MaskError(
        f"a mask must be a Mask, such as Mask.causal() or Mask.padding(lengths), or None; "
        f"got {type(value).__name__}: {repr(value)[:80]}"
    )


def read_integer(state: Mapping[str, Any], name: str) -> int | None:
    """An integer of a state, or None; raises MaskError for anything else."""
    value = state[name]
    if value is not None and (type(value) is not int or abs(value) > MAX_TOKENS):
        raise MaskError(f"{name} must be a whole number or None, got {value!r:.60}")
    return value


def _check_lengths(lengths: Lengths) -> Tensor:
    tensor = torch.as_tensor(lengths)
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.ndim > 1:
        raise MaskError(
            f"lengths must be one whole number per sample, got {tensor.dtype} of shape {tuple(tensor.shape)}; "
            "for a boolean use Mask.visible or Mask.hidden"
        )
    if tensor.device.type == "cpu" and not torch.compiler.is_compiling() and (tensor < 0).any():
        raise MaskError(f"lengths must not be negative, got {tensor.tolist()}")
    return tensor.reshape(-1)


def _check_ids(ids: Tensor) -> Tensor:
    tensor = torch.as_tensor(ids)
    if tensor.is_floating_point() or tensor.ndim not in (1, 2):
        raise MaskError(
            f"document ids must be whole numbers shaped (batch, tokens) or (tokens,), "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    tensor = tensor.int() if tensor.dtype == torch.bool else tensor
    return tensor if tensor.ndim == 2 else tensor[None]


def _check_boolean(tensor: Tensor, name: str) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise MaskError(
            f"Mask.{name} takes a boolean tensor, got {kind}; additive masks of 0 and -inf go to bias=, "
            "turn other numbers into booleans by a comparison"
        )
    if tensor.ndim > 4:
        raise ShapeError(f"a mask has at most 4 axes (batch, heads, queries, keys), got {tuple(tensor.shape)}")
    return tensor[(None,) * (4 - tensor.ndim)]


# Last, because the kinds are masks themselves.
import clearhead.attention.mask_kinds as kinds  # noqa: E402
