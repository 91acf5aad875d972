"""The sets of figures that `clearhead figures` writes: for a record, and for a lesson without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from clearhead.errors import ConfigError
from clearhead.explore.figures import record_names
from clearhead.explore.figures.atlas import find_roles, head_atlas
from clearhead.explore.figures.attention_lines import has_lines, lines
from clearhead.explore.figures.heatmaps import alignment, head_grid, head_map, side_by_side
from clearhead.explore.figures.label_text import make_drawable
from clearhead.explore.figures.lesson_figures import cost, positional_encodings, saturation
from clearhead.explore.figures.measure_curves import curves
from clearhead.explore.figures.media_figures import head_overlays, sound_alignment, word_overlays
from clearhead.explore.figures.received_attention import received
from clearhead.explore.figures.sentence_coverage import coverage
from clearhead.explore.figures.style import FORMATS, MAX_TITLE, is_our_figure, save, theme
from clearhead.explore.opening_head import find_most_informative
from clearhead.explore.recorded_media import read_media
from clearhead.explore.subjects import select_heads
from clearhead.lens import Forward, Record
from clearhead.lens.analysis.roles import NONE
from clearhead.tasks.media import PictureInput


class PlannedFigure(NamedTuple):
    """A figure that is not drawn yet: the name of its file, its description, and the function that draws it."""

    name: str
    description: str
    draw: Callable[[], Figure]


class _Head(NamedTuple):
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}, head {self.number}"


def write_figures(
    planned: Sequence[PlannedFigure], folder: str | Path, kind: str = "png", *, dark: bool = False
) -> Iterator[tuple[Path, str]]:
    """Draws and saves the figures one by one; yields each path with its description as soon as it is written.

    Figures of an earlier call are replaced; any other file of such a name is refused before anything is drawn.
    """
    check_figure_folder(folder, kind)
    paths = [Path(folder) / f"{one.name}.{kind}" for one in planned]
    for path in paths:
        if path.is_file() and path.stat().st_size and not is_our_figure(path):
            raise ConfigError(f"{path} exists and is not a clearhead figure; choose another folder, or remove it")
    for path, one in zip(paths, planned, strict=True):
        with theme("dark" if dark else "light"):
            figure = one.draw()
        yield save(figure, path), one.description


def check_figure_folder(folder: str | Path, kind: str) -> None:
    """Raises ConfigError for an unknown format, or a folder that is a file."""
    if kind not in FORMATS:
        raise ConfigError(f"figures are saved as {', '.join(FORMATS)}, not as {kind!r}")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"{folder} is a file; figures are written into a folder")


def list_lesson_figures() -> list[PlannedFigure]:
    """Figures that need no model."""
    return [
        PlannedFigure("saturation", "why scores are divided by √d: the softmax of large scores saturates", saturation),
        PlannedFigure("positions", "sinusoidal and rotary positions", positional_encodings),
        PlannedFigure("cost", "time and memory against the length, measured on this machine", cost),
    ]


def list_record_figures(
    record: Record, heads: Sequence[str] = (), *, name: str | None = None, when: str | None = None
) -> list[PlannedFigure]:
    """The most informative figures of a record, for each of its calls.

    `heads`, such as decoder.1.cross:0,3, are drawn large; by default the best alignment and, for each kind of
    self-attention, the head with the largest score in a role. `when` names a decoder's rows, as in `head_map`.
    """
    record_names.check_row_naming(when)
    found = []
    for number, forward in enumerate(record.calls, start=1):
        before = f"part-{number}-" if len(record.calls) > 1 else ""
        model, texts = name or forward.about.model or "attention", _describe_texts(forward)
        for one in _CallFigures(forward, select_heads(heads, forward), model, texts, when).plan():
            found.append(one._replace(name=before + one.name))
    return found


class _CallFigures:
    """Plans the figures of one call; titles name the model, the figure and the texts."""

    def __init__(
        self, forward: Forward, heads: Mapping[str, Sequence[int]], model: str, texts: str, when: str | None
    ) -> None:
        self.forward, self.model, self.texts, self.when = forward, model, texts, when
        self.media = read_media(forward)
        self.kinds = record_names.group_by_kind(forward.names)
        self.roles = {name: find_roles(forward, name) for name in forward.names}
        self.best = {kind: self._find_best(names) for kind, names in self.kinds.items()}
        self.chosen = [_Head(name, number) for name, numbers in heads.items() for number in numbers]

    def plan(self) -> Iterator[PlannedFigure]:
        forward, kinds = self.forward, self.kinds
        crossing = [kind for kind, names in kinds.items() if forward[names[0]].cross]
        if crossing and forward.about.task == "summarisation":
            draw = partial(coverage, forward, title=self._make_title("what the summary covers"))
            yield PlannedFigure("coverage", "each sentence of the text: its share of the summary's attention", draw)
        yield from self._plan_media(crossing) if self.media is not None else self._plan_alignments(crossing)
        yield from self._plan_lines(crossing)
        for one in self.chosen or [head for kind, head in self.best.items() if kind not in crossing]:
            name, large = f"head-{one.name}-{one.number}", self._plan_map(head_map, one)
            yield PlannedFigure(name, f"{one}: the weights of each token", large)
        for name in dict.fromkeys(one.name for one in self.best.values()):
            captions = {number: role for _, number, role, _ in self.roles[name] if role != NONE}
            draw = partial(head_grid, forward[name], when=self.when, title=self._make_title(name), captions=captions)
            yield PlannedFigure(f"heads-{name}", f"{name}: all heads", draw)
        if len(kinds) > 1:
            draw = partial(side_by_side, forward, when=self.when, title=self._make_title("the last layers"))
            yield PlannedFigure("side-by-side", f"{', '.join(kinds)}: the last layers side by side", draw)
        for by in ("role", "entropy", "distance"):
            draw = partial(head_atlas, forward, by, title=self._make_title(f"heads by {by}"))
            yield PlannedFigure(f"atlas-{by}", f"every head, coloured by {by}", draw)
        draw = partial(curves, forward, title=self._make_title("entropy and distance"))
        yield PlannedFigure("curves", "entropy and distance over the text, by layer", draw)
        for names in kinds.values():
            last = names[-1]
            draw = partial(
                received, forward[last], title=self._make_title(f"{last}, attention received, mean of all heads")
            )
            yield PlannedFigure(f"received-{last}", f"{last}: how much attention each token receives", draw)

    def _plan_alignments(self, crossing: Sequence[str]) -> Iterator[PlannedFigure]:
        for kind in crossing:
            one = self.best[kind]
            draw = self._plan_map(alignment, one)
            yield PlannedFigure(
                "alignment", f"{one}: the source token with the largest weight for each target token", draw
            )

    def _plan_lines(self, crossing: Sequence[str]) -> Iterator[PlannedFigure]:
        """Lines of the chosen heads, or of the best cross-attention or else self-attention, where texts are short."""
        for one in self.chosen or [self.best[kind] for kind in crossing or self.kinds]:
            if has_lines(self.forward[one.name]) and not (self.media is not None and self.forward[one.name].cross):
                name, draw = f"lines-{one.name}-{one.number}", self._plan_map(lines, one)
                yield PlannedFigure(name, f"{one}: lines between tokens, as thick as the weights", draw)

    def _plan_media(self, crossing: Sequence[str]) -> Iterator[PlannedFigure]:
        """What each word looks at in a picture or sound: in the chosen heads or the best, and in all of that layer."""
        chosen = [one for one in self.chosen if self.forward[one.name].cross]
        for one in chosen or [self.best[kind] for kind in crossing]:
            sight, title = self.forward[one.name], self._make_title(str(one))
            if isinstance(self.media, PictureInput):
                draw = partial(word_overlays, sight, one.number, title=title)
                description = f"{one}: the patches that each word looks at"
            else:
                draw = partial(sound_alignment, sight, one.number, title=title)
                description = f"{one}: spectrogram, CTC, and the moments that each letter looks at"
            yield PlannedFigure(f"overlay-{one.name}-{one.number}", description, draw)
        for name in dict.fromkeys(self.best[kind].name for kind in crossing):
            if isinstance(self.media, PictureInput):
                draw = partial(head_overlays, self.forward[name], title=self._make_title(name))
                yield PlannedFigure(f"overlays-{name}", f"{name}: the patches of each word, head by head", draw)

    def _plan_map(self, draw: Callable[..., Figure], one: _Head) -> Callable[[], Figure]:
        return partial(draw, self.forward[one.name], one.number, when=self.when, title=self._make_title(str(one)))

    def _find_best(self, names: Sequence[str]) -> _Head:
        """The head with the largest score in its role; if none has a role, the first head of the last attention.

        Of words over a picture or sound, the head with the largest mutual information of words and places.
        """
        if self.media is not None and self.forward[names[0]].cross:
            return _Head(*find_most_informative([self.forward[name] for name in names], [0] * len(names)))
        every = [one for name in names for one in self.roles[name]]
        played = [(score, _Head(name, head)) for name, head, role, score in every if role != NONE]
        return max(played)[1] if played else _Head(names[-1], self.forward[names[-1]].heads[0])

    def _make_title(self, what: str) -> str:
        return "\n".join(line for line in (f"{self.model}: {what}", self.texts) if line)


def _describe_texts(forward: Forward) -> str:
    """The input and the answer, on one line."""
    both = (forward.about.input, forward.about.text)
    return " → ".join(make_drawable(text, MAX_TITLE // 2) for text in both if text)
