"""Text into tokens and back: corpora, tokenizers, batch plans."""

from clearhead.text.corpora import Row, read
from clearhead.text.report import Report
from clearhead.text.tokenizer import Tokenizer

__all__ = ["Report", "Row", "Tokenizer", "read"]
