"""Hugging Face checkpoints: reads and writes BERT, GPT-2, Llama, Marian; reads their relatives.

One file per family maps our parameters to the tensors of a checkpoint; reading and writing use the same mapping.
"""

from clearhead.model.huggingface.read_checkpoint import from_huggingface
from clearhead.model.huggingface.write_checkpoint import to_huggingface

__all__ = ["from_huggingface", "to_huggingface"]
