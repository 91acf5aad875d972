"""Subjects of `clearhead look` and `figures`: a model with an input, or a saved record; their page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from clearhead.errors import ConfigError
from clearhead.explore import Scene
from clearhead.explore.huggingface_folder import load_huggingface_folder
from clearhead.explore.live_model import MAX_SECONDS, LiveModel
from clearhead.explore.page_file import count_heads, select_other_views, write_scenes
from clearhead.explore.scene import list_views
from clearhead.formatting import parse_whole_number
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward
from clearhead.predictor import load


class Subject(NamedTuple):
    """A record, with the model that made it if that is loaded."""

    record: Record
    live: LiveModel | None
    title: str | None


def open_subject(
    name: str,
    text: str | None,
    *,
    answer: str | None = None,
    device: str = "auto",
    base: str | Path | None = None,
    **options: Any,
) -> Subject:
    """Loads a record file, or runs a model on an input: one of ours by name or folder, or a Hugging Face folder.

    `base` is the folder of the model that an adapter belongs to, if it was moved.
    """
    path = Path(name)
    if base is not None and (path.is_file() or is_huggingface_folder(path)):
        raise ConfigError(f"--base is for the folder of a LoRA adapter, and {name} is none; omit it")
    if path.is_file():
        if text is not None or answer is not None:
            raise ConfigError(f"{name} is a record, which already contains its text; omit INPUT and --answer")
        return Subject(Record.load(path), None, path.stem)
    if text is None:
        raise ConfigError(f"no INPUT was given for {name}; give a text, or - for the standard input, or a file's path")
    if is_huggingface_folder(path):
        live = load_huggingface_folder(path, device=device, **options)
    else:
        live = LiveModel.from_predictor(load(name, device=device, base=base), **options)
    return Subject(live.look(text, answer=answer), live, None)


def is_huggingface_folder(path: Path) -> bool:
    """Whether a folder has the config.json of a Hugging Face model."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "format" not in config and ("model_type" in config or "architectures" in config)


def write_subject(
    subject: Subject, out: Path, *, part: int | None = None, heads: Sequence[str] = (), without: bool = False
) -> Path:
    """Writes the page as one file, with one part of the text or all that fit.

    If the model is loaded, the file also contains the effect of each head on the loss and, with `without`, the answer
    of the model without each head.
    """
    parts = len(list_views(subject.record))
    if part is not None and part > parts:
        raise ConfigError(f"--part {part}: there is no such part; there are {parts}")
    if without and subject.live is None:
        raise ConfigError("--without needs a model, and a record has none; give a MODEL and an INPUT")
    scene = Scene(subject.record, 0 if part is None else part - 1, title=subject.title)
    scenes = [scene, *(select_other_views(scene) if part is None else [])]
    exact = select_heads(heads, scene.forward)
    if subject.live is not None:
        _add_ablations(subject.live, scenes, without)
    with show_progress("heads written", count_heads(scenes)) as progress:
        return write_scenes(scenes, out, heads=exact, progress=progress)


def _add_ablations(live: LiveModel, scenes: Sequence[Scene], without: bool) -> None:
    """Puts into the scenes what the model does without its heads; `without` runs the model once for each head."""
    record, calls = scenes[0].record, [scene.call for scene in scenes]
    ablations = None
    if without:
        with show_progress("heads switched off", count_heads(scenes[:1])) as progress:
            ablations = live.answer_without_each(record, calls, progress)
    for number, scene in enumerate(scenes):
        limit = MAX_SECONDS / max(1, len(scenes) - 1)
        scene.about.effects = live.measure_effects(record, scene.call, limit)
        if ablations is not None:
            scene.about.without = ablations[number]


def select_heads(wanted: Sequence[str], forward: Forward) -> dict[str, list[int]]:
    """The heads that `--heads decoder.*.cross:0,3` names; without numbers all heads of these attentions."""
    selected: dict[str, list[int]] = {}
    for choice in wanted:
        pattern, colon, numbers = choice.partition(":")
        names = [name for name in forward.names if fnmatchcase(name, pattern)]
        written = [parse_whole_number(part.strip()) for part in numbers.split(",")] if colon else []
        if not names or None in written:
            raise ConfigError(
                f"--heads {choice}: write NAME or NAME:0,3; the attentions are {', '.join(forward.names[:6])}"
                f"{', …' if len(forward.names) > 6 else ''}"
            )
        for name in names:
            watched = forward[name].heads
            heads = [head for head in written if head is not None] if colon else list(watched)
            if missing := [head for head in heads if head not in watched]:
                raise ConfigError(f"--heads {choice}: {name} has heads {watched[0]} to {watched[-1]}, not {missing[0]}")
            selected[name] = sorted({*selected.get(name, []), *heads})
    return selected


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar with the time left, on a terminal; call what this yields with the number of those just done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
