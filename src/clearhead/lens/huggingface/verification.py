"""Attention functions that are not transformers' own: how they read their arguments, found out from their output.

Nobody knows what a function that a user registered makes of a mask of None, of `softcap` or `s_aux`, or what it adds to
the scores itself. So each way in which the functions of transformers read their arguments is tried: the weights of a
few rows times v must be what the function returned. If none fits, the function is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Seen
from clearhead.attention.call import check_call
from clearhead.attention.tile_scores import TileScorer, multiply_heads, scale_queries
from clearhead.errors import ClearheadError, LensError
from clearhead.lens.huggingface.arguments import AttentionArguments, Masks, to_seen

ROUNDINGS = 16  # of the output's precision, by which rows may differ, for scores of about 0
LARGEST = 0.05  # share of the output by which rows may differ in half precision, where scores are rounded, too
TF32 = 2.0**-10  # rounding of float32 products on a GPU


def find_reading(got: AttentionArguments, keys: int, masks: Masks, name: str) -> Seen:
    """The arguments of an unknown function as `Seen`, read such that they explain its output; else LensError."""
    if got.dropout:
        raise LensError(
            f"{name!r} attends by {got.function!r}, which is not a function of transformers: its output has to be "
            "checked, which dropout prevents; watch the model in eval mode"
        )
    output = _check_output(got, name)
    nearest: Difference | None = None
    for reading in _iterate_readings(got):
        try:
            seen = to_seen(reading, keys, masks)
            difference = measure_difference(seen, got.v[:, :, : seen.k.shape[2]], output)
        except (ClearheadError, RuntimeError, IndexError):  # a mask that does not have the form of this reading
            continue
        if difference.share <= difference.limit:
            return seen
        if nearest is None or not nearest.share <= difference.share:  # NaN is not near
            nearest = difference
    raise LensError(
        f"{name!r} attends by {got.function!r}, which is not a function of transformers, and its output is not "
        f"softmax(q·kᵀ·scaling + mask)·v of its arguments ({_explain(nearest)}), so its weights are unknown; "
        "watch the model with model.set_attn_implementation('sdpa'), or pass your own scores to "
        "clearhead.measure(q, k, mask, bias=…)"
    )


class Difference(NamedTuple):
    """How far an output is from the one expected, relative to its size, and what rounding explains."""

    share: float
    limit: float


def _explain(nearest: Difference | None) -> str:
    if nearest is None:
        return "none of the forms that transformers gives them fits"
    return f"it differs by {nearest.share:.2g} of its size, and rounding explains at most {nearest.limit:.2g}"


def measure_difference(
    seen: Seen, v: Float[Tensor, "batch v_heads keys d_v"], output: Float[Tensor, "batch queries heads d_v"]
) -> Difference:
    """The first, middle and last row of an output beside their weights times v; rows that see nothing do not count."""
    options = {name: getattr(seen, name) for name in ("scale", "bias", "softcap", "sinks")}
    call = check_call(seen.q, seen.k, None, seen.mask, **options)
    batch, heads, queries, _ = call.sizes
    rows = torch.tensor(sorted({0, queries // 2, queries - 1} & {*range(queries)}), device=call.q.device)
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    products = multiply_heads(scale_queries(call.q[:, :, rows], call.scale, dtype), call.k.to(dtype))
    b, h, j = (torch.arange(size, device=rows.device) for size in (batch, heads, call.k.shape[2]))
    scorer = TileScorer.of_call(call)
    scores = scorer.score_pairs(products, b.view(-1, 1, 1, 1), h.view(-1, 1, 1), rows[:, None], j)
    visible = scores > -torch.inf
    whole = scores if call.sinks is None else _append_sinks(scores, call.sinks)
    weights = whole.softmax(-1)[..., : scores.shape[-1]]
    values = v.to(dtype).repeat_interleave(heads // v.shape[1], 1)
    expected, size = weights @ values, (weights @ values.square()).sqrt()
    real = visible.any(-1, keepdim=True) & expected.isfinite()
    apart = (expected - output[:, rows].transpose(1, 2).to(dtype)).masked_fill(~real, 0.0)
    share = apart.norm() / size.masked_fill(~real, 0.0).norm().clamp(min=torch.finfo(dtype).tiny)
    typical = scores.masked_fill(~visible, 0.0).square().sum().div(visible.sum().clamp(min=1)).sqrt()
    step = max(torch.finfo(output.dtype).eps, torch.finfo(call.q.dtype).eps, TF32 if output.is_cuda else 0.0)
    limit = ROUNDINGS * step * (1 + float(typical))
    return Difference(float(share), min(limit, LARGEST))


def _append_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], -1)


def _iterate_readings(got: AttentionArguments) -> Iterator[AttentionArguments]:
    """The arguments as each kind of function would read them, with all options first, then without some of them."""
    options = [name for name in ("softcap", "window", "bias", "sinks") if getattr(got, name) is not None]
    for count in range(len(options) + 1):
        for left_out in itertools.combinations(options, count):
            without: dict[str, Any] = dict.fromkeys(left_out)
            for kind in _find_kinds(got.mask):
                yield got._replace(kind=kind, **without)


def _find_kinds(mask: Any) -> tuple[str, ...]:
    """The kinds of function that could have got this mask."""
    if mask is None:
        return ("sdpa", "eager", "flash")
    if not isinstance(mask, Tensor):
        return ("flex",)
    return ("flash", "sdpa", "eager") if mask.ndim == 2 else ("sdpa", "eager")


def _check_output(got: AttentionArguments, name: str) -> Tensor:
    """The output of the function; LensError if it has another shape than the functions of transformers give."""
    batch, heads, queries, _ = got.q.shape
    shape = (batch, queries, heads, got.v.shape[-1])
    if got.output is None or got.output.shape != shape or heads % got.v.shape[1]:
        returned = None if got.output is None else tuple(got.output.shape)
        raise LensError(
            f"{name!r} attends by {got.function!r}, which returned {returned} where (batch, queries, heads, width) = "
            f"{shape} was expected: it cannot be recorded"
        )
    return got.output
