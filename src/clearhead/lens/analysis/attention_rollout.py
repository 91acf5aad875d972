"""Attention rollout: from which tokens a token's vector came, through all layers, in O(n) memory.

Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers": with Ā the mean of a layer's heads, and half of
each vector carried on by the residual, r ← ½ r + ½ r·Ā from the last layer to the first, beginning with 1 at the token.
The product of all layers, n² numbers, is never built: a row of it is enough, and r·Ā comes tile by tile from the kept q
and k. It treats every layer as an average of vectors, which values, W_O, norms and feed-forward layers are not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.tile_scores import TileScorer, VisibleRun, find_visible_runs, multiply_heads, scale_queries
from clearhead.errors import LensError
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight, find_text

TILE = 2**20  # scores held at once
WIDTH = 64  # keys of a block for which the mask is summarised


class Rollout(NamedTuple):
    """How much of a token's last vector came from each token; of an encoder-decoder also from each source token.

    Both together sum to one, less what went to learned sinks.
    """

    tokens: Float[Tensor, "batch tokens"]
    source: Float[Tensor, "batch source"] | None


@torch.no_grad()
def rollout(record: Record | Forward, token: int, *, residual: float = 0.5) -> Rollout:
    """Where the vector of the token at this position came from, through all layers that were watched with keep="qk".

    `token` counts from the end if it is negative. In an encoder-decoder it is a target token: what its layers take
    through cross-attention goes on through the encoder's. `residual` is what passes a layer unchanged.
    """
    calls = record.calls if isinstance(record, Record) else [record]
    if len(calls) != 1:
        raise LensError(f"the model ran {len(calls)} times: choose one, as rollout(record.calls[0], token)")
    if not 0 <= residual <= 1:
        raise LensError(f"residual is the share that passes a layer unchanged, from 0 to 1, got {residual}")
    target, source = _split_by_side([calls[0][name] for name in calls[0].names])
    rows = _start_rows(target, token)
    below: Tensor | None = None
    for sight in reversed(target):
        taken = (1 - residual) * _propagate_through(sight, rows)
        if sight.cross:
            below = taken if below is None else below + taken
            rows = residual * rows
        else:
            rows = residual * rows + taken
    for sight in reversed(source):
        assert below is not None
        below = residual * below + (1 - residual) * _propagate_through(sight, below, target[-1].inputs)
    return Rollout(rows, below)


def _split_by_side(sights: list[Sight]) -> tuple[list[Sight], list[Sight]]:
    """The layers that the token passed, and those of the source that they attend to.

    The target's layers are in the stack that holds cross-attention, under any name: BERT as a decoder and the Q-Former
    have theirs in an "encoder".
    """
    stacks: dict[str, list[Sight]] = {}
    for sight in sights:
        # All before the first number, such as "vision.encoder"; or nothing
        stack, *number = re.split(r"(?:^|\.)\d+(?:\.|$)", sight.name, maxsplit=1)
        stacks.setdefault(stack if number else "", []).append(sight)
    crossing = [name for name, layers in stacks.items() if any(sight.cross for sight in layers)]
    targets = crossing or list(stacks)
    sources = [name for name in stacks if name not in targets]
    for names in (targets, sources):
        if len(names) > 1:
            raise LensError(
                f"the record has layers of {', '.join(map(repr, names))}, and which of them feeds which is not known; "
                "rollout needs consecutive layers of one stack: call watch(layers=[…])"
            )
    target, source = ([sight for name in names for sight in stacks[name]] for names in (targets, sources))
    return target, source


def _start_rows(sights: list[Sight], token: int) -> Tensor:
    """A one-hot row at the token, for every sample."""
    if not sights:
        raise LensError("the record has no attention to propagate through")
    q = sights[-1].attention().q
    if isinstance(token, bool) or not isinstance(token, int) or not -q.shape[2] <= token < q.shape[2]:
        raise LensError(f"there are tokens 0 to {q.shape[2] - 1}, not {token!r}")
    rows = torch.zeros(q.shape[0], q.shape[2], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    rows[:, token] = 1.0
    return rows


def _propagate_through(sight: Sight, rows: Tensor, inputs: Sequence[int] = ()) -> Tensor:
    """`propagate` through one attention; `inputs` are those of the samples, where several beams share a source text."""
    call = sight.attention()
    queries, keys = call.q.shape[2], call.k.shape[2]
    if queries != rows.shape[1] or (not sight.cross and keys != queries):
        raise LensError(
            f"{sight.name!r} has {queries} queries and {keys} keys, the layer above has {rows.shape[1]} tokens; "
            "rollout needs all queries of consecutive layers of one stack: call watch(layers=[…]) without rows="
        )
    if not inputs or len(rows) == len(call.q):
        return propagate(call, rows)
    texts = [find_text(sample, inputs, len(call.q)) for sample in range(len(rows))]
    return torch.cat([propagate(_take_sample(call, text), rows[n : n + 1]) for n, text in enumerate(texts)])


def _take_sample(call: Call, sample: int) -> Call:
    """The same call for one sample."""
    samples = slice(sample, sample + 1)
    scorer = TileScorer.of_call(call).select_samples(samples)
    q, k, v = (tensor[samples] if len(tensor) > 1 else tensor for tensor in (call.q, call.k, call.v))
    return call._replace(q=q, k=k, v=v, mask=scorer.mask, bias=scorer.bias)


def propagate(call: Call, rows: Float[Tensor, "batch queries"]) -> Float[Tensor, "batch keys"]:
    """r·Ā: these rows times the mean weights over heads, computed in tiles of rows."""
    batch, heads, queries, keys = call.sizes
    total = torch.zeros(batch, keys, dtype=torch.float64, device=rows.device)
    height = max(1, min(512, TILE // max(1, batch * heads * keys)))
    runs = find_visible_runs(call.mask, queries, keys, height, max(WIDTH, keys // 256), rows.device)
    for number, run in enumerate(runs):
        tile = slice(number * height, min((number + 1) * height, queries))
        part = rows[:, tile]
        if run.columns.stop and bool(part.any()):
            shares, whole = _compute_shares(call, tile, run, part.dtype)
            part = (part[:, None] / whole).flatten(1)  # a weight is a share of the whole: the fewer are divided
            total[:, run.columns] += (part[:, None] @ shares.flatten(1, 2))[:, 0] / heads
    return total.to(rows.dtype)


def _compute_shares(call: Call, rows: slice, run: VisibleRun, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """exp(score − row maximum) of some queries over the keys they may see, and the row sums."""
    products = multiply_heads(scale_queries(call.q[:, :, rows], call.scale, dtype), call.k[:, :, run.columns].to(dtype))
    scores = TileScorer.of_call(call).score_tile_(products, rows, run)
    largest = scores.amax(-1, keepdim=True)
    sinks = None if call.sinks is None else call.sinks.to(dtype).view(1, -1, 1, 1)
    largest = largest if sinks is None else largest.maximum(sinks)
    shares = scores.sub_(largest.masked_fill(largest == -math.inf, 0.0)).mul_(1 / math.log(2)).exp2_()
    whole = shares.sum(-1, keepdim=True)
    whole = whole if sinks is None else whole + (sinks - largest).exp()
    return shares, whole.masked_fill(whole == 0, 1.0)[..., 0]
