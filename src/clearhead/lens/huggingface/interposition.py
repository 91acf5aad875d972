"""The attention interface of transformers: which modules use it, and wrappers around the functions that it gives them.

Every attention module gets its function from an interface object, at every call. While wrappers exist, that object
returns a function which applies the wrappers of the calling module. So nothing of the model changes: its config, its
masks, what it does for "eager" or "sdpa" by name. Compiled code is recompiled, since it guards on the object.

Which modules do so is read from their compiled code, which is there for every module, and says what will run.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention.sdpa_logsumexp import observe_sdpa
from clearhead.lens.capture.attachments import Attachments, PatchedAttribute, clean_copies, patches
from clearhead.lens.capture.compiled_graphs import (
    EncodedCall,
    GraphReceiver,
    decode_values,
    encode_values,
    exclude_from_graphs,
    send_to_receiver,
)
from clearhead.lens.huggingface.arguments import UNKNOWN, AttentionArguments, classify_function, read_arguments

Result = tuple[Tensor, Tensor | None]
Function = Callable[..., Result]
Wrap = Callable[..., Result]  # called as wrap(attend, module, q, k, v, mask, *args, **kwargs)

ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
WRAPS = "_clearhead_wraps"  # attribute of a module: its wrappers, the outermost first
OBSERVER = "_clearhead_observer"


def calls_interface(module: nn.Module) -> bool:
    """Whether a module gets its attention function from the transformers attention interface."""
    return bool(_find_callers(module))


def keeps_keys(module: nn.Module) -> bool:
    """Whether a module can write to a key-value cache."""
    return any("update" in _iterate_names(function.__code__) for function in _find_callers(module))


def replaces_forward(module: nn.Module) -> bool:
    """Whether the forward of a module may be another than the one that uses the interface.

    A subclass has overridden it, or an attribute of the module replaces it. It may still call the original.
    """
    kind: Any = type(module)
    return "forward" in vars(module) or inspect.unwrap(kind.forward) not in _find_callers(module)


def _find_interface(module: nn.Module) -> Any:
    """The interface object that a module uses: the global one, unless its file defines its own."""
    for function in _find_callers(module):
        for name in _iterate_names(function.__code__):
            if _is_interface(function.__globals__.get(name)):
                return function.__globals__[name]
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def _is_interface(value: Any) -> bool:
    return hasattr(value, "get_interface") and not isinstance(value, (type, types.ModuleType))


def _find_callers(module: nn.Module) -> tuple[types.FunctionType, ...]:
    kind: Any = type(module)
    return _find_class_callers(kind)


@functools.cache
def _find_class_callers(kind: Any) -> tuple[types.FunctionType, ...]:
    """Functions of a class and its parents that use an attention interface."""
    callers = []
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
                callers.append(function)
    return tuple(callers)


@functools.cache
def _has_subscript(function: Callable[..., Any]) -> bool:
    """Whether a function uses an interface object otherwise than by an attribute of it or by `in`."""
    names = {name for name in function.__code__.co_names if _is_interface(function.__globals__.get(name))}
    pairs = itertools.pairwise(dis.get_instructions(function)) if names else ()
    return any(
        load.opname == "LOAD_GLOBAL" and load.argval in names and after.opname not in (*ATTRIBUTE_LOADS, "CONTAINS_OP")
        for load, after in pairs
    )


def _iterate_names(code: types.CodeType) -> Iterator[str]:
    """All names in a code object, nested code included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_names(constant)


class AttentionFunction:
    """The attention function of a model with its wrappers; call it as the model would.

    `outputs` gets the output of the function itself: wrappers may change what they return.
    """

    def __init__(
        self, function: Function, eager: bool, wraps: tuple[Wrap, ...], outputs: list[Tensor] | None = None
    ) -> None:
        self.function, self.eager, self.wraps, self.outputs = function, eager, wraps, outputs

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
            result = self.function(module, query, key, value, attention_mask, *args, **kwargs)
            if self.outputs is not None:
                self.outputs.append(result[0])
            return result
        inner = AttentionFunction(self.function, self.eager, self.wraps[1:], self.outputs)
        return self.wraps[0](inner, module, query, key, value, attention_mask, *args, **kwargs)


