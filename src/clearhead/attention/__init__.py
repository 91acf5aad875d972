"""Attention: the definition, masks, biases, positions, caches, and the backends that compute it."""

from clearhead.attention.backends.choice import attend, attention_weights, explain
from clearhead.attention.biases import Bias
from clearhead.attention.cache import KeyValueCache
from clearhead.attention.masks import Mask
from clearhead.attention.multihead import MultiHeadAttention, Seen
from clearhead.attention.positions import Alibi, AxialRotary, Learned, Relative, Rotary, Sinusoidal

__all__ = [
    "Alibi",
    "AxialRotary",
    "Bias",
    "KeyValueCache",
    "Learned",
    "Mask",
    "MultiHeadAttention",
    "Relative",
    "Rotary",
    "Seen",
    "Sinusoidal",
    "attend",
    "attention_weights",
    "explain",
]
