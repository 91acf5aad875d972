"""wrapped_attention: puts a function around the attention function of a model, whichever is in force.

Every attention module asks its interface object for the function, at every call. While somebody wraps, that object
answers with one that looks whether the module that calls it is wrapped. So the model stays as it is: its config, its
masks, and what it does for "eager" or "sdpa" by name; and code compiled before notices, since it guards on the object.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from clearhead.lens.huggingface.discovery import attending, interface_of, refuse_if_blind

Result = tuple[Tensor, Tensor | None]
Wrap = Callable[..., Result]

MARK = "_clearhead_wraps"
_lock = threading.RLock()
_shadows: dict[int, _Shadow] = {}  # by the id of the interface
_wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Attend:
    """The attention function of a model with what is wrapped around it; call it as the model would."""

    def __init__(self, function: Callable[..., Result], eager: bool, wraps: tuple[Wrap, ...]) -> None:
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
        inner = Attend(self.function, self.eager, self.wraps[1:])
        return self.wraps[0](inner, module, query, key, value, attention_mask, *args, **kwargs)


@contextmanager
def wrapped_attention(model: nn.Module, wrap: Wrap) -> Iterator[None]:
    """Within it every attention of the model goes through `wrap(attend, module, q, k, v, mask, *args, **kwargs)`.

    `attend` is called like `wrap`, without itself, and gives `(output, weights)`: the output is (batch, queries, heads,
    d_v), the weights are None unless the model computes them. Wraps can be nested: the first is the outermost.
    """
    refuse_if_blind(model)
    modules = list(attending(model).values())
    with shadowed(modules):
        for module in modules:
            add_wrap(module, wrap)
        try:
            yield
        finally:
            for module in modules:
                remove_wrap(module, wrap)


@contextmanager
def shadowed(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within it the interfaces of these modules look whether the module that calls is wrapped."""
    interfaces = {id(one): one for one in (interface_of(module) for module in modules)}
    with _lock:
        shadows = [_shadows.setdefault(key, _Shadow(one)) for key, one in interfaces.items()]
        for shadow in shadows:
            shadow.enter()
    try:
        yield
    finally:
        with _lock:
            for shadow in shadows:
                shadow.leave()


class _Shadow:
    """Stands before an interface's `get_interface` while somebody wraps.

    There is one for all watches: what torch.compile makes of it under the first serves the others.
    """

    def __init__(self, interface: Any) -> None:
        self.interface, self.users = interface, 0
        self.before: Any = None

    def enter(self) -> None:
        if not self.users:
            # On the object itself, where code compiled before looks for it; not on its class.
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

            def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Result:
                wraps = getattr(module, MARK, ())
                return Attend(function, function is default, wraps)(module, *args, **kwargs)

            return attention

        return get_interface


def add_wrap(module: nn.Module, wrap: Wrap) -> None:
    with _lock:
        wraps = vars(module)[MARK] if module in _wrapped else ()  # a copy still has those of its original
        vars(module)[MARK] = (*wraps, wrap)
        _wrapped.add(module)


def remove_wrap(module: nn.Module, wrap: Wrap) -> None:
    """Takes off one such wrap; those of others stay, also where they do not leave in the order in which they came."""
    with _lock:
        wraps = list(vars(module)[MARK])
        del wraps[len(wraps) - 1 - wraps[::-1].index(wrap)]
        if wraps:
            vars(module)[MARK] = tuple(wraps)
        else:
            del vars(module)[MARK]
            _wrapped.discard(module)
