"""Fonts for labels: which families are used, which characters they have, and how wide a text is."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import text_to_path

import clearhead.shipped as shipped

LATIN = "DejaVu Sans"  # comes with matplotlib
CHINESE = (  # installed with Linux, macOS and Windows; the shipped font comes after them
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "PingFang SC"),
    *("Hiragino Sans GB", "Microsoft YaHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "SimHei", "Heiti SC"),
)
OTHERS = (  # scripts that neither LATIN nor CHINESE has
    *("Malgun Gothic", "Apple SD Gothic Neo", "NanumGothic", "Noto Sans Devanagari", "Noto Sans Bengali"),
    *("Noto Sans Tamil", "Nirmala UI", "Noto Sans Thai", "Leelawadee UI", "Thonburi", "Noto Sans Symbols2"),
    *("Segoe UI Symbol", "Noto Emoji"),
)
POINTS = 72  # in an inch


@lru_cache(maxsize=1)
def list_families() -> tuple[str, ...]:
    """Font families in the order of lookup: Latin, Chinese of this machine, the shipped one, other scripts."""
    installed = set(fontManager.get_font_names())
    chinese = [name for name in CHINESE if name in installed and _has_glyphs(name, "人的我")][:1]
    others = [name for name in OTHERS if name in installed]
    return (LATIN, *chinese, *_add_shipped_font(), *others)


def has_glyph(letter: str) -> bool:
    """Whether any of the fonts has this character."""
    return any(ord(letter) in _read_charmap(family) for family in list_families())


def measure_width(text: str, size: float) -> float:
    """The width of a text in inches at a font size in points."""
    properties = FontProperties(family=list(list_families()), size=size)
    drawn, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return drawn / POINTS


def _add_shipped_font() -> list[str]:
    """Registers the font that comes with clearhead; no family if its file is missing."""
    if "Clearhead CJK" not in fontManager.get_font_names():
        if not shipped.font().is_file():
            return []
        fontManager.addfont(shipped.font())
    return ["Clearhead CJK"]


@lru_cache(maxsize=32)
def _read_charmap(family: str) -> frozenset[int]:
    path = fontManager.findfont(FontProperties(family=family), fallback_to_default=False)
    return frozenset(get_font(path).get_charmap())


def _has_glyphs(family: str, letters: str) -> bool:
    try:
        return all(ord(letter) in _read_charmap(family) for letter in letters)
    except (OSError, RuntimeError, ValueError):  # listed by matplotlib, but missing or broken
        return False
