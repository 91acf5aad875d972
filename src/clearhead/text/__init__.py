"""Text: corpora, tokenizers and batch plans."""

from clearhead.text.corpora import Row, read
from clearhead.text.report import Report
from clearhead.text.tokenizer import Tokenizer

__all__ = ["Report", "Row", "Tokenizer", "read"]
