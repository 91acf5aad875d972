"""Wrappers around the attention function of a Hugging Face model, whichever implementation is in force.

Every attention module gets its function from an interface object, at every call. While wrappers exist, that object
returns a function which applies the wrappers of the calling module. So nothing of the model changes: its config, its
masks, what it does for "eager" or "sdpa" by name. Compiled code is recompiled, since it guards on the object.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention.sdpa_logsumexp import observe_sdpa
from clearhead.lens.capture.clean_copies import clean_copies
from clearhead.lens.capture.compiled_graphs import (
    EncodedCall,
    GraphReceiver,
    decode_values,
    encode_values,
    exclude_from_graphs,
    registry_lock,
    send_to_receiver,
)
from clearhead.lens.huggingface.arguments import UNKNOWN, AttentionArguments, classify_function, read_arguments
from clearhead.lens.huggingface.discovery import require_attending_modules
from clearhead.lens.huggingface.interface_usage import find_interfaces, subscripts_interface

Result = tuple[Tensor, Tensor | None]
Wrap = Callable[..., Result]

WRAPS = "_clearhead_wraps"
_lock = threading.RLock()
_patches: dict[int, _InterfacePatch | _SubscriptPatch] = {}  # by the id of the interface, or of its class


class AttentionFunction:
    """The attention function of a model with its wrappers; call it as the model would."""

    def __init__(self, function: Callable[..., Result], eager: bool, wraps: tuple[Wrap, ...]) -> None:
        self.function, self.eager, self.wraps = function, eager, wraps
        self.outputs: list[Tensor] | None = None  # where the output of the function is appended

    def collecting(self, outputs: list[Tensor]) -> AttentionFunction:
        """The same function, which appends its own output to a list: wrappers may change what they return."""
        same = AttentionFunction(self.function, self.eager, self.wraps)
        same.outputs = outputs
        return same

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
        inner = AttentionFunction(self.function, self.eager, self.wraps[1:])
        inner.outputs = self.outputs
        return self.wraps[0](inner, module, query, key, value, attention_mask, *args, **kwargs)


@contextmanager
def wrapped_attention(model: nn.Module, wrap: Wrap) -> Iterator[None]:
    """Within it every attention of the model goes through `wrap(attend, module, q, k, v, mask, *args, **kwargs)`.

    `attend` is called like `wrap`, without itself, and gives `(output, weights)`: the output is (batch, queries, heads,
    d_v), the weights are None unless the model computes them. Wraps can be nested: the first is the outermost.
    """
    modules = list(require_attending_modules(model).values())
    with intercept_interfaces(modules):
        for module in modules:
            add_wrap(module, wrap)
        try:
            yield
        finally:
            for module in modules:
                remove_wrap(module, wrap)


@contextmanager
def intercept_interfaces(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within it, the interfaces of these modules apply the wrappers of the calling module."""
    modules = list(modules)
    with _lock:
        patches = [_patches.setdefault(id(one), _InterfacePatch(one)) for one in find_interfaces(modules)]
        kinds = {type(one) for one in find_interfaces(filter(subscripts_interface, modules))}
        patches += [_patches.setdefault(id(kind), _SubscriptPatch(kind)) for kind in kinds]
        for patch in patches:
            patch.enter()
    try:
        with clean_copies(modules):
            yield
    finally:
        with _lock:
            for patch in patches:
                patch.leave()


class _InterfacePatch:
    """Replaces `get_interface` on an interface object while there are wrappers.

    There is one for all watches, so that code compiled under the first serves the others.
    """

    def __init__(self, interface: Any) -> None:
        self.interface, self.users = interface, 0
        self.before: Any = None

    def enter(self) -> None:
        if not self.users:
            # On the object itself, on which compiled code guards; not on its class.
            self.before = vars(self.interface).get("get_interface")
            vars(self.interface)["get_interface"] = self.get_interface
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            del vars(self.interface)["get_interface"]
            if self.before is not None:
                vars(self.interface)["get_interface"] = self.before

    @functools.cached_property
    def get_interface(self) -> Callable[[str, Callable[..., Result]], Callable[..., Result]]:
        own = type(self.interface).get_interface.__get__(self.interface)

        def get_interface(attn_implementation: str, default: Callable[..., Result]) -> Callable[..., Result]:
            function = own(attn_implementation, default)
            if isinstance(function, SubscriptFunction):
                function = function.function

            def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Result:
                wraps = getattr(module, WRAPS, ())
                return AttentionFunction(function, function is default, wraps)(module, *args, **kwargs)

            return attention

        return get_interface


