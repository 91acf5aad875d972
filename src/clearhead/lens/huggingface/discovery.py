"""Which modules of a model attend through Hugging Face's attention interface, and which do not."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError

# Attention in name only: they hold, cut or pool what another module attends.
PARTS = ("Output", "Mask", "Projection", "MLP", "Bias", "Layer", "Block", "Encoder", "Decoder", "Model", "Gate", "Norm")
REMEDY = (
    "Models that call ALL_ATTENTION_FUNCTIONS.get_interface can be watched (BERT, GPT-2, Llama, T5, ViT and some 340 "
    "families more), and clearhead's own; elsewhere, take q and k with a forward hook and pass them to "
    "clearhead.measure(q, k, mask)"
)


def calls_interface(module: nn.Module) -> bool:
    """Whether the code of a module asks the interface for its attention function.

    Read from the compiled code, not from the source: that is there for every module, and says what will run.
    """
    kind: Any = type(module)
    return bool(_asking(kind))


def keeps_keys(module: nn.Module) -> bool:
    """Whether its code can put keys into a cache."""
    kind: Any = type(module)
    return any("update" in _names(function.__code__) for function in _asking(kind))


def interface_of(module: nn.Module) -> Any:
    """The interface object that the code of a module asks: the one of all models, unless its file has its own."""
    kind: Any = type(module)
    for function in _asking(kind):
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if hasattr(value, "get_interface") and not isinstance(value, (type, types.ModuleType)):
                return value
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def attending(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that attend through the interface, by their path."""
    return {path: module for path, module in model.named_modules() if calls_interface(module)}


def unseen(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that attend in some other way, as far as their names tell, by their path."""
    known = {id(inner) for outer in attending(model).values() for inner in outer.modules()}
    suspects = {path: module for path, module in model.named_modules() if _seems_attentive(module)}
    alike = known | {id(module) for module in suspects.values()}
    return {
        path: module
        for path, module in suspects.items()
        if id(module) not in known and not any(id(inner) in alike for inner in module.modules() if inner is not module)
    }


def refuse_if_blind(model: nn.Module) -> None:
    """Raises LensError for a model none of whose attentions goes through the interface."""
    if attending(model):
        return
    name, others = type(model).__name__, unseen(model)
    if not others:
        raise LensError(
            f"{name} holds no attention that can be watched: neither clearhead's MultiHeadAttention nor a module that "
            "calls Hugging Face's attention interface"
        )
    raise LensError(
        f"{name} computes its attention itself, without Hugging Face's attention interface, so that it would never be "
        f"seen: {some(others)}. {REMEDY}"
    )


def some(modules: dict[str, nn.Module]) -> str:
    """A few of these by path and class, and how many there are."""
    shown = [f"{path or 'itself'} ({type(module).__name__})" for path, module in list(modules.items())[:3]]
    return ", ".join(shown) + (f", … ({len(modules)} in all)" if len(modules) > 3 else "")


def _seems_attentive(module: nn.Module) -> bool:
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        return True
    return (
        "Attention" in name
        and not name.endswith(PARTS)
        and not isinstance(module, MultiHeadAttention)
        and any(True for _ in module.parameters())
    )


@functools.cache
def _asking(kind: Any) -> tuple[types.FunctionType, ...]:
    """The functions of a class, or of its parents, that ask an interface."""
    found = []
    for parent in kind.__mro__:
        if parent is nn.Module or not issubclass(parent, nn.Module):
            continue
        for value in vars(parent).values():
            function = inspect.unwrap(value) if callable(value) else None
            if isinstance(function, types.FunctionType) and "get_interface" in _names(function.__code__):
                found.append(function)
    return tuple(found)


def _names(code: types.CodeType) -> Iterator[str]:
    """What a piece of code mentions, with what is defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
