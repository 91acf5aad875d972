"""The attention interface of transformers: which modules use it, and wrappers around the functions that it gives them.

Every attention module gets its function from an interface object, at every call. While wrappers exist, that object
gives functions which apply the wrappers of the calling module. So nothing of the model changes: its config, its masks,
what it does for "eager" or "sdpa" by name. Compiled code is recompiled, since it guards on the object.

Which modules do so is read from their compiled code, which is there for every module, and says what will run.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention.sdpa_logsumexp import observe_sdpa
from clearhead.lens.capture import compiled_graphs
from clearhead.lens.capture.attachments import Attachments, PatchedAttribute, clean_copies, patches
from clearhead.lens.huggingface.arguments import AttentionArguments, classify_function, read_arguments

Result = tuple[Tensor, Tensor | None]
Function = Callable[..., Result]
Wrap = Callable[..., Result]  # called as wrap(attend, module, q, k, v, mask, *args, **kwargs)

WRAPS = "_clearhead_wraps"  # attribute of a module: its wrappers, the outermost first
OBSERVER = "_clearhead_observer"


def calls_interface(module: nn.Module) -> bool:
    """Whether a module gets its attention function from the transformers attention interface."""
    kind: Any = type(module)
    return bool(_find_callers(kind))


def keeps_keys(module: nn.Module) -> bool:
    """Whether a module can write to a key-value cache."""
    kind: Any = type(module)
    return any("update" in _iterate_names(function.__code__) for function in _find_callers(kind))


def replaces_forward(module: nn.Module) -> bool:
    """Whether the forward of a module may be another than the one that uses the interface.

    A subclass has overridden it, or an attribute of the module replaces it. It may still call the original.
    """
    kind: Any = type(module)
    return "forward" in vars(module) or inspect.unwrap(kind.forward) not in _find_callers(kind)


@functools.cache
def _find_callers(kind: Any) -> tuple[types.FunctionType, ...]:
    """Functions of a class and its parents that use an attention interface."""
    callers = []
    for parent in kind.__mro__:
        if parent is nn.Module or not issubclass(parent, nn.Module):
            continue
        for value in vars(parent).values():
            function = inspect.unwrap(value) if callable(value) else None
            if isinstance(function, types.FunctionType) and _calls_interface(function):
                callers.append(function)
    return tuple(callers)


def _calls_interface(function: types.FunctionType) -> bool:
    """Whether a function asks the interface object of transformers; another one that a file defines is not wrapped."""
    names = set(_iterate_names(function.__code__))
    if "get_interface" not in names:
        return False
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return any(function.__globals__.get(name) is ALL_ATTENTION_FUNCTIONS for name in names)


def _iterate_names(code: types.CodeType) -> Iterator[str]:
    """All names in a code object, nested code included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_names(constant)


class AttentionFunction:
    """The attention function of a model with its wrappers; call it as the model would."""

    def __init__(self, function: Function, eager: bool, wraps: tuple[Wrap, ...]) -> None:
        self.function, self.eager, self.wraps = function, eager, wraps

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Result:
        if not self.wraps:
            return self.function(module, query, key, value, attention_mask, *args, **kwargs)
        inner = AttentionFunction(self.function, self.eager, self.wraps[1:])
        return self.wraps[0](inner, module, query, key, value, attention_mask, *args, **kwargs)


@contextmanager
def wrap_modules(modules: Iterable[nn.Module], wrap: Wrap, *, outermost: bool = False) -> Iterator[None]:
    """Within it, the attention function of these modules is called by `wrap(attend, module, q, k, v, mask, …)`.

    `attend` is called like `wrap`, without itself, and gives `(output, weights)`: the output is (batch, queries, heads,
    d_v), the weights are None unless the model computes them. Later wrappers are inside earlier ones, unless they are
    `outermost`: then the others get the arguments that they change. A module calls each wrapper once.
    """
    modules = list(modules)
    with (
        patches.using((patch, wrap) for patch in _find_patches()),
        clean_copies(modules),
        _wraps.using([(module, wrap) for module in modules], first=outermost),
    ):
        yield


def _update_wraps(module: nn.Module, wraps: tuple[Wrap, ...]) -> None:
    if wraps:
        vars(module)[WRAPS] = tuple(dict.fromkeys(wraps))
    else:
        del vars(module)[WRAPS]


_wraps = Attachments[nn.Module, Wrap](_update_wraps)


@functools.cache  # one for all watches, so that code compiled under the first serves the others
def _find_patches() -> tuple[PatchedAttribute, PatchedAttribute]:
    """`get_interface` on the object, on which compiled code guards, and `__getitem__` on the class, as Python needs it.

    The first has the function that is used for "eager", the second all others, however they are taken.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    kind: Any = type(ALL_ATTENTION_FUNCTIONS)
    find: Callable[..., Function] = ALL_ATTENTION_FUNCTIONS.get_interface
    get_item = kind.__getitem__

    def get_interface(attn_implementation: str, default: Function) -> Function:
        return find(attn_implementation, _apply_wraps(default, eager=True))

    def get_wrapped_item(interface: Any, name: str) -> Function:
        return _apply_wraps(get_item(interface, name), eager=False)

    return (
        PatchedAttribute(ALL_ATTENTION_FUNCTIONS, "get_interface", lambda _: get_interface),
        PatchedAttribute(kind, "__getitem__", lambda _: get_wrapped_item),
    )


def _apply_wraps(function: Function, *, eager: bool) -> Function:
    """The function with the wrappers of the module that calls it."""

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Result:
        return AttentionFunction(function, eager, getattr(module, WRAPS, ()))(module, *args, **kwargs)

    return attention


Callback = Callable[[nn.Module, AttentionArguments], None]


Observer = compiled_graphs.GraphReceiver[AttentionArguments]
_observers: weakref.WeakKeyDictionary[nn.Module, Observer] = weakref.WeakKeyDictionary()


def _decode_arguments(encoded: compiled_graphs.EncodedCall) -> AttentionArguments:
    return AttentionArguments(*compiled_graphs.decode_values(encoded))


def _update_observer(module: nn.Module, callbacks: tuple[Callback, ...]) -> None:
    observer = _observers.get(module) or _observers.setdefault(module, compiled_graphs.GraphReceiver(_decode_arguments))
    observer.callbacks = tuple(functools.partial(callback, module) for callback in callbacks)
    if callbacks:
        vars(module)[OBSERVER] = observer
    else:
        del vars(module)[OBSERVER]


_callbacks = Attachments[nn.Module, Callback](_update_observer)


@contextmanager
def observe_modules(modules: Sequence[nn.Module], callback: Callback) -> Iterator[None]:
    """Within it, `callback` is called with the arguments of every attention function call of these modules."""
    with _callbacks.using([(module, callback) for module in modules]), wrap_modules(modules, observe_function):
        yield


def observe_function(
    attend: AttentionFunction, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """The wrapper of every watch: calls the attention function, then its observer."""
    kind = classify_function(attend.function, attend.eager)
    with observe_sdpa(q) as sdpa_observer:
        result = attend(module, q, k, v, mask, *args, **kwargs)
    observer: Observer | None = getattr(module, OBSERVER, None)
    if observer is None:
        return result
    arguments = read_arguments(kind, attend.function, module, q, k, v, mask, args, kwargs)
    if sdpa_observer is not None:
        arguments = arguments._replace(sdpa_observer=sdpa_observer)
    if not torch.compiler.is_compiling():
        observer.notify(arguments)
    else:
        compiled_graphs.send_to_receiver(observer, compiled_graphs.encode_values(arguments))
    return result
