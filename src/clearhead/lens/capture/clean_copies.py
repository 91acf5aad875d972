"""Copies of a model in use by the lens, by `copy.deepcopy`, pickle or `torch.save`: the model alone, without our hooks.

While the lens has hooks and attributes on modules, `copyreg` tells how modules of their classes are copied.
"""

from __future__ import annotations

import copyreg
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from clearhead.lens.capture.compiled_graphs import AttentionObserver, registry_lock

PREFIX = "_clearhead_"  # of the attributes that the lens sets on modules of other libraries
OWN_MODULES = "clearhead.lens."
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
HOOK_OPTIONS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")

_users: Counter[type] = Counter()
_before: dict[type, Callable[[Any], Any] | None] = {}


@contextmanager
def clean_copies(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within it, copies of these modules have none of the hooks, wrappers and observers of the lens."""
    kinds = {type(module) for module in modules}
    with registry_lock:
        for kind in kinds:
            if not _users[kind]:
                _before[kind] = copyreg.dispatch_table.get(kind)
                copyreg.dispatch_table[kind] = functools.partial(_reduce, _before[kind])
            _users[kind] += 1
    try:
        yield
    finally:
        with registry_lock:
            for kind in kinds:
                _users[kind] -= 1
                if not _users[kind]:
                    _restore(kind)


def _restore(kind: type) -> None:
    before = _before.pop(kind)
    del _users[kind], copyreg.dispatch_table[kind]
    if before is not None:
        copyreg.dispatch_table[kind] = before


def _reduce(before: Callable[[Any], Any] | None, module: nn.Module) -> Any:
    """How a module is copied: as it would be, but for what the lens put on it."""
    reduced = module.__reduce_ex__(2) if before is None else before(module)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    return (*reduced[:2], _strip(reduced[2]), *reduced[3:])


def _strip(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of the attributes of a module without those of the lens."""
    state = {name: value for name, value in state.items() if not name.startswith(PREFIX)}
    ours = {number for place in HOOKS for number, hook in state.get(place, {}).items() if _is_ours(hook)}
    for place in (*HOOKS, *HOOK_OPTIONS) if ours else ():
        state[place] = type(state[place])((number, one) for number, one in state[place].items() if number not in ours)
    while isinstance(state.get("observer"), AttentionObserver):
        state["observer"] = state["observer"].previous
    return state


def _is_ours(hook: Any) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.startswith(OWN_MODULES)
