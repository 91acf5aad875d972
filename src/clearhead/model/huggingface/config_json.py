"""The config.json of a Hugging Face checkpoint: every value is checked when it is read; errors name the key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model.config import ModelConfig
from clearhead.storage import read_json

CONFIG = "config.json"
REQUIRED: Any = object()
SIZE_LIMIT = 2**31  # larger than any size of a real model
FIELD_TYPES = {field.name: str(field.type) for field in fields(ModelConfig)}

# Their names for an activation, and ours.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
WRITTEN_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}

# Features that no model here has, by the keys that switch them on. Falsy values switch them off.
UNSUPPORTED = (
    *("auto_map", "quantization_config", "qk_norm", "num_local_experts", "num_experts"),
    *("use_attention_sinks", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"),
)


class HuggingFaceConfig:
    """The values of a config.json, or of a nested object in it."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    @classmethod
    def read(cls, path: Path) -> HuggingFaceConfig:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; a Hugging Face checkpoint has one beside its weights")
        return cls(read_json(path), str(path))

    def has(self, key: str) -> bool:
        """Whether there is a value other than null."""
        return self.values.get(key) is not None

    def read_int(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        wanted = f"a whole number from {least} to {SIZE_LIMIT - 1}"
        return int(self._read(key, default, (int,), wanted, lambda value: least <= value < SIZE_LIMIT))

    def read_float(self, key: str, default: Any = REQUIRED, *, least: float = 0.0) -> float:
        wanted = f"a number of at least {least}"
        return float(self._read(key, default, (int, float), wanted, lambda value: least <= value < 1e30))

    def read_bool(self, key: str, default: Any) -> bool:
        return bool(self._read(key, default, (bool,), "true or false"))

    def read_string(self, key: str, default: Any = REQUIRED) -> str:
        return str(self._read(key, default, (str,), "a string"))

    def read_group(self, key: str) -> HuggingFaceConfig:
        """The settings inside this key; none if it is absent or null."""
        return HuggingFaceConfig(self._read(key, {}, (dict,), "an object with settings"), f"{self.source}, {key}")

    def read_fields(self, keys: Mapping[str, str], **defaults: Any) -> dict[str, Any]:
        """Fields of a ModelConfig from these keys, one for each; a field without a default must be there."""
        return {field: self._read_field(field, key, defaults.get(field, REQUIRED)) for field, key in keys.items()}

    def _read_field(self, field: str, key: str, default: Any) -> Any:
        if field == "activation":
            name = self.read_string(key, default)
            if name not in ACTIVATIONS:
                raise self.unsupported(key, f"only {', '.join(ACTIVATIONS)} can be read")
            return ACTIVATIONS[name]
        readers: Mapping[str, Any] = {"int": self.read_int, "float": self.read_float, "bool": self.read_bool}
        return readers[FIELD_TYPES[field].removesuffix(" | None")](key, default)

    def require(self, **allowed: Any) -> None:
        """Refuses a key with any other value than the allowed one; absent and null are fine."""
        for key, value in allowed.items():
            if self.has(key) and self.values[key] != value:
                raise self.unsupported(key, f"only {key}={json.dumps(value)} can be read")

    def make_config(self, **values: Any) -> ModelConfig:
        """The ModelConfig of these values; invalid ones raise CheckpointError, since they come from the checkpoint."""
        try:
            return ModelConfig(**values)
        except ConfigError as error:
            raise CheckpointError(f"{self.source}: {error}") from error

    def unsupported(self, key: str, remedy: str) -> CheckpointError:
        shown = json.dumps(self.values.get(key))
        shown = shown if len(shown) <= 80 else shown[:77] + "…"
        return CheckpointError(f"{self.source}: {key}={shown} has no counterpart in clearhead; {remedy}")

    def _read(
        self, key: str, default: Any, kinds: tuple[type, ...], wanted: str, fits: Callable[[Any], bool] | None = None
    ) -> Any:
        """The value of a key, or else the default; one of another type, or that does not fit, is refused."""
        value = self.values.get(key)
        value = default if value is None else value
        if value is REQUIRED:
            raise CheckpointError(f"{self.source} has no {key}, which is needed to build the model")
        if type(value) not in kinds or not (fits is None or fits(value)):
            raise CheckpointError(f"{self.source}: {key} must be {wanted}, got {value!r}")
        return value


def write_fields(config: ModelConfig, keys: Mapping[str, str]) -> dict[str, Any]:
    """The inverse of `HuggingFaceConfig.read_fields`."""
    settings = {key: getattr(config, field) for field, key in keys.items()}
    return {**settings, keys["activation"]: WRITTEN_ACTIVATIONS.get(config.activation)}
