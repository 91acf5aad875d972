"""Looking from inside of compiled code: an operator that torch.compile keeps in its graph, and that calls back out.

What a graph may not do, Python does when it runs: read the mask, measure, keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.lens.huggingface.reading import Given

SCHEMA = (
    "(int key, str way, Tensor(a!) tally, Tensor q, Tensor k, Tensor v, Tensor? mask, float? scale, Tensor? scales, "
    "bool causal, float? softcap, int? window, Tensor? bias, Tensor? sinks, Tensor? positions, Tensor? starts, "
    "Tensor? key_starts) -> ()"
)
# An operator that changes nothing would be dropped from the graph; so it is said to change this.
_tally = torch.zeros(())
_eyes: dict[int, Callable[[Given], None]] = {}


def _look(
    key: int,
    way: str,
    tally: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    scales: Tensor | None,
    *rest: Any,
) -> None:
    see = _eyes.get(key)
    if see is not None:
        see(Given(way, q, k, v, mask, scale if scales is None else scales, *rest))


# A CUDA graph would replay the kernels around it and never call it.
look = torch.library.custom_op(
    "clearhead::look", _look, mutates_args=("tally",), schema=SCHEMA, tags=(torch.Tag.cudagraph_unsafe,)
)


@look.register_fake
def _(*args: Any) -> None:
    return None


def look_from_graph(key: int, got: Given) -> None:
    """Puts the look into the graph that is being made."""
    scales = got.scale if isinstance(got.scale, Tensor) else None
    scale = None if isinstance(got.scale, Tensor) else got.scale
    q, k, v = got.q.detach(), got.k.detach(), got.v.detach()
    torch.ops.clearhead.look(key, got.way, _tally, q, k, v, got.mask, scale, scales, *got[6:])


def open_eye(key: int, see: Callable[[Given], None]) -> None:
    _eyes[key] = see


def close_eye(key: int) -> None:
    _eyes.pop(key, None)
