"""Hugging Face checkpoints: read BERT's, GPT-2's, Llama's and Marian's kin, write BERT and Marian.

One file a family says where each of our parameters lies; reading and writing go by the same words.
"""

from clearhead.model.huggingface.reading import from_huggingface
from clearhead.model.huggingface.writing import to_huggingface

__all__ = ["from_huggingface", "to_huggingface"]
