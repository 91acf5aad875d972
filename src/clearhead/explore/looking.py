"""What `clearhead look` does: finds the model or the record, and makes a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.errors import ConfigError
from clearhead.explore import Scene, open_record, write_page
from clearhead.explore.huggingface import is_checkpoint, load_checkpoint
from clearhead.explore.live import PATIENCE, Live
from clearhead.explore.scene import views
from clearhead.explore.server import Server
from clearhead.explore.single import check_page_place, together
from clearhead.explore.waiting import Waiting
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward
from clearhead.predictor import load


class Seen(NamedTuple):
    """A record, and the model that it is of if that is there to be asked."""

    record: Record
    live: Live | None
    title: str | None


def looked(subject: str, text: str | None, *, answer: str | None = None, device: str = "auto", **options: Any) -> Seen:
    """A saved record by its file, or what a model does with a text: ours by name or folder, or Hugging Face's."""
    path = Path(subject)
    if path.is_file():
        if text is not None or answer is not None:
            raise ConfigError(f"{subject} is a record, which holds its text already; leave TEXT away")
        return Seen(Record.load(path), None, path.stem)
    if text is None:
        raise ConfigError(f"what should {subject} read? Give a TEXT, or - for the standard input")
    if path.is_dir() and is_checkpoint(path):
        live = load_checkpoint(path, device=device, **options)
    else:
        live = Live.of(load(subject, device=device), **options)
    return Seen(live.look(text, answer=answer), live, None)


def write(seen: Seen, out: Path, *, part: int | None = None, heads: Sequence[str] = (), without: bool = False) -> Path:
    """The page as one file, of one part or of all that fit. Of a model that is there it also holds what each head does
    for the loss, or, with `without`, all that the model does without each of them.
    """
    check_page_place(out)
    if part is not None and part > len(views(seen.record)):
        raise ConfigError(f"--part {part}: there is no such part; there are {len(views(seen.record))}")
    if without and seen.live is None:
        raise ConfigError("heads are switched off in a model, and a record has none; give a MODEL and a TEXT")
    view = None if part is None else part - 1
    scene = Scene(seen.record, view or 0)
    chosen = chosen_heads(heads, scene.forward)
    if seen.live is not None:
        _ask(seen.live, [scene, *(together(scene) if view is None else [])], without)
    return write_page(seen.record, out, view=view, title=seen.title, heads=chosen)


def _ask(live: Live, scenes: Sequence[Scene], without: bool) -> None:
    """Notes down what the model does without its heads; that takes as long as so many answers."""
    record, numbers = scenes[0].record, [scene.places[scene.view][0] for scene in scenes]
    if without:
        call = scenes[0].forward
        waiting = Waiting("heads switched off", sum(len(call[name].heads) for name in call.names), each=live.took)
        for scene, told in zip(scenes, live.without_each(record, numbers, waiting), strict=True):
            scene.forward.about["without"] = told
    for scene, number in zip(scenes, numbers, strict=True):
        scene.forward.about["effects"] = live.effects(record, number, PATIENCE / max(1, len(scenes) - 1))


def serve(seen: Seen, *, port: int = 0, browser: bool = False) -> Server:
    """The page with all weights behind it."""
    return open_record(seen.record, title=seen.title, live=seen.live, port=port, browser=browser)


def chosen_heads(wanted: Sequence[str], forward: Forward) -> dict[str, list[int]]:
    """What `--heads decoder.*.cross:0,3` names; without numbers all heads of these attentions."""
    chosen: dict[str, list[int]] = {}
    for one in wanted:
        pattern, colon, numbers = one.partition(":")
        names = [name for name in forward.names if fnmatchcase(name, pattern)]
        if not names or (colon and not all(part.strip().isdecimal() for part in numbers.split(","))):
            raise ConfigError(
                f"--heads {one}: say it as NAME or NAME:0,3; the attentions are {', '.join(forward.names[:6])}"
                f"{', …' if len(forward.names) > 6 else ''}"
            )
        for name in names:
            own = forward[name].heads
            heads = [int(part) for part in numbers.split(",")] if colon else list(own)
            if missing := [head for head in heads if head not in own]:
                raise ConfigError(f"--heads {one}: {name} has heads {own[0]} to {own[-1]}, not {missing[0]}")
            chosen[name] = sorted({*chosen.get(name, []), *heads})
    return chosen
