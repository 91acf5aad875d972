"""The config.json of a Hugging Face checkpoint: every value is checked when it is read; errors name the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model.config import ModelConfig

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
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            raise CheckpointError(f"{path} is not readable JSON ({error}); save the checkpoint again") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold an object with settings, got {type(values).__name__}")
        return cls(values, str(path))

    def has(self, key: str) -> bool:
        """Whether there is a value other than null."""
        return self.values.get(key) is not None

    def read_int(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < SIZE_LIMIT:
            raise self.wrong_type(key, value, f"a whole number from {least} to {SIZE_LIMIT - 1}")
        return value

    def read_float(self, key: str, default: Any = REQUIRED, *, least: float = 0.0) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e30:
            raise self.wrong_type(key, value, f"a number of at least {least}")
        return float(value)

    def read_bool(self, key: str, default: Any) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong_type(key, value, "true or false")
        return value

    def read_string(self, key: str, default: Any = REQUIRED) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong_type(key, value, "a string")
        return value

    def read_group(self, key: str) -> HuggingFaceConfig:
        """The settings inside this key; none if it is absent or null."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self.wrong_type(key, value, "an object with settings")
        return HuggingFaceConfig(value, f"{self.source}, {key}")

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

    def wrong_type(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key} must be {wanted}, got {value!r}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"{self.source} has no {key}, which is needed to build the model")
        return default


def write_fields(config: ModelConfig, keys: Mapping[str, str]) -> dict[str, Any]:
    """The inverse of `HuggingFaceConfig.read_fields`."""
    settings = {key: getattr(config, field) for field, key in keys.items()}
    return {**settings, keys["activation"]: WRITTEN_ACTIVATIONS.get(config.activation)}
