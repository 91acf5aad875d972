"""Single attentions: what `measure` and `attend` give for masks, biases, caps, sinks and some of the queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import Bias, Mask, Measures, MultiHeadAttention, attend, attention_weights, measure
from recordings.recording import Items
from recordings.values import to_plain

MEASURES = ["logsumexp", "entropy", "peak", "peak_key", "distance", "first", "top_keys", "top_weights", "received"]
MEASURES += ["map", "max_score", "span_mass"]
QUERIES, KEYS, HEADS = 37, 41, 6
SPANS = {"first": slice(0, 7), "middle": slice(9, 31), "to the end": slice(30, None), "empty": slice(5, 5)}


def make_masks() -> dict[str, Mask | None]:
    ids = torch.arange(KEYS)[None].expand(2, -1) // 9
    visible = torch.rand(2, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(4)) < 0.6
    return {
        "full": None,
        "causal": Mask.causal(),
        "window": Mask.window(5, 2),
        "prefix": Mask.causal() | Mask.prefix(4),
        "documents": Mask.documents(ids, ids[:, :QUERIES]),
        "padding": Mask.causal() & Mask.padding([KEYS, 23]),
        "dense": Mask.visible(visible),
    }


def make_options(dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    chance = torch.Generator().manual_seed(6)
    return {
        "plain": {},
        "cap and sinks": {"softcap": 3.0, "sinks": torch.linspace(-1, 1, HEADS, dtype=dtype)},
        "bias": {"bias": torch.randn(1, HEADS, QUERIES, KEYS, generator=chance, dtype=dtype)},
        "ALiBi": {"bias": Bias.alibi(torch.linspace(0.1, 0.6, HEADS, dtype=dtype))},
        "scales": {"scale": torch.linspace(0.1, 0.6, HEADS, dtype=dtype)},
    }


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 11) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def record_attentions(_: Path) -> Items:
    measured, attended = dict[str, Any](), dict[str, Any]()
    for dtype in (torch.float32, torch.float64):
        q, k, v = (draw(2, heads, size, 16, dtype=dtype) for heads, size in ((HEADS, QUERIES), (3, KEYS), (3, KEYS)))
        for mask_name, mask in make_masks().items():
            for name, options in make_options(dtype).items():
                case = f"{dtype}, {mask_name}, {name}"
                measured[case] = describe_measures(measure(q, k, mask, pixels=8, top=3, spans=SPANS, **options))
                attended[case] = to_plain(dict(_attend(q, k, v, mask, options)))
    yield "measure", measured | dict(_measure_parts())
    yield "attend", attended | _call_multihead()


def describe_measures(seen: Measures) -> dict[str, Any]:
    return {name: to_plain(getattr(seen, name, None)) for name in MEASURES}


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, options: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    for backend in ("auto", "reference", "tiled"):
        yield backend, attend(q, k, v, mask, backend=backend, **options)
    yield "weights", attention_weights(q, k, mask, **options)


def _measure_parts() -> Iterator[tuple[str, Any]]:
    """Some of the queries, and each way to measure, also of a text that is long enough for compiled code."""
    q, k = draw(1, HEADS, 150, 16), draw(1, 3, 150, 16, seed=12)
    parts: dict[str, dict[str, Any]] = {
        "last queries": {"queries": slice(-5, None)},
        "chosen queries": {"queries": [0, 7, 90]},
        "every fourth": {"every": 4},
        "nothing but entropy": {"pixels": 0, "top": 0, "received": False},
    }
    for title, options in parts.items():
        yield title, describe_measures(measure(q, k, Mask.causal(), spans=SPANS, **options))
    for backend in ("defined", "tiled", "compiled"):
        yield f"backend {backend}", describe_measures(measure(q, k, Mask.window(30), backend=backend))
    yield "one query", describe_measures(measure(q[:, :, -1:], k, Mask.causal()))
    long = draw(1, 2, 700, 16, seed=13)
    yield "long", describe_measures(measure(long, long, Mask.causal(), pixels=32))


def _call_multihead() -> dict[str, Any]:
    torch.manual_seed(8)
    theirs = torch.nn.MultiheadAttention(24, 4, batch_first=True).eval()
    x = draw(2, 9, 24)
    with torch.no_grad():
        return {"from torch": to_plain(MultiHeadAttention.from_torch(theirs)(x, mask=Mask.causal()))}
