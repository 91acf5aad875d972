"""from_weights: a record of attention weights that were computed elsewhere, for the page, figures and notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import DataError
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight

MAX_TOKENS = 2000  # queries or keys
TOP = 8  # keys of a query
TOLERANCE = 1e-3  # by which rounding may lift the sum of a row above 1


def from_weights(weights: Any, tokens: Any) -> Record:
    """A record of these weights, which `write_page`, `.open()` and notebooks take.

    `weights` is a NumPy array or tensor, (heads, queries, keys) or (layers, heads, queries, keys), or a sequence with
    one for each layer, such as `outputs.attentions` of Hugging Face for one text. `tokens` are the texts of both axes,
    or, of cross-attention, a pair: those of the queries and those of the keys. At most 2,000 of each. A square matrix
    that is zero above its diagonal is taken as causal: what is zero there is hidden.

    >>> record = from_weights(torch.tensor([[[1.0, 0.0], [0.25, 0.75]]]), ["Hello", "world"])
    >>> record["decoder.0.self"].peak_key.tolist()
    [[[0, 1]]]
    """
    layers = _read_layers(weights)
    _, rows, columns = layers[0].shape
    queries, keys, pair = _read_tokens(tokens)
    if (len(queries), len(keys)) != (rows, columns):
        hint = "" if pair or rows == columns else "; of cross-attention give the pair (queries, keys)"
        raise DataError(f"{rows} × {columns} weights need as many tokens, got {len(queries)} and {len(keys)}{hint}")
    causal = not pair and rows > 1 and all(_is_causal(layer) for layer in layers)
    kind = "decoder.{}.cross" if pair else "decoder.{}.self" if causal else "encoder.{}.self"
    sights = {kind.format(number): _measure(layer, kind.format(number), causal) for number, layer in enumerate(layers)}
    texts = {"target": queries, "source": keys} if pair else {"tokens": queries}
    forward = Forward(sights, {name: torch.arange(len(tokens))[None] for name, tokens in texts.items()})
    forward.labels.update({name: dict(enumerate(map(str, tokens))) for name, tokens in texts.items()})
    return Record(list(sights), [forward])


def _read_tokens(tokens: Any) -> tuple[list[Any], list[Any], bool]:
    """The tokens of queries and keys, and whether they were given as a pair."""
    if not _is_list(tokens):
        raise DataError(f"tokens are a list of texts, or the pair (queries, keys), got {tokens!r:.60}")
    parts = list(tokens)
    if len(parts) == 2 and all(map(_is_list, parts)):
        return list(parts[0]), list(parts[1]), True
    return parts, parts, False


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict))


def _read_tensor(array: Any) -> Tensor:
    """A copy of one array in float32, on the CPU: the caller may write to the array later."""
    try:
        return torch.as_tensor(array).detach().to("cpu", torch.float32, copy=True)
    except (TypeError, ValueError, RuntimeError) as problem:
        hint = "; load the model with attn_implementation='eager'" if array is None else ""
        raise DataError(f"weights are NumPy arrays or tensors, got {type(array).__name__}{hint}") from problem


def _read_layers(weights: Any) -> list[Float[Tensor, "heads queries keys"]]:
    """The weights of every layer, (heads, queries, keys), in float32."""
    if isinstance(weights, (list, tuple)):
        layers = [_read_tensor(layer) for layer in weights]
        layers = [layer[0] if layer.dim() == 4 and len(layer) == 1 else layer for layer in layers]  # a batch of one
    else:
        tensor = _read_tensor(weights)
        layers = list(tensor) if tensor.dim() == 4 else [tensor]
    shapes = {tuple(layer.shape) for layer in layers}
    shown = ", ".join(map(str, sorted(shapes))) or "nothing"
    if not layers or any(layer.dim() != 3 or not layer.numel() for layer in layers):
        raise DataError(f"weights are (heads, queries, keys) for each layer, of one text; got {shown}")
    if len({shape[1:] for shape in shapes}) > 1:
        raise DataError(f"all layers must have the same queries and keys, got {shown}")
    if (longest := max(layers[0].shape[1:])) > MAX_TOKENS:
        raise DataError(f"at most {MAX_TOKENS:,} tokens can be shown by their weights, got {longest:,}")
    for number, layer in enumerate(layers):
        finite = layer.nan_to_num(0.0, 0.0, 0.0)  # NaN and infinities are shown as such
        low, high = float(finite.min()), float(finite.sum(-1).max())
        if low < 0 or high > 1 + TOLERANCE:
            numbers = f"a weight of {low:.6g} and a sum of {high:.6g} in layer {number}"
            raise DataError(f"weights are 0 or more and sum to at most 1 in a row, got {numbers}; apply the softmax")
    return layers


def _is_causal(weights: Float[Tensor, "heads queries keys"]) -> bool:
    square = weights.shape[1] == weights.shape[2]
    return square and bool((weights.triu(1) == 0).all()) and not bool((weights.tril(-1) == 0).all())


def _measure(weights: Float[Tensor, "heads queries keys"], name: str, causal: bool) -> Sight:
    """All measures of these weights, whose map is the weights themselves."""
    heads, rows, columns = weights.shape
    numbers = weights.nan_to_num(0.0, 0.0, 0.0)[None]
    broken = ~weights.isfinite().all(-1)[None]
    seeing = (numbers > 0).any(-1) | broken
    peak, peak_key = numbers.max(-1)
    top_weights, top_keys = numbers.topk(min(TOP, columns))
    apart = (torch.arange(rows)[:, None] - torch.arange(columns)).abs().float()
    first = (numbers > 0).int().argmax(-1, keepdim=True)
    visible = torch.arange(1, rows + 1) if causal else torch.full((rows,), columns)
    seen_by = visible.flip(0) if causal else torch.full((columns,), rows)
    nowhere = ~seeing | broken
    return Sight(
        logsumexp=torch.zeros(1, heads, rows).masked_fill(~seeing, -torch.inf),
        entropy=torch.special.entr(numbers).sum(-1).masked_fill(broken, torch.nan),
        peak=peak.masked_fill(broken, torch.nan),
        peak_key=peak_key.masked_fill(nowhere, -1),
        distance=(numbers * apart).sum(-1).masked_fill(broken, torch.nan),
        first=numbers.gather(-1, first)[..., 0].masked_fill(broken, torch.nan),
        top_keys=top_keys.masked_fill((top_weights == 0) | nowhere[..., None], -1),
        top_weights=top_weights,
        received=weights[None].sum(-2),
        map=weights[None],
        name=name,
        cross=name.endswith("cross"),
        heads=tuple(range(heads)),
        queries=torch.arange(rows),
        blocks=(1, 1),
        inputs=(0,),
        visible=visible.expand(1, 1, rows),
        seen_by=seen_by.expand(1, 1, columns),
    )
