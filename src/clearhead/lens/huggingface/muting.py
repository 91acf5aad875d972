"""Heads of Hugging Face models that add nothing: their part of what the attention function returns is zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.huggingface.wrapping import Attend, Result, add_wrap, remove_wrap, shadowed

MUTED = "_clearhead_muted"  # on a module: (heads, 1), True for those that add nothing


@contextmanager
def muted(heads: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Within it these heads of these modules, (heads,) booleans, add nothing; nested ones add up."""
    before = {module: vars(module).get(MUTED) for module in heads}
    with shadowed(heads):
        for module, chosen in heads.items():
            device = next((one.device for one in module.parameters()), torch.device("cpu"))
            new, old = chosen.to(device)[:, None], before[module]
            if old is None:
                add_wrap(module, mute)
            vars(module)[MUTED] = new if old is None else new | old
        try:
            yield
        finally:
            for module, old in before.items():
                vars(module)[MUTED] = old
                if old is None:
                    del vars(module)[MUTED]
                    remove_wrap(module, mute)


def mute(
    attend: Attend, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """One and the same function for all heads, which the module knows: compiled once, it serves them all."""
    out, weights = attend(module, q, k, v, mask, *args, **kwargs)
    quiet = getattr(module, MUTED)
    if out.ndim != 4 or out.shape[2] != len(quiet):
        raise LensError(
            f"the attention function of {type(module).__name__} gave {tuple(out.shape)}, where (batch, queries, "
            f"{len(quiet)} heads, features) was expected; its heads cannot be switched off"
        )
    return out.masked_fill(quiet, 0.0), weights
