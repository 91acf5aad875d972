"""HookRegistry: one pair of forward hooks per module for all watches; and the exception that ended a forward pass."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import nn

from clearhead.lens.capture.compiled_graphs import is_recomputing, registry_lock

UNKNOWN_EXCEPTION = "an exception that modules do not report, such as KeyboardInterrupt"


@runtime_checkable
class PassCallbacks(Protocol):
    """The callbacks of one watch for the forward passes of a module."""

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


class HookRegistry:
    """One pair of forward hooks per module, shared by all watches.

    They are the same for all watches and keep their ids, on which compiled code guards, so that code compiled under the
    first watch serves the others. The hook at the end is also called if the pass raised.
    """

    def __init__(self, begin: Callable[..., None], end: Callable[..., None]) -> None:
        self.begin, self.end = begin, end
        self.numbers: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()
        self.registered: weakref.WeakKeyDictionary[nn.Module, tuple[PassCallbacks, ...]] = weakref.WeakKeyDictionary()

    def enter(self, module: nn.Module, callbacks: PassCallbacks) -> None:
        with registry_lock:
            if module not in self.registered:
                self._hook(module)
            self.registered[module] = (*self.registered.get(module, ()), callbacks)

    def leave(self, module: nn.Module, callbacks: PassCallbacks) -> None:
        with registry_lock:
            self.registered[module] = tuple(one for one in self.registered[module] if one is not callbacks)
            if not self.registered[module]:
                del self.registered[module]
                for place, number, _ in self._places(module):
                    del place[number]

    def call_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Calls `begin` of all callbacks of a module, unless a checkpointed layer is only recomputed."""
        if is_recomputing():
            return
        for one in self.registered.get(module, ()):
            one.begin(module, args, kwargs)

    def call_end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if is_recomputing():
            return
        for one in self.registered.get(module, ()):
            one.end(module, args, kwargs, output)

    def _hook(self, module: nn.Module) -> None:
        if module in self.numbers:
            for place, number, value in self._places(module):
                place[number] = value
        else:
            begin = module.register_forward_pre_hook(self.begin, with_kwargs=True)
            end = module.register_forward_hook(self.end, with_kwargs=True, always_call=True)
            self.numbers[module] = (begin.id, end.id)

    def _places(self, module: nn.Module) -> list[tuple[dict[int, Any], int, Any]]:
        """The dictionaries in which PyTorch stores the two hooks and their options."""
        begin, end = self.numbers[module]
        return [
            (module._forward_pre_hooks, begin, self.begin),
            (module._forward_pre_hooks_with_kwargs, begin, True),
            (module._forward_hooks, end, self.end),
            (module._forward_hooks_with_kwargs, end, True),
            (module._forward_hooks_always_called, end, True),
        ]


def get_handled_exception() -> BaseException | None:
    """The exception that is being handled: at the end of a pass that raised, the one that ended it."""
    return sys.exc_info()[1]


def find_new_exception(before: BaseException | None) -> BaseException | None:
    """The exception that is being handled, unless it was before, as in a pass that runs in somebody's `except`."""
    error = get_handled_exception()
    return None if error is before else error


def describe_exception(error: BaseException) -> str:
    """The class of an exception and the first line of its message.

    >>> describe_exception(IndexError("index out of range in self"))
    'IndexError: index out of range in self'
    """
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__
