"""Transformer models with exact multi-head attention: every weight can be inspected, at the speed of fused kernels."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

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
    from clearhead.decode import Writer, beam, greedy, sample, stream
    from clearhead.errors import ClearheadError
    from clearhead.explore import Axis, write_page
    from clearhead.lens import (
        Measures,
        Record,
        ablate,
        expected_bytes,
        head_effects,
        head_roles,
        hide,
        measure,
        norm_weights,
        rollout,
        watch,
    )
    from clearhead.model import Classifier, Decoder, Encoder, EncoderDecoder, ModelConfig
    from clearhead.model.huggingface import from_huggingface, to_huggingface
    from clearhead.predictor import Predictor, load
    from clearhead.tasks import Prediction, Task
    from clearhead.tasks.alignment import (
        AlignedPair,
        alignment_links,
        score_heads,
        word_attentions,
    )
    from clearhead.text import Tokenizer
    from clearhead.train import Moment, Observer, run_training

__version__ = "0.1.0"


def _has_extras() -> bool:
    try:
        return find_spec("pydantic") is not None
    except ValueError:  # somebody has hidden it
        return False


__all__ = [
    "Alibi",
    "Bias",
    "Classifier",
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
    "Tokenizer",
    "Writer",
    "ablate",
    "attend",
    "attention_weights",
    "beam",
    "expected_bytes",
    "explain",
    "from_huggingface",
    "greedy",
    "head_effects",
    "head_roles",
    "hide",
    "measure",
    "norm_weights",
    "rollout",
    "sample",
    "stream",
    "to_huggingface",
    "watch",
]
if TYPE_CHECKING or _has_extras():  # without them `from clearhead import *` still works
    __all__ += [
        "AlignedPair",
        "Axis",
        "Moment",
        "Observer",
        "Prediction",
        "Predictor",
        "Task",
        "alignment_links",
        "load",
        "run_training",
        "score_heads",
        "word_attentions",
        "write_page",
    ]

# Each is imported when it is first asked for: `clearhead --help` need not wait two seconds for PyTorch.
_HOMES = {
    "attention": """Alibi Bias KeyValueCache Learned Mask MultiHeadAttention Relative Rotary Seen Sinusoidal attend
        attention_weights explain""",
    "decode": "Writer beam greedy sample stream",
    "errors": "ClearheadError",
    "explore": "Axis write_page",
    "lens": "Measures Record ablate expected_bytes head_effects head_roles hide measure norm_weights rollout watch",
    "model": "Classifier Decoder Encoder EncoderDecoder ModelConfig",
    "model.huggingface": "from_huggingface to_huggingface",
    "predictor": "Predictor load",
    "tasks": "Prediction Task",
    "tasks.alignment": "AlignedPair alignment_links score_heads word_attentions",
    "text": "Tokenizer",
    "train": "Moment Observer run_training",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        try:
            value = getattr(import_module(f"clearhead.{_HOME_OF[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("clearhead"):
                raise
            from clearhead.errors import PackageError

            raise PackageError(
                f'clearhead.{name} needs the package {error.name}; pip install "clearhead[train]"'
            ) from None
        globals()[name] = value
        return value
    if name in ("attention", "errors", "lens", "model"):  # as they were when all was imported at once
        return import_module(f"clearhead.{name}")
    raise AttributeError(f"module 'clearhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
