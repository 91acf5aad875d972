"""How figures look: colours that the colour-blind tell apart, fonts, sizes; and how they are saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, PowerNorm, to_hex, to_rgb
from matplotlib.figure import Figure

from clearhead.errors import ConfigError
from clearhead.explore.figures import fonts, labels
from clearhead.storage import atomic_file

FORMATS = ("png", "svg", "pdf")
DPI = 160
TITLE, TEXT, SMALL = 12.0, 9.5, 8.0  # points
LONGEST = 160  # letters of a title
NARROWEST = 4.2  # inches: a title needs some room
CAVEAT = "Where a head looks is not why the model answers."


class Theme(NamedTuple):
    paper: str
    ink: str
    faint: str  # lines that only guide
    quiet: str  # words that only explain
    mark: str  # what is pointed at
    scale: Colormap  # from nothing to all: lightness alone tells the order
    both: Colormap  # from −1 to 1
    around: Colormap  # an angle: the end is the beginning
    apart: tuple[str, ...]  # Paul Tol's colours, which stay apart for all kinds of colour-blindness
    rest: str  # whatever has no colour of its own
    rising: Colormap  # numbers in their order, as lines


def _scale(*colours: str) -> Colormap:
    return LinearSegmentedColormap.from_list("clearhead", colours)


def _part(whole: Colormap, first: float, last: float) -> Colormap:
    return _scale(*(to_hex(whole(first + (last - first) * step / 32)) for step in range(33)))


LIGHT = Theme(
    paper="#ffffff",
    ink="#1d2433",
    faint="#dfe2e7",
    quiet="#667084",
    mark="#0b5cad",
    scale=_scale("#fbf8f5", "#f5dfd3", "#e8b297", "#d27a50", "#aa441d", "#6b2109"),
    both=_scale("#0b3c7d", "#5b93c9", "#f7f7f5", "#dd8452", "#7a2408"),
    around=matplotlib.colormaps["twilight"],
    apart=("#332288", "#cc6677", "#117733", "#88ccee", "#882255", "#ddcc77", "#44aa99", "#aa4499", "#999933"),
    rest="#e4e7ec",
    rising=_part(matplotlib.colormaps["viridis"], 0.0, 0.88),
)
DARK = Theme(
    paper="#15181f",
    ink="#e8eaee",
    faint="#343a46",
    quiet="#9aa3b2",
    mark="#7cc0ff",
    scale=_scale("#1d2129", "#43302c", "#84452b", "#c8683a", "#f0a878", "#ffecdd"),
    both=_scale("#9fd0ff", "#3f7cb8", "#20242c", "#c8683a", "#ffd9bd"),
    around=matplotlib.colormaps["twilight_shifted"],
    apart=("#77aadd", "#ee8866", "#44bb99", "#99ddff", "#ffaabb", "#eedd88", "#bbcc33", "#dd99dd", "#aaaa00"),
    rest="#2b313c",
    rising=_part(matplotlib.colormaps["viridis"], 0.3, 1.0),
)
THEMES = {"light": LIGHT, "dark": DARK}

DASHES = ("-", "--", "-.", ":")

_current: ContextVar[Theme] = ContextVar("theme", default=LIGHT)


@contextmanager
def theme(name: str) -> Iterator[None]:
    """Figures that are made inside are "light" or "dark"; light is the default."""
    if name not in THEMES:
        raise ConfigError(f"there is no theme {name!r}; choose from {', '.join(THEMES)}")
    token = _current.set(THEMES[name])
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Theme:
    return _current.get()


@contextmanager
def drawing() -> Iterator[Theme]:
    """What is drawn inside has our fonts and colours, and no dollar sign makes a formula."""
    look = current()
    settings: Any = {
        "font.family": list(fonts.families()),
        "font.size": TEXT,
        "text.parse_math": False,
        "text.usetex": False,
        "text.color": look.ink,
        "axes.labelcolor": look.ink,
        "axes.edgecolor": look.faint,
        "axes.facecolor": look.paper,
        "axes.titlesize": TEXT,
        "axes.labelsize": TEXT,
        "axes.unicode_minus": True,
        "xtick.color": look.ink,
        "ytick.color": look.ink,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "legend.fontsize": SMALL,
        "figure.facecolor": look.paper,
        "hatch.color": look.faint,
    }
    with matplotlib.rc_context(settings):
        yield look


def blank(width: float, height: float, *, boxes: bool = False) -> Figure:
    """An empty figure of so many inches, whose layout lets nothing overlap; `boxes` keep a shape of their own."""
    figure = Figure(figsize=(max(width, NARROWEST), height), layout="compressed" if boxes else "constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.08, h_pad=0.06)
    return figure


def entitle(figure: Figure, title: str | None, notes: Sequence[str] = ()) -> None:
    """A title above and notes below, wrapped to the width of the figure."""
    inches = figure.get_figwidth() - 0.3
    if title:
        parts = [labels.shown(part, LONGEST) for part in title.split("\n")]
        above = [line for part in parts for line in labels.wrapped(part, inches, TITLE)]
        figure.suptitle("\n".join(above), fontsize=TITLE, color=current().ink)
    below = [line for note in notes if note for line in labels.wrapped(note, inches, SMALL)]
    if below:
        figure.supxlabel("\n".join(below), fontsize=SMALL, color=current().quiet)


def font_note(texts: Sequence[str | None]) -> str:
    """What to say if no font has what is in the labels; else nothing."""
    letter = labels.missing(texts)
    if not letter:
        return ""
    remedy = "Noto Sans CJK" if labels.is_wide(letter) else "a font of that script, such as one of the Noto family,"
    return (
        f"No font here has all characters: they are shown by their numbers, such as U+{ord(letter):04X}. "
        f"Installing {remedy} helps."
    )


def colour_bar(figure: Figure, scale: ScalarMappable, axes: Any, label: str) -> None:
    bar = figure.colorbar(scale, ax=axes, shrink=0.7, aspect=26, pad=0.015, panchor=False)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=SMALL, color=current().quiet)
    bar.ax.tick_params(labelsize=SMALL, length=0, colors=current().ink)


def norm_of(largest: float, exact: bool) -> Normalize:
    """Few weights are shown as they are, from 0 to 1; in a large map the small ones must be seen too."""
    return Normalize(0.0, 1.0) if exact else PowerNorm(0.5, 0.0, max(largest, 1e-6))


def ink_on(colour: Any) -> str:
    """Black or white, whichever can be read better on this colour."""
    return max(("#ffffff", LIGHT.ink), key=lambda ink: contrast(ink, colour))


def contrast(one: Any, other: Any) -> float:
    """Of two colours, from 1 to 21, as the web's guidelines for accessibility define it.

    >>> round(contrast("#ffffff", "#000000")), round(contrast("#777777", "#ffffff"), 2)
    (21, 4.48)
    """
    dark, light = sorted(_luminance(colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Any) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def plain(axes: Axes) -> None:
    """No box around; lines in the background guide the eye."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=current().faint, linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as PNG, SVG or PDF, as the end of its name says; the same figure gives the same bytes.

    In SVG and PDF text stays text.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"a figure is saved as {', '.join('.' + one for one in FORMATS)}, not as {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata: dict[str, dict[str, Any]] = {  # the maker's name, and no date
        "png": {"Software": "clearhead"},
        "svg": {"Creator": "clearhead", "Date": None},
        "pdf": {"Creator": "clearhead", "CreationDate": None},
    }
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "clearhead", "pdf.fonttype": 42}
    with matplotlib.rc_context(settings), atomic_file(path) as fresh:
        figure.savefig(fresh, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.15, metadata=metadata[kind])
    return path


def is_our_figure(path: Path) -> bool:
    """Whether a file was written by `save`, as its metadata tell."""
    content = path.read_bytes()
    marks = (b"Software\0clearhead", b"<dc:title>clearhead</dc:title>", b"/Creator (clearhead)")
    return any(mark in content for mark in marks)
