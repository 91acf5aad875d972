"""Chinese script conversion: traditional characters to simplified ones, with OpenCC."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from clearhead.errors import ConfigError, PackageError

SCRIPTS = {"simplified": "t2s"}  # OpenCC's name for the conversion


class Converter(NamedTuple):
    convert: Callable[[str], str]
    version: str  # of OpenCC: its tables change


def load_converter(script: str) -> Converter:
    """The function that converts a text to `script`, and the version of OpenCC.

    >>> load_converter("simplified").convert("漢語")
    '汉语'
    """
    if script not in SCRIPTS:
        raise ConfigError(
            f"unknown script {script!r}; choose {' or '.join(map(repr, SCRIPTS))}, or None to keep text as it is"
        )
    try:
        import opencc
    except ImportError:
        raise PackageError(
            f"script={script!r} needs the package opencc, which is not installed; pip install 'clearhead[train]'"
        ) from None
    convert: Callable[[str], str] = opencc.OpenCC(SCRIPTS[script]).convert

    def convert_text(text: str) -> str:
        # NFKC first: OpenCC does not know ⾺, the radical, which becomes 馬, the character, which becomes 马.
        return text if text.isascii() else convert(unicodedata.normalize("NFKC", text))

    return Converter(convert_text, str(opencc.__version__))
