"""Names of attentions, such as "encoder.0.self" and "decoder.3.cross", and checks of names and head indices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError
from clearhead.formatting import suggest_name

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module")  # of torch.compile, DistributedDataParallel, FSDP


def find_attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every MultiHeadAttention of a model by its name, in the order in which it holds them.

    One that is not in a layer of ours goes by its path; a bare one is called "attention".

    >>> list(find_attentions(nn.ModuleDict({"mixer": MultiHeadAttention(6, 2)})))
    ['mixer']
    """
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            found[path if shorten_path(path) in found else shorten_path(path)] = module
    return found


def shorten_path(path: str) -> str:
    """The short attention name for a module path.

    >>> shorten_path("_orig_mod.decoder.layers.3.cross_attention"), shorten_path("")
    ('decoder.3.cross', 'attention')
    """
    parts = [part for part in path.split(".") if part not in WRAPPERS]
    return re.sub(r"(^|\.)layers\.(\d+)\.(self|cross)_attention$", r"\1\2.\3", ".".join(parts)) or "attention"


def unwrap_model(model: Any) -> Any:
    """The model without wrappers of torch.compile, DDP or FSDP."""
    inner = next((getattr(model, name) for name in WRAPPERS if isinstance(getattr(model, name, None), nn.Module)), None)
    return model if inner is None else unwrap_model(inner)


def check_name(name: str, known: Iterable[str]) -> None:
    """Raises LensError for an unknown attention name, with the nearest match."""
    names = list(known)
    if name not in names:
        more = f", … ({len(names)} in all)" if len(names) > 6 else ""
        hint = suggest_name(name, names, f"there are {', '.join(names[:6]) or 'none'}{more}")
        raise LensError(f"no attention of this model is called {name!r}; {hint}")


def check_heads(name: str, heads: Collection[int] | Tensor, count: int) -> list[int]:
    """Head indices as integers; raises LensError for one out of range.

    >>> check_heads("encoder.0.self", (2, 0), count=3)
    [2, 0]
    """
    if isinstance(heads, (str, bytes, Mapping)) or not isinstance(heads, Collection):
        raise LensError(f"the heads of {name!r} must be a list of numbers such as [0, 2], got {heads!r}")
    numbers = [to_python_number(head) for head in heads]
    for head in numbers:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < count:
            raise LensError(f"{name!r} has heads 0 to {count - 1}, not {head!r}")
    return numbers


def to_python_number(number: Any) -> Any:
    """A NumPy or PyTorch scalar as a Python number; anything else unchanged."""
    return number.item() if getattr(number, "ndim", None) == 0 else number
