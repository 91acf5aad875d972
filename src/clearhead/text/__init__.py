"""Text into tokens and back: corpora, tokenizers, batch plans."""

from clearhead.text.corpora import Row, read
from clearhead.text.report import Report

__all__ = ["Report", "Row", "read"]
