"""load(name or path): a trained model that answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

import clearhead.shipped as shipped
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.folder import ModelFolder
from clearhead.lens import Record, watch
from clearhead.lens.ablation import head_counts
from clearhead.model import Decoder, Encoder, EncoderDecoder
from clearhead.model.devices import resolve_device
from clearhead.tasks import Prediction, Task
from clearhead.tasks.reading import Reading, Reads
from clearhead.text import Row

SHIPPED = "shipped:"
DATA = (str, Path, Mapping)
LONG, FINE = 8192, 2048  # tokens from which on a map should have so many pixels a side, as far as
PIXELS = 2**28  # all maps together have no more
PROBABLE = 5  # next tokens that are kept


def load(path_or_name: str | Path, *, device: str = "auto") -> Predictor:
    """A trained model, from its folder, from the folder of its run, or a shipped one by its name."""
    place = resolve_device(device)
    folder = ModelFolder.open(find_model(path_or_name))
    path = folder.path.resolve()
    name = path.parent.name if path.name == "model" else path.name  # a run's model is called as the run
    return Predictor(folder.model(place).requires_grad_(False), folder.task(), name=name, device=place)


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
        self, model: Encoder | Decoder | EncoderDecoder, task: Task, *, name: str, device: torch.device
    ) -> None:
        self.model, self.task, self.name, self.device = model, task, name, device

    @overload
    def predict(self, inputs: str, **options: Any) -> Prediction: ...

    @overload
    def predict(self, inputs: Sequence[str], **options: Any) -> list[Prediction]: ...

    def predict(self, inputs: str | Sequence[str], **options: Any) -> Prediction | list[Prediction]:
        """An answer for one text, or a list of them for several. What `options` there are, the task says."""
        _check_options(options, self.task.predict)
        many = [inputs] if isinstance(inputs, str) else _texts(inputs)
        with torch.inference_mode():
            answers = self.task.predict(self.model, many, **options)
        return answers[0] if isinstance(inputs, str) else answers

    def look(self, text: str, *, answer: str | None = None, keep: str = "qk", **options: Any) -> Record:
        """What every head looks at while the model reads this text and its answer; `record.open()` shows it.

        The model answers first, unless an `answer` is given, and then reads both in one forward pass. A text that is
        answered in parts is read in parts: `record.calls` has one for each. Other threads may predict or look at the
        same time. `options` are those of `watch` and of the task's `readings`, such as `beams`.
        """
        return look_through(self.model, self.task, text, name=self.name, answer=answer, keep=keep, **options)

    def evaluate(
        self,
        data: str | Path | Mapping[str, str | Path] | Sequence[Row] | Sequence[Sequence[str]],
        *,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> dict[str, float | str]:
        """Scores on a file, on one file a column (`{"source": …, "target": …}`), on `shipped:NAME`, on pairs of texts.

        `columns` names the fields of a file in their order, where they are not the task's own.
        """
        if isinstance(data, DATA):
            rows = list(self.task.read(_located(data), columns))
        else:
            rows = _rows(data, columns, self.task)
        _check_options(options, self.task.evaluate, self.task.predict)
        with torch.inference_mode():
            return self.task.evaluate(self.model, rows, **options)

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return f"Predictor({self.name!r}: {self.task.name}, {size / 1e6:.1f} million weights, on {self.device})"


def look_through(
    model: nn.Module,
    task: Reads,
    text: str,
    *,
    name: str,
    answer: str | None = None,
    keep: str = "qk",
    **options: Any,
) -> Record:
    """What `Predictor.look` gives, of any model with something that knows how it reads a text."""
    if not isinstance(text, str):
        raise DataError(
            f"one text is looked at, not a {type(text).__name__}: {text!r:.60}; call it for each of several"
        )
    _check_options(options, Predictor.look, watch, task.readings, fixed=("own_thread",))
    own = inspect.signature(task.readings).parameters
    asked = {option: options.pop(option) for option in list(options) if option in own}
    with torch.inference_mode():
        readings = task.readings(model, text, answer=answer, **asked)
        if not readings:
            raise DataError(f"there is nothing to look at: {text!r} has no tokens")
        longest = max(len(tokens) for reading in readings for tokens in reading.reads.values())
        options = {"norms": True, "pixels": _pixels(model, longest), **options}
        with watch(model, keep=keep, own_thread=True, **options) as record:
            scores = [task.read_through(model, reading) for reading in readings]
    for call, reading, written in zip(record.calls, readings, scores, strict=True):
        call.about.update({"model": name, "task": task.name, "input": text, **told(task, reading, written)})

    def piece(kind: str, number: int) -> str:
        return task.pieces(kind, [number])[0]

    return record.label(**{kind: partial(piece, kind) for kind in readings[0].reads})


def _pixels(model: nn.Module, tokens: int) -> int:
    """How fine maps should be: where exact weights cannot be had at a glance, as fine as there is room for."""
    if tokens <= LONG:
        return 256
    heads = sum(head_counts(model).values())
    return max(256, min(FINE, int((PIXELS / max(heads, 1)) ** 0.5)))


def told(task: Reads, reading: Reading, scores: Tensor | None) -> dict[str, Any]:
    """What a page shows beside the weights: what the answer is, how sure it was, and what else might have come."""
    about: dict[str, Any] = {"text": reading.text, "given": reading.given, "notes": list(reading.notes)}
    if scores is None or not reading.writes:
        return about
    kind = list(reading.reads)[-1]
    sure = scores.float().log_softmax(-1).cpu()
    best = sure.exp().topk(min(PROBABLE, sure.shape[1]))
    pieces = [task.pieces(kind, row) for row in best.indices.tolist()]
    rows = zip(pieces, best.values.tolist(), strict=True)
    about["next"] = [[list(pair) for pair in zip(*row, strict=True)] for row in rows]
    about["written"], about["writes"] = list(reading.writes), task.pieces(kind, reading.writes)
    written = torch.tensor(reading.writes)
    lost = -sure.gather(1, written.clamp(min=0)[:, None])[written >= 0, 0]
    about["loss"] = float(lost.mean()) if len(lost) else None
    return about


def _texts(inputs: Any) -> list[str]:
    if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, Mapping)):
        raise DataError(f"a text is wanted, or a list of texts; got {inputs!r:.60}")
    many = list(inputs)
    for number, text in enumerate(many, 1):
        if not isinstance(text, str):
            raise DataError(f"input {number} must be a text, got {text!r:.60}")
    return many


def _rows(examples: Iterable[Any], columns: Sequence[str] | None, task: Task) -> list[Row]:
    """Examples that are given, not read from a file: rows, or texts in the order of the columns."""
    if columns is not None:
        raise ConfigError(f"columns are those of a file; give each example as {', '.join(task.columns)}, in this order")
    rows = list[Row]()
    for number, one in enumerate(examples, 1):
        values = one.values if isinstance(one, Row) else one
        fits = isinstance(values, (tuple, list)) and len(values) == len(task.columns)
        if not fits or not all(isinstance(value, str) for value in values):
            wanted = f"{len(task.columns)} texts, {', '.join(task.columns)}"
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
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    what = f"the shipped ones are {', '.join(known)}" if known else "none are shipped"
    return f"no shipped {kind} is called {name!r}; {what}{hint}"


def _check_options(options: Mapping[str, Any], *functions: Callable[..., Any], fixed: Sequence[str] = ()) -> None:
    """Refuses an option that none of the task's functions has, or whose value is fixed."""
    parameters = [one for function in functions for one in inspect.signature(function).parameters.values()]
    known = list(
        dict.fromkeys(one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in fixed)
    )
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known) or 'none'}"
            raise ConfigError(f"{functions[0].__name__} has no option {name!r}{hint}")
