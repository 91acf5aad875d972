"""Transformer models: encoder, decoder, both, classifiers, pictures to text; their configuration; checkpoints."""

from clearhead.model.config import Labels, ModelConfig, Patches, Sound
from clearhead.model.output_heads import Classifier, PooledEncoder, TokenClassifier
from clearhead.model.patches import PatchEmbedding, PictureToText
from clearhead.model.pointer_generator import PointerGenerator
from clearhead.model.speech_model import SpeechModel
from clearhead.model.transformer import Decoder, Encoder, EncoderDecoder

Model = Encoder | Decoder | EncoderDecoder

__all__ = [
    "Classifier",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Labels",
    "Model",
    "ModelConfig",
    "PatchEmbedding",
    "Patches",
    "PictureToText",
    "PointerGenerator",
    "PooledEncoder",
    "Sound",
    "SpeechModel",
    "TokenClassifier",
]
