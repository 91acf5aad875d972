"""MethodObserver: callbacks after every call of one method, which is wrapped only while there are callbacks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from clearhead.lens.capture.compiled_graphs import registry_lock

Callback = Callable[[Any], None]


class MethodObserver:
    """Wraps a method of a class while there are callbacks, and passes them what `read(result, **kwargs)` returns.

    A class without this method, or with something else under its name, is left alone: nothing is reported then.
    """

    def __init__(self, read: Callable[..., Any]) -> None:
        self.read, self.callbacks = read, tuple[Callback, ...]()
        self.wrapper: _MethodWrapper | None = None

    @contextmanager
    def observe(self, owner: type, name: str, callback: Callback) -> Iterator[None]:
        """Within it, `callback` is called after every call of the method `name` of `owner`."""
        with registry_lock:
            if not self.callbacks and isinstance(inspect.getattr_static(owner, name, None), FunctionType):
                self.wrapper = _MethodWrapper(self, owner, name)
            self.callbacks = (*self.callbacks, callback)
        try:
            yield
        finally:
            with registry_lock:
                self.callbacks = tuple(one for one in self.callbacks if one is not callback)
                if not self.callbacks and self.wrapper is not None:
                    self.wrapper.restore()
                    self.wrapper = None


class _MethodWrapper:
    """A wrapper in place of a method, until `restore`."""

    def __init__(self, observer: MethodObserver, owner: type, name: str) -> None:
        self.observer, self.owner, self.name = observer, owner, name
        self.inherited = name not in vars(owner)
        self.own: Callable[..., Any] = inspect.getattr_static(owner, name)
        self.put = self._make_wrapper()
        setattr(owner, name, self.put)

    def restore(self) -> None:
        """Restores the method, unless it has been replaced meanwhile."""
        if vars(self.owner).get(self.name) is not self.put:
            return
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)

    def _make_wrapper(self) -> Callable[..., Any]:
        @functools.wraps(self.own)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = self.own(*args, **kwargs)
            if self.observer.wrapper is self:
                found = self.observer.read(result, **kwargs)
                for callback in self.observer.callbacks:
                    callback(found)
            return result

        return call
