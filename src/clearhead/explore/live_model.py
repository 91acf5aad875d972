"""LiveModel: a loaded model behind the page, which reads new texts or files and answers with heads switched off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from clearhead.errors import DataError, LensError
from clearhead.explore.token_display import display_next_tokens
from clearhead.lens.analysis.ablation import ablate, head_effects
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import AblatedAnswer, CallMetadata, Forward
from clearhead.predictor import Predictor, describe_answer, look_through
from clearhead.tasks.file_inputs import FileInputs, LoadedInput
from clearhead.tasks.media import PictureInput, SoundInput, media_from_json
from clearhead.tasks.settings import option_names, validate
from clearhead.tasks.trace import Trace, Traceable

MAX_CHARACTERS = 100_000  # of a text that a page may send
MAX_SECONDS = 5.0  # that the effects of all heads may take


class LiveModel:
    """A model with the task that tokenizes for it; requests are serialised, since ablation changes the model itself."""

    def __init__(self, model: nn.Module, task: Traceable, name: str, **options: Any) -> None:
        self.model, self.task, self.name, self.options = model, task, name, options
        self.last_duration: float | None = None  # seconds that the last text took
        self.lock = threading.RLock()

    @classmethod
    def from_predictor(cls, predictor: Predictor, **options: Any) -> LiveModel:
        """`options` are those of `Predictor.look`."""
        return cls(predictor.model, predictor.task, predictor.name, **options)

    def look(self, text: Any, **options: Any) -> Record:
        """A record of this text, or of a file by its path or content."""
        if isinstance(text, str) and len(text) > MAX_CHARACTERS:
            raise DataError(f"the text has {len(text):,} characters; the page takes {MAX_CHARACTERS:,} at most")
        with self.lock:
            begin = time.perf_counter()
            record = look_through(self.model, self.task, text, name=self.name, **{**self.options, **options})
            self.last_duration = time.perf_counter() - begin
            return record

    @property
    def input_kind(self) -> str:
        """What it takes: "text", "picture" or "sound"."""
        return self.task.input_kind if isinstance(self.task, FileInputs) else "text"

    def look_at_file(self, name: str, content: bytes) -> Record:
        """A record of a picture or sound that a page has sent; `name` is only shown, no file of it is opened."""
        if not isinstance(self.task, FileInputs):
            raise DataError("this model takes a text, not a file")
        suffix = PurePath(name).suffix.lower()
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"input{suffix if suffix in self.task.suffixes else ''}"
            path.write_bytes(content)
            try:
                loaded = self.task.load_file(path)
            except DataError as error:
                raise DataError(str(error).replace(str(path), name)) from None
        return self.look(LoadedInput(name, loaded))

    def answer_without(self, record: Record, call: int, heads: Mapping[str, Collection[int]]) -> AblatedAnswer:
        """What the model answers without these heads, and its loss on the answer that it gave with them."""
        return self._ablate(record, [call], heads)[0]

    def answer_without_each(
        self, record: Record, calls: Sequence[int], progress: Callable[[int], None]
    ) -> list[dict[str, dict[str, AblatedAnswer]]]:
        """The same for every single head, by attention and head number, for each of these calls of one text.

        The model answers once for each head. `progress` is called with the number of heads that are done.
        """
        first = record.calls[calls[0]]
        found: list[dict[str, dict[str, AblatedAnswer]]] = [{name: {} for name in first.names} for _ in calls]
        heads = [(name, head) for name in first.names for head in first[name].heads]
        for done, (name, head) in enumerate(heads, start=1):
            for one, ablation in zip(found, self._ablate(record, calls, {name: [head]}), strict=True):
                one[name][str(head)] = ablation
            progress(done)
        return found

    def _ablate(
        self, record: Record, numbers: Sequence[int], heads: Mapping[str, Collection[int]]
    ) -> list[AblatedAnswer]:
        """One result a call. A text that was read in several calls is answered once as a whole."""
        calls = [record.calls[number] for number in numbers]
        with self.lock, torch.inference_mode(), ablate(self.model, heads):
            again = [self._repeat(one) for one in calls]
            texts: dict[int, str] = {}
            if any(one.about.get("text") and not one.about.get("given") for one in calls):
                own = option_names(self.task.options, "look")
                asked = {name: value for name, value in self.options.items() if name in own}
                options = validate(self.task.options, asked)
                given = calls[0].about["input"] if (media := _restore_media(calls[0])) is None else media
                answers = self.task.traces(self.model, given, answer=None, options=options)
                texts = {number: answers[number].text for number in numbers}
        new = [texts.get(number) for number in numbers]
        return [_compare_answers(*one) for one in zip(calls, again, new, strict=True)]

    def _repeat(self, call: Forward) -> CallMetadata:
        """The answer to a forward pass that was made before; nothing of a model that writes no tokens."""
        trace = _restore_trace(call)
        if not trace.writes:
            return {}
        return describe_answer(self.task, trace, self.task.run_trace(self.model, trace))

    def measure_effects(
        self, record: Record, number: int = 0, limit: float = MAX_SECONDS
    ) -> dict[str, list[float]] | None:
        """How much the loss of a call grows without each head; None if that would take more than `limit` seconds."""
        call = record.calls[number]
        if call.about.get("loss") is None:
            return None

        def loss() -> float:
            value = self._repeat(call)["loss"]
            assert value is not None, "the recorded call has one"
            return value

        with self.lock, torch.inference_mode():
            loss()
            begin = time.perf_counter()
            loss()
            heads = sum(len(call[name].heads) for name in call.names)
            if (time.perf_counter() - begin) * heads > limit:
                return None
            found = head_effects(self.model, loss, call.names)
        return {name: effect.tolist() for name, effect in found.items()}


def _compare_answers(call: Forward, again: CallMetadata, text: str | None) -> AblatedAnswer:
    """The answer and loss of a call, before and after."""
    before = call.about.get("text")
    return {
        "text": text if before and not call.about.get("given") else None,
        "before_text": before,
        "loss": [call.about.get("loss"), again.get("loss")],
        "next": display_next_tokens(again.get("next", [])),
    }


def _restore_trace(call: Forward) -> Trace:
    """The tokens that went into a call, from its record."""
    if "input" not in call.about:
        raise LensError("the record does not contain the model's input; run clearhead look with the model and a text")
    order = ["source", "target", "tokens"]  # what is written comes last
    reads = {kind: call.ids[kind][0].tolist() for kind in sorted(call.ids, key=order.index)}
    about = call.about
    return Trace(
        reads, about.get("written", []), about.get("text", ""), bool(about.get("given")), media=_restore_media(call)
    )


def _restore_media(call: Forward) -> PictureInput | SoundInput | None:
    return media_from_json(call.about["media"]) if "media" in call.about else None
