"""run_in_threads: everything is done once, by several threads, and nothing of it is left behind."""

import threading
import time

import pytest
import torch

from clearhead.lens.measures.thread_pool import run_in_threads


@pytest.fixture(autouse=True)
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def test_every_item_is_processed_once_by_several_threads():
    done, by, meeting = [], set(), threading.Barrier(3)

    def work(item: int) -> None:
        if item < 3:
            meeting.wait(timeout=60)  # three of them at the same time
        by.add(threading.get_ident())
        done.append(item)

    run_in_threads(work, list(range(41)))
    assert sorted(done) == list(range(41))
    assert len(by) == 3
    assert threading.get_ident() not in by


def test_each_thread_uses_one_pytorch_thread_and_the_default_is_restored():
    inside = []

    def work(item: int) -> None:
        time.sleep(0.05)  # until the number has been put right for threads yet to come
        torch.ones(2**17).sum()
        inside.append(torch.get_num_threads())

    run_in_threads(work, [1, 2, 3, 4])
    assert inside == [1, 1, 1, 1]
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *later] == [3, 3]


def test_spare_threads_are_divided_among_workers():
    torch.set_num_threads(5)
    inside = []
    run_in_threads(lambda item: inside.append(torch.get_num_threads()), [1, 2])
    assert inside == [2, 2]


def test_one_worker_may_use_one_pytorch_thread():
    seen = []
    run_in_threads(lambda item: seen.append((torch.get_num_threads(), threading.get_ident())), [1, 2], 1, 1)
    assert {threads for threads, _ in seen} == {1}
    assert len({by for _, by in seen} - {threading.get_ident()}) == 1


def test_one_item_or_one_thread_starts_no_threads():
    by = []
    run_in_threads(lambda item: by.append(threading.get_ident()), [1])
    torch.set_num_threads(1)
    run_in_threads(lambda item: by.append(threading.get_ident()), [1, 2, 3])
    assert set(by) == {threading.get_ident()}


def test_an_error_ends_all_threads_and_is_raised():
    done = []

    def work(item: int) -> None:
        if item == 1:
            raise ValueError("item 1 is bad")
        time.sleep(0.01)
        done.append(item)

    with pytest.raises(ValueError, match="item 1 is bad"):
        run_in_threads(work, list(range(1000)))
    assert len(done) < 100
    assert torch.get_num_threads() == 3


def test_threads_inherit_no_grad_and_inference_mode():
    modes = []
    with torch.inference_mode():
        run_in_threads(lambda item: modes.append(torch.is_inference_mode_enabled()), [1, 2])
    run_in_threads(lambda item: modes.append(torch.is_inference_mode_enabled() or torch.is_grad_enabled()), [1, 2])
    assert modes == [True, True, False, False]
