"""ModelConfig: sizes and options of a model. What belongs to one kind of input or output is a part of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from numbers import Real
from typing import Any, ClassVar

from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name

CHOICES: dict[str, tuple[Any, ...]] = {
    "norm": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"),
    "positions": ("none", "sinusoidal", "learned", "rotary", "alibi", "relative"),
    "patch_positions": ("learned", "rotary"),
    "conv_stride": (1, 2, 4, 8, 16),
    "temperature": ("fixed", "learned"),
    "pooling": ("mean", "first"),
}

MOST_LAYERS = 1000
MAY_BE_ZERO = ("segments", "ngrams", "patch_convolutions", "conv_blocks")


@dataclass(frozen=True)
class Part:
    """Base class of the parts of a ModelConfig. In a recipe's [model] their options begin with `prefix`."""

    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        _check_fields(self, self.prefix)


@dataclass(frozen=True)
class Patches(Part):
    """The pictures that an encoder takes, as a grid of patches."""

    prefix = "patch_"

    size: int  # pixels along a patch's side
    rows: int
    columns: int
    convolutions: int = 0  # 3 × 3 convolutions at each halving down to patches; 0: patches are projected at once
    positions: str = "learned"  # or "rotary": by row and column

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convolutions and self.size & (self.size - 1):
            raise ConfigError(
                f"patch_convolutions halve a picture again and again, so patch_size must be a power of two, got "
                f"{self.size}; choose another, or patch_convolutions=0"
            )


@dataclass(frozen=True)
class Sound(Part):
    """The spectrograms that an encoder takes, and the convolutions before its layers."""

    prefix = "conv_"

    bands: int  # mel bands of the spectrograms
    stride: int = 4  # frames to one position of the encoder: 1, 2, 4, 8 or 16
    channels: int = 32  # of the convolutions over time and bands
    blocks: int = 2  # residual convolution blocks along time
    kernel: int = 15  # positions that each block's convolution covers; an odd number

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ConfigError(f"conv_kernel must be an odd number, got {self.kernel}")