class SubscriptFunction:
    """An attention function that was taken as interface[name]; it applies the wrappers of the calling module."""

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Result:
        return AttentionFunction(self.function, False, getattr(module, WRAPS, ()))(module, *args, **kwargs)


class _SubscriptPatch:
    """Replaces `__getitem__` of an interface class, while modules with wrappers use it; Python looks it up there."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.users = kind, 0
        self.before: Any = None

    def enter(self) -> None:
        if not self.users:
            self.before, own = vars(self.kind).get("__getitem__"), self.kind.__getitem__

            def get_item(interface: Any, name: str) -> SubscriptFunction:
                return SubscriptFunction(own(interface, name))

            self.kind.__getitem__ = get_item
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if not self.users and self.before is not None:
            self.kind.__getitem__ = self.before
        elif not self.users:
            del self.kind.__getitem__


def add_wrap(module: nn.Module, wrap: Wrap, *, outermost: bool = False) -> None:
    """Adds a wrapper: inside those that are there, or around all of them, so that they get the arguments it changes."""
    with _lock:
        wraps = vars(module).get(WRAPS, ())
        vars(module)[WRAPS] = (wrap, *wraps) if outermost else (*wraps, wrap)


def remove_wrap(module: nn.Module, wrap: Wrap) -> None:
    """Removes one wrapper; others stay, in whatever order they are removed."""
    with _lock:
        wraps = list(vars(module)[WRAPS])
        del wraps[len(wraps) - 1 - wraps[::-1].index(wrap)]
        if wraps:
            vars(module)[WRAPS] = tuple(wraps)
        else:
            del vars(module)[WRAPS]


Callback = Callable[[nn.Module, AttentionArguments], None]

OBSERVER = "_clearhead_observer"


class FunctionObserver(GraphReceiver):
    """Passes the arguments of a module's attention function to callbacks.

    There is one for all watches of a module, so that code compiled under the first serves the others.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.callbacks = weakref.ref(module), tuple[Callback, ...]()

    def receive(self, given: EncodedCall) -> None:
        self.notify(AttentionArguments(*decode_values(given)))

    def notify(self, got: AttentionArguments) -> None:
        module = self.module()
        if module is not None:
            for callback in self.callbacks:
                callback(module, got)

    # An operator cannot take a BlockMask.
    notify_outside_graph = exclude_from_graphs("clearhead.watch reads FlexAttention's mask outside of the graph")(
        notify
    )


_observers: weakref.WeakKeyDictionary[nn.Module, FunctionObserver] = weakref.WeakKeyDictionary()


@contextmanager
def observe_modules(modules: Sequence[nn.Module], callback: Callback) -> Iterator[None]:
    """Within it, `callback` is called with the arguments of every attention function call of these modules."""
    with intercept_interfaces(modules):
        for module in modules:
            _attach(module, callback)
        try:
            yield
        finally:
            for module in modules:
                _detach(module, callback)


def observe_function(
    attend: AttentionFunction, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """The wrapper of every watch: calls the attention function, then its observer."""
    outputs: list[Tensor] = []
    kind = classify_function(attend.function, attend.eager)
    if kind == UNKNOWN:
        attend = attend.collecting(outputs)
    with observe_sdpa(q) as sdpa_observer:
        result = attend(module, q, k, v, mask, *args, **kwargs)
    observer: FunctionObserver | None = getattr(module, OBSERVER, None)
    if observer is None:
        return result
    got = read_arguments(kind, attend.function, module, q, k, v, mask, args, kwargs)
    if outputs:
        got = got._replace(output=outputs[0])
    if sdpa_observer is not None:
        got = got._replace(sdpa_observer=sdpa_observer)
    if not torch.compiler.is_compiling():
        observer.notify(got)
    elif mask is None or isinstance(mask, Tensor):
        send_to_receiver(observer, encode_values(got))
    else:
        observer.notify_outside_graph(got)
    return result


def _attach(module: nn.Module, callback: Callback) -> None:
    with registry_lock:
        observer = _observers.get(module) or _observers.setdefault(module, FunctionObserver(module))
        if not observer.callbacks:
            vars(module)[OBSERVER] = observer
            add_wrap(module, observe_function)
        observer.callbacks = (*observer.callbacks, callback)


def _detach(module: nn.Module, callback: Callback) -> None:
    with registry_lock:
        observer = _observers[module]
        observer.callbacks = tuple(one for one in observer.callbacks if one is not callback)
        if not observer.callbacks:
            del vars(module)[OBSERVER]
            remove_wrap(module, observe_function)
