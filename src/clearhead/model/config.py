"""ModelConfig: sizes and options of a model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name

CHOICES = {
    "norm": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"),
    "positions": ("none", "sinusoidal", "learned", "rotary", "alibi", "relative"),
    "patch_positions": ("learned", "rotary"),
    "temperature": ("fixed", "learned"),
    "pooling": ("mean", "first"),
}

MOST_LAYERS = 1000
MAY_BE_ZERO = ("segments", "ngrams", "patch_convolutions", "conv_blocks")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and options of an encoder, a decoder or both. The defaults are the 2017 Transformer.

    >>> ModelConfig.named("classic", vocabulary=1000).width
    512
    >>> ModelConfig.named("tiny", vocabulary=1000, layers=3).layers
    3
    """

    vocabulary: int
    source_vocabulary: int | None = None  # of an EncoderDecoder whose encoder reads other words; None: the same
    width: int = 512
    heads: int = 8
    kv_heads: int | None = None  # fewer than heads: keys and values are shared; None: as many
    head_dim: int | None = None  # None: width / heads
    value_head_dim: int | None = None  # None: head_dim
    layers: int = 6
    decoder_layers: int | None = None  # of an EncoderDecoder; None: layers
    feedforward: int = 2048
    activation: str = "relu"
    norm: str = "layer"
    norm_first: bool = False
    norm_epsilon: float = 1e-5
    final_norm: bool | None = None  # None: only if norms come first
    bias: bool = True
    attention_bias: bool | None = None  # None: as bias
    positions: str = "sinusoidal"
    max_length: int = 512  # of learned positions; the others know no limit
    rotary_base: float = 10000.0
    rotary_scaling: dict[str, float | str] | None = None
    window: int | None = None  # keys seen on each side, the query's own place included; None: all
    encoder_window: int | None = None  # tokens that each token of an encoder sees to its left and right; None: all
    temperature: str = "fixed"
    cross_attention: bool = False  # of a Decoder; an EncoderDecoder's always has it
    context_width: int | None = None  # width of the context of cross-attention; None: width
    patch_size: int | None = None  # pixels along a patch's side, if the encoder takes pictures; None: it takes tokens
    patch_rows: int | None = None  # of the grid of patches; the picture is patch_rows × patch_size pixels high
    patch_columns: int | None = None
    patch_convolutions: int = 0  # 3 × 3 convolutions at each halving down to patches; 0: patches are projected at once
    patch_positions: str = "learned"  # of the encoder, if it takes pictures; the decoder's are `positions`
    mel_bands: int | None = None  # of the spectrograms, if the encoder takes sound; None: it does not
    conv_stride: int = 4  # frames of sound to one position of the encoder: 1, 2, 4, 8 or 16
    conv_channels: int = 32  # of the convolutions over time and bands
    conv_blocks: int = 2  # residual convolution blocks before the encoder's layers
    conv_kernel: int = 15  # positions that each block's convolution covers; an odd number
    segments: int = 0  # kinds of segments (BERT's token types)
    embedding_norm: bool = False
    scale_embeddings: bool = True
    tie_embeddings: bool = True
    logits_bias: bool = False
    logits_transform: bool = False  # BERT's layer before the vocabulary
    copying: bool = False  # of a PointerGenerator: tokens of the source may also be copied
    labels: int | None = None  # of a Classifier or TokenClassifier: how many to choose from
    ngrams: int = 0  # of a Classifier: runs of up to so many tokens have scores of their own; 0: only hidden states do
    pooling: str = "mean"  # of a Classifier: the mean of all tokens, or the first one, through a layer (BERT's pooler)
    dropout: float = 0.1
    attention_dropout: float | None = None  # None: dropout

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in WHOLE:
            value, least = getattr(self, name), 0 if name in MAY_BE_ZERO else 1
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("layers", "decoder_layers"):
            if (getattr(self, name) or 0) > MOST_LAYERS:  # would build for minutes, until memory is full
                raise ConfigError(f"{name} may be at most {MOST_LAYERS:,}, got {getattr(self, name):,}")
        for name in YES_OR_NO:
            if getattr(self, name) not in (True, False, None):
                raise ConfigError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in NUMBERS:
            value, limit = getattr(self, name), 1 if name.endswith("dropout") else math.inf
            if value is not None and not (isinstance(value, Real) and 0 <= float(value) < limit):
                wanted = "at least 0 and less than 1" if limit == 1 else "a finite number of at least 0"
                raise ConfigError(f"{name} must be {wanted}, got {value!r}")
        if self.head_dim is None and self.width % self.heads:
            raise ConfigError(
                f"a width of {self.width} does not split into {self.heads} heads; choose heads that divide it, "
                "or give head_dim"
            )
        if self.window is not None and self.encoder_window is not None:
            raise ConfigError(
                f"window = {self.window} limits all self-attention, encoder_window = {self.encoder_window} that of the "
                "encoder; set only one of them"
            )
        grid = {name: getattr(self, name) for name in ("patch_size", "patch_rows", "patch_columns")}
        if len({value is None for value in grid.values()}) == 2:
            missing = ", ".join(name for name, value in grid.items() if value is None)
            raise ConfigError(f"patch_size, patch_rows and patch_columns are set together; missing: {missing}")
        if self.conv_stride not in (1, 2, 4, 8, 16):
            raise ConfigError(f"conv_stride must be 1, 2, 4, 8 or 16, got {self.conv_stride}")
        if self.conv_kernel % 2 == 0:
            raise ConfigError(f"conv_kernel must be an odd number, got {self.conv_kernel}")
        if self.patch_convolutions and self.patch_size and self.patch_size & (self.patch_size - 1):
            raise ConfigError(
                f"patch_convolutions halve a picture again and again, so patch_size must be a power of two, got "
                f"{self.patch_size}; choose another, or patch_convolutions=0"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ConfigError(
                f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly; "
                "make heads a multiple of kv_heads"
            )

    @classmethod
    def named(cls, name: str, *, vocabulary: int, **changes: Any) -> ModelConfig:
        """A known shape, with changes: classic (2017), modern (as in Llama), tiny (trains on a laptop)."""
        if name not in NAMED:
            raise ConfigError(f"no shape is called {name!r}; choose from {', '.join(NAMED)}")
        return cls.from_dict({**NAMED[name], "vocabulary": vocabulary, **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """From plain values, such as a JSON file's; an unknown name is refused, and the nearest one suggested."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"ModelConfig has no {name!r}; {suggest_name(name, known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def change(self, **changes: Any) -> ModelConfig:
        """A copy with some values changed."""
        return self.from_dict({**self.to_dict(), **changes})


WHOLE = [field.name for field in fields(ModelConfig) if field.type in ("int", "int | None")]
NUMBERS = [field.name for field in fields(ModelConfig) if field.type in ("float", "float | None")]
YES_OR_NO = [field.name for field in fields(ModelConfig) if field.type in ("bool", "bool | None")]

NAMED: dict[str, dict[str, Any]] = {
    "classic": {},
    "modern": {
        "kv_heads": 2,
        "feedforward": 1408,  # 8/3 of the width, rounded up: three matrices cost what two of 4 × width do
        "activation": "swiglu",
        "norm": "rms",
        "norm_first": True,
        "norm_epsilon": 1e-6,
        "bias": False,
        "positions": "rotary",
        "scale_embeddings": False,
    },
    "tiny": {"width": 128, "heads": 4, "layers": 2, "feedforward": 512, "norm_first": True},
}
