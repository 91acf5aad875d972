"""Layers into models."""

from clearhead.model.config import ModelConfig
from clearhead.model.transformer import Decoder, Encoder, EncoderDecoder

__all__ = ["Decoder", "Encoder", "EncoderDecoder", "ModelConfig"]
