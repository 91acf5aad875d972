"""Several threads that decode: small steps are computed one after another, large ones side by side."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from clearhead.decode import Writer, beam, greedy, sample, stream
from clearhead.model import small_passes
from tests.decode.models import END, START, sources, translator

OPTIONS = {"start": START, "end": END, "max_length": 2}
SEARCHES = {
    "beam": lambda writer: beam(writer, beams=2, **OPTIONS),
    "greedy": lambda writer: greedy(writer, **OPTIONS),
    "sample": lambda writer: sample(writer, **OPTIONS),
    "stream": lambda writer: [*stream(writer, **OPTIONS)],
}


def overlaps(monkeypatch: pytest.MonkeyPatch, search: Callable[[Writer], object], patience: float) -> bool:
    """Whether two threads are ever in the model at once; one that is there alone waits for another."""
    model, (source, lengths) = translator(), sources(1)
    inside, both = threading.Semaphore(1), threading.Event()
    compute = Writer._compute_logits

    def wait(self: Writer, tokens: torch.Tensor) -> torch.Tensor:
        if inside.acquire(blocking=False):
            both.wait(patience)
            inside.release()
        else:
            both.set()
        return compute(self, tokens)

    monkeypatch.setattr(Writer, "_compute_logits", wait)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(search, [Writer.translating(model, source, lengths) for _ in range(2)]))
    return both.is_set()


@pytest.mark.parametrize("name", SEARCHES)
def test_threads_take_turns_with_the_small_steps_of_decoding(monkeypatch, name):
    assert not overlaps(monkeypatch, SEARCHES[name], 0.03)


@pytest.mark.parametrize("name", SEARCHES)
def test_large_steps_are_computed_side_by_side(monkeypatch, name):
    monkeypatch.setattr(small_passes, "SMALL", 0)
    assert overlaps(monkeypatch, SEARCHES[name], 60.0)


def test_a_pass_is_small_by_its_tokens_and_weights(monkeypatch):
    model = torch.nn.Linear(7, 3)  # 24 weights
    monkeypatch.setattr(small_passes, "SMALL", 241)
    assert small_passes.pass_lock(model, 10) is small_passes.pass_lock(model, 1)
    assert small_passes.pass_lock(model, 11) is not small_passes.pass_lock(model, 10)
    assert small_passes.pass_lock(model.to("meta"), 1) is not small_passes.pass_lock(torch.nn.Linear(1, 1), 1)


def test_a_stream_that_waits_for_its_reader_holds_up_nobody():
    source, lengths = sources(1)
    tokens = stream(Writer.translating(translator(), source, lengths), **OPTIONS)
    assert isinstance(next(tokens), int)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(greedy, Writer.translating(translator(), source, lengths), **OPTIONS)
        assert other.result(60)
