"""The wrap that looks: it calls the model's own function, and shows what that was given to those who watch."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.lens.huggingface import compiling
from clearhead.lens.huggingface.reading import Given, given
from clearhead.lens.huggingface.wrapping import Attend, Result, add_wrap, remove_wrap, shadowed

See = Callable[[nn.Module, Given], None]

KEY = "_clearhead_key"
_numbers = itertools.count()
_keys: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_watchers: dict[int, tuple[See, ...]] = {}  # by the key of a module
_lock = threading.RLock()


@contextmanager
def watched(modules: Sequence[nn.Module], see: See) -> Iterator[None]:
    """Within it `see` is shown what the attention functions of these modules are given."""
    with shadowed(modules):
        for module in modules:
            _watch(module, see)
        try:
            yield
        finally:
            for module in modules:
                _leave(module, see)


def look(
    attend: Attend, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """One and the same function for all watches, with a number for the module: what is compiled once serves again."""
    result = attend(module, q, k, v, mask, *args, **kwargs)
    got = given(attend, module, q, k, v, mask, args, kwargs)
    if not torch.compiler.is_compiling():
        _show(module, got)
    elif mask is None or isinstance(mask, Tensor):
        compiling.look_from_graph(getattr(module, KEY), got)
    else:
        _show_outside(module, got)
    return result


def _show(module: nn.Module, got: Given) -> None:
    for see in _watchers.get(vars(module).get(KEY, -1), ()):
        see(module, got)


# A BlockMask cannot be handed over by an operator.
_show_outside = torch.compiler.disable(
    _show, reason="clearhead.watch looks at FlexAttention's mask outside of the graph"
)


def _watch(module: nn.Module, see: See) -> None:
    with _lock:
        key = vars(module)[KEY] = _keys.setdefault(module, next(_numbers))
        if key not in _watchers:
            known = weakref.ref(module)
            compiling.open_eye(key, lambda got: None if (there := known()) is None else _show(there, got))
            add_wrap(module, look)
        _watchers[key] = (*_watchers.get(key, ()), see)


def _leave(module: nn.Module, see: See) -> None:
    with _lock:
        key = vars(module)[KEY]
        _watchers[key] = tuple(one for one in _watchers[key] if one is not see)
        if not _watchers[key]:
            del _watchers[key], vars(module)[KEY]
            compiling.close_eye(key)
            remove_wrap(module, look)
