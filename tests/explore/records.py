"""Records to look at: of small models that were really watched, and of q and k that were drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clearhead import Decoder, EncoderDecoder, Mask, ModelConfig, Record, attention_weights, measure, watch
from clearhead.attention.call import check_call
from clearhead.lens.measures.definition import choose_blocks
from clearhead.lens.measures.visible_keys import count_seeing_queries, count_visible_keys
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.kept_inputs import KeptInputs, Step

MEASURES = (
    "logsumexp",
    "entropy",
    "peak",
    "peak_key",
    "distance",
    "first",
    "top_keys",
    "top_weights",
    "received",
    "map",
)


def translator(source: int = 11, target: int = 7, **options: Any) -> Record:
    """Two layers of three heads read a text and its translation."""
    torch.manual_seed(5)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=31, width=18, heads=3, layers=2, feedforward=17)).eval()
    with watch(model, keep="qk", norms=True, **options) as record, torch.no_grad():
        model(torch.arange(source)[None] % 31, torch.arange(target)[None] % 31)
    return record.label(lambda number: f"▁w{number}")


def writer(tokens: int = 13, batch: int = 1, **options: Any) -> Record:
    """A decoder alone, two layers of three heads."""
    torch.manual_seed(6)
    model = Decoder(ModelConfig.named("tiny", vocabulary=31, width=18, heads=3, layers=2, feedforward=17)).eval()
    with watch(model, **options) as record, torch.no_grad():
        model(torch.arange(batch * tokens).view(batch, tokens) % 31)
    return record


def drawn(
    tokens: int,
    *,
    layers: int = 1,
    heads: int = 2,
    d: int = 8,
    mask: Mask | None = None,
    pixels: int = 256,
    top: int = 8,
    keep: bool = True,
    texts: list[str] | None = None,
) -> Record:
    """Attention of random q and k."""
    torch.manual_seed(tokens)
    sights = {
        f"encoder.{layer}.self": sight(tokens, heads, d, mask, pixels, top, keep, layer) for layer in range(layers)
    }
    forward = Forward(sights, {"tokens": torch.arange(tokens)[None]})
    if texts is not None:
        forward.labels["tokens"] = dict(enumerate(texts))
    return Record(list(sights), [forward])


def sight(
    tokens: int, heads: int, d: int, mask: Mask | None, pixels: int, top: int, keep: bool, layer: int = 0
) -> Sight:
    q, k = torch.randn(2, 1, heads, tokens, d)
    return sight_of(q, k, mask, pixels, top, keep, layer)


def record_of(q: Tensor, k: Tensor, mask: Mask | None = None, **options: Any) -> Record:
    """The attention of these q and k, (1, heads, tokens, d)."""
    found = sight_of(q, k, mask, **options)
    return Record([found.name], [Forward({found.name: found}, {"tokens": torch.arange(q.shape[2])[None]})])


def sight_of(
    q: Tensor, k: Tensor, mask: Mask | None, pixels: int = 256, top: int = 8, keep: bool = True, layer: int = 0
) -> Sight:
    _, heads, tokens, d = q.shape
    found = measure(q, k, mask, pixels=pixels, top=top)
    parts = (Step(0, 0, tokens, tokens, mask, None),)
    kept = KeptInputs(q, k, d**-0.5, None, None, parts, torch.tensor([tokens]), found.logsumexp)
    return Sight(
        **{name: getattr(found, name) for name in MEASURES},
        **visible_of(q, k, mask),
        name=f"encoder.{layer}.self",
        heads=tuple(range(heads)),
        queries=torch.arange(tokens),
        blocks=choose_blocks(tokens, tokens, pixels),
        inputs=(0,),
        kept=kept if keep else None,
    )


def visible_of(q: Tensor, k: Tensor, mask: Mask | None, **options: Any) -> dict[str, Tensor]:
    """How many keys each query sees, and how many queries see each key."""
    call, rows = check_call(q, k, None, mask, **options), range(q.shape[2])
    counts = {"visible": count_visible_keys(call, rows), "seen_by": count_seeing_queries(call, rows)}
    return {name: one.int().expand(len(q), -1, -1) for name, one in counts.items()}


def weights_of(sight: Sight, sample: int = 0) -> Tensor:
    """Every weight by the definition, (heads, queries, keys)."""
    call = sight.attention()
    scale = call.scale.flatten() if isinstance(call.scale, Tensor) else call.scale
    return attention_weights(
        call.q, call.k, call.mask, scale=scale, bias=call.bias, softcap=call.softcap, sinks=call.sinks
    )[sample]
