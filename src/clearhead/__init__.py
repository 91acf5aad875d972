"""Transformers with a clear head: exact multi-head attention that one can look into, at the speed of fused kernels."""

from clearhead.attention import (
    Alibi,
    Bias,
    KeyValueCache,
    Learned,
    Mask,
    MultiHeadAttention,
    Relative,
    Rotary,
    Seen,
    Sinusoidal,
    attend,
    attention_weights,
    explain,
)
from clearhead.errors import ClearheadError
from clearhead.model import Decoder, Encoder, EncoderDecoder, ModelConfig
from clearhead.model.huggingface import from_huggingface, to_huggingface

__version__ = "0.1.0"

__all__ = [
    "Alibi",
    "Bias",
    "ClearheadError",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "KeyValueCache",
    "Learned",
    "Mask",
    "ModelConfig",
    "MultiHeadAttention",
    "Relative",
    "Rotary",
    "Seen",
    "Sinusoidal",
    "attend",
    "attention_weights",
    "explain",
    "from_huggingface",
    "to_huggingface",
]
