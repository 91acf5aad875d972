"""Which fonts draw the labels, and which characters they have."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import text_to_path

import clearhead.shipped as shipped

LATIN = "DejaVu Sans"  # comes with matplotlib
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "SimHei",
    "Heiti SC",
    "Noto Sans CJK TC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Serif CJK SC",
    "Droid Sans Fallback",
    "Arial Unicode MS",
    "SimSun",
    "AR PL UMing CN",
)
OTHERS = (
    "Malgun Gothic",
    "Apple SD Gothic Neo",
    "NanumGothic",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Nirmala UI",
    "Noto Sans Thai",
    "Leelawadee UI",
    "Thonburi",
    "Noto Sans Symbols2",
    "Segoe UI Symbol",
    "Noto Emoji",
)
POINTS = 72  # in an inch


@lru_cache(maxsize=1)
def families() -> tuple[str, ...]:
    """The fonts that are asked for a character, in this order: Latin, Chinese of this machine, ours, other scripts."""
    known = set(fontManager.get_font_names())
    chinese = next((name for name in CHINESE if name in known and _has(name, "人的我")), None)
    found = [LATIN, *([chinese] if chinese else []), *_shipped(), *(name for name in OTHERS if name in known)]
    return tuple(found)


def covered(letter: str) -> bool:
    """Whether some font has this character."""
    return any(ord(letter) in _charmap(family) for family in families())


def width(text: str, size: float) -> float:
    """How wide a text is drawn, in inches, at a size in points."""
    properties = FontProperties(family=list(families()), size=size)
    drawn, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return drawn / POINTS


def _shipped() -> list[str]:
    """The family of the font that comes with clearhead; none if its file is gone."""
    if "Clearhead CJK" not in fontManager.get_font_names():
        if not shipped.font().is_file():
            return []
        fontManager.addfont(shipped.font())
    return ["Clearhead CJK"]


@lru_cache(maxsize=32)
def _charmap(family: str) -> frozenset[int]:
    path = fontManager.findfont(FontProperties(family=family), fallback_to_default=False)
    return frozenset(get_font(path).get_charmap())


def _has(family: str, letters: str) -> bool:
    try:
        return all(ord(letter) in _charmap(family) for letter in letters)
    except (OSError, RuntimeError, ValueError):  # it was listed, and is gone or broken
        return False
