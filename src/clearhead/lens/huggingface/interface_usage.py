"""Which modules get their attention function from transformers' attention interface, and how; read from their code.

From the compiled code, not from the source: that is there for every module, and says what will run.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")


def calls_interface(module: nn.Module) -> bool:
    """Whether a module gets its attention function from the transformers attention interface."""
    kind: Any = type(module)
    return bool(_find_callers(kind))


def keeps_keys(module: nn.Module) -> bool:
    """Whether a module can write to a key-value cache."""
    kind: Any = type(module)
    return any("update" in _iterate_names(function.__code__) for function in _find_callers(kind))


def subscripts_interface(module: nn.Module) -> bool:
    """Whether a module takes its function as ALL_ATTENTION_FUNCTIONS[name], without `get_interface`."""
    kind: Any = type(module)
    return any(map(_has_subscript, _find_callers(kind)))


def replaces_forward(module: nn.Module) -> bool:
    """Whether the forward of a module may be another than the one that uses the interface.

    A subclass has overridden it, or an attribute of the module replaces it. It may still call the original.
    """
    kind: Any = type(module)
    return "forward" in vars(module) or inspect.unwrap(kind.forward) not in _find_callers(kind)


def find_interfaces(modules: Iterable[nn.Module]) -> list[Any]:
    """The interface objects that modules use, each once."""
    return list({id(one): one for one in map(_find_interface, modules)}.values())


def _find_interface(module: nn.Module) -> Any:
    """The interface object that a module uses: the global one, unless its file defines its own."""
    kind: Any = type(module)
    for function in _find_callers(kind):
        for name in _iterate_names(function.__code__):
            if _is_interface(function.__globals__.get(name)):
                return function.__globals__[name]
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def _is_interface(value: Any) -> bool:
    return hasattr(value, "get_interface") and not isinstance(value, (type, types.ModuleType))


@functools.cache
def _find_callers(kind: Any) -> tuple[types.FunctionType, ...]:
    """Functions of a class and its parents that use an attention interface."""
    found = []
    for parent in kind.__mro__:
        if (
            parent is nn.Module
            or not issubclass(parent, nn.Module)
            or parent.__module__ == "transformers.modeling_utils"
        ):
            continue
        for value in vars(parent).values():
            function = inspect.unwrap(value) if callable(value) else None
            if isinstance(function, types.FunctionType) and (
                "get_interface" in _iterate_names(function.__code__) or _has_subscript(function)
            ):
                found.append(function)
    return tuple(found)


@functools.cache
def _has_subscript(function: Callable[..., Any]) -> bool:
    """Whether a function uses an interface object otherwise than by an attribute of it or by `in`."""
    names = {name for name in function.__code__.co_names if _is_interface(function.__globals__.get(name))}
    pairs = itertools.pairwise(dis.get_instructions(function)) if names else ()
    return any(
        one.opname == "LOAD_GLOBAL" and one.argval in names and after.opname not in (*ATTRIBUTE_LOADS, "CONTAINS_OP")
        for one, after in pairs
    )


def _iterate_names(code: types.CodeType) -> Iterator[str]:
    """All names in a code object, nested code included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_names(constant)
