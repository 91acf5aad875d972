"""Heads of Hugging Face models that add nothing: their part of what the attention function returns is zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.analysis.muting import muting
from clearhead.lens.huggingface.interposition import Attend, Result, add_wrap, remove_wrap, shadowed

MUTED = "_clearhead_muted"  # on a module: which of its heads are quiet


class Quiet:
    """Which heads add nothing: (heads, 1), True for those. A copy of the module has None in its place: all speak."""

    def __init__(self, heads: Tensor) -> None:
        self.heads = heads

    def __reduce__(self) -> Any:
        return (type(None), ())


@contextmanager
def muted(heads: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Within it these heads of these modules, (heads,) booleans, add nothing."""
    with shadowed(heads), muting(heads, _put):
        yield


def _put(module: nn.Module, heads: Tensor | None) -> None:
    if heads is None:
        del vars(module)[MUTED]
        remove_wrap(module, mute)
        return
    if vars(module).get(MUTED) is None:
        add_wrap(module, mute)
    vars(module)[MUTED] = Quiet(heads[:, None])


def mute(
    attend: Attend, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """One and the same function for all heads, which the module knows: compiled once, it serves them all."""
    out, weights = attend(module, q, k, v, mask, *args, **kwargs)
    quiet: Quiet | None = getattr(module, MUTED, None)
    if quiet is None:  # another thread has just left, or this is a copy
        return out, weights
    if out.ndim != 4 or out.shape[2] != len(quiet.heads):
        raise LensError(
            f"the attention function of {type(module).__name__} gave {tuple(out.shape)}, where (batch, queries, "
            f"{len(quiet.heads)} heads, features) was expected; its heads cannot be switched off"
        )
    return out.masked_fill(quiet.heads, 0.0), weights
