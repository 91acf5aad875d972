"""Live: a model behind the page, which reads new text and shows what changes when heads are switched off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from clearhead.errors import DataError, LensError
from clearhead.explore.scene import probable
from clearhead.lens.analysis.ablation import ablate, head_effects
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import CallMetadata, Forward
from clearhead.predictor import Predictor, describe_answer, look_through
from clearhead.tasks.settings import option_names, validate
from clearhead.tasks.trace import Trace, Traceable

LONGEST = 100_000  # characters of a text that a page may send
PATIENCE = 5.0  # seconds that the effects of all heads may take


class Live:
    """A model and what knows how it reads; one request at a time, since a head that is off is off for everybody."""

    def __init__(self, model: nn.Module, task: Traceable, name: str, **options: Any) -> None:
        self.model, self.task, self.name, self.options = model, task, name, options
        self.took: float | None = None  # seconds, for the last text
        self.lock = threading.RLock()

    @classmethod
    def of(cls, predictor: Predictor, **options: Any) -> Live:
        """`options` are those of `Predictor.look`."""
        return cls(predictor.model, predictor.task, predictor.name, **options)

    def look(self, text: str, **options: Any) -> Record:
        """A record of this text."""
        if len(text) > LONGEST:
            raise DataError(f"the text has {len(text):,} characters; the page takes {LONGEST:,} at most")
        with self.lock:
            begin = time.perf_counter()
            record = look_through(self.model, self.task, text, name=self.name, **{**self.options, **options})
            self.took = time.perf_counter() - begin
            return record

    def without(self, record: Record, number: int, heads: Mapping[str, Collection[int]]) -> dict[str, Any]:
        """What the model answers without these heads, and how much it loses on the answer that it gave with them."""
        return self._without(record, [number], heads)[0]

    def without_each(
        self, record: Record, numbers: Sequence[int], progress: Callable[[int], None] | None = None
    ) -> list[dict[str, dict[str, Any]]]:
        """The same for every head alone, by attention and number, for each of these parts of one text.

        The model answers anew for each head. `progress` is told how many heads are done.
        """
        call = record.calls[numbers[0]]
        found: list[dict[str, dict[str, Any]]] = [{name: {} for name in call.names} for _ in numbers]
        heads = [(name, head) for name in call.names for head in call[name].heads]
        for done, (name, head) in enumerate(heads, start=1):
            for one, changes in zip(found, self._without(record, numbers, {name: [head]}), strict=True):
                one[name][str(head)] = changes
            if progress is not None:
                progress(done)
        return found

    def _without(
        self, record: Record, numbers: Sequence[int], heads: Mapping[str, Collection[int]]
    ) -> list[dict[str, Any]]:
        """Of a text in parts the answer to all of it is asked for once."""
        calls = [record.calls[number] for number in numbers]
        with self.lock, torch.inference_mode(), ablate(self.model, heads):
            again = [self._repeat(_trace(one)) for one in calls]
            texts: dict[int, str] = {}
            if any(one.about.get("text") and not one.about.get("given") for one in calls):
                own = option_names(self.task.options, "look")
                asked = {name: value for name, value in self.options.items() if name in own}
                options = validate(self.task.options, asked)
                answers = self.task.traces(self.model, calls[0].about["input"], answer=None, options=options)
                texts = {number: answers[number].text for number in numbers}
        return [_changes(*one) for one in zip(calls, again, [texts.get(number) for number in numbers], strict=True)]

    def _repeat(self, trace: Trace) -> CallMetadata:
        """What the model answers in a forward pass that it made before."""
        return describe_answer(self.task, trace, self.task.run_trace(self.model, trace))

    def effects(self, record: Record, number: int = 0, patience: float = PATIENCE) -> dict[str, list[float]] | None:
        """By how much the loss grows without each head, one after the other; None if that would take too long."""
        call = record.calls[number]
        if call.about.get("loss") is None:
            return None
        trace = _trace(call)

        def loss() -> float:
            value = self._repeat(trace)["loss"]
            assert value is not None, "the recorded call has one"
            return value

        with self.lock, torch.inference_mode():
            loss()
            begin = time.perf_counter()
            loss()
            heads = sum(len(call[name].heads) for name in call.names)
            if (time.perf_counter() - begin) * heads > patience:
                return None
            found = head_effects(self.model, loss, call.names)
        return {name: effect.tolist() for name, effect in found.items()}


def _changes(call: Forward, again: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    """What a call was like, beside what it is like now."""
    before = call.about.get("text")
    text = text if before and not call.about.get("given") else None
    return {
        "text": text,
        "before_text": before,
        "changed": text is not None and text != before,
        "loss": [call.about.get("loss"), again.get("loss")],
        "next": probable(again.get("next", [])),
    }


def _trace(call: Forward) -> Trace:
    """What went into a call, from what the record kept of it."""
    if "input" not in call.about:
        raise LensError("the record does not say what the model was asked; look at a text with the model itself")
    reads = {kind: numbers[0].tolist() for kind, numbers in call.ids.items()}
    about = call.about
    return Trace(reads, about.get("written", []), about.get("text", ""), bool(about.get("given")))
