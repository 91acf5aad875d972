"""ModelLane: requests to one model take turns, and end when their page leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from clearhead.errors import LensError
from clearhead.explore.live_model import CHECK_INTERVAL, ModelLane, end_if_left, end_when
from clearhead.tasks.trace import Tracer


def run_while_waiting(lane: ModelLane, work: Callable[[], None], count: int) -> threading.Thread:
    """Starts work that takes a turn, and returns once `count` requests wait or run."""
    thread = threading.Thread(target=work)
    thread.start()
    end = time.monotonic() + 10
    while len(lane._queue) < count:
        assert time.monotonic() < end
    return thread


def test_requests_run_one_at_a_time_in_their_order_and_may_give_way():
    lane, order = ModelLane(Mock(spec=Tracer)), list[str]()

    def request(name: str) -> None:
        with lane.turn():
            order.append(name)

    with lane.turn() as tracer:
        assert tracer is lane.tracer
        threads = [run_while_waiting(lane, lambda name=name: request(name), 2 + n) for n, name in enumerate("abc")]
        assert order == []
        lane.give_way()
        order.append("after them")
        threads.append(run_while_waiting(lane, lambda: request("d"), 2))
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "after them", "d"]


def test_who_leaves_while_waiting_holds_up_nobody():
    lane, left, problems = ModelLane(Mock(spec=Tracer)), threading.Event(), list[str]()

    def request() -> None:
        with end_when(left.is_set), pytest.raises(LensError) as ended, lane.turn():
            raise AssertionError("it had left before")
        problems.append(str(ended.value))

    with lane.turn():
        thread = run_while_waiting(lane, request, 2)
        left.set()
        thread.join()
        lane.give_way()
    assert problems == ["cancelled: the page that asked for this has left"]


def test_a_model_stops_at_the_next_module_when_its_page_has_left():
    model, ran = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2)), list[int]()
    for place, module in enumerate(model):
        module.register_forward_pre_hook(end_if_left)
        module.register_forward_hook(lambda *_, place=place: ran.append(place))
    left = threading.Event()

    def leave(*_: object) -> None:
        left.set()
        time.sleep(CHECK_INTERVAL)

    handle = model[1].register_forward_hook(leave)
    with end_when(left.is_set), pytest.raises(LensError, match="cancelled"):
        model(torch.ones(2))
    assert ran == [0, 1]
    handle.remove()
    model(torch.ones(2))  # and then serves others
    assert ran == [0, 1, 0, 1, 2]