@dataclass(frozen=True)
class Labels(Part):
    """The labels that a model has scores for."""

    prefix = ""

    count: int
    ngrams: int = 0  # of a Classifier: the longest run of tokens that has scores of its own; 0: only hidden states do
    pooling: str = "mean"  # of a Classifier: all tokens; "first": the first one, through a layer (BERT's pooler)


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
    segments: int = 0  # kinds of segments (BERT's token types)
    embedding_norm: bool = False
    scale_embeddings: bool = True
    tie_embeddings: bool = True
    logits_bias: bool = False
    logits_transform: bool = False  # BERT's layer before the vocabulary
    copying: bool = False  # of a PointerGenerator: tokens of the source may also be copied
    dropout: float = 0.1
    attention_dropout: float | None = None  # None: dropout
    patches: Patches | None = None  # if the encoder takes pictures
    sound: Sound | None = None  # if the encoder takes sound
    labels: Labels | None = None  # if the model has scores for labels

    def __post_init__(self) -> None:
        _check_fields(self)
        for name, kind in PARTS.items():
            if not isinstance(getattr(self, name), (kind, type(None))):
                raise ConfigError(f"{name} must be a {kind.__name__} or None, got {getattr(self, name)!r}")
        for name in ("layers", "decoder_layers"):
            if (getattr(self, name) or 0) > MOST_LAYERS:  # would build for minutes, until memory is full
                raise ConfigError(f"{name} may be at most {MOST_LAYERS:,}, got {getattr(self, name):,}")
        if self.window is not None and self.encoder_window is not None:
            raise ConfigError(
                f"window = {self.window} limits all self-attention, encoder_window = {self.encoder_window} that of the "
                "encoder; set only one of them"
            )

    def resolve(self) -> ModelConfig:
        """The same model with the values that None stands for.

        >>> ModelConfig(vocabulary=1000, heads=4, width=128).resolve().head_dim
        32
        """
        head_dim = self.head_dim or self.width // self.heads
        defaults = {
            "kv_heads": self.heads,
            "head_dim": head_dim,
            "value_head_dim": head_dim,
            "decoder_layers": self.layers,
            "final_norm": self.norm_first,
            "attention_bias": self.bias,
            "attention_dropout": self.dropout,
        }
        return self.change(**{name: value for name, value in defaults.items() if getattr(self, name) is None})

    @property
    def label_count(self) -> int:
        """The number of labels; 0 without an output head for them."""
        return 0 if self.labels is None else self.labels.count

    @classmethod
    def named(cls, name: str, *, vocabulary: int, **changes: Any) -> ModelConfig:
        """A known shape, with changes: classic (2017), modern (as in Llama), tiny (trains on a laptop)."""
        if name not in NAMED:
            raise ConfigError(f"no shape is called {name!r}; choose from {', '.join(NAMED)}")
        return cls.from_dict({**NAMED[name], "vocabulary": vocabulary, **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """From plain values, such as a JSON file's; an unknown name is refused, and the nearest one suggested."""
        _check_names("ModelConfig", FIELDS, values)
        return cls(**{name: _make_part(name, value) if name in PARTS else value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def change(self, **changes: Any) -> ModelConfig:
        """A copy with some values changed. A dict changes values of a part.

        >>> config = ModelConfig.named("tiny", vocabulary=1000, labels=Labels(3, pooling="first"))
        >>> config.change(labels={"count": 7}).labels
        Labels(count=7, ngrams=0, pooling='first')
        """
        values = self.to_dict()
        for name, value in changes.items():
            merges = isinstance(value, Mapping) and name in PARTS
            values[name] = {**(values[name] or {}), **value} if merges else value
        return self.from_dict(values)


PARTS: dict[str, type[Part]] = {"patches": Patches, "sound": Sound, "labels": Labels}
FIELDS = [field.name for field in fields(ModelConfig)]
# The part and the field of options by their names in a recipe. Fields without a default are decided by the data.
PART_OPTIONS = {
    f"{kind.prefix}{field.name}": (part, field.name)
    for part, kind in PARTS.items()
    for field in fields(kind)
    if field.default is not MISSING
}


def nest_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recipe's [model] as changes of a ModelConfig: those of a part in a dict of their own.

    >>> nest_options({"width": 64, "patch_convolutions": 2, "patch_positions": "rotary"})
    {'width': 64, 'patches': {'convolutions': 2, 'positions': 'rotary'}}
    """
    _check_names("ModelConfig", [*(name for name in FIELDS if name not in PARTS), *PART_OPTIONS], options)
    changes = {name: value for name, value in options.items() if name not in PART_OPTIONS}
    for name, (part, field) in PART_OPTIONS.items():
        if name in options:
            changes.setdefault(part, {})[field] = options[name]
    return changes


def _make_part(name: str, value: Any) -> Any:
    """A part of a ModelConfig from plain values; what is no mapping is left to the checks."""
    if not isinstance(value, Mapping):
        return value
    kind = PARTS[name]
    _check_names(name, [field.name for field in fields(kind)], value)
    for field in fields(kind):
        if field.default is MISSING and field.name not in value:
            raise ConfigError(f"{name} has {', '.join(value)}, but no {field.name}; does this model have {name}?")
    return kind(**value)


def _check_names(owner: str, names: Sequence[str], values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in names:
            raise ConfigError(f"{owner} has no {name!r}; {suggest_name(name, names)}")


def _check_fields(config: Any, prefix: str = "") -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if value is not None or "None" not in str(field.type):
            _check_value(prefix + field.name, str(field.type), value)


def _check_value(name: str, kind: str, value: Any) -> None:
    if name in CHOICES and value not in CHOICES[name]:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, CHOICES[name]))}, got {value!r}")
    if kind.startswith("int"):
        least = 0 if name in MAY_BE_ZERO else 1
        if type(value) is not int or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    elif kind.startswith("float"):
        limit = 1 if name.endswith("dropout") else math.inf
        if not (isinstance(value, Real) and 0 <= float(value) < limit):
            wanted = "at least 0 and less than 1" if limit == 1 else "a finite number of at least 0"
            raise ConfigError(f"{name} must be {wanted}, got {value!r}")
    elif kind.startswith("bool") and value not in (True, False):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


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
