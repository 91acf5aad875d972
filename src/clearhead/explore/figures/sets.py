"""Sets: the figures that tell most about a record, and those for a lesson; what `clearhead figures` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from clearhead.errors import ConfigError
from clearhead.explore.figures import naming
from clearhead.explore.figures.atlas import head_atlas
from clearhead.explore.figures.costs import cost
from clearhead.explore.figures.curves import curves
from clearhead.explore.figures.labels import shown
from clearhead.explore.figures.lessons import positional_encodings, saturation
from clearhead.explore.figures.look import FORMATS, LONGEST, is_our_figure, save, theme
from clearhead.explore.figures.maps import alignment, head_grid, head_map, side_by_side
from clearhead.explore.figures.received import received
from clearhead.explore.heads import NONE, summaries
from clearhead.explore.looking import chosen_heads
from clearhead.lens import Forward, Record


class Drawing(NamedTuple):
    """A figure to be: the name of its file, what it shows, and how it is drawn."""

    name: str
    shows: str
    draw: Callable[[], Figure]


class _Head(NamedTuple):
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}, head {self.number}"


def write(
    drawings: Sequence[Drawing], folder: str | Path, kind: str = "png", *, dark: bool = False
) -> Iterator[tuple[Path, str]]:
    """Draws and saves one after the other; gives each file as soon as it is there, and what it shows.

    Figures of an earlier call are replaced. Any other file of such a name is refused before anything is drawn.
    """
    check_place(folder, kind)
    paths = [Path(folder) / f"{drawing.name}.{kind}" for drawing in drawings]
    for path in paths:
        if path.is_file() and path.stat().st_size and not is_our_figure(path):
            raise ConfigError(f"{path} exists and is no figure of clearhead's; choose another folder, or remove it")
    for path, drawing in zip(paths, drawings, strict=True):
        with theme("dark" if dark else "light"):
            figure = drawing.draw()
        yield save(figure, path), drawing.shows


def check_place(folder: str | Path, kind: str) -> None:
    """Refuses what figures cannot be saved as, or in."""
    if kind not in FORMATS:
        raise ConfigError(f"figures are saved as {', '.join(FORMATS)}, not as {kind!r}")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"figures are written into a folder, and {folder} is a file")


def of_lesson() -> list[Drawing]:
    """Figures that need no model."""
    return [
        Drawing("saturation", "why scores are divided by √d: the softmax of wide scores is one peak", saturation),
        Drawing("positions", "sinusoidal and rotary positions", positional_encodings),
        Drawing("cost", "time and memory against the length, measured on this machine", cost),
    ]


def of_record(
    record: Record, heads: Sequence[str] = (), *, name: str | None = None, when: str | None = None
) -> list[Drawing]:
    """The figures that tell most; of a text that was read in parts, those of each part.

    Of `heads`, as decoder.1.cross:0,3, each is drawn large; without any, the one that aligns best, and of each kind of
    self-attention the one that plays a role best. The rows of a decoder are called by what is "written" or "read".
    """
    naming.check_when(when)
    found = []
    for number, forward in enumerate(record.calls, start=1):
        before = f"part-{number}-" if len(record.calls) > 1 else ""
        model, said = name or forward.about.get("model") or "attention", _said(forward)
        for drawing in _Call(forward, chosen_heads(heads, forward), model, said, when).drawings():
            found.append(drawing._replace(name=before + drawing.name))
    return found


class _Call:
    """The figures of one call, each named by the model, what it shows and what was read."""

    def __init__(
        self, forward: Forward, heads: Mapping[str, Sequence[int]], model: str, said: str, when: str | None
    ) -> None:
        self.forward, self.model, self.said, self.when = forward, model, said, when
        self.kinds = naming.by_kind(forward.names)
        self.roles = {name: self._roles(name) for name in forward.names}
        self.best = {kind: self._best(names) for kind, names in self.kinds.items()}
        self.chosen = [_Head(name, number) for name, numbers in heads.items() for number in numbers]

    def drawings(self) -> Iterator[Drawing]:
        forward, kinds = self.forward, self.kinds
        crossing = [kind for kind, names in kinds.items() if forward[names[0]].cross]
        yield from self._large(crossing)
        for name in dict.fromkeys(one.name for one in self.best.values()):
            captions = {number: role for number, role, _ in self.roles[name] if role != NONE}
            draw = partial(head_grid, forward[name], when=self.when, title=self._title(name), captions=captions)
            yield Drawing(f"heads-{name}", f"{name}: all heads", draw)
        if len(kinds) > 1:
            draw = partial(side_by_side, forward, when=self.when, title=self._title("the last layers"))
            yield Drawing("side-by-side", f"{', '.join(kinds)}: the last layers side by side", draw)
        for by in ("role", "entropy", "distance"):
            draw = partial(head_atlas, forward, by, title=self._title(f"heads by {by}"))
            yield Drawing(f"atlas-{by}", f"every head, coloured by {by}", draw)
        draw = partial(curves, forward, title=self._title("entropy and distance"))
        yield Drawing("curves", "entropy and distance over the text, by layer", draw)
        for names in kinds.values():
            last = names[-1]
            draw = partial(received, forward[last], title=self._title(f"{last}, attention received, mean of all heads"))
            yield Drawing(f"received-{last}", f"{last}: how much attention each token receives", draw)

    def _large(self, crossing: Sequence[str]) -> Iterator[Drawing]:
        for kind in crossing:
            one = self.best[kind]
            draw = self._map(alignment, one)
            yield Drawing("alignment", f"{one}: which source token each target token looks at most", draw)
        for one in self.chosen or [head for kind, head in self.best.items() if kind not in crossing]:
            draw = self._map(head_map, one)
            yield Drawing(f"head-{one.name}-{one.number}", f"{one}: what each token looks at", draw)

    def _map(self, draw: Callable[..., Figure], one: _Head) -> Callable[[], Figure]:
        return partial(draw, self.forward[one.name], one.number, when=self.when, title=self._title(str(one)))

    def _roles(self, name: str) -> list[tuple[int, str, float]]:
        sight = self.forward[name]
        found = summaries(sight, 0, naming.delimiters(naming.key_texts(sight, 0)))
        return [(one["number"], one["role"], one["score"] or 0.0) for one in found]

    def _best(self, names: Sequence[str]) -> _Head:
        """The head of these attentions that plays its role best; if none plays any, the first of the last."""
        every = ((name, *one) for name in names for one in self.roles[name])
        played = [(score, _Head(name, head)) for name, head, role, score in every if role != NONE]
        return max(played)[1] if played else _Head(names[-1], self.forward[names[-1]].heads[0])

    def _title(self, what: str) -> str:
        return "\n".join(line for line in (f"{self.model}: {what}", self.said) if line)


def _said(forward: Forward) -> str:
    """What was read and what was written, on one line."""
    both = (forward.about.get("input"), forward.about.get("text"))
    return " → ".join(shown(text, LONGEST // 2) for text in both if text)
