"""Which keys a block of queries may see, and scores of tiles: scale, softcap, bias and mask, in plain PyTorch.

Fused kernels have their own. `reference.py`, against which this module is tested, does not import it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.call import Call, Scale
from clearhead.attention.masks import Index, Mask

MAX_PARTIAL_SLICES = 4  # with more, evaluating the mask from the first to the last is faster


class VisibleRun(NamedTuple):
    """The first to the last visible key of a block of queries; within `partial` slices only some are visible."""

    columns: slice
    partial: tuple[slice, ...]


def scale_queries(
    q: Float[Tensor, "batch heads queries d"], scale: Scale, dtype: torch.dtype | None = None
) -> Float[Tensor, "batch heads queries d"]:
    """q·scale in `dtype`, by default float32 or better; tiles of the result need no scale, nor does their gradient."""
    dtype = torch.promote_types(q.dtype, torch.float32) if dtype is None else dtype
    return q.to(dtype) * (scale.to(dtype) if isinstance(scale, Tensor) else scale)


def multiply_heads(
    q: Float[Tensor, "batch heads queries d"],
    k: Float[Tensor, "batch kv_heads keys d"],
    out: Float[Tensor, " cells"] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """q·kᵀ, written to `out` if given; query heads that share a key head are stacked into one product.

    >>> multiply_heads(torch.ones(1, 4, 3, 2), torch.ones(1, 2, 5, 2)).shape
    torch.Size([1, 4, 3, 5])
    """
    batch, heads, queries, d = q.shape
    (kv_heads, keys), flat = k.shape[1:3], k.flatten(0, 1).mT
    stacked = q.reshape(batch * kv_heads, heads // kv_heads * queries, d)
    products = (
        torch.bmm(stacked, flat) if out is None else torch.bmm(stacked, flat, out=out.view(*stacked.shape[:2], keys))
    )
    return products.view(batch, heads, queries, keys)


class TileScorer(NamedTuple):
    """Turns products q·k into scores; `queries` and `keys` are the full sizes to which bias and mask refer.

    >>> scorer = TileScorer(None, None, Mask.causal(), 3, 3)
    >>> scorer.score_tile_(torch.ones(1, 1, 2, 3), slice(1, 3), VisibleRun(slice(0, 3), (slice(0, 3),)))
    tensor([[[[1., 1., -inf],
              [1., 1., 1.]]]])
    """

    softcap: float | None
    bias: Bias | None
    mask: Mask | None
    queries: int
    keys: int

    @classmethod
    def of_call(cls, call: Call) -> TileScorer:
        return cls(call.softcap, call.bias, call.mask, *call.sizes[2:])

    def select_samples(self, samples: slice) -> TileScorer:
        mask, bias = self.mask, self.bias
        if mask is not None and mask.batch is not None:
            mask = mask.map(lambda tensor: tensor[samples] if len(tensor) > 1 else tensor)
        if bias is not None and bias.batch > 1:
            bias = bias.replace(bias.parameter[samples])
        return self._replace(mask=mask, bias=bias)

    def score_tile_(
        self,
        products: Float[Tensor, "batch heads rows columns"],
        rows: slice,
        run: VisibleRun,
        heads: slice | None = None,
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The scores in place of the products: capped, with the bias, −inf where hidden and beyond the run's keys.

        `heads` are those of the products, if not all.
        """
        self.cap_(products)
        return self.add_bias_and_mask_(products, rows, run, heads)

    def cap_(self, products: Float[Tensor, "*shape"], *, with_slope: bool = False) -> Float[Tensor, "*shape"] | None:
        """Caps the products in place; `with_slope` returns the derivative of the cap, for a backward pass."""
        if self.softcap is None:
            return None
        products.div_(self.softcap).tanh_()
        slope = 1 - products.square() if with_slope else None
        products.mul_(self.softcap)
        return slope

    def add_bias_and_mask_(
        self,
        capped: Float[Tensor, "batch heads rows columns"],
        rows: slice,
        run: VisibleRun,
        heads: slice | None = None,
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The second half of `score_tile_`."""
        first, width = run.columns.start, run.columns.stop - run.columns.start
        if self.bias is not None:
            bias = self.bias if heads is None else self.bias.of_heads(heads)
            capped[..., :width] += bias.tile(rows, run.columns, self.queries, self.keys)
        if self.mask is not None:
            for piece in run.partial:
                visible = self.mask.tile(rows, piece, self.queries, self.keys, capped.device)
                visible = visible if heads is None or visible.shape[1] == 1 else visible[:, heads]
                capped[..., piece.start - first : piece.stop - first].masked_fill_(~visible, -math.inf)
        if width < capped.shape[-1]:
            capped[..., width:] = -math.inf
        return capped

    def score_pairs(
        self, products: Float[Tensor, "*shape"], b: Index, h: Index, i: Index, j: Index
    ) -> Float[Tensor, "*shape"]:
        """The scores of single pairs of query `i` and key `j` in sample `b`, head `h`; the indices broadcast."""
        scores = products
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias.at(b, h, i, j, self.queries, self.keys).to(scores.dtype)
        if self.mask is not None:
            visible = self.mask.at(b, h, i, j, self.queries, self.keys)
            scores = scores.masked_fill(~visible, -math.inf)
        return scores


def find_visible_runs(
    mask: Mask | None, queries: int, keys: int, rows: int, width: int, device: Any = None
) -> list[VisibleRun]:
    """One VisibleRun for each block of `rows` queries, found at the resolution of `width` keys.

    >>> find_visible_runs(Mask.window(5), 8, 8, 2, 2)[3]
    VisibleRun(columns=slice(0, 8, None), partial=(slice(0, 2, None), slice(6, 8, None)))
    """
    if mask is None or not keys:
        return [VisibleRun(slice(0, keys), ())] * -(-queries // rows)
    shape = (-1, -1, -(-queries // rows), -(-keys // width))
    blocks = mask.blocks(queries, keys, rows, width, device)
    any_visible, all_visible = (t.expand(shape).flatten(0, 1) for t in blocks)
    visible_slices = _find_marked_slices(any_visible.any(0), width, keys)
    partial_slices = _find_marked_slices(~all_visible.all(0), width, keys)
    runs = []
    for visible, not_all in zip(visible_slices, partial_slices, strict=True):
        run = slice(visible[0].start, visible[-1].stop) if visible else slice(0, 0)
        inside = [slice(max(p.start, run.start), min(p.stop, run.stop)) for p in not_all]
        partial = [p for p in inside if p.start < p.stop]
        if len(partial) > MAX_PARTIAL_SLICES:
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
