"""The inputs of our models' attentions, recorded by a separate observer, to compare records with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from clearhead import Decoder, Encoder, EncoderDecoder, ModelConfig
from clearhead.attention import Seen
from clearhead.attention.call import check_call
from clearhead.lens import Sight
from clearhead.lens.attention_names import find_attentions
from clearhead.lens.measures.definition import MeasureJob
from clearhead.lens.measures.measure_dispatch import plan_job

VOCABULARY = 53
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "classic": ("classic", {}),
    "modern": ("modern", {"kv_heads": 2}),  # rotary positions, grouped heads
    "alibi": ("tiny", {"positions": "alibi"}),
    "relative": ("tiny", {"positions": "relative", "kv_heads": 3}),
    "learned temperature": ("tiny", {"temperature": "learned"}),
    "window": ("modern", {"window": 5, "value_head_dim": 7}),
}
KINDS = {"Encoder": Encoder, "Decoder": Decoder, "EncoderDecoder": EncoderDecoder}


def built(kind: str, shape: str = "classic", **changes: Any) -> nn.Module:
    """A small model at rest, with weights such that heads have something to prefer."""
    torch.manual_seed(11)
    name, own = SHAPES[shape]
    small = {"width": 24, "heads": 6, "layers": 2, "feedforward": 37, **own, **changes}
    model = KINDS[kind](ModelConfig.named(name, vocabulary=VOCABULARY, **small))
    with torch.no_grad():
        for attention in find_attentions(model).values():
            for projection in attention.projections()[:2]:
                projection.mul_(3)
            for parameter in (attention.strength, getattr(attention.positions, "table", None)):
                if parameter is not None:
                    parameter.add_(torch.randn_like(parameter))
    return model.eval()


def tokens(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def collect_seen(model: nn.Module) -> Iterator[dict[str, list[Seen]]]:
    """Everything that each attention sees, copied at once."""
    found: dict[str, list[Seen]] = {name: [] for name in find_attentions(model)}

    def observer(name: str) -> Any:
        return lambda seen: found[name].append(
            seen._replace(q=seen.q.detach().clone(), k=seen.k.detach().clone(), v=seen.v.detach().clone())
        )

    for name, attention in find_attentions(model).items():
        assert attention.observer is None
        attention.observer = observer(name)
    try:
        yield found
    finally:
        for attention in find_attentions(model).values():
            attention.observer = None


def job_of(seen: Seen, sight: Sight, pixels: int = 256, every: int = 1) -> MeasureJob:
    """What the judge is to measure of it: all heads, at the positions that a record gives it."""
    call = check_call(seen.q, seen.k, seen.v, seen.mask, scale=seen.scale, bias=seen.bias, sinks=seen.sinks)
    top = sight.top_keys.shape[3]
    return plan_job(call, pixels=pixels, top=top, every=every, offset=0 if seen.cross else None)
