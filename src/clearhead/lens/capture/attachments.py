"""Attachments: what the lens puts on models and classes while somebody uses it, and takes off after the last user.

Hooks, observers, wrappers, patched attributes and clean copies all go through this one registry.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from clearhead.lens.capture.compiled_graphs import AttentionObserver, exclude_from_graphs, is_recomputing

Thing = TypeVar("Thing", bound=Hashable)
User = TypeVar("User")

registry_lock = threading.RLock()


class Attachments(Generic[Thing, User]):
    """Who uses each thing. `update(thing, users)` is called whenever they change; without users it detaches.

    >>> lamps = Attachments(lambda lamp, users: print(lamp, "is on for", users) if users else print(lamp, "is off"))
    >>> with lamps.using([("a lamp", 1)]), lamps.using([("a lamp", 2)], first=True):
    ...     pass
    a lamp is on for (1,)
    a lamp is on for (2, 1)
    a lamp is on for (1,)
    a lamp is off
    """

    def __init__(self, update: Callable[[Thing, tuple[User, ...]], None]) -> None:
        self._update = update
        self._users: dict[Thing, tuple[User, ...]] = {}

    def users(self, thing: Thing) -> tuple[User, ...]:
        return self._users.get(thing, ())

    @contextmanager
    def using(self, pairs: Iterable[tuple[Thing, User]], *, first: bool = False) -> Iterator[None]:
        """Within it each user of these pairs uses its thing; `first` puts it before the other users.

        Users may leave in any order.
        """
        entered: list[tuple[Thing, User]] = []
        try:
            with registry_lock:
                for thing, user in pairs:
                    users = self.users(thing)
                    self._set_users(thing, (user, *users) if first else (*users, user))
                    entered.append((thing, user))
            yield
        finally:
            with registry_lock:
                for thing, user in entered:
                    remaining = list(self.users(thing))
                    last = max(number for number, other in enumerate(remaining) if other is user)
                    del remaining[last]
                    self._set_users(thing, tuple(remaining))

    def _set_users(self, thing: Thing, users: tuple[User, ...]) -> None:
        self._users[thing] = users
        if not users:
            del self._users[thing]
        self._update(thing, users)


class PatchedAttribute:
    """An attribute of a class or an object that is replaced by `make(attribute)` while it has users in `patches`."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner, self.name, self.make = owner, name, make
        self.replacement: Any = None  # while it has users

    def update(self, users: tuple[Any, ...]) -> None:
        if users and self.replacement is None:
            self._before = vars(self.owner).get(self.name)
            self.replacement = self.make(getattr(self.owner, self.name))
            setattr(self.owner, self.name, self.replacement)
        elif not users:
            ours, self.replacement = self.replacement, None
            if vars(self.owner).get(self.name) is not ours:  # somebody has replaced it meanwhile
                return
            if self._before is None:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self._before)


patches = Attachments[PatchedAttribute, Any](PatchedAttribute.update)
_methods: dict[tuple[type, str], PatchedAttribute] = {}


_running = threading.local()  # its `calls` are the observed methods that run in this thread, by name and object


@contextmanager
def observe_method(owner: type, name: str, callback: Callable[..., None]) -> Iterator[None]:
    """Within it, `callback(result, *args, **kwargs)` is called after every call of a method of a class.

    A method that calls the one it overrides reports once. A class without this method, or with something else under
    its name, is left alone: nothing is reported then.
    """
    if not isinstance(inspect.getattr_static(owner, name, None), FunctionType):
        yield
        return
    patch = _methods.setdefault(
        (owner, name), PatchedAttribute(owner, name, lambda method: _wrap_method(owner, name, method))
    )
    with patches.using([(patch, callback)]):
        yield


