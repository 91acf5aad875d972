"""Language models: documents are learned token by token, and a prompt is continued."""

from clearhead.tasks.language_model.continuation import Continuation, write_texts
from clearhead.tasks.language_model.language_settings import LanguageModelRecipe, LanguageOptions
from clearhead.tasks.language_model.language_task import LanguageModel
from clearhead.tasks.language_model.packed_examples import PackedExamples
from clearhead.tasks.language_model.sliding_window import DocumentLoss, score_documents

__all__ = [
    "Continuation",
    "DocumentLoss",
    "LanguageModel",
    "LanguageModelRecipe",
    "LanguageOptions",
    "PackedExamples",
    "score_documents",
    "write_texts",
]
