"""Attention in blocks of queries, recomputed in the backward pass: any mask, bias or option, O(n) memory, any device.

With s = cap(q·kᵀ·scale) + bias and w = exp(s − logsumexp), the derivative of the scores is
ds = w · (dw − Σ w·dw): with its logsumexp kept, a row needs nothing from the others (Dao 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.inputs import Call
from clearhead.attention.masks import Mask

# Scores held at once. Small enough for a processor's cache to matter, large enough to keep matrix products busy.
TILE = 2**20


class Options(NamedTuple):
    """What the blocks need besides tensors that may want a gradient."""

    mask: Mask | None
    bias: Bias | None
    softcap: float | None
    dropout: float
    seed: int
    scale: float


class Tile(NamedTuple):
    """Where a block of queries lies, and which keys any of them may see."""

    rows: slice
    columns: slice


def refusal(call: Call) -> str | None:
    return None


def run(call: Call) -> Tensor:
    seed = int(torch.randint(2**62, ())) if call.dropout else 0
    scale = call.scale if isinstance(call.scale, Tensor) else None
    number = 1.0 if isinstance(call.scale, Tensor) else call.scale
    options = Options(call.mask, call.bias, call.softcap, call.dropout, seed, number)
    parameter = None if call.bias is None else call.bias.parameter
    out: Tensor = _apply(call.q, call.k, call.v, scale, call.sinks, parameter, options)
    return out


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: Tensor | None,
        sinks: Tensor | None,
        parameter: Tensor | None,
        options: Options,
    ) -> Tensor:
        work = _Work(q, k, v, scale, sinks, options)
        out = q.new_empty(*q.shape[:3], v.shape[3])
        logsumexp = torch.empty(q.shape[:3], dtype=work.dtype, device=q.device)
        for tile in work.tiles():
            scores, _ = work.scores(tile)
            logsumexp[:, :, tile.rows] = lse = work.logsumexp(scores)
            weights = scores.sub_(lse[..., None]).exp_()
            if options.dropout:
                weights *= work.kept(tile, weights)
            out[:, :, tile.rows] = work.times_keys(weights, work.v[:, :, tile.columns])
        ctx.save_for_backward(q, k, v, scale, sinks, parameter, logsumexp)
        ctx.options = options
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, scale, sinks, parameter, logsumexp = ctx.saved_tensors
        options: Options = ctx.options
        work = _Work(q, k, v, scale, sinks, options)
        wants_scale, _, wants_bias = ctx.needs_input_grad[3:6]
        of_q = torch.empty(q.shape, dtype=work.dtype, device=q.device)
        of_k, of_v = torch.zeros_like(work.k), torch.zeros_like(work.v)
        of_scale = None if scale is None else torch.zeros_like(scale, dtype=work.dtype)
        of_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=work.dtype)
        of_bias = torch.zeros_like(parameter, dtype=work.dtype) if wants_bias else None
        for tile in work.tiles():
            rows, columns = tile
            lse = logsumexp[:, :, rows, None]
            scores, slope = work.scores(tile)
            weights = scores.sub_(lse).exp_()
            of_out = grad[:, :, rows].to(work.dtype)
            of_weights = work.times_values(of_out, work.v[:, :, columns])
            used = weights
            if options.dropout:
                kept = work.kept(tile, weights)
                of_weights *= kept
                used = weights * kept
            of_v[:, :, columns] += work.over_queries(used, of_out)
            total = (weights * of_weights).sum(-1, keepdim=True)
            of_scores = of_weights.sub_(total).mul_(weights)
            if of_sinks is not None:
                of_sinks -= ((work.sinks - lse).exp() * total).sum((0, 2, 3))
            if of_bias is not None:
                assert options.bias is not None
                options.bias.add_gradient(of_bias, of_scores, rows, columns, q.shape[2], k.shape[2])
            if slope is not None:
                of_scores *= slope
            if of_scale is not None and wants_scale:
                products = work.times_values(work.q[:, :, rows], work.k[:, :, columns])
                of_scale += (of_scores * products).sum((0, 2, 3)).view(-1, 1, 1).sum_to_size(of_scale.shape)
            of_scores *= work.scale
            of_q[:, :, rows] = work.times_keys(of_scores, work.k[:, :, columns])
            of_k[:, :, columns] += work.over_queries(of_scores, work.q[:, :, rows])

        def like(total: Tensor | None, given: Tensor | None) -> Tensor | None:
            return None if total is None or given is None else total.to(given.dtype)

        grads = (of_q, of_k, of_v, of_scale, of_sinks, of_bias)
        return (*(like(g, t) for g, t in zip(grads, ctx.saved_tensors, strict=False)), None)


_apply: Callable[..., Tensor] = _Tiled.apply


class _Work:
    """The arithmetic of one tile, in float32 or better; key heads are shared without being repeated."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor | None, sinks: Tensor | None, options: Options
    ) -> None:
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.q, self.k, self.v = (t.detach().to(self.dtype) for t in (q, k, v))
        self.scale = options.scale if scale is None else scale.detach().to(self.dtype)
        self.sinks = None if sinks is None else sinks.detach().to(self.dtype).view(1, -1, 1, 1)
        self.bias = None if options.bias is None else options.bias.replace(options.bias.parameter.detach())
        self.options = options
        self.queries, self.keys = q.shape[2], k.shape[2]

    def tiles(self) -> Iterator[Tile]:
        """Blocks of queries, each with the run of keys it may see; work for hidden ends is never done."""
        samples = self.q.shape[0] * self.q.shape[1]
        rows = max(16, min(512, TILE // max(1, samples * self.keys), self.queries))
        mask, columns = self.options.mask, max(rows, 64)
        starts, ends = None, None
        if mask is not None and not torch.compiler.is_compiling():
            some = mask.blocks(self.queries, self.keys, rows, columns, self.q.device)[0]
            some = some.expand(-1, -1, -(-self.queries // rows), -(-self.keys // columns)).flatten(0, 1).any(0)
            count = torch.arange(1, some.shape[1] + 1, device=some.device)
            ends = (some * count).amax(1).tolist()
            starts = (some.shape[1] - (some * count.flip(0)).amax(1)).tolist()
        for n, row in enumerate(range(0, self.queries, rows)):
            first = starts[n] * columns if starts is not None else 0
            end = min(ends[n] * columns, self.keys) if ends is not None else self.keys
            yield Tile(slice(row, min(row + rows, self.queries)), slice(min(first, end), end))

    def scores(self, tile: Tile) -> tuple[Tensor, Tensor | None]:
        """The scores of a tile, hugely negative where hidden, and the slope of the cap."""
        options, (rows, columns) = self.options, tile
        scores, slope = self.times_values(self.q[:, :, rows], self.k[:, :, columns]).mul_(self.scale), None
        if options.softcap is not None:
            capped = scores.div_(options.softcap).tanh_()
            slope = 1 - capped**2
            scores = capped * options.softcap
        if self.bias is not None:
            scores += self.bias.tile(rows, columns, self.queries, self.keys)
        if options.mask is not None:
            seen = options.mask.tile(rows, columns, self.queries, self.keys, scores.device)
            scores.masked_fill_(~seen, -math.inf)
        return scores, slope

    def logsumexp(self, scores: Tensor) -> Tensor:
        """Over keys and sink; +inf for a row that sees nothing, so that exp(score − it) is zero."""
        if self.sinks is not None:
            sink = self.sinks.expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        if scores.shape[-1] == 0:
            return scores.new_full(scores.shape[:3], math.inf)
        total = scores.logsumexp(-1)
        return total.masked_fill(total == -math.inf, math.inf)

    def kept(self, tile: Tile, like: Tensor) -> Tensor:
        """Dropout's factors for a tile, the same in both passes."""
        generator = torch.Generator(like.device).manual_seed(self.options.seed + tile.rows.start)
        chance = 1 - self.options.dropout
        return torch.empty_like(like).bernoulli_(chance, generator=generator).div_(chance)

    def times_values(self, left: Tensor, right: Tensor) -> Tensor:
        """(heads, rows, d) · (kv_heads, columns, d) → (heads, rows, columns)"""
        return _unfolded(_folded(left, right) @ right.mT, left.shape[1])

    def times_keys(self, left: Tensor, right: Tensor) -> Tensor:
        """(heads, rows, columns) · (kv_heads, columns, d) → (heads, rows, d)"""
        return _unfolded(_folded(left, right) @ right, left.shape[1])

    def over_queries(self, left: Tensor, right: Tensor) -> Tensor:
        """(heads, rows, columns)ᵀ · (heads, rows, d) → (kv_heads, columns, d), summed over sharing heads"""
        return _folded(left, self.k).mT @ _folded(right, self.k)


def _folded(x: Tensor, shared: Tensor) -> Tensor:
    """Heads that share keys become more rows of one head."""
    heads, kv_heads = x.shape[1], shared.shape[1]
    return x.reshape(x.shape[0], kv_heads, heads // kv_heads * x.shape[2], x.shape[3])


def _unfolded(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], heads, x.shape[1] * x.shape[2] // heads, x.shape[3])
