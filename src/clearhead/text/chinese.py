"""Chinese script conversion: traditional characters to simplified ones, with OpenCC."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from clearhead.errors import ConfigError, PackageError

SCRIPTS = {"simplified": "t2s"}  # OpenCC's name for the conversion
# Radicals, compatibility ideographs and enclosed words: OpenCC does not know ⾺, whose NFKC is 馬, which becomes 马.
COMPATIBILITY = re.compile("[\u2e80-\u2fdf\u3200-\u33ff\uf900-\ufaff\U0002f800-\U0002fa1f]+")


class Converter(NamedTuple):
    convert: Callable[[str], str]
    version: str  # of OpenCC: its tables change


def load_converter(script: str) -> Converter:
    """The function that converts a text to `script`, and the version of OpenCC; punctuation stays as it is.

    >>> load_converter("simplified").convert("漢語，⾺。")
    '汉语，马。'
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
        if text.isascii():
            return text
        return convert(COMPATIBILITY.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text))

    return Converter(convert_text, str(opencc.__version__))
