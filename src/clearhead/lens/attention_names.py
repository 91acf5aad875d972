"""Names of attentions, such as "encoder.0.self" and "decoder.3.cross", and the selection of layers and heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError
from clearhead.formatting import suggest_name

Layers = str | int | Collection[str | int] | None
Heads = int | Collection[int] | Tensor | None

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


def to_python_numbers(numbers: Any) -> Any:
    """A NumPy array or a tensor as a list of Python numbers, a scalar as one; anything else unchanged."""
    return numbers.tolist() if hasattr(numbers, "tolist") else numbers


def select_heads(heads: int | Collection[int] | Tensor, counts: Mapping[str, int]) -> tuple[int, ...]:
    """Head indices as integers, different ones; each of these attentions, with its number of heads, must have them."""
    one = to_python_number(heads)
    wanted = [one] if isinstance(one, int) else one
    numbers = [to_python_number(head) for head in wanted] if isinstance(wanted, Collection) else []
    if not numbers or len(set(numbers)) < len(numbers):
        raise LensError(f"heads must be different numbers, such as [0, 2], or None for all, got {heads!r}")
    for name, count in counts.items():
        check_heads(name, wanted, count)
    return tuple(numbers)


def select_layers(layers: Layers, names: list[str]) -> list[str]:
    """The attention names that match names, patterns such as "decoder.*.cross", or layer numbers; None is all.

    >>> select_layers([0, "*.cross"], ["encoder.0.self", "encoder.1.self", "decoder.1.cross"])
    ['encoder.0.self', 'decoder.1.cross']
    """
    if layers is None:
        return names
    wanted = layers if isinstance(layers, Collection) and not isinstance(layers, str) else [layers]
    if not len(wanted):
        raise LensError("layers must name at least one, or be None for all, got an empty list")
    chosen = set()
    for one in map(to_python_number, wanted):
        if isinstance(one, bool) or not isinstance(one, (str, int)):
            raise LensError(
                f"layers are chosen by name, pattern or number, such as 'decoder.*.cross' or 3, got {one!r}"
            )
        if isinstance(one, int):
            found = {name for name in names if re.search(rf"(^|\.){one}(\.|$)", name)}
        else:
            found = {name for name in names if name == one or fnmatchcase(name, one)}
        if not found:
            check_name(str(one), names)
        chosen |= found
    return [name for name in names if name in chosen]
