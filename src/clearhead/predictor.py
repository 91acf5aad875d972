"""load(name or path): loads a trained model as a `Predictor`, which maps raw inputs to predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

import clearhead.shipped as shipped
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.formatting import suggest_name
from clearhead.lens import Record, watch
from clearhead.lens.analysis.ablation import count_heads
from clearhead.lens.record.call_metadata import CallMetadata
from clearhead.model import Model
from clearhead.model.devices import resolve_device
from clearhead.model_folder import CONFIG, ModelFolder
from clearhead.tasks import Prediction, Task
from clearhead.tasks.answerer import Evaluation, StreamingAnswerer
from clearhead.tasks.media import SoundInput, media_to_json
from clearhead.tasks.processor import AnyProcessor, Columns
from clearhead.tasks.settings import option_names, refuse_unknown, validate
from clearhead.tasks.trace import Trace, Tracer
from clearhead.text import Row
from clearhead.text.documents import is_plain_text

DATA = (str, Path, Mapping)
Examples = str | Path | Mapping[str, str | Path] | Sequence[Row] | Sequence[Sequence[Any]]
FINE_MAP_FROM_TOKENS = 8192  # longer texts get maps with more pixels
FINE_MAP_PIXELS = 2048  # largest width and height of such a map
ALL_MAPS_PIXELS = 2**28  # largest number of pixels of all maps of a model together
NEXT_TOKENS = 5  # most probable next tokens that a record keeps for each token


def load(path_or_name: str | Path, *, device: str = "auto", base: str | Path | None = None) -> Predictor:
    """A trained model, from its folder, from the folder of its run, or a shipped one by its name.

    An adapter is merged into its base model: the one of training, or the one in the folder `base`, if it was moved.
    """
    resolved = resolve_device(device)
    folder = ModelFolder.open(find_model(path_or_name))
    path = folder.path.resolve()
    name = path.parent.name if path.name == "model" else path.name  # a run's model is called as the run
    processor = folder.processor()
    model = folder.model(resolved, processor=processor, base=base).requires_grad_(False)
    return Predictor(model, folder.task, processor, name=name, folder=path, columns=folder.columns())


def find_model(path_or_name: str | Path) -> Path:
    """The folder of a model; one that exists wins over a shipped one of its name, which `shipped:NAME` always means."""
    path, name = Path(path_or_name), str(path_or_name)
    shipped_model = shipped.model(name.removeprefix(shipped.PREFIX))
    trained = any((path / part / CONFIG).exists() for part in ("", "model"))
    if path.exists() and (trained or shipped_model is None):
        return path
    if shipped_model is None:
        wanted, names = name.removeprefix(shipped.PREFIX), shipped.models()
        what = f"the shipped ones are {', '.join(names)}" if names else "none are shipped"
        hint = suggest_name(wanted, names, otherwise="")
        raise CheckpointError(
            f"there is no folder {name!r}, and no shipped model is called {wanted!r}; {what}{hint and '; '}{hint}"
        )
    return shipped_model


class Predictor:
    """A model together with what turns raw input into tokens, and its output into answers."""

    def __init__(
        self,
        model: Model,
        task: Task,
        processor: AnyProcessor,
        *,
        name: str,
        folder: Path | None = None,
        columns: Columns = None,
    ) -> None:
        self.model, self.task, self.processor, self.name, self.folder = model, task, processor, name, folder
        self.device = next(model.parameters()).device
        self.columns = columns  # of the files that it was trained on, where they are not the task's
        self.answerer = task.answerer(processor, model)
        self.tracer = None if task.tracer is None else task.tracer(task.name, self.answerer)

    @overload
    def predict(self, inputs: str | Path, *, inputs_before: int = 0, **options: Any) -> Prediction: ...

    @overload
    def predict(self, inputs: Sequence[Any], *, inputs_before: int = 0, **options: Any) -> list[Prediction]: ...

    def predict(self, inputs: Any, *, inputs_before: int = 0, **options: Any) -> Prediction | list[Prediction]:
        """An answer for one input, or a list of them for several. `options` are those of the task, such as `beams`.

        If the inputs of one request are given in several calls, `inputs_before` is the number of those in earlier
        calls: a language model draws other random numbers for each.
        """
        checked, kind = self.task.read_options("predict", options), self.processor.inputs
        single = kind.is_single(inputs)
        requests = [kind.check(inputs)] if single else self._check_inputs(inputs)
        with torch.inference_mode():
            answers = list(self.answerer.predict(requests, checked, inputs_before=inputs_before))
        return answers[0] if single else answers

    def stream(self, text: Any, *, inputs_before: int = 0, **options: Any) -> Iterator[str]:
        """The answer to one input in pieces, each as soon as it is there, where the task writes its answers."""
        if not isinstance(self.answerer, StreamingAnswerer):
            raise ConfigError(f"{self.task.name} produces its whole answer at once and cannot stream it")
        checked = self.task.read_options("predict", options)
        pieces = self.answerer.stream(self.processor.inputs.check(text), checked, inputs_before=inputs_before)
        while True:
            with torch.inference_mode():  # not while the caller has the piece
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def stream_notes(self, text: Any) -> list[str]:
        """What the user should know about an input before its answer is streamed, such as that it is cut."""
        return self.answerer.stream_notes(text) if isinstance(self.answerer, StreamingAnswerer) else []

    def look(self, text: Any, *, answer: str | None = None, keep: str = "qk", **options: Any) -> Record:
        """What every head looks at while the model reads this text and its answer; `record.open()` shows it.

        The model answers first, unless an `answer` is given, and then reads both in one forward pass. A text that is
        answered in parts is read in parts: `record.calls` has one for each. Other threads may predict or look at the
        same time. `options` are those of `watch` and of the task, such as `beams`. `text` is a path if inputs are
        files.
        """
        if self.tracer is None:
            raise ConfigError(f"{self.task.name} does not trace its forward passes, so there is nothing to look at")
        return look_through(self.tracer, text, name=self.name, answer=answer, keep=keep, **options)

    def evaluate(self, data: Examples, *, columns: Columns = None, **options: Any) -> dict[str, float | str]:
        """Scores on one file, on one per column (`{"source": …, "target": …}`), on `shipped:NAME`, on pairs of texts.

        A file has the columns of the training data, or else the task's, unless `columns` says otherwise: fields of a
        TSV in order ("-" skips one), or the names in a CSV or JSONL, such as `{"source": "zh", "target": "en"}`.
        """
        return self.evaluate_rows(data, columns=columns, **options).scores

    def evaluate_rows(self, data: Examples, *, columns: Columns = None, **options: Any) -> Evaluation:
        """The scores of `evaluate`, with the rows and predictions that they were computed from."""
        rows = self.read_rows(data, columns=columns)
        checked = self.task.read_options("evaluate", options)
        with torch.inference_mode():
            return self.answerer.evaluate(rows, checked)

    def act(self, action: str, *arguments: str | int | Path, as_json: bool = False) -> list[str]:
        """Does what `clearhead TASK MODEL ACTION ARGUMENT …` does, and returns the lines that it prints.

        Models for answers have actions: `act("add", "When do you open?", "At nine.")`, `act("remove", 3)` and
        `act("list")`. They change the model's folder; every process that has loaded it answers accordingly from its
        next call on.
        """
        run = self.task.find_action(action).run
        if self.folder is None:
            raise ConfigError(f"{action} changes the folder of a model, and this model was not loaded from one")
        with torch.inference_mode():
            return run(self.answerer, self.folder, [str(argument) for argument in arguments], as_json)

    def read_rows(self, data: Examples, *, columns: Columns = None) -> list[Row]:
        """The rows of a file, or of examples that are given."""
        if not isinstance(data, DATA):
            return self._make_rows(data, columns)
        documents = self.processor.documents
        if isinstance(data, str) and data.startswith(shipped.PREFIX):
            data = shipped.corpus(data.removeprefix(shipped.PREFIX))
        elif columns is None and not isinstance(data, Mapping):
            # Its columns are those of the training files; a plain text of documents has none.
            columns = self.columns if documents is None or not is_plain_text(Path(data)) else None
        return list(self.processor.read(data, columns, documents))

    def _check_inputs(self, inputs: Any) -> list[Any]:
        if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, Mapping)):
            raise DataError(f"expected an input or a list of inputs, got {inputs!r:.60}")
        check = self.processor.inputs.check
        return [check(request, f"input {number}") for number, request in enumerate(inputs, 1)]

    def _make_rows(self, examples: Iterable[Any], columns: Columns) -> list[Row]:
        """Examples that are given, not read from a file: rows, or texts in the order of the columns."""
        names, kind = self.processor.columns, self.task.input_kind
        if columns is not None:
            raise ConfigError(
                f"columns= applies to files only; give each example as ({', '.join(names)}) and omit columns="
            )
        rows, texts = list[Row](), slice(0 if kind == "text" else 1, None)  # other inputs are checked later
        for number, example in enumerate(examples, 1):
            values = example.values if isinstance(example, Row) else example
            fits = isinstance(values, (tuple, list)) and len(values) == len(names)
            if not fits or not all(isinstance(value, str) for value in values[texts]):
                kinds = "texts" if kind == "text" else f"values (a {kind} or its path, and a text)"
                wanted = f"{len(names)} {kinds}, {', '.join(names)}"
                raise DataError(f"example {number} must be {wanted}; got {values!r:.60}")
            rows.append(example if isinstance(example, Row) else Row(tuple(values), "example", number))
        return rows

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        weights = f"{size / 1e6:.1f} million" if size >= 100_000 else f"{size:,}"
        return f"Predictor({self.name!r}: {self.task.name}, {weights} weights, on {self.device})"


def look_through(
    tracer: Tracer,
    text: Any,
    *,
    name: str,
    answer: str | None = None,
    keep: str = "qk",
    check: Callable[[Sequence[Trace]], None] | None = None,
    **options: Any,
) -> Record:
    """What `Predictor.look` gives, of any model whose forward passes can be traced.

    `check` may refuse the traces, by an error, before the model is run under `watch`.
    """
    if tracer.inputs.kind == "text" and not tracer.inputs.is_single(text):
        raise DataError(f"look() takes one text, got a {type(text).__name__}: {text!r:.60}; call it once per text")
    text = tracer.inputs.check(text)
    shown = tracer.inputs.describe(text)
    task_options = option_names(tracer.options, "look")
    of_watch = [name for name in _option_names(watch) if name not in ("own_thread", "keep")]
    refuse_unknown("look", options, [*_option_names(Predictor.look), *of_watch, *task_options])
    values = {name: options.pop(name) for name in list(options) if name in task_options}
    checked = validate(tracer.options, values, "look")
    with torch.inference_mode():
        traces = tracer.traces(text, answer=answer, options=checked)
        if not traces:
            raise DataError(f"there is nothing to look at: {shown!r} has no tokens")
        if check is not None:
            check(traces)
    return look_at_traces(tracer, traces, shown, name=name, keep=keep, **options)


def look_at_traces(
    tracer: Tracer, traces: Sequence[Trace], shown: str, *, name: str, keep: str = "qk", **options: Any
) -> Record:
    """What every head looks at in these forward passes over one input; `shown` is that input as text, or its name."""
    with torch.inference_mode():
        longest = max(len(tokens) for trace in traces for tokens in trace.reads.values())
        options = {"norms": True, "pixels": _count_pixels(tracer.model, longest), **options}
        with watch(tracer.model, keep=keep, own_thread=True, **options) as record:
            scores = [tracer.run(trace) for trace in traces]

    def piece(kind: str, number: int) -> str:
        return tracer.pieces(kind, [number])[0]

    for call, trace in zip(record.calls, traces, strict=True):
        if trace.media is not None:
            call.number_positions("source", len(trace.reads["source"]))
    record.label(**{kind: partial(piece, kind) for kind in traces[0].reads})
    for call, trace, logits in zip(record.calls, traces, scores, strict=True):
        if isinstance(trace.media, SoundInput):  # times in the recording, of which a call reads one part
            call.labels["source"] = {token: trace.media.name_position(token) for token in trace.reads["source"]}
        call.about = replace(
            describe_answer(tracer, trace, logits),
            media=None if trace.media is None else media_to_json(trace.media),
            model=name,
            task=tracer.name,
            input=shown,
            surfaces={kind: list(texts) for kind, texts in trace.surfaces.items()} or None,
        )
    return record


def _count_pixels(model: nn.Module, tokens: int) -> int:
    """The width and height of maps in pixels: larger for long texts, if the maps of all heads stay small enough."""
    if tokens <= FINE_MAP_FROM_TOKENS:
        return 256
    heads = sum(count_heads(model).values())
    return max(256, min(FINE_MAP_PIXELS, int((ALL_MAPS_PIXELS / max(heads, 1)) ** 0.5)))


def describe_answer(tracer: Tracer, trace: Trace, scores: Float[Tensor, "tokens vocabulary"] | None) -> CallMetadata:
    """The answer of a forward pass, its loss, the probability of each token, and the most probable ones beside it."""
    about = CallMetadata(text=trace.text, given=trace.given, notes=list(trace.notes))
    about.prompt, about.forced = trace.prompt, trace.forced
    about.parts = [(part.text, part.label, part.score) for part in trace.parts] or None
    if scores is None or not trace.writes:
        return about
    kind = list(trace.reads)[-1]
    log_probs = scores.float().log_softmax(-1).cpu()
    best = log_probs.exp().topk(min(NEXT_TOKENS, log_probs.shape[1]))
    about.choices = best.indices.tolist()
    rows = zip(about.choices, best.values.tolist(), strict=True)
    about.next = [list(zip(tracer.pieces(kind, tokens), chances, strict=True)) for tokens, chances in rows]
    about.written, about.writes = list(trace.writes), tracer.pieces(kind, trace.writes)
    written = torch.tensor(trace.writes)
    log_probs_written, is_known = log_probs.gather(1, written.clamp(min=0)[:, None]), (written >= 0).tolist()
    chances, ranks = log_probs_written[:, 0].exp().tolist(), (log_probs > log_probs_written).sum(1).tolist()
    about.chances = [chance if has_token else None for chance, has_token in zip(chances, is_known, strict=True)]
    about.ranks = [rank if has_token else None for rank, has_token in zip(ranks, is_known, strict=True)]
    losses = -log_probs_written[written >= 0, 0]
    about.loss = float(losses.mean()) if len(losses) else None
    return about


def _option_names(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
