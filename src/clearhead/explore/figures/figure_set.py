"""The sets of figures that `clearhead figures` writes: for a record, and for a lesson without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from clearhead.errors import ConfigError
from clearhead.explore.figures.atlas import find_roles, head_atlas
from clearhead.explore.figures.heatmaps import alignment, head_grid, head_map
from clearhead.explore.figures.label_text import make_drawable
from clearhead.explore.figures.lesson_figures import cost, positional_encodings, saturation
from clearhead.explore.figures.media_figures import sound_alignment, word_overlays
from clearhead.explore.figures.style import FORMATS, MAX_TITLE, is_our_figure, save, theme
from clearhead.explore.figures.weight_grid import group_by_kind
from clearhead.explore.head_summaries import find_most_informative
from clearhead.explore.subjects import select_heads
from clearhead.explore.token_axis import read_media
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
    paths = [Path(folder) / f"{figure.name}.{kind}" for figure in planned]
    for path in paths:
        if path.is_file() and path.stat().st_size and not is_our_figure(path):
            raise ConfigError(f"{path} exists and is not a clearhead figure; choose another folder, or remove it")
    for path, figure in zip(paths, planned, strict=True):
        with theme("dark" if dark else "light"):
            drawn = figure.draw()
        yield save(drawn, path), figure.description


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


def list_record_figures(record: Record, heads: Sequence[str] = (), *, name: str | None = None) -> list[PlannedFigure]:
    """The most informative figures of a record, for each of its calls.

    `heads`, such as decoder.1.cross:0,3, are drawn large; by default the best alignment and, for each kind of
    self-attention, the head with the largest score in a role.
    """
    planned = []
    for number, forward in enumerate(record.calls, start=1):
        prefix = f"part-{number}-" if len(record.calls) > 1 else ""
        model = name or forward.about.model or "attention"
        for figure in _CallFigures(forward, select_heads(heads, forward), model).plan():
            planned.append(figure._replace(name=prefix + figure.name))
    return planned


class _CallFigures:
    """Plans the figures of one call; titles name the model, the figure and the texts."""

    def __init__(self, forward: Forward, heads: Mapping[str, Sequence[int]], model: str) -> None:
        self.forward, self.model = forward, model
        self.media = read_media(forward)
        self.kinds = group_by_kind(forward.names)
        self.crossing = [kind for kind, names in self.kinds.items() if forward[names[0]].cross]
        self.roles = {name: find_roles(forward, name) for name in forward.names}
        self.best = {kind: self._find_best(names) for kind, names in self.kinds.items()}
        self.wanted = [_Head(name, number) for name, numbers in heads.items() for number in numbers]

    def plan(self) -> Iterator[PlannedFigure]:
        forward, crossing = self.forward, self.crossing
        yield from self._plan_alignments() if self.media is None else self._plan_media()
        for head in self.wanted or [head for kind, head in self.best.items() if kind not in crossing]:
            file, large = f"head-{head.name}-{head.number}", self._plan_head(head_map, head)
            yield PlannedFigure(file, f"{head}: the weights of each token", large)
        for name in dict.fromkeys(head.name for head in self.best.values()):
            captions = {number: role for _, number, role, _ in self.roles[name] if role != NONE}
            draw = self._plan(head_grid, forward[name], name, captions=captions)
            yield PlannedFigure(f"heads-{name}", f"{name}: all heads", draw)
        for by in ("role", "entropy", "distance"):
            draw = self._plan(head_atlas, forward, f"heads by {by}", by=by)
            yield PlannedFigure(f"atlas-{by}", f"every head, coloured by {by}", draw)

    def _plan_alignments(self) -> Iterator[PlannedFigure]:
        for kind in self.crossing:
            head = self.best[kind]
            description = f"{head}: the source token with the largest weight for each target token"
            yield PlannedFigure("alignment", description, self._plan_head(alignment, head))

    def _plan_media(self) -> Iterator[PlannedFigure]:
        """What each word looks at in a picture or sound: in the wanted heads or the best."""
        pictured = isinstance(self.media, PictureInput)
        best = [self.best[kind] for kind in self.crossing]
        for head in [head for head in self.wanted if self.forward[head.name].cross] or best:
            draw = self._plan_head(word_overlays if pictured else sound_alignment, head)
            shown = "the patches that each word" if pictured else "spectrogram, CTC, and the moments that each letter"
            yield PlannedFigure(f"overlay-{head.name}-{head.number}", f"{head}: {shown} looks at", draw)

    def _plan(self, draw: Callable[..., Figure], source: Any, what: str, **options: Any) -> Callable[[], Figure]:
        """A figure with the title of this call: the model and what is drawn, then the input and the answer."""
        both = (self.forward.about.input, self.forward.about.text)
        texts = " → ".join(make_drawable(text, MAX_TITLE // 2) for text in both if text)
        return partial(draw, source, **options, title="\n".join(filter(None, (f"{self.model}: {what}", texts))))

    def _plan_head(self, draw: Callable[..., Figure], head: _Head, **options: Any) -> Callable[[], Figure]:
        return self._plan(draw, self.forward[head.name], str(head), head=head.number, **options)

    def _find_best(self, names: Sequence[str]) -> _Head:
        """The head with the largest score in its role; if none has a role, the first head of the last attention.

        Of words over a picture or sound, the head with the largest mutual information of words and places.
        """
        if self.media is not None and self.forward[names[0]].cross:
            return _Head(*find_most_informative([self.forward[name] for name in names], [0] * len(names)))
        every = [role for name in names for role in self.roles[name]]
        played = [(score, _Head(name, head)) for name, head, role, score in every if role != NONE]
        return max(played)[1] if played else _Head(names[-1], self.forward[names[-1]].heads[0])
