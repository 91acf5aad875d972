"""load(name or path): loads a trained model as a `Predictor`, which maps raw inputs to predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from clearhead.lens.record.attention_views import CallMetadata
from clearhead.model import Model
from clearhead.model.devices import resolve_device
from clearhead.model_folder import ModelFolder
from clearhead.tasks import AnyTask, Prediction
from clearhead.tasks.base import Evaluation
from clearhead.tasks.file_inputs import FileInputs
from clearhead.tasks.media import SoundInput, media_to_json
from clearhead.tasks.settings import option_names, refuse_unknown, validate
from clearhead.tasks.trace import Trace, Traceable
from clearhead.text import Row

SHIPPED = "shipped:"
DATA = (str, Path, Mapping)
Columns = Sequence[str] | Mapping[str, str] | None
Examples = str | Path | Mapping[str, str | Path] | Sequence[Row] | Sequence[Sequence[Any]]
LONG, FINE = 8192, 2048  # tokens from which on a map should have so many pixels a side, as far as
PIXELS = 2**28  # all maps together have no more
PROBABLE = 5  # next tokens that are kept


def load(path_or_name: str | Path, *, device: str = "auto", base: str | Path | None = None) -> Predictor:
    """A trained model, from its folder, from the folder of its run, or a shipped one by its name.

    An adapter is merged into its base model: the one of training, or the one in the folder `base`, if it was moved.
    """
    place = resolve_device(device)
    folder = ModelFolder.open(find_model(path_or_name))
    path = folder.path.resolve()
    name = path.parent.name if path.name == "model" else path.name  # a run's model is called as the run
    task = folder.task()
    model = folder.model(place, task=task, base=base).requires_grad_(False)
    return Predictor(model, task, name=name, device=place, folder=path, columns=folder.columns())


def find_model(path_or_name: str | Path) -> Path:
    """The folder of a model; one that exists wins over a shipped one of its name, which `shipped:NAME` always means."""
    path, name = Path(path_or_name), str(path_or_name)
    found = shipped.model(name.removeprefix(SHIPPED))
    trained = any((path / place / "config.json").exists() for place in ("", "model"))
    if path.exists() and (trained or found is None):
        return path
    if found is None:
        known = _unknown(name.removeprefix(SHIPPED), shipped.models(), "model")
        raise CheckpointError(f"there is no folder {name!r}, and {known}")
    return found


class Predictor:
    """A model together with what turns raw input into tokens, and its output into answers."""

    def __init__(
        self,
        model: Model,
        task: AnyTask,
        *,
        name: str,
        device: torch.device,
        folder: Path | None = None,
        columns: Columns = None,
    ) -> None:
        self.model, self.task, self.name, self.device, self.folder = model, task, name, device, folder
        self.columns = columns  # of the files that it was trained on, where they are not the task's

    @overload
    def predict(self, inputs: str | Path, *, inputs_before: int = 0, **options: Any) -> Prediction: ...

    @overload
    def predict(self, inputs: Sequence[Any], *, inputs_before: int = 0, **options: Any) -> list[Prediction]: ...

    def predict(self, inputs: Any, *, inputs_before: int = 0, **options: Any) -> Prediction | list[Prediction]:
        """An answer for one input, or a list of them for several. `options` are those of the task, such as `beams`.

        If the inputs of one request are given in several calls, `inputs_before` is the number of those in earlier
        calls: a language model draws other random numbers for each.
        """
        checked = self.task.read_options("predict", options).model_copy(update={"inputs_before": inputs_before})
        one = self.task.is_single(inputs)
        given = [self.task.check_input(inputs)] if one else _check_inputs(inputs, self.task)
        with torch.inference_mode():
            answers = list(self.task.predict(self.model, given, checked))
        return answers[0] if one else answers

    def stream(self, given: Any, *, inputs_before: int = 0, **options: Any) -> Iterator[str]:
        """The answer to one input in pieces, each as soon as it is there, where the task writes its answers."""
        checked = self.task.read_options("predict", options).model_copy(update={"inputs_before": inputs_before})
        pieces = self.task.stream(self.model, self.task.check_input(given), checked)
        while True:
            with torch.inference_mode():  # not while the caller has the piece
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def look(self, text: Any, *, answer: str | None = None, keep: str = "qk", **options: Any) -> Record:
        """What every head looks at while the model reads this text and its answer; `record.open()` shows it.

        The model answers first, unless an `answer` is given, and then reads both in one forward pass. A text that is
        answered in parts is read in parts: `record.calls` has one for each. Other threads may predict or look at the
        same time. `options` are those of `watch` and of the task, such as `beams`. `text` is a path if inputs are
        files.
        """
        return look_through(self.model, self.task, text, name=self.name, answer=answer, keep=keep, **options)

    def evaluate(self, data: Examples, *, columns: Columns = None, **options: Any) -> dict[str, float | str]:
        """Scores on one file, on one per column (`{"source": …, "target": …}`), on `shipped:NAME`, on pairs of texts.

        `columns` says where a file's names are not those of the training data, or else the task's: the fields of a TSV
        in their order ("-" skips one), or what a CSV or JSONL calls each column, `{"source": "zh", "target": "en"}`.
        """
        return self.evaluate_rows(data, columns=columns, **options).scores

    def evaluate_rows(self, data: Examples, *, columns: Columns = None, **options: Any) -> Evaluation:
        """The scores of `evaluate`, with the rows and predictions that they were computed from."""
        rows = self.read_rows(data, columns=columns)
        checked = self.task.read_options("evaluate", options)
        with torch.inference_mode():
            return self.task.evaluate(self.model, rows, checked)

    def act(self, action: str, *arguments: str | int | Path, as_json: bool = False) -> list[str]:
        """Does what `clearhead TASK MODEL ACTION ARGUMENT …` does, and returns the lines that it prints.

        Models for answers have actions: `act("add", "When do you open?", "At nine.")`, `act("remove", 3)` and
        `act("list")`. They change the model's folder; every process that has loaded it answers accordingly from its
        next call on.
        """
        self.task.check_action(action)
        if self.folder is None:
            raise ConfigError(f"{action} changes the folder of a model, and this model was not loaded from one")
        with torch.inference_mode():
            return self.task.act(action, self.model, self.folder, [str(one) for one in arguments], as_json=as_json)

    def read_rows(self, data: Examples, *, columns: Columns = None) -> list[Row]:
        """The rows of a file, or of examples that are given."""
        if not isinstance(data, DATA):
            return _rows(data, columns, self.task)
        own = isinstance(data, Mapping) or str(data).startswith(SHIPPED) or not self.task.shares_columns(data)
        return list(self.task.read_rows(_located(data), self.columns if columns is None and not own else columns))

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        weights = f"{size / 1e6:.1f} million" if size >= 100_000 else f"{size:,}"
        return f"Predictor({self.name!r}: {self.task.name}, {weights} weights, on {self.device})"


def look_through(
    model: nn.Module,
    task: Traceable,
    text: Any,
    *,
    name: str,
    answer: str | None = None,
    keep: str = "qk",
    check: Callable[[Sequence[Trace]], None] | None = None,
    **options: Any,
) -> Record:
    """What `Predictor.look` gives, of any model with something that knows how it reads a text.

    `check` may refuse the traces, by an error, before the model is run under `watch`.
    """
    if isinstance(task, FileInputs):
        text = task.check_input(text)
    elif not isinstance(text, str):
        raise DataError(f"look() takes one text, got a {type(text).__name__}: {text!r:.60}; call it once per text")
    shown = task.describe_input(text) if isinstance(task, FileInputs) else text
    own = option_names(task.options, "look")
    of_watch = [name for name in _option_names(watch) if name not in ("own_thread", "keep")]
    refuse_unknown("look", options, [*_option_names(Predictor.look), *of_watch, *own])
    asked = validate(task.options, {name: options.pop(name) for name in list(options) if name in own}, "look")
    with torch.inference_mode():
        traces = task.traces(model, text, answer=answer, options=asked)
        if not traces:
            raise DataError(f"there is nothing to look at: {shown!r} has no tokens")
        if check is not None:
            check(traces)
    return look_at_traces(model, task, traces, shown, name=name, keep=keep, **options)


def look_at_traces(
    model: nn.Module,
    task: Traceable,
    traces: Sequence[Trace],
    shown: str,
    *,
    name: str,
    keep: str = "qk",
    **options: Any,
) -> Record:
    """What every head looks at in these forward passes over one input; `shown` is that input as text, or its name."""
    with torch.inference_mode():
        longest = max(len(tokens) for trace in traces for tokens in trace.reads.values())
        options = {"norms": True, "pixels": _pixels(model, longest), **options}
        with watch(model, keep=keep, own_thread=True, **options) as record:
            scores = [task.run_trace(model, trace) for trace in traces]

    def piece(kind: str, number: int) -> str:
        return task.pieces(kind, [number])[0]

    for call, trace in zip(record.calls, traces, strict=True):
        if trace.media is not None:
            call.number_positions("source", len(trace.reads["source"]))
            call.about["media"] = media_to_json(trace.media)
    record.label(**{kind: partial(piece, kind) for kind in traces[0].reads})
    for call, trace, written in zip(record.calls, traces, scores, strict=True):
        if isinstance(trace.media, SoundInput):  # times in the recording, of which a call reads one part
            call.labels["source"] = {place: trace.media.name_position(place) for place in trace.reads["source"]}
        call.about.update({"model": name, "task": task.name, "input": shown})
        call.about.update(describe_answer(task, trace, written))
        if trace.surfaces:
            call.about["surfaces"] = {kind: list(texts) for kind, texts in trace.surfaces.items()}
    return record


def _pixels(model: nn.Module, tokens: int) -> int:
    """How fine maps should be: where exact weights cannot be had at a glance, as fine as there is room for."""
    if tokens <= LONG:
        return 256
    heads = sum(count_heads(model).values())
    return max(256, min(FINE, int((PIXELS / max(heads, 1)) ** 0.5)))


def describe_answer(task: Traceable, trace: Trace, scores: Float[Tensor, "tokens vocabulary"] | None) -> CallMetadata:
    """The answer of a forward pass, its loss, the probability of each token, and the most probable ones beside it."""
    about: CallMetadata = {"text": trace.text, "given": trace.given, "notes": list(trace.notes)}
    about.update({"prompt": trace.prompt, "forced": trace.forced})
    if trace.parts:
        about["parts"] = [list(part) for part in trace.parts]
    if scores is None or not trace.writes:
        return about
    kind = list(trace.reads)[-1]
    sure = scores.float().log_softmax(-1).cpu()
    best = sure.exp().topk(min(PROBABLE, sure.shape[1]))
    about["choices"] = best.indices.tolist()
    pieces = [task.pieces(kind, row) for row in about["choices"]]
    rows = zip(pieces, best.values.tolist(), strict=True)
    about["next"] = [[list(pair) for pair in zip(*row, strict=True)] for row in rows]
    about["written"], about["writes"] = list(trace.writes), task.pieces(kind, trace.writes)
    written = torch.tensor(trace.writes)
    own, known = sure.gather(1, written.clamp(min=0)[:, None]), (written >= 0).tolist()
    chances, ranks = own[:, 0].exp().tolist(), (sure > own).sum(1).tolist()
    about["chances"] = [one if there else None for one, there in zip(chances, known, strict=True)]
    about["ranks"] = [one if there else None for one, there in zip(ranks, known, strict=True)]
    lost = -own[written >= 0, 0]
    about["loss"] = float(lost.mean()) if len(lost) else None
    return about


def _check_inputs(inputs: Any, task: AnyTask) -> list[Any]:
    if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, Mapping)):
        raise DataError(f"expected an input or a list of inputs, got {inputs!r:.60}")
    return [task.check_input(one, f"input {number}") for number, one in enumerate(inputs, 1)]


def _rows(examples: Iterable[Any], columns: Any, task: AnyTask) -> list[Row]:
    """Examples that are given, not read from a file: rows, or texts in the order of the columns."""
    if columns is not None:
        raise ConfigError(
            f"columns= applies to files only; give each example as ({', '.join(task.columns)}) and omit columns="
        )
    rows, texts = list[Row](), slice(0 if task.input_kind == "text" else 1, None)  # other inputs are checked later
    for number, one in enumerate(examples, 1):
        values = one.values if isinstance(one, Row) else one
        fits = isinstance(values, (tuple, list)) and len(values) == len(task.columns)
        if not fits or not all(isinstance(value, str) for value in values[texts]):
            kinds = "texts" if task.input_kind == "text" else f"values (a {task.input_kind} or its path, and a text)"
            wanted = f"{len(task.columns)} {kinds}, {', '.join(task.columns)}"
            raise DataError(f"example {number} must be {wanted}; got {values!r:.60}")
        rows.append(one if isinstance(one, Row) else Row(tuple(values), "example", number))
    return rows


def _located(data: str | Path | Mapping[str, str | Path]) -> str | Path | Mapping[str, str | Path]:
    if not isinstance(data, str) or not data.startswith(SHIPPED):
        return data
    name = data.removeprefix(SHIPPED)
    found = shipped.corpus(name)
    if found is None:
        raise ConfigError(_unknown(name, shipped.corpora(), "corpus"))
    return found


def _unknown(name: str, known: Sequence[str], kind: str) -> str:
    what = f"the shipped ones are {', '.join(known)}" if known else "none are shipped"
    hint = suggest_name(name, known, otherwise="")
    return f"no shipped {kind} is called {name!r}; {what}{hint and '; '}{hint}"


def _option_names(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
