"""LiveModel: a loaded model behind the page, which reads new texts or files and answers with heads switched off.

Its requests wait in a ModelLane: one runs at a time, in their order, and ends early if its page has left.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from clearhead.attention.positions import Learned
from clearhead.errors import ConfigError, DataError, LensError
from clearhead.explore.token_axis import display_next_tokens, display_tokens
from clearhead.lens.analysis.ablation import ablate, head_effects
from clearhead.lens.analysis.hidden_tokens import hide
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward
from clearhead.lens.record.call_metadata import AnswerChange, CallMetadata
from clearhead.model.inference_view import inference_view
from clearhead.predictor import Predictor, describe_answer, look_at_traces, look_through
from clearhead.tasks.media import media_from_json
from clearhead.tasks.settings import Options, option_names, validate
from clearhead.tasks.trace import AnswerPart, ContinuableTracer, Trace, Tracer

MAX_CHARACTERS = 100_000  # of a text that a page may send
MAX_TOKENS = 32_768  # of a text that a page may send: q and k of all of them are kept in memory
POSITION_TABLES = ("wpe", "position_embeddings", "embed_positions")  # their names in Hugging Face models
LONG_TEXT = 500  # characters; longer texts are read in the lane of long inputs
LONG_FILE = 2**20  # bytes; larger files are read in that lane
LONG_RECORD = 1000  # tokens read and written in all calls; requests about longer records go to that lane
MAX_SECONDS = 5.0  # that the effects of all heads may take
CHECK_INTERVAL = 0.05  # seconds between two checks whether the page of a request has left
FREE_DELAY = 1.0  # seconds after which requests that are being answered no longer hold tensors of the text before


class LiveModel:
    """A model whose forward passes can be traced.

    Ablation changes the model itself, so requests take turns. Long texts run in a lane of their own, with their own
    module objects over the same weights: short ones need not wait for them.
    """

    def __init__(self, tracer: Tracer, name: str, **options: Any) -> None:
        self.tracer, self.name = tracer, name
        names = option_names(tracer.options, "look")
        self.options = validate(tracer.options, {key: value for key, value in options.items() if key in names})
        self.look_options = options
        self.watch_options = {key: value for key, value in options.items() if key not in names}
        self.max_tokens = min(MAX_TOKENS, count_positions(tracer.model) or MAX_TOKENS)
        for module in tracer.model.modules():
            module.register_forward_pre_hook(end_if_left)
        self.short = ModelLane(tracer)
        self.long = ModelLane(tracer.with_model(inference_view(tracer.model)), frees_memory=True)

    @classmethod
    def from_predictor(cls, predictor: Predictor, **options: Any) -> LiveModel:
        """`options` are those of `Predictor.look`."""
        if predictor.tracer is None:
            raise ConfigError(f"{predictor.task.name} does not trace its forward passes: there is nothing to look at")
        return cls(predictor.tracer, predictor.name, **options)

    @property
    def input_kind(self) -> str:
        """What it takes: "text", "picture" or "sound"."""
        return self.tracer.inputs.kind

    @property
    def can_continue(self) -> bool:
        """Whether the model writes token by token, so that it can go on from another token."""
        return isinstance(self.tracer, ContinuableTracer)

    def look(self, text: Any, **options: Any) -> Record:
        """A record of this text, or of a file by its path or content."""
        if isinstance(text, str) and len(text) > MAX_CHARACTERS:
            raise DataError(f"the text has {len(text):,} characters; the page takes {MAX_CHARACTERS:,} at most")
        return self._look(text, isinstance(text, str) and len(text) > LONG_TEXT, **options)

    def look_at_file(self, name: str, content: bytes) -> Record:
        """A record of a picture or sound that a page has sent; `name` is only shown, no file of it is opened."""
        return self._look(self.tracer.inputs.decode_file(name, content), len(content) > LONG_FILE)

    def _look(self, text: Any, long: bool, **options: Any) -> Record:
        with (self.long if long else self.short).turn() as tracer:
            return look_through(tracer, text, name=self.name, **{**self.look_options, **options})

    def check_length(self, traces: Sequence[Trace]) -> None:
        """Raises DataError for more tokens than a page may ask for; `look(text, check=live.check_length)`."""
        lengths = [len(tokens) for trace in traces for tokens in trace.reads.values()]
        if max(lengths, default=0) > self.max_tokens:
            raise DataError(f"the text has {max(lengths):,} tokens; the page takes {self.max_tokens:,} at most")
        if sum(lengths) > 2 * MAX_TOKENS:
            raise DataError(f"text and answer have {sum(lengths):,} tokens; the page takes {2 * MAX_TOKENS:,} at most")

    def answer_without(
        self,
        record: Record,
        call: int,
        heads: Mapping[str, Collection[int]],
        hidden: Mapping[str, Sequence[int]] | None = None,
    ) -> AnswerChange:
        """What the model answers without these heads and tokens, and its loss on the answer that it gave with them.

        `hidden` has positions of tokens by text, as `clearhead.hide` takes them: their keys are masked in all layers.
        """
        ids, context = record.calls[call].ids, self.tracer.context
        if hidden and context is not None and "tokens" in ids and ids["tokens"].shape[1] >= context:
            raise LensError(
                f"the text fills the model's context of {context:,} tokens, which moves on while it writes, so that "
                "positions are not fixed; hide words in a shorter text"
            )
        for text, positions in (hidden or {}).items():
            tokens = ids[text].shape[1] if text in ids else 0
            if outside := [position for position in positions if not 0 <= position < tokens]:
                raise LensError(f"there is no token {outside[0]} of {text!r:.40}, which has {tokens:,}")
        return self._ablate(record, [call], heads, hidden or {})[0]

    def answer_without_each(
        self, record: Record, calls: Sequence[int], progress: Callable[[int], None]
    ) -> list[dict[str, dict[str, AnswerChange]]]:
        """The same for every single head, by attention and head number, for each of these calls of one text.

        The model answers once for each head; `progress(1)` is called after each.
        """
        first = record.calls[calls[0]]
        answers: list[dict[str, dict[str, AnswerChange]]] = [{name: {} for name in first.names} for _ in calls]
        for name in first.names:
            for head in first[name].heads:
                for answers_of_call, answer in zip(answers, self._ablate(record, calls, {name: [head]}), strict=True):
                    answers_of_call[name][str(head)] = answer
                progress(1)
        return answers

    def _ablate(
        self,
        record: Record,
        numbers: Sequence[int],
        heads: Mapping[str, Collection[int]],
        hidden: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> list[AnswerChange]:
        """One result a call."""
        calls = [record.calls[number] for number in numbers]
        with (
            self._choose_lane(record).turn() as tracer,
            torch.inference_mode(),
            hide(tracer.model, hidden),
            ablate(tracer.model, heads),
        ):
            again = [_repeat(tracer, call) for call in calls]
            texts = _answer_again(tracer, calls, numbers, self.options)
        sampled = isinstance(tracer, ContinuableTracer) and tracer.samples(self.options)
        return [_compare_answers(*answers, sampled) for answers in zip(calls, again, texts, strict=True)]

    def _choose_lane(self, record: Record) -> ModelLane:
        tokens = sum(ids.shape[1] for call in record.calls for ids in call.ids.values())
        return self.long if tokens > LONG_RECORD else self.short

    def continue_answer(self, record: Record, number: int, step: int, choice: int) -> AnswerChange:
        """The answer of a call with another token at a step, and what the model writes after that.

        `choice` counts the most probable tokens at that step, which the record has.
        """
        with self._choose_lane(record).turn() as tracer:
            old, new = _continue(tracer, record.calls[number], step, choice, self.options)
            if old.prompt != new.prompt:  # within the prompt of a language model, of which a part is now the answer
                assert isinstance(tracer, ContinuableTracer)
                old = old._replace(text=tracer.written_text(old._replace(prompt=new.prompt)))
        return AnswerChange(new.text, old.text)

    def look_at_continuation(self, record: Record, number: int, step: int, choice: int) -> Record:
        """A record of the same input with the answer of `continue_answer`; other parts of a text stay as they were."""
        with self._choose_lane(record).turn() as tracer:
            _, new = _continue(tracer, record.calls[number], step, choice, self.options)
            text = record.calls[number].about.input or ""
            traces = [
                new if call is record.calls[number] else _restore_trace(call)
                for call in record.calls
                if call.about.input == text
            ]
            return look_at_traces(tracer, traces, text, name=self.name, **self.watch_options)

    def measure_effects(
        self, record: Record, number: int = 0, limit: float = MAX_SECONDS
    ) -> dict[str, list[float]] | None:
        """How much the loss of a call grows without each head; None if that would take more than `limit` seconds."""
        call = record.calls[number]
        if call.about.loss is None:
            return None
        lane = self._choose_lane(record)
        with lane.turn() as tracer, torch.inference_mode():

            def loss() -> float:
                value = _repeat(tracer, call).loss
                assert value is not None, "the recorded call has one"
                return value

            loss()
            begin = time.perf_counter()
            loss()
            heads = sum(len(call[name].heads) for name in call.names)
            if (time.perf_counter() - begin) * heads > limit:
                return None
            effects = head_effects(tracer.model, loss, call.names, progress=lambda *_: lane.give_way())
        return {name: effect.tolist() for name, effect in effects.items()}


def count_positions(model: nn.Module) -> int | None:
    """How many tokens the smallest table of learned positions has room for; None if the model has no table.

    >>> count_positions(nn.ModuleDict({"wpe": nn.Embedding(1024, 8)}))
    1024
    """
    sizes = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and (isinstance(module, Learned) or name.endswith(POSITION_TABLES)):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts from there on
            sizes.append(module.num_embeddings - int(getattr(module, "offset", unused)))  # of OPT's and BART's class
    return min(sizes, default=None)


def _repeat(tracer: Tracer, call: Forward) -> CallMetadata:
    """The answer to a forward pass that was made before; nothing of a model that writes no tokens."""
    trace = _restore_trace(call)
    return describe_answer(tracer, trace, tracer.run(trace)) if trace.writes else CallMetadata()


def _answer_again(
    tracer: Tracer, calls: Sequence[Forward], numbers: Sequence[int], options: Options
) -> list[str | None]:
    """The answers that the model gives now; None for those that were given to it.

    A text that was read in several calls is answered once as a whole; an answer whose beginning was chosen begins
    with that again.
    """
    if isinstance(tracer, ContinuableTracer) and any(call.about.forced for call in calls):
        traces = [_restore_trace(call) for call in calls]
        return [
            tracer.continue_trace(trace, list(trace.writes[: trace.forced]), options=options).text for trace in traces
        ]
    if not any(call.about.text and not call.about.given for call in calls):
        return [None] * len(calls)
    first = _restore_trace(calls[0])
    model_input = tracer.inputs.check(calls[0].about.input) if first.media is None else first.media
    answers = tracer.traces(model_input, answer=None, options=options)
    return [answers[number].text for number in numbers]


@torch.inference_mode()
def _continue(tracer: Tracer, call: Forward, step: int, choice: int, options: Options) -> tuple[Trace, Trace]:
    """The trace of a call, and the one that goes on from another token."""
    if not isinstance(tracer, ContinuableTracer):
        raise LensError("this model does not write token by token, so it cannot go on from another token")
    choices, old = call.about.choices or [], _restore_trace(call)
    if not 0 <= step < len(choices) or not 0 <= choice < len(choices[step]):
        raise LensError(f"the record has no alternative {choice} at place {step}; it has {len(choices):,} places")
    token = choices[step][choice]
    new = tracer.continue_trace(old, [*old.writes[:step], token], options=options)
    shown = display_tokens(tracer.pieces(list(old.reads)[-1], [token])).shown[0]
    return old, new._replace(notes=[*new.notes, f"the model was made to write {shown}, and then went on by itself"])


def _compare_answers(call: Forward, again: CallMetadata, text: str | None, sampled: bool) -> AnswerChange:
    """The answer and loss of a call, before and after."""
    before = call.about.text
    return AnswerChange(
        text=text if before and not call.about.given else None,
        before_text=before,
        loss=[call.about.loss, again.loss],
        next=display_next_tokens(again.next or []),
        sampled=sampled,
    )


def _restore_trace(call: Forward) -> Trace:
    """The tokens that went into a call, from its record."""
    about = call.about
    if about.input is None:
        raise LensError("the record does not contain the model's input; run clearhead look with the model and a text")
    order = ["source", "target", "tokens"]  # what is written comes last
    return Trace(
        {kind: call.ids[kind][0].tolist() for kind in sorted(call.ids, key=order.index)},
        about.written or [],
        about.text or "",
        bool(about.given),
        notes=about.notes or [],
        surfaces=about.surfaces or {},
        parts=[AnswerPart(*part) for part in about.parts or []],
        media=None if about.media is None else media_from_json(about.media),
        prompt=about.prompt or 0,
        forced=about.forced or 0,
    )


class ModelLane:
    """A queue for one model. A waiting request, or one under way, raises LensError once its page has left.

    With `frees_memory`, what a request used is returned to the system after it.
    """

    def __init__(self, tracer: Tracer, *, frees_memory: bool = False) -> None:
        self.tracer, self.frees_memory = tracer, frees_memory
        self._changed, self._queue = threading.Condition(), deque[object]()  # whoever is first may run the model

    @contextmanager
    def turn(self) -> Iterator[Tracer]:
        """Waits until all requests before this one are done, and yields the tracer. Turns cannot be nested."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
        try:
            self._wait_for(ticket)
            yield self.tracer
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()
            if self.frees_memory:
                free_memory_soon()

    def give_way(self) -> None:
        """Within a turn: lets every request that waits run first, and then goes on."""
        with self._changed:
            self._queue.rotate(-1)
            self._changed.notify_all()
            ticket = self._queue[-1]
        self._wait_for(ticket)

    def _wait_for(self, ticket: object) -> None:
        with self._changed:
            while self._queue[0] is not ticket:
                self._changed.wait(CHECK_INTERVAL)
                end_if_left()


class _Request(threading.local):
    """The request that a thread answers."""

    has_left: Callable[[], bool] | None = None
    next_check = 0.0


_request = _Request()


@contextmanager
def end_when(has_left: Callable[[], bool]) -> Iterator[None]:
    """Within it, what this thread does with a model ends with LensError once `has_left()` is true."""
    _request.has_left = has_left
    try:
        yield
    finally:
        _request.has_left = None


def end_if_left(*_: Any) -> None:
    """Raises LensError if the page of this thread's request has left; also a forward pre-hook of all modules."""
    if _request.has_left is None or (now := time.monotonic()) < _request.next_check:
        return
    _request.next_check = now + CHECK_INTERVAL
    if _request.has_left():
        raise LensError("cancelled: the page that asked for this has left")


def free_memory_soon() -> None:
    """Calls `free_memory` in a second, from another thread."""
    timer = threading.Timer(FREE_DELAY, free_memory)
    timer.daemon = True
    timer.start()


def free_memory() -> None:
    """Frees unused objects, and returns free memory to the system.

    A forward pass and its attentions refer to each other, so that only the garbage collector frees them. glibc keeps
    what is freed below its largest blocks, a gigabyte after a few long texts.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # musl has none
        trim(0)