@contextmanager
def wrap_modules(modules: Iterable[nn.Module], wrap: Wrap, *, outermost: bool = False) -> Iterator[None]:
    """Within it, the attention function of these modules is called by `wrap(attend, module, q, k, v, mask, …)`.

    `attend` is called like `wrap`, without itself, and gives `(output, weights)`: the output is (batch, queries, heads,
    d_v), the weights are None unless the model computes them. Later wrappers are inside earlier ones, unless they are
    `outermost`: then the others get the arguments that they change. A module calls each wrapper once.
    """
    modules = list(modules)
    interfaces = {id(interface): interface for interface in map(_find_interface, modules)}
    with (
        patches.using((_find_patch(interface), wrap) for interface in interfaces.values()),
        patches.using((_find_subscript_patch(kind), wrap) for kind in _find_subscripted_kinds(modules)),
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
# One patch for all watches, so that code compiled under the first serves the others. Interfaces cannot be hashed.
_interface_patches: dict[int, PatchedAttribute] = {}


def _find_patch(interface: Any) -> PatchedAttribute:
    """`get_interface` of an interface object: on the object, on which compiled code guards, not on its class."""
    if id(interface) not in _interface_patches:
        attend = _make_get_interface(type(interface).get_interface.__get__(interface))
        _interface_patches[id(interface)] = PatchedAttribute(interface, "get_interface", lambda _: attend)
    return _interface_patches[id(interface)]


def _make_get_interface(find: Callable[[str, Function], Function]) -> Callable[[str, Function], Function]:
    def get_interface(attn_implementation: str, default: Function) -> Function:
        function = find(attn_implementation, default)
        if isinstance(function, SubscriptFunction):
            function = function.function

        def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Result:
            wraps = getattr(module, WRAPS, ())
            return AttentionFunction(function, function is default, wraps)(module, *args, **kwargs)

        return attention

    return get_interface


class SubscriptFunction:
    """An attention function that was taken as interface[name]; it applies the wrappers of the calling module."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Result:
        return AttentionFunction(self.function, False, getattr(module, WRAPS, ()))(module, *args, **kwargs)


def _find_subscripted_kinds(modules: Iterable[nn.Module]) -> set[type]:
    """The classes of interfaces from which these modules take their function as ALL_ATTENTION_FUNCTIONS[name]."""
    return {type(_find_interface(module)) for module in modules if any(map(_has_subscript, _find_callers(module)))}


@functools.cache
def _find_subscript_patch(kind: type) -> PatchedAttribute:
    """`__getitem__` of an interface class, where Python looks it up."""

    def make(get_item: Callable[[Any, str], Function]) -> Callable[[Any, str], SubscriptFunction]:
        return lambda interface, name: SubscriptFunction(get_item(interface, name))

    return PatchedAttribute(kind, "__getitem__", make)


Callback = Callable[[nn.Module, AttentionArguments], None]


class FunctionObserver(GraphReceiver):
    """Passes the arguments of a module's attention function to callbacks.

    There is one for all watches of a module, so that code compiled under the first serves the others.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.callbacks = weakref.ref(module), tuple[Callback, ...]()

    def receive(self, encoded: EncodedCall) -> None:
        self.notify(AttentionArguments(*decode_values(encoded)))

    def notify(self, arguments: AttentionArguments) -> None:
        module = self.module()
        if module is not None:
            for callback in self.callbacks:
                callback(module, arguments)

    # An operator cannot take a BlockMask.
    notify_outside_graph = exclude_from_graphs("clearhead.watch reads FlexAttention's mask outside of the graph")(
        notify
    )


_observers: weakref.WeakKeyDictionary[nn.Module, FunctionObserver] = weakref.WeakKeyDictionary()


def _update_observer(module: nn.Module, callbacks: tuple[Callback, ...]) -> None:
    observer = _observers.get(module) or _observers.setdefault(module, FunctionObserver(module))
    observer.callbacks = callbacks
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
    outputs: list[Tensor] = []
    kind = classify_function(attend.function, attend.eager)
    if kind == UNKNOWN:
        attend = AttentionFunction(attend.function, attend.eager, attend.wraps, outputs)
    with observe_sdpa(q) as sdpa_observer:
        result = attend(module, q, k, v, mask, *args, **kwargs)
    observer: FunctionObserver | None = getattr(module, OBSERVER, None)
    if observer is None:
        return result
    arguments = read_arguments(kind, attend.function, module, q, k, v, mask, args, kwargs)
    if outputs:
        arguments = arguments._replace(output=outputs[0])
    if sdpa_observer is not None:
        arguments = arguments._replace(sdpa_observer=sdpa_observer)
    if not torch.compiler.is_compiling():
        observer.notify(arguments)
    elif mask is None or isinstance(mask, Tensor):
        send_to_receiver(observer, encode_values(arguments))
    else:
        observer.notify_outside_graph(arguments)
    return result
