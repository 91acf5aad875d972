"""Settings: a checkpoint's config.json, each value checked as it is read, each refusal by the key's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model.config import ModelConfig

REQUIRED: Any = object()
LARGEST = 2**31  # no size of a model comes near

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

# What no model here has, by the names under which configs switch it on. Falsy values switch it off.
FOREIGN = (
    "auto_map",
    "quantization_config",
    "qk_norm",
    "use_qk_norm",
    "qk_layernorm",
    "use_attention_sinks",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "clip_qkv",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
)


class Settings:
    """The values of a config.json, or of a group in it."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    @classmethod
    def read(cls, path: Path) -> Settings:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; a Hugging Face checkpoint has one beside its weights")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            raise CheckpointError(f"{path} is not readable JSON ({error}); save the checkpoint again") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold an object with settings, got {type(values).__name__}")
        return cls(values, str(path))

    def says(self, key: str) -> bool:
        """Whether there is a value other than null."""
        return self.values.get(key) is not None

    def whole(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < LARGEST:
            raise self.wrong(key, value, f"a whole number from {least} to {LARGEST - 1}")
        return value

    def number(self, key: str, default: Any = REQUIRED, *, least: float = 0.0) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e30:
            raise self.wrong(key, value, f"a number of at least {least}")
        return float(value)

    def truth(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def word(self, key: str, default: Any = REQUIRED) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def group(self, key: str) -> Settings:
        """The settings inside this key; none if it is absent or null."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object with settings")
        return Settings(value, f"{self.source}, {key}")

    def activation(self, key: str, default: str) -> str:
        """Our name for it."""
        name = self.word(key, default)
        if name not in ACTIVATIONS:
            raise self.refusal(key, f"only {', '.join(ACTIVATIONS)} can be read")
        return ACTIVATIONS[name]

    def only(self, **allowed: Any) -> None:
        """Refuses a key with any other value than the allowed one; absent and null are fine."""
        for key, value in allowed.items():
            if self.says(key) and self.values[key] != value:
                raise self.refusal(key, f"only {key}={json.dumps(value)} can be read")

    def refuse_foreign(self) -> None:
        for key in FOREIGN:
            if self.values.get(key):
                raise self.refusal(key, "only checkpoints without it can be read")

    def model(self, **values: Any) -> ModelConfig:
        """The ModelConfig of these values; what makes no sense is the checkpoint's fault here."""
        try:
            return ModelConfig(**values)
        except ConfigError as error:
            raise CheckpointError(f"{self.source}: {error}") from error

    def refusal(self, key: str, remedy: str) -> CheckpointError:
        shown = json.dumps(self.values.get(key))
        shown = shown if len(shown) <= 80 else shown[:77] + "…"
        return CheckpointError(f"{self.source}: {key}={shown} has no counterpart in clearhead; {remedy}")

    def wrong(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key} must be {wanted}, got {value!r}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"{self.source} does not say {key}, which is needed to build the model")
        return default