def _wrap_method(owner: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        running, calls = (name, id(args[0])), vars(_running).setdefault("calls", set())
        if running in calls:
            return method(*args, **kwargs)
        calls.add(running)
        try:
            result = method(*args, **kwargs)
        finally:
            calls.remove(running)
        patch = _methods[owner, name]
        if patch.replacement is call:  # else it is inside the wrapper of somebody else, after we have left
            for callback in patches.users(patch):
                callback(result, *args, **kwargs)
        return result

    return call


Hook = Callable[..., None]


class ForwardHooks:
    """One pair of forward hooks per module, shared by all watches: they call `begin` and `end` of each.

    They are the same for all watches and keep their ids, on which compiled code guards, so that code compiled under the
    first watch serves the others. The hook at the end is also called if the pass raised. Neither is called where a
    checkpointed layer is only recomputed.
    """

    def __init__(self, guard: Callable[[Hook], Hook]) -> None:
        @guard
        def begin(module: nn.Module, *arguments: Any) -> None:
            for callbacks in () if is_recomputing() else attachments.users(module):
                callbacks.begin(module, *arguments)

        @guard
        def end(module: nn.Module, *arguments: Any) -> None:
            for callbacks in () if is_recomputing() else attachments.users(module):
                callbacks.end(module, *arguments)

        attachments = Attachments[nn.Module, Any](self._update)
        self.using = attachments.using
        self._begin, self._end = begin, end
        self._ids: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()

    def _update(self, module: nn.Module, users: tuple[Any, ...]) -> None:
        if module not in self._ids:
            begin = module.register_forward_pre_hook(self._begin, with_kwargs=True)
            end = module.register_forward_hook(self._end, with_kwargs=True, always_call=True)
            self._ids[module] = (begin.id, end.id)
            return
        begin_id, end_id = self._ids[module]
        stores: list[tuple[dict[int, Any], int, Any]] = [  # where PyTorch has the two hooks and their options
            (module._forward_pre_hooks, begin_id, self._begin),
            (module._forward_pre_hooks_with_kwargs, begin_id, True),
            (module._forward_hooks, end_id, self._end),
            (module._forward_hooks_with_kwargs, end_id, True),
            (module._forward_hooks_always_called, end_id, True),
        ]
        for store, number, value in stores:
            if users:
                store[number] = value
            else:
                del store[number]


def _skip_in_graphs(hook: Hook) -> Hook:
    @functools.wraps(hook)
    def skip(*arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            hook(*arguments)

    return skip


inner_hooks = ForwardHooks(_skip_in_graphs)  # silent in compiled graphs, where inner modules have no pass of their own
whole_hooks = ForwardHooks(
    exclude_from_graphs(
        "clearhead.watch follows forward passes outside of the graph: compile the model itself, not what calls it"
    )
)

CALL = nn.Module._call_impl.__name__
UNKNOWN_EXCEPTION = "an exception that modules do not report, such as KeyboardInterrupt"


def get_handled_exception() -> BaseException | None:
    """The exception that is being handled: at the end of a pass that raised, the one that ended it."""
    return sys.exc_info()[1]


def find_new_exception(before: BaseException | None) -> BaseException | None:
    """The exception that is being handled, unless it was before, as in a pass that runs in somebody's `except`."""
    error = get_handled_exception()
    return None if error is before else error


def find_call_frame() -> FrameType | None:
    """The Python frame of the module call whose hook is running; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != CALL:
        frame = frame.f_back
    return frame


def is_running(call: FrameType | None) -> bool:
    """Whether a module call, given by its frame, is still in progress in this thread; True if unknown."""
    frame: FrameType | None = sys._getframe(1)
    while call is not None and frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None


PREFIX = "_clearhead_"  # of the attributes that the lens sets on modules of other libraries
OWN_MODULES = "clearhead.lens."
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
HOOK_OPTIONS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")

Reducer = Callable[[Any], Any]
_reducers: dict[type, Reducer | None] = {}  # how modules of a class were copied before


@contextmanager
def clean_copies(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within it, copies of these modules have none of the hooks, wrappers and observers of the lens.

    `copyreg` says how modules of their classes are copied, by `copy.deepcopy`, pickle and `torch.save`.
    """
    kinds = {type(module) for module in modules}
    with _copied_classes.using((kind, None) for kind in kinds):
        yield


def _update_reducer(kind: type, users: tuple[None, ...]) -> None:
    if users and kind not in _reducers:
        _reducers[kind] = copyreg.dispatch_table.get(kind)
        copyreg.dispatch_table[kind] = functools.partial(_reduce, _reducers[kind])
    elif not users:
        before = _reducers.pop(kind)
        del copyreg.dispatch_table[kind]
        if before is not None:
            copyreg.dispatch_table[kind] = before


_copied_classes = Attachments[type, None](_update_reducer)


def _reduce(before: Reducer | None, module: nn.Module) -> Any:
    """How a module is copied: as it would be, but for what the lens put on it."""
    reduced = module.__reduce_ex__(2) if before is None else before(module)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    return (*reduced[:2], _strip(reduced[2]), *reduced[3:])


def _strip(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of the attributes of a module without those of the lens."""
    state = {name: value for name, value in state.items() if not name.startswith(PREFIX)}
    ours = {number for name in HOOKS for number, hook in state.get(name, {}).items() if _is_ours(hook)}
    for name in (*HOOKS, *HOOK_OPTIONS) if ours else ():
        state[name] = type(state[name])((number, hook) for number, hook in state[name].items() if number not in ours)
    while isinstance(state.get("observer"), AttentionObserver):
        state["observer"] = state["observer"].previous
    return state


def _is_ours(hook: Any) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.startswith(OWN_MODULES)
