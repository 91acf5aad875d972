"""The wrap that looks: it calls the model's own function, and shows what that was given to those who watch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention.sdpa_logsumexp import overhearing
from clearhead.lens.capture.compiled_graphs import Organ, lock, outside_graphs, tell
from clearhead.lens.capture.spelling import Spelled
from clearhead.lens.huggingface.arguments import Given, given
from clearhead.lens.huggingface.compiling import read, spelled
from clearhead.lens.huggingface.interposition import Attend, Result, add_wrap, remove_wrap, shadowed

See = Callable[[nn.Module, Given], None]

PLACE = "_clearhead_look"


class Look(Organ):
    """Shows those who watch a module what its function was given. There is one a module, for all watches:

    what torch.compile makes of it under the first serves the others.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.watchers = weakref.ref(module), tuple[See, ...]()

    def receive(self, given: Spelled) -> None:
        self.show(read(given))

    def show(self, got: Given) -> None:
        module = self.module()
        if module is not None:
            for see in self.watchers:
                see(module, got)

    # A BlockMask is nothing that an operator could take.
    show_outside = outside_graphs("clearhead.watch looks at FlexAttention's mask by itself")(show)


_looks: weakref.WeakKeyDictionary[nn.Module, Look] = weakref.WeakKeyDictionary()


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
    """The wrap of every watch."""
    with overhearing(q) as overheard:
        result = attend(module, q, k, v, mask, *args, **kwargs)
    here: Look | None = getattr(module, PLACE, None)  # a copy of the module has none
    if here is None:
        return result
    got = given(attend, module, q, k, v, mask, args, kwargs)
    if overheard is not None:
        got = got._replace(overheard=overheard)
    if not torch.compiler.is_compiling():
        here.show(got)
    elif mask is None or isinstance(mask, Tensor):
        tell(here, spelled(got))
    else:
        here.show_outside(got)
    return result


def _watch(module: nn.Module, see: See) -> None:
    with lock:
        here = _looks.get(module) or _looks.setdefault(module, Look(module))
        if not here.watchers:
            vars(module)[PLACE] = here
            add_wrap(module, look)
        here.watchers = (*here.watchers, see)


def _leave(module: nn.Module, see: See) -> None:
    with lock:
        here = _looks[module]
        here.watchers = tuple(one for one in here.watchers if one is not see)
        if not here.watchers:
            del vars(module)[PLACE]
            remove_wrap(module, look)
