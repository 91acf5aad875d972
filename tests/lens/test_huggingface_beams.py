"""The method of transformers' beam search that a watch wraps: reported while callbacks exist, then restored."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import transformers.generation.utils as utils

from clearhead.lens.capture.attachments import observe_method
from clearhead.lens.huggingface.forward_tracking import FINISHED_BEAMS_METHOD as METHOD
from clearhead.lens.huggingface.forward_tracking import find_finished_rows


class Base:
    def _update_finished_beams(self, **_: Any) -> tuple[Any, ...]:
        """As transformers': the row of each beam at every step, and which are complete."""
        return None, None, torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([[True, False]])


class Own(Base):
    def _update_finished_beams(self, **given: Any) -> tuple[Any, ...]:
        return super()._update_finished_beams(**given)


class Inherited(Base):
    pass


class Absent:
    pass


class Other:
    _update_finished_beams = staticmethod(lambda **_: None)


@pytest.fixture(params=[Own, Inherited, Absent, Other])
def mixin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    before = dict(vars(request.param))
    monkeypatch.setattr(utils, "GenerationMixin", request.param)
    yield request.param
    assert dict(vars(request.param)) == before, "a test of this file leaves it as it was"


def observe_finished_beams(callback: Callable[[frozenset[int]], None]) -> AbstractContextManager[None]:
    def read(result: Any, *_: Any, **given: Any) -> None:
        callback(find_finished_rows(result, **given))

    return observe_method(utils.GenerationMixin, METHOD, read)


def step(mixin: type) -> None:
    mixin()._update_finished_beams(cur_len=4, decoder_prompt_len=3)


def test_it_is_restored_as_it_was_found_own_inherited_absent_or_of_another_kind(mixin):
    told = []
    with observe_finished_beams(told.append), observe_finished_beams(told.append):
        if mixin is not Absent:
            step(mixin)
    assert told == ([frozenset({1})] * 2 if issubclass(mixin, Base) else [])


@pytest.mark.parametrize("mixin", [Own, Inherited], indirect=True)
def test_another_wrapper_set_meanwhile_stays_and_nothing_is_reported_twice(mixin):
    told, calls, before = [], [], vars(mixin).get(METHOD)
    with observe_finished_beams(told.append):
        inner = getattr(mixin, METHOD)

        def outer(self, **given):
            calls.append(1)
            return inner(self, **given)

        setattr(mixin, METHOD, outer)
        step(mixin)
        assert (len(told), len(calls)) == (1, 1)
    assert vars(mixin)[METHOD] is outer
    step(mixin)
    assert (len(told), len(calls)) == (1, 2), "nobody listens any more"
    with observe_finished_beams(told.append):
        step(mixin)
    assert (len(told), len(calls)) == (2, 3)
    assert vars(mixin)[METHOD] is outer
    if before is None:
        delattr(mixin, METHOD)
    else:
        setattr(mixin, METHOD, before)


def test_the_method_of_transformers_is_still_there():
    assert callable(getattr(utils.GenerationMixin, METHOD))
