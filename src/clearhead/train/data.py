"""The data of a run: reads the rows, prepares the processor once for all processes, makes examples of both parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import format_count
from clearhead.model import ModelConfig
from clearhead.storage import atomic_folder, read_json, verify_checksums, write_json
from clearhead.tasks import Task
from clearhead.tasks.objective import AnyObjective
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import AnyProcessor, Examples, compare_sizes
from clearhead.tasks.settings import Source
from clearhead.text import Report, Row
from clearhead.text.chinese import name_script
from clearhead.text.documents import COLUMN, is_plain_text, read_documents, split_document
from clearhead.text.report import SHOWN
from clearhead.train.fit import (
    OPTIMISATION,
    READING,
    choose_length,
    choose_settings,
    choose_start,
    fill_open,
    list_texts,
)
from clearhead.train.processes import Processes
from clearhead.train.recipe import SCRATCH, Recipe, find_position_problem, resolve_path, resolve_sources
from clearhead.train.starting_weights import check_base, read_pretrained


class TrainingData(NamedTuple):
    """The recipe, the task and the examples of a run."""

    recipe: Recipe  # with all that was chosen
    task: Task
    objective: AnyObjective
    examples: Examples[Any]
    dev: Examples[Any] | None = None
    test: Sequence[Row] = ()  # scored at the end
    unlabelled: Sequence[Row] = ()  # without answers
    report: str = ""  # which rows were dropped
    start: Pretrained | None = None  # trained weights to start from
    script: str = ""  # of texts that are only read
    chosen: Mapping[str, Any] = MappingProxyType({})  # what the recipe left open, by keys such as train.steps

    @property
    def processor(self) -> AnyProcessor:
        processor: AnyProcessor = self.objective.processor
        return processor

    @property
    def metric(self) -> str:
        """The score that the best weights are chosen by; without dev there is only the loss."""
        return "loss" if self.dev is None else self.recipe.train.metric or self.processor.metric

    @property
    def minimises(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return self.metric in ("loss", *self.task.minimised)

    @property
    def dev_rows(self) -> Sequence[Row]:
        """The rows of dev that can be used."""
        return () if self.dev is None else self.dev.rows


def prepare_data(where: Path, recipe: Recipe, base: Path, processes: Processes) -> TrainingData:
    """Reads the rows; trains the tokenizers once, in the first process; turns rows into examples."""
    data = recipe.data
    dev_source = None if isinstance(data.dev, float) else data.dev
    # All are opened before one is read: a missing file or wrong columns are refused at once.
    files = [_open_files(recipe, source, base) for source in (data.train, dev_source, data.test)]
    unlabelled = list(chain(*_open_unlabelled(recipe, base)))
    rows, dev_rows = _split_rows(recipe, files[0])
    dev_rows, test = dev_rows or list(chain(*files[1])), list(chain(*files[2]))
    asked, (chosen, start, lines) = recipe, read_start(where, recipe, rows, base)
    started = fill_open(asked, chosen)
    chosen |= choose_settings(started, rows, gpu=processes.device.type == "cuda")
    recipe = fill_open(asked, chosen)
    complete = recipe.model_copy(update={"data": data.resolve(lambda name: resolve_path(name, base))})
    processor = _prepare_processor(where / "task", rows, complete, start, processes)
    if start is not None and (problem := find_position_problem(recipe, processor.config)):
        raise ConfigError(problem)
    test = processor.inputs.load_rows(test)
    problems = [processor.check_row(row).problem for row in test]
    if problems and all(problems):
        raise DataError(f"data.test has no row that can be scored; {test[0].where} is {problems[0]}")
    report = Report()
    examples, dev = processor.examples(rows, report, recipe), None
    lines += [f"train: {report}", *_describe_contradictions(recipe.kind, processor, examples.rows)]
    if data.dev is not None:
        report = Report()
        dev = processor.examples(dev_rows, report)
        repeated = find_repeated(processor, examples.rows, dev.rows)
        lines += [f"dev: {report}", *_describe_repeated(repeated, len(dev.rows))]
    needs_steps = started.needs_steps(processor, len(examples))
    if recipe.train.steps == 0 and needs_steps:
        raise ConfigError("train.steps = 0, but this model learns by gradients: set at least 1, or leave it out")
    chosen = chosen if needs_steps else {key: value for key, value in chosen.items() if key not in OPTIMISATION}
    chosen |= choose_length(asked, recipe.train, examples.lengths, processes=processes.count, needs_steps=needs_steps)
    recipe, complete = fill_open(asked, chosen), fill_open(asked, chosen).model_copy(update={"data": complete.data})
    objective = recipe.kind.objective(processor, complete)
    script = name_script(list_texts(recipe, rows)) if recipe.task in READING else ""
    shown = "\n".join(lines)
    return TrainingData(recipe, recipe.kind, objective, examples, dev, test, unlabelled, shown, start, script)


def read_training_rows(recipe: Recipe, base: Path) -> list[Row]:
    """The rows that a run by this recipe learns from, without those that it splits off for dev."""
    return _split_rows(recipe, _open_files(recipe, recipe.data.train, base))[0]


def find_repeated(processor: AnyProcessor, train: Sequence[Row], dev: Sequence[Row]) -> list[Row]:
    """The rows of dev whose input is that of a training row, whatever the answer."""
    identify = processor.inputs.identify
    inputs = [identify(row) for row in dev]
    wanted = set(inputs)
    common = {key for row in train if (key := identify(row)) in wanted}
    return [row for row, key in zip(dev, inputs, strict=True) if key in common]


def find_contradictions(
    contradict: Callable[[Any, list[Row]], bool], processor: AnyProcessor, rows: Sequence[Row]
) -> list[list[Row]]:
    """The rows of each input whose answers exclude each other, such as two labels for one text."""
    same = dict[str, list[Row]]()
    for row in rows:
        same.setdefault(processor.inputs.identify(row), []).append(row)
    return [group for group in same.values() if len(group) > 1 and contradict(processor, group)]


def read_start(
    where: Path, recipe: Recipe, rows: Sequence[Row], base: Path
) -> tuple[dict[str, Any], Pretrained | None, list[str]]:
    """The weights that a run starts from; `train.init_from` if it was chosen; a line if the choice cannot be had."""
    if (choice := choose_start(recipe, rows)) is not None:
        name, problem = choice
        start: Pretrained | None = None if problem or name == SCRATCH else read_pretrained(name, base)
        if start is not None and find_position_problem(recipe, start.config):
            problem = f"reads at most {start.config.max_length} tokens, and data.longest is {recipe.data.longest}"
            start = None
        lines = [f"training from scratch: {name}, the encoder for these texts, {problem}"] if problem else []
        return {"train.init_from": SCRATCH if problem else name}, start, lines
    begun = (where / "checkpoints").is_dir()
    # A checkpoint has all weights, except those that adapters leave as they are.
    if recipe.train.start_name is None or (begun and not recipe.train.lora_rank):
        return {}, None, []
    start = read_pretrained(recipe.train.start_name, base)
    if begun:
        check_base(where, start)
    return {}, start, []


def _split_rows(recipe: Recipe, files: Sequence[Iterator[Row]]) -> tuple[list[Row], list[Row]]:
    """Training rows, and those split off for dev (none, where dev has files of its own)."""
    rows = [row for file in files for row in islice(file, recipe.data.lines)]
    if not isinstance(recipe.data.dev, float):
        return rows, []
    if len(rows) == 1 and recipe.data.document_kind is not None:  # of a single document, its end
        first, last = split_document(rows[0], recipe.data.dev)
        return [first], [last]
    train, dev = split_off(rows, recipe.data.dev, recipe.seed, ordered=recipe.data.ordered)
    if rows and not train:
        raise DataError(
            f"data.dev = {recipe.data.dev} splits off all {format_count(len(rows), 'row')} of data.train, and none is "
            f"left to learn from; add rows, or leave data.dev out (the first row is {rows[0].where})"
        )
    return train, dev


def split_off(rows: Sequence[Row], share: float, seed: int, *, ordered: bool = False) -> tuple[list[Row], list[Row]]:
    """Splits a random share of the rows (at least one) off; the same split for the same seed.

    Where rows are `ordered`, the last ones: neighbours stay together.
    """
    count = max(1, round(share * len(rows)))
    if ordered:
        return list(rows[:-count]), list(rows[-count:])
    numbers = set(np.random.default_rng([seed, len(rows)]).permutation(len(rows))[:count].tolist())
    rest = [row for number, row in enumerate(rows) if number not in numbers]
    return rest, [row for number, row in enumerate(rows) if number in numbers]


def _describe_contradictions(task: Task, processor: AnyProcessor, train: Sequence[Row]) -> list[str]:
    """A line, if any: how many inputs of train have answers that exclude each other, and the first two such rows."""
    contradict = task.contradict
    if contradict is None or not (contradictions := find_contradictions(contradict, processor, train)):
        return []
    rows = sum(map(len, contradictions))
    first, *others = contradictions[0]
    second = next((row for row in others if contradict(processor, [first, row])), others[0])
    cases = [f"{processor.answer_of(row)!r:.60} ({_name_place(row)})" for row in (first, second)]
    count = f"{format_count(len(contradictions), 'input')} of train {'has' if len(contradictions) == 1 else 'have'}"
    what = f"{count} answers that exclude each other, in {format_count(rows, 'row')}"
    return [f"warning: {what}; {processor.inputs.identify(first)!r:.60} is {' and '.join(cases)}"]


def _describe_repeated(repeated: Sequence[Row], total: int) -> list[str]:
    """A line, if any: how many inputs of dev are also in train."""
    if not repeated:
        return []
    places = ", ".join(map(_name_place, repeated[:SHOWN])) + (", …" if len(repeated) > SHOWN else "")
    share = f"{len(repeated):,} of {total:,} inputs of dev"
    return [f"warning: {share} are also in train ({places}), so its scores are too good"]


def _name_place(row: Row) -> str:
    return row._replace(file=Path(row.file).name).where


def _open_unlabelled(recipe: Recipe, base: Path) -> list[Iterator[Row]]:
    """Texts without labels: the lines of a `.txt`, or the column of a table that has the texts in data.train, too."""
    sources, columns = recipe.data.unlabelled_source, recipe.data.columns
    named = {COLUMN: columns[COLUMN]} if isinstance(columns, Mapping) and COLUMN in columns else None
    paths = [] if sources is None else resolve_sources(sources, base)
    plain = [isinstance(path, Path) and is_plain_text(path) for path in paths]
    return [read_documents(path, "lines", None if lines else named) for path, lines in zip(paths, plain, strict=True)]


def _open_files(recipe: Recipe, sources: Source | list[Source] | None, base: Path) -> list[Iterator[Row]]:
    if sources is None:
        return []
    read, columns = recipe.kind.processor.read, recipe.data.columns
    return [read(source, columns, recipe.data.document_kind) for source in resolve_sources(sources, base)]


def _prepare_processor(
    folder: Path, rows: Sequence[Row], recipe: Recipe, start: Pretrained | None, processes: Processes
) -> AnyProcessor:
    """Prepares the processor and stores it in the run folder once; other processes, and resumed runs, load it."""
    kind, prepared = recipe.kind.processor, None
    if processes.first and not folder.is_dir():
        prepared = kind.prepare(rows, recipe, start)
        assert (problem := compare_sizes(prepared)) is None, f"{kind.__name__} has {problem}"
        with atomic_folder(folder) as fresh:
            prepared.save(fresh)
            write_json(fresh / "task.json", {"model": prepared.config.to_dict(), "settings": prepared.settings})
    processes.wait()
    if prepared is None:
        verify_checksums(folder)
        values = read_json(folder / "task.json")
        prepared = kind.load(folder, ModelConfig.from_dict(values["model"]), values["settings"])
    prepared.configure(recipe)
    return prepared
