"""Attention in blocks of queries, recomputed in the backward pass: any mask, bias or option, O(n) memory, any device.

With s = cap(q·kᵀ) + bias, a weight is w = e · share, where e = exp(s − the row's largest) and share is one over
their sum. Its derivative is ds = w · (dw − Σ w·dw): with two numbers kept of each row, nothing else is (Dao 2022).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.call import Call
from clearhead.attention.dropout import draw_keep_mask
from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer, VisibleRun, find_visible_runs, multiply_heads, scale_queries
from clearhead.errors import BackendError

# Scores held at once (16 MiB). Measured on 2 cores at (1, 8, 4096, 64): less and more are both slower.
TILE_SCORES = 2**22
GPU_TILES = 16  # how many times larger tiles are on a GPU, which is idle between small ones
BLOCK_KEYS = 64  # the mask is evaluated by blocks of keys first, to skip hidden ones and those fully visible


class Options(NamedTuple):
    """The inputs of a tile besides tensors that may need a gradient."""

    mask: Mask | None
    bias: Bias | None
    softcap: float | None
    dropout: float
    seed: int


def explain_refusal(call: Call) -> str | None:
    """None: this backend computes any call."""
    return None


def run(call: Call) -> Float[Tensor, "batch heads queries d_v"]:
    seed = int(torch.randint(2**62, ())) if call.dropout else 0
    options = Options(call.mask, call.bias, call.softcap, call.dropout, seed)
    parameter = None if call.bias is None else call.bias.parameter
    return _apply(scale_queries(call.q, call.scale), call.k, call.v, call.sinks, parameter, options)


def _disable_autocast(method: Callable[..., Any]) -> Any:
    """Autocast would round what is kept in float32 on purpose."""

    @functools.wraps(method)
    def run(ctx: Any, first: Tensor, *rest: Any) -> Any:
        with torch.autocast(first.device.type, enabled=False):
            return method(ctx, first, *rest)

    return run


class _Tiled(torch.autograd.Function):
    @staticmethod
    @_disable_autocast
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, parameter: Tensor | None, options: Options
    ) -> Tensor:
        work = _TileArithmetic(q, k, v, sinks, options)
        out = v.new_zeros(*q.shape[:3], v.shape[3])
        largest, share = q.new_zeros(*q.shape[:3], 1), q.new_zeros(*q.shape[:3], 1)
        for rows, run in work.tiles():
            columns, (scores, _) = run.columns, work.scores(rows, run)
            largest[:, :, rows] = most = work.largest(scores)
            weights = _exp_(scores.sub_(most))
            share[:, :, rows] = part = work.share(weights, most)
            if options.dropout:
                weights *= work.dropout_factors(rows.start, weights)
            out[:, :, rows] = work.times_keys(weights, work.v[:, :, columns]) * part
        ctx.save_for_backward(q, k, v, sinks, parameter, largest, share)
        ctx.options = options
        return out

    @staticmethod
    @_disable_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise BackendError(
                "backend 'tiled' can be differentiated only once, and create_graph=True needs more; "
                "use backend='reference', which builds the weights"
            )
        q, k, v, sinks, parameter, largest, share = ctx.saved_tensors
        options: Options = ctx.options
        work = _TileArithmetic(q, k, v, sinks, options)
        of_q, of_k, of_v = torch.zeros_like(q), torch.zeros_like(work.k), torch.zeros_like(work.v)
        of_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=q.dtype)
        of_bias = torch.zeros_like(parameter, dtype=q.dtype) if ctx.needs_input_grad[4] else None
        for rows, run in work.tiles():
            columns, most, part = run.columns, largest[:, :, rows], share[:, :, rows]
            scores, slope = work.scores(rows, run, backward=True)
            weights = _exp_(scores.sub_(most))  # not yet normalised: that is applied to the gradient, which is smaller
            of_out = grad[:, :, rows].to(q.dtype) * part
            of_weights = multiply_heads(of_out, work.v[:, :, columns])
            used = weights
            if options.dropout:
                factors = work.dropout_factors(rows.start, weights)
                of_weights *= factors
                used = weights * factors
            of_v[:, :, columns] += work.over_queries(used, of_out)
            total = (weights * of_weights).sum(-1, keepdim=True)
            of_scores = of_weights.sub_(total * part).mul_(weights)
            if of_sinks is not None:
                of_sinks -= ((work.sinks - most).exp() * part * total).sum((0, 2, 3))
            if of_bias is not None:
                assert options.bias is not None
                options.bias.add_gradient(of_bias, of_scores, rows, columns, q.shape[2], k.shape[2])
            if slope is not None:
                of_scores *= slope
            of_q[:, :, rows] = work.times_keys(of_scores, work.k[:, :, columns])
            of_k[:, :, columns] += work.over_queries(of_scores, q[:, :, rows])

        grads = zip((of_q, of_k, of_v, of_sinks, of_bias), ctx.saved_tensors, strict=False)
        return (*(None if total is None else total.to(saved.dtype) for total, saved in grads), None)


_apply: Callable[..., Tensor] = _Tiled.apply


class _TileArithmetic:
    """The arithmetic of one tile, in float32 or better; key heads are shared without being repeated."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: Options) -> None:
        self.q, self.k, self.v = (t.detach().to(q.dtype) for t in (q, k, v))
        self.sinks = None if sinks is None else sinks.detach().to(q.dtype).view(1, -1, 1, 1)
        bias = None if options.bias is None else options.bias.replace(options.bias.parameter.detach())
        self.options = options
        self.queries, self.keys = q.shape[2], k.shape[2]
        self.scorer = TileScorer(options.softcap, bias, options.mask, self.queries, self.keys)

    def tiles(self) -> Iterator[tuple[slice, VisibleRun]]:
        """Blocks of queries that see anything, each with the run of keys that any of them may see."""
        samples = self.q.shape[0] * self.q.shape[1]
        held = TILE_SCORES * GPU_TILES if self.q.is_cuda else TILE_SCORES
        rows = max(16, min(512, held // max(1, samples * self.keys), self.queries))
        if torch.compiler.is_compiling():
            runs = [VisibleRun(slice(0, self.keys), (slice(0, self.keys),))] * -(-self.queries // rows)
        else:
            columns = max(BLOCK_KEYS, self.keys // 256)  # at most 256 blocks a row: their number is O(n)
            runs = find_visible_runs(self.options.mask, self.queries, self.keys, rows, columns, self.q.device)
        for n, row in enumerate(range(0, self.queries, rows)):
            if runs[n].columns.stop:
                yield slice(row, min(row + rows, self.queries)), runs[n]

    def scores(self, rows: slice, run: VisibleRun, *, backward: bool = False) -> tuple[Tensor, Tensor | None]:
        """The scores of a tile, −inf where hidden, and for the backward pass the slope of the cap."""
        scores = multiply_heads(self.q[:, :, rows], self.k[:, :, run.columns])
        slope = self.scorer.cap_(scores, with_slope=backward)
        return self.scorer.add_bias_and_mask_(scores, rows, run), slope

    def largest(self, scores: Tensor) -> Tensor:
        """The largest score of each row, its sink included; 0 for a row that sees nothing."""
        most = scores.amax(-1, keepdim=True)
        if self.sinks is not None:
            most = most.maximum(self.sinks)
        return most.masked_fill(most == -math.inf, 0.0)

    def share(self, weights: Tensor, largest: Tensor) -> Tensor:
        """The factor that normalises a row's weights; 0 for a row that sees nothing."""
        total = weights.sum(-1, keepdim=True)
        if self.sinks is not None:
            total += (self.sinks - largest).exp()
        return total.reciprocal().masked_fill(total == 0, 0.0)

    def dropout_factors(self, row: int, like: Tensor) -> Tensor:
        """Dropout's factors for the tile that begins at this row, the same in both passes."""
        generator = torch.Generator(like.device).manual_seed(self.options.seed + row)
        keep, factor = draw_keep_mask(like, self.options.dropout, generator)
        return keep * factor

    def times_keys(self, left: Tensor, right: Tensor) -> Tensor:
        """(heads, rows, columns) · (kv_heads, columns, d) → (heads, rows, d)"""
        return (_fold_shared_heads(left, right) @ right).view(*left.shape[:3], right.shape[3])

    def over_queries(self, left: Tensor, right: Tensor) -> Tensor:
        """(heads, rows, columns)ᵀ · (heads, rows, d) → (kv_heads, columns, d), summed over sharing heads"""
        return _fold_shared_heads(left, self.k).mT @ _fold_shared_heads(right, self.k)


def _fold_shared_heads(x: Tensor, shared: Tensor) -> Tensor:
    """Heads that share keys become more rows of one head."""
    heads, kv_heads = x.shape[1], shared.shape[1]
    return x.reshape(x.shape[0], kv_heads, heads // kv_heads * x.shape[2], x.shape[3])


def _exp_(x: Tensor) -> Tensor:
    """exp in place, by way of exp2: on a CPU that is faster, and far faster where it underflows, as with ALiBi."""
    return x.mul_(1 / math.log(2)).exp2_()
