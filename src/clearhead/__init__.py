"""Transformers with a clear head: exact multi-head attention that one can look into, at the speed of fused kernels."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's own takes a while to import, and Ctrl-C cannot be handled yet
if TYPE_CHECKING:
    from typing import Any

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
    from clearhead.lens import Measures, Record, ablate, measure, watch
    from clearhead.model import Decoder, Encoder, EncoderDecoder, ModelConfig
    from clearhead.model.huggingface import from_huggingface, to_huggingface
    from clearhead.predictor import load

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
    "Measures",
    "ModelConfig",
    "MultiHeadAttention",
    "Record",
    "Relative",
    "Rotary",
    "Seen",
    "Sinusoidal",
    "ablate",
    "attend",
    "attention_weights",
    "explain",
    "from_huggingface",
    "load",
    "measure",
    "to_huggingface",
    "watch",
]

# Each is imported when it is first asked for: `clearhead --help` need not wait two seconds for PyTorch.
_HOMES = {
    "ClearheadError": "errors",
    **dict.fromkeys(("Decoder", "Encoder", "EncoderDecoder", "ModelConfig"), "model"),
    **dict.fromkeys(("from_huggingface", "to_huggingface"), "model.huggingface"),
    **dict.fromkeys(("Measures", "Record", "ablate", "measure", "watch"), "lens"),
    "load": "predictor",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        value = getattr(import_module(f"clearhead.{_HOMES.get(name, 'attention')}"), name)
        globals()[name] = value
        return value
    if name in ("attention", "errors", "lens", "model"):  # as they were when all was imported at once
        return import_module(f"clearhead.{name}")
    raise AttributeError(f"module 'clearhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
