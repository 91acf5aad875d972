"""Style of figures: light and dark themes, fonts, titles and colour bars; saving to PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import ColorType

from clearhead.errors import ConfigError
from clearhead.explore.figures import label_text
from clearhead.formatting import suggest_name
from clearhead.storage import atomic_file

FORMATS = ("png", "svg", "pdf")
DPI = 160
NOTEBOOK_DPI = 96
TITLE, TEXT, SMALL = 12.0, 9.5, 8.0  # points
MAX_TITLE = 160  # letters
MIN_WIDTH = 4.2  # inches
CAVEAT = "Where a head looks is not why the model answers."


class Theme(NamedTuple):
    """Colours of a figure; scales differ in lightness."""

    background: str
    text: str
    grid: str
    muted: str  # notes and units
    highlight: str  # frames
    sequential: Colormap  # from 0 to the largest weight
    diverging: Colormap  # around 0
    dark: bool = False


def _make_colormap(*colours: str) -> Colormap:
    return LinearSegmentedColormap.from_list("clearhead", colours)


LIGHT = Theme(
    background="#ffffff",
    text="#1d2433",
    grid="#dfe2e7",
    muted="#667084",
    highlight="#0b5cad",
    sequential=_make_colormap("#fbf8f5", "#f5dfd3", "#e8b297", "#d27a50", "#aa441d", "#6b2109"),
    diverging=_make_colormap("#0b3c7d", "#5b93c9", "#f7f7f5", "#dd8452", "#7a2408"),
)
DARK = Theme(
    background="#15181f",
    text="#e8eaee",
    grid="#343a46",
    muted="#9aa3b2",
    highlight="#7cc0ff",
    sequential=_make_colormap("#1d2129", "#43302c", "#84452b", "#c8683a", "#f0a878", "#ffecdd"),
    diverging=_make_colormap("#9fd0ff", "#3f7cb8", "#20242c", "#c8683a", "#ffd9bd"),
    dark=True,
)
THEMES = {"light": LIGHT, "dark": DARK}

_current: ContextVar[Theme] = ContextVar("theme", default=LIGHT)


@contextmanager
def theme(name: str) -> Iterator[None]:
    """Context manager: figures made inside are "light" (the default) or "dark"."""
    if name not in THEMES:
        raise ConfigError(f"there is no theme {name!r}; {suggest_name(name, THEMES)}")
    token = _current.set(THEMES[name])
    try:
        yield
    finally:
        _current.reset(token)


def current_theme() -> Theme:
    return _current.get()


@contextmanager
def figure_style() -> Iterator[Theme]:
    """Context manager: applies the theme's fonts and colours; dollar signs are not read as formulas."""
    theme = current_theme()
    settings: Any = {
        "font.family": list(label_text.list_families()),
        "font.size": TEXT,
        "text.parse_math": False,
        "text.usetex": False,
        "text.color": theme.text,
        "axes.labelcolor": theme.text,
        "axes.edgecolor": theme.grid,
        "axes.facecolor": theme.background,
        "axes.titlesize": TEXT,
        "axes.labelsize": TEXT,
        "axes.unicode_minus": True,
        "xtick.color": theme.text,
        "ytick.color": theme.text,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "legend.fontsize": SMALL,
        "figure.facecolor": theme.background,
        "hatch.color": theme.grid,
    }
    with matplotlib.rc_context(settings):
        yield theme


class _NotebookFigure(Figure):
    """A figure that a notebook shows as the last line of a cell."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=NOTEBOOK_DPI)
        return content.getvalue()


def make_figure(width: float, height: float, *, boxes: bool = False) -> Figure:
    """An empty figure with automatic layout, its size in inches; `boxes` is for axes with a fixed aspect."""
    figure = _NotebookFigure(figsize=(max(width, MIN_WIDTH), height), layout="compressed" if boxes else "constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.08, h_pad=0.06)
    return figure


def write_title(figure: Figure, title: str | None, notes: Sequence[str] = ()) -> None:
    """Adds a title above and notes below, wrapped to the width of the figure."""
    inches = figure.get_figwidth() - 0.3
    if title:
        parts = [label_text.make_drawable(part, MAX_TITLE) for part in title.split("\n")]
        above = [line for part in parts for line in label_text.wrap_text(part, inches, TITLE)]
        figure.suptitle("\n".join(above), fontsize=TITLE, color=current_theme().text)
    below = [line for note in notes if note for line in label_text.wrap_text(note, inches, SMALL)]
    if below:
        figure.supxlabel("\n".join(below), fontsize=SMALL, color=current_theme().muted)


def note_missing_fonts(texts: Sequence[str | None]) -> str:
    """A note if no font has a character of these labels, else an empty text."""
    letter = label_text.find_missing_character(texts)
    if not letter:
        return ""
    remedy = "Noto Sans CJK" if label_text.is_wide(letter) else "a Noto font for that script"
    return (
        f"No installed font has some characters; they are drawn as code points, such as U+{ord(letter):04X}. "
        f"Install {remedy} to see them."
    )


def add_colour_bar(figure: Figure, scale: ScalarMappable, axes: Any, label: str) -> None:
    bar = figure.colorbar(scale, ax=axes, shrink=0.7, aspect=26, pad=0.015, panchor=False)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=SMALL, color=current_theme().muted)
    bar.ax.tick_params(labelsize=SMALL, length=0, colors=current_theme().text)


def make_norm(largest: float, exact: bool) -> Normalize:
    """Linear from 0 to 1 for small maps; a square root up to the largest weight for others."""
    return Normalize(0.0, 1.0) if exact else PowerNorm(0.5, 0.0, max(largest, 1e-6))


def write_in_cell(axes: Axes, x: SupportsFloat, y: SupportsFloat, text: str, colour: ColorType, **look: Any) -> None:
    """Writes a text in the middle of a cell of this colour, white or dark."""
    ink = choose_text_colour(colour)
    axes.text(float(x), float(y), text, **{"ha": "center", "va": "center", "fontsize": SMALL, "color": ink, **look})


def choose_text_colour(colour: ColorType) -> str:
    """White or dark text, whichever has more contrast to this colour, as WCAG defines it."""
    light, ground, dark = (measure_luminance(ink) + 0.05 for ink in ("#ffffff", colour, LIGHT.text))
    return "#ffffff" if light / ground >= ground / dark else LIGHT.text


def measure_luminance(colour: ColorType) -> float:
    """The relative luminance of a colour, from 0 to 1, as WCAG defines it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as PNG, SVG or PDF, by the suffix of its name; the same figure gives the same bytes.

    In SVG and PDF text stays text.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"a figure is saved as {', '.join(f'.{suffix}' for suffix in FORMATS)}, not as {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata: dict[str, dict[str, Any]] = {  # no date, so that the bytes are reproducible
        "png": {"Software": "clearhead"},
        "svg": {"Creator": "clearhead", "Date": None},
        "pdf": {"Creator": "clearhead", "CreationDate": None},
    }
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "clearhead", "pdf.fonttype": 42}
    with matplotlib.rc_context(settings), atomic_file(path) as fresh:
        figure.savefig(fresh, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.15, metadata=metadata[kind])
    return path


def is_our_figure(path: Path) -> bool:
    """Whether a file was written by `save`, by its metadata."""
    content = path.read_bytes()
    marks = (b"Software\0clearhead", b"<dc:title>clearhead</dc:title>", b"/Creator (clearhead)")
    return any(mark in content for mark in marks)
