"""Attentions to measure, by name: every kind of mask and option, and what is hardest to get right.

Sizes are distinct primes, and larger than a tile of any way of measuring. `CASES[name].job(dtype, device)` is the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead import Bias, Mask
from clearhead.attention.biases import t5_buckets
from clearhead.attention.call import check_call
from clearhead.lens.measures.definition import MeasureJob
from clearhead.lens.measures.measure_dispatch import plan_job

QUERIES, KEYS, WIDTH = 131, 197, 16  # the width is that of the fast kernels; others are cases of their own
ALONE = 163  # tokens of a sequence that looks at itself
CAUSAL = Mask.causal()
SPANS = {"first": slice(0, 7), "middle": slice(31, 97), "to the end": slice(89, None), "empty": slice(5, 5)}
SPANS |= {"last": slice(-3, None), "beyond": slice(500, 900)}


@dataclass(frozen=True)
class Case:
    """q and k in float64; `options` are those of attention, `asked` those of the measuring."""

    q: Tensor
    k: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)

    def job(self, dtype: torch.dtype = torch.float32, device: str = "cpu", **asked: Any) -> MeasureJob:
        """The job, q and k rounded to this dtype; options are float32, or better where q and k are."""
        precise = torch.promote_types(dtype, torch.float32)

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, precise)
            if isinstance(value, Bias):
                return value.replace(value.parameter.to(device, precise))
            return value.to(device) if isinstance(value, Mask) else value

        q, k = (t.to(device, dtype) for t in (self.q, self.k))
        options = {"mask": None} | {name: moved(value) for name, value in self.options.items()}
        mask = options.pop("mask")
        asked = {"pixels": 13, "top": 5, "spans": SPANS} | self.asked | asked
        return plan_job(check_call(q, k, None, mask, **options), **asked)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def whole(seed: int, *shape: int) -> Tensor:
    """Small whole numbers: their products have no rounding in any dtype, so that equal scores are equal."""
    numbers = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed))
    return numbers.double()


def pair(
    queries: int = QUERIES, keys: int = KEYS, heads: int = 2, kv_heads: int = 2, width: int = WIDTH, batch: int = 1
) -> tuple[Tensor, Tensor]:
    return random(1, batch, heads, queries, width), random(2, batch, kv_heads, keys, width)


def alone(tokens: int = ALONE, batch: int = 1, heads: int = 2) -> tuple[Tensor, Tensor]:
    return pair(tokens, tokens, heads, heads, batch=batch)


def with_mask(mask: Mask, batch: int = 1, square: bool = True, **asked: Any) -> Case:
    return Case(*(alone(batch=batch) if square else pair(batch=batch)), {"mask": mask}, asked)


def hiding(share: float, *shape: int) -> Tensor:
    """A random bias of which this share is −inf, and all of the first and the last row."""
    bias = random(5, *shape)
    bias[torch.rand(shape, generator=torch.Generator().manual_seed(6)) < share] = -torch.inf
    bias[..., 0, :] = bias[..., -1, :] = -torch.inf
    return bias


def one_visible() -> Tensor:
    """Each query sees one key, somewhere."""
    return torch.eye(KEYS, dtype=torch.bool)[torch.randperm(KEYS, generator=torch.Generator().manual_seed(3))[:QUERIES]]


def documents(tokens: int, batch: int) -> Tensor:
    return torch.randint(0, 5, (batch, tokens), generator=torch.Generator().manual_seed(4)).sort().values


FULL = {
    "nothing hidden": Case(*pair()),
    "one query": Case(*pair(queries=1), {"mask": CAUSAL}),
    "one key": Case(*pair(keys=1)),
    "more pixels than keys": Case(*pair(37, 53), asked={"pixels": 61}),
    "more top keys than keys": Case(*pair(37, 3), asked={"top": 7}),
    "no extras": Case(*alone(), {"mask": CAUSAL}, {"pixels": 0, "top": 0, "received": False}),
    "top 1": Case(*pair(), asked={"top": 1}),
}
MASKS = {
    "causal": with_mask(CAUSAL),
    "causal, more keys": with_mask(CAUSAL, square=False),
    "causal, more queries": Case(*pair(197, 131), {"mask": CAUSAL}),
    "causal from the top left": with_mask(Mask.causal(0), square=False),
    "causal, offset 11": with_mask(Mask.causal(11), square=False),
    "causal, offset -7": with_mask(Mask.causal(-7)),
    "window": with_mask(Mask.window(17)),
    "window both ways": with_mask(Mask.window(7, 5), square=False),
    "window without end": with_mask(Mask.window(None, 3)),
    "padding right": with_mask(Mask.padding([163, 89, 0]), batch=3),
    "padding left": with_mask(Mask.padding([163, 89, 1], side="left"), batch=3),
    "padding, no pad queries": with_mask(Mask.padding([151, 89], queries=True), batch=2),
    "causal, padding left": with_mask(CAUSAL & Mask.padding([163, 89, 1], side="left"), batch=3),
    "causal, padding right, no pad queries": with_mask(CAUSAL & Mask.padding([151, 89], queries=True), batch=2),
    "documents": with_mask(Mask.documents(documents(ALONE, 2)), batch=2),
    "causal documents": with_mask(CAUSAL & Mask.documents(documents(ALONE, 1))),
    "documents of another sequence": with_mask(Mask.documents(documents(KEYS, 1), documents(QUERIES, 1)), square=False),
    "dense": with_mask(Mask.visible(random(3, 2, 2, QUERIES, KEYS) > 0.5), batch=2, square=False),
    "dense, by head": with_mask(Mask.hidden(random(3, 2, 1, KEYS) > 0.5), square=False),
    "prefix or causal": with_mask(CAUSAL | Mask.prefix([31, 101]), batch=2),
    "window or prefix": with_mask(Mask.window(13) | Mask.prefix(3)),
    "a hole in the middle": with_mask(Mask.prefix(5) | Mask.hidden(torch.arange(KEYS) < 181), square=False),
}
OPTIONS = {
    "shared keys": Case(*pair(heads=6, kv_heads=3), {"mask": CAUSAL}),
    "one key head for all": Case(*pair(heads=5, kv_heads=1, batch=2)),
    "alibi": Case(*alone(), {"mask": CAUSAL, "bias": Bias.alibi(2)}),
    "alibi both ways": Case(*pair(), {"bias": Bias.alibi(torch.tensor([0.5]), 3)}),
    "relative bias": Case(*pair(), {"bias": Bias.relative(random(5, 2 * 19 + 1, 2), 19)}),
    "T5 bias, scale 1": Case(*alone(), {"bias": Bias.relative(random(5, 8, 2), t5_buckets(8, 20)), "scale": 1.0}),
    "dense bias": Case(*pair(batch=2), {"bias": random(5, 2, 2, QUERIES, KEYS) * 3}),
    "bias by key": Case(*pair(batch=2), {"bias": random(5, 2, 1, 1, KEYS)}),
    "bias by query": Case(*pair(), {"bias": random(5, QUERIES, 1)}),
    "scale by head": Case(*pair(heads=3, kv_heads=3), {"scale": torch.tensor([0.5, -0.25, 0.0])}),
    "softcap": Case(*alone(), {"mask": CAUSAL, "softcap": 1.5, "scale": 1.0}),
    "sinks": Case(*alone(), {"mask": CAUSAL, "sinks": torch.tensor([2.0, -1.0])}),
    "sinks of −inf and 60": Case(*alone(), {"mask": Mask.window(5), "sinks": torch.tensor([-torch.inf, 60.0])}),
    "everything": Case(
        *pair(heads=6, kv_heads=3, batch=2),
        {
            "mask": CAUSAL & Mask.padding([197, 101]),
            "scale": random(7, 6).abs(),
            "bias": Bias.alibi(6),
            "softcap": 5.0,
            "sinks": random(8, 6),
        },
        {"every": 3},
    ),
    **{f"width {width}": Case(*pair(53, 71, width=width), {"mask": CAUSAL}) for width in (1, 13, 40, 64, 80, 128, 256)},
}
SAMPLED = {
    "every 4th": Case(*alone(), asked={"every": 4}),
    "every 16th, causal": with_mask(CAUSAL, every=16),
    "every 5th, causal from the top left": with_mask(Mask.causal(0), square=False, every=5),
    "every 7th, window": with_mask(Mask.window(17), every=7),
    "every 3rd, dense mask and bias": Case(
        *pair(), {"mask": Mask.visible(random(3, QUERIES, KEYS) > 0), "bias": random(5, QUERIES, KEYS)}, {"every": 3}
    ),
    "every 6th, documents": with_mask(Mask.documents(documents(ALONE, 2)), batch=2, every=6),
    "every 4th, relative bias": Case(*pair(), {"bias": Bias.relative(random(5, 39, 2), 19)}, {"every": 4}),
    "fewer queries than the step": Case(*pair(queries=5), asked={"every": 11}),
    "queries at a given offset": Case(*pair(), asked={"offset": 29, "every": 2}),
}
HARD = {
    "huge scores": Case(*(t * 60 for t in alone()), {"mask": CAUSAL}),  # up to 10,000 and more
    "huge scores, sinks": Case(*(t * 60 for t in pair()), {"sinks": torch.tensor([0.0, 9e3])}),
    "a huge bias": Case(*alone(), {"mask": CAUSAL, "bias": random(5, ALONE, ALONE) * 3e3}),
    "far below the others": Case(*alone(), {"bias": torch.where(torch.arange(ALONE) < 99, -9e3, 0.0).double()}),
    "equal scores": Case(torch.zeros(1, 2, QUERIES, WIDTH).double(), pair()[1]),
    "equal keys": Case(pair()[0], torch.ones(1, 2, KEYS, WIDTH).double(), {"mask": CAUSAL}),
    "one visible key": with_mask(Mask.visible(one_visible()), square=False),
    "only itself": with_mask(Mask.window(0)),
    "nothing visible": with_mask(Mask.hidden(torch.ones(1, KEYS, dtype=torch.bool)), square=False),
    "nothing visible, sinks": Case(*alone(), {"mask": Mask.padding([0]), "sinks": torch.tensor([0.0, -torch.inf])}),
    "a bias of −inf": Case(*pair(batch=2), {"bias": hiding(0.7, 2, 2, QUERIES, KEYS)}),
    "a bias of −inf, causal": Case(*alone(), {"mask": CAUSAL, "bias": hiding(0.5, ALONE, ALONE)}),
    "the first keys hidden by their bias": Case(
        *alone(), {"mask": CAUSAL, "bias": torch.where(torch.arange(ALONE) < 7, -torch.inf, 0.0).double()}
    ),
    "no keys": Case(*pair(queries=5, keys=0)),
    "no queries": Case(*pair(queries=0, keys=7)),
    "no samples": Case(*pair(queries=5, keys=7, batch=0)),
}
TIES = {
    "whole numbers": Case(whole(1, 2, 3, QUERIES, 3), whole(2, 2, 3, KEYS, 3), {"scale": 1.0}),
    "whole numbers, causal": Case(
        whole(1, 1, 2, ALONE, 2), whole(2, 1, 2, ALONE, 2), {"scale": 1.0, "mask": CAUSAL}, {"top": 19}
    ),
    "whole numbers, shared keys, window": Case(
        whole(1, 1, 4, ALONE, 2), whole(2, 1, 2, ALONE, 2), {"scale": 2.0, "mask": Mask.window(41)}
    ),
    "all alike": Case(whole(1, 1, 2, QUERIES, 3), torch.ones(1, 2, KEYS, 3).double(), {"mask": CAUSAL}),
}
CASES: dict[str, Case] = FULL | MASKS | OPTIONS | SAMPLED | HARD | TIES
