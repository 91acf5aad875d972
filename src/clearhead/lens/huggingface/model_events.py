"""Where the forward passes of a model begin and end: hooks on it, and on the models that it is made of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from clearhead.lens.capture.compiled_graphs import lock, outside_graphs


@runtime_checkable
class Audience(Protocol):
    """Who is told."""

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


class Announcer:
    """Hooks that tell whoever is there.

    They are the same for all watches, and keep their numbers, since compiled code guards on those: what is compiled
    under the first watch serves the others.
    """

    def __init__(self, begin: Callable[..., None], end: Callable[..., None]) -> None:
        self.begin, self.end = begin, end
        self.numbers: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()
        self.audiences: weakref.WeakKeyDictionary[nn.Module, tuple[Audience, ...]] = weakref.WeakKeyDictionary()

    def enter(self, module: nn.Module, audience: Audience) -> None:
        with lock:
            if module not in self.audiences:
                self._hook(module)
            self.audiences[module] = (*self.audiences.get(module, ()), audience)

    def leave(self, module: nn.Module, audience: Audience) -> None:
        with lock:
            self.audiences[module] = tuple(one for one in self.audiences[module] if one is not audience)
            if not self.audiences[module]:
                del self.audiences[module]
                for place, number, _ in self._places(module):
                    del place[number]

    def _hook(self, module: nn.Module) -> None:
        if module in self.numbers:
            for place, number, value in self._places(module):
                place[number] = value
        else:
            self._forget(module)
            begin = module.register_forward_pre_hook(self.begin, with_kwargs=True)
            end = module.register_forward_hook(self.end, with_kwargs=True, always_call=True)
            self.numbers[module] = (begin.id, end.id)

    def _forget(self, module: nn.Module) -> None:
        """A copy of a module has the hooks of its original."""
        for hooks, own in ((module._forward_pre_hooks, self.begin), (module._forward_hooks, self.end)):
            for number in [number for number, hook in hooks.items() if hook is own]:
                del hooks[number]

    def _places(self, module: nn.Module) -> list[tuple[dict[int, Any], int, Any]]:
        """Where PyTorch keeps the two hooks and what they want."""
        begin, end = self.numbers[module]
        return [
            (module._forward_pre_hooks, begin, self.begin),
            (module._forward_pre_hooks_with_kwargs, begin, True),
            (module._forward_hooks, end, self.end),
            (module._forward_hooks_with_kwargs, end, True),
            (module._forward_hooks_always_called, end, True),
        ]


@contextmanager
def announced(module: nn.Module, audience: Audience, *, whole: bool) -> Iterator[None]:
    """Within it the audience is told of every forward pass of a model: of the `whole`, or of one within it."""
    announcer = _whole if whole else _within
    announcer.enter(module, audience)
    try:
        yield
    finally:
        announcer.leave(module, audience)


def _begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, whole: bool) -> None:
    for audience in (_whole if whole else _within).audiences.get(module, ()):
        audience.begin(module, args, kwargs)


def _end(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, whole: bool) -> None:
    for audience in (_whole if whole else _within).audiences.get(module, ()):
        audience.end(module, args, kwargs, output)


def _begin_within(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """In a graph there is nothing to tell: what is within it is no pass of its own."""
    if not torch.compiler.is_compiling():
        _begin(module, args, kwargs, whole=False)


def _end_within(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if not torch.compiler.is_compiling():
        _end(module, args, kwargs, output, whole=False)


_outside = outside_graphs(
    "clearhead.watch is told of each pass outside of the graph: compile the model itself, not what calls it"
)


@_outside
def _begin_whole(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _begin(module, args, kwargs, whole=True)


@_outside
def _end_whole(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    _end(module, args, kwargs, output, whole=True)


_within = Announcer(_begin_within, _end_within)
_whole = Announcer(_begin_whole, _end_whole)
