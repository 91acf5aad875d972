"""Forward passes that raise while the watch goes on: what they recorded is marked, and counts in no statistics."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from clearhead import KeyValueCache, Record, watch
from clearhead.lens.capture.collector import describe_exception
from tests.lens.seen_calls import built, tokens

NAMES = ["decoder.0.self", "decoder.1.self"]


class InterruptionByUser(BaseException):
    """Like KeyboardInterrupt, which modules do not report to hooks."""


@contextlib.contextmanager
def failing(module: nn.Module, run: int, error: BaseException) -> Iterator[None]:
    """Within it, a module raises at the end of its run of this number, from 1."""
    runs = []

    def fail(*_: object) -> None:
        runs.append(run)
        if len(runs) == run:
            raise error

    hook = module.register_forward_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def watch_failing(model: nn.Module, run: int, error: BaseException, warning: str, **options: Any) -> Iterator[Record]:
    """A watch in which the first layer of the decoder raises in one run, and which warns of it at its end."""
    stack = getattr(model, "decoder", None) or model.model
    with pytest.warns(UserWarning, match=warning), failing(stack.layers[0], run, error), watch(model, **options) as one:
        yield one


def run_all(model: nn.Module, lengths: tuple[int, ...], error: BaseException) -> None:
    """Passes over texts of these lengths; an exception of this kind is caught."""
    for length in lengths:
        with contextlib.suppress(type(error)):
            model(tokens(3, length))


def count_queries(record: Record) -> dict[str, int]:
    return {name: int(found.queries[0]) for name, found in record.statistics().items()}


ERRORS = [
    (MemoryError("none left\nof 5 GB"), "MemoryError: none left"),
    (InterruptionByUser(), "an exception that modules do not report"),
]


@pytest.mark.parametrize("keep", ["none", "statistics"])
@pytest.mark.parametrize(("error", "cause"), ERRORS, ids=["exception", "interruption"])
def test_a_pass_that_raised_is_marked_and_counts_in_no_statistics(keep, error, cause):
    model, warning = built("Decoder"), rf"^1 forward pass ended in an exception \({cause}.*leaves out"
    with watch_failing(model, 2, error, warning, keep=keep) as record:
        run_all(model, (5, 7, 11), error)
    assert count_queries(record) == dict.fromkeys(NAMES, 3 * (5 + 11))
    if keep == "none":
        assert [len(call) for call in record.calls] == [2, 1, 2]
        assert [call.interrupted is None for call in record.calls] == [True, False, True]
        assert f"call 1 interrupted: {cause}" in repr(record)
        assert f"interrupted by {cause}" in repr(record.calls[1])


def test_an_interruption_of_the_last_pass_is_noticed_when_the_watch_ends():
    model, error = built("Decoder"), InterruptionByUser()
    with watch_failing(model, 2, error, r"record.calls\[1\]$") as record:
        run_all(model, (5, 7), error)
    assert count_queries(record) == dict.fromkeys(NAMES, 3 * 5)


def test_an_exception_that_leaves_the_watch_is_marked_too_in_files_and_tables(tmp_path):
    model = built("Decoder")
    with failing(model.decoder.layers[0], 2, MemoryError()), pytest.raises(MemoryError), watch(model) as record:
        run_all(model, (5, 7), ValueError())
    assert record["decoder.0.self"].keys == 5, "not that of the complete call"
    record.save(tmp_path / "a.record")
    for one in (record, Record.load(tmp_path / "a.record")):
        assert [call.interrupted for call in one.calls] == [None, "MemoryError"]
        table = one.to_numpy("query")
        assert (table["interrupted"] == (table["call"] == 1)).all()
        assert set(one.to_numpy("head")["queries"].tolist()) == {3 * 5}


def test_a_record_of_nothing_but_an_interrupted_pass_can_be_read_but_has_no_statistics():
    model, error = built("Decoder"), ValueError("enough")
    with watch_failing(model, 1, error, "ValueError: enough") as record:
        run_all(model, (5,), error)
    assert record["decoder.0.self"].keys == 5
    assert record.statistics() == {}


def test_a_pass_within_the_handler_of_an_exception_is_complete():
    model = built("Decoder")
    with watch(model) as record:
        try:
            raise MemoryError
        except MemoryError:
            model(tokens(1, 5))
    assert record.calls[0].interrupted is None


def test_a_step_that_raised_marks_its_generation_and_what_goes_on_begins_a_call():
    model, text, cache = built("Decoder"), tokens(2, 11), KeyValueCache()
    with watch_failing(model, 3, MemoryError(), r"record.calls\[0\]$") as record:
        for part in text.split([5, 1, 1, 1, 3], 1):
            with contextlib.suppress(MemoryError):
                model(part, cache=cache)
    assert [call.interrupted is None for call in record.calls] == [False, True]
    assert [call["decoder.0.self"].queries.tolist() for call in record.calls] == [[*range(7)], [*range(7, 11)]]
    assert count_queries(record) == dict.fromkeys(NAMES, 2 * 4)


def test_an_encoder_or_a_decoder_by_itself_is_followed_too():
    model = built("EncoderDecoder")
    with watch_failing(model, 2, MemoryError(), r"record.calls\[1\]$") as record:
        context = model.encode(tokens(1, 5))
        for length in (3, 7, 9):
            with contextlib.suppress(MemoryError):
                model.decode(tokens(1, length), context)
    assert [call.interrupted is None for call in record.calls] == [True, False, True]
    assert [len(call) for call in record.calls] == [6, 2, 4]


def test_an_exception_is_described_in_a_line():
    assert describe_exception(KeyError()) == "KeyError"
    assert describe_exception(MemoryError("x" * 300 + "\ny")) == f"MemoryError: {'x' * 200}"


@pytest.mark.parametrize("keep", ["none", "statistics"])
def test_an_interrupted_decoder_does_not_go_on_with_the_encoder_of_the_next_text(keep):
    model, error = built("EncoderDecoder"), InterruptionByUser()
    with watch_failing(model, 2, error, "^1 forward pass", keep=keep) as record:
        for length in (5, 7, 11):
            with contextlib.suppress(InterruptionByUser):
                model.decode(tokens(3, length), model.encode(tokens(3, length)))
    assert set(count_queries(record).values()) == {3 * (5 + 11)}
    if keep == "none":
        assert [call.interrupted is None for call in record.calls] == [True, False, True]
