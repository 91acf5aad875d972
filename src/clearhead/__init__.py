"""Transformer models with exact multi-head attention: every weight can be inspected, at the speed of fused kernels."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

TYPE_CHECKING = False  # typing's own takes a while to import, and Ctrl-C cannot be handled yet
if TYPE_CHECKING:
    from typing import Any

    from clearhead.attention import Alibi as Alibi
    from clearhead.attention import Bias as Bias
    from clearhead.attention import KeyValueCache as KeyValueCache
    from clearhead.attention import Learned as Learned
    from clearhead.attention import Mask as Mask
    from clearhead.attention import MultiHeadAttention as MultiHeadAttention
    from clearhead.attention import Relative as Relative
    from clearhead.attention import Rotary as Rotary
    from clearhead.attention import Seen as Seen
    from clearhead.attention import Sinusoidal as Sinusoidal
    from clearhead.attention import attend as attend
    from clearhead.attention import attention_weights as attention_weights
    from clearhead.attention import explain as explain
    from clearhead.decode import Writer as Writer
    from clearhead.decode import beam as beam
    from clearhead.decode import greedy as greedy
    from clearhead.decode import sample as sample
    from clearhead.decode import stream as stream
    from clearhead.errors import ClearheadError as ClearheadError
    from clearhead.explore import Axis as Axis
    from clearhead.explore import write_page as write_page
    from clearhead.lens import Measures as Measures
    from clearhead.lens import Record as Record
    from clearhead.lens import ablate as ablate
    from clearhead.lens import expected_bytes as expected_bytes
    from clearhead.lens import head_effects as head_effects
    from clearhead.lens import head_roles as head_roles
    from clearhead.lens import hide as hide
    from clearhead.lens import measure as measure
    from clearhead.lens import norm_weights as norm_weights
    from clearhead.lens import rollout as rollout
    from clearhead.lens import watch as watch
    from clearhead.model import Classifier as Classifier
    from clearhead.model import Decoder as Decoder
    from clearhead.model import Encoder as Encoder
    from clearhead.model import EncoderDecoder as EncoderDecoder
    from clearhead.model import ModelConfig as ModelConfig
    from clearhead.model.huggingface import from_huggingface as from_huggingface
    from clearhead.model.huggingface import to_huggingface as to_huggingface
    from clearhead.predictor import Predictor as Predictor
    from clearhead.predictor import load as load
    from clearhead.tasks import Prediction as Prediction
    from clearhead.tasks import Task as Task
    from clearhead.text import Tokenizer as Tokenizer
    from clearhead.train import Moment as Moment
    from clearhead.train import Observer as Observer
    from clearhead.train import run_training as run_training

__version__ = "0.1.0"


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
    "text": "Tokenizer",
    "train": "Moment Observer run_training",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_EXTRA = {"explore", "predictor", "tasks", "text", "train"}  # homes that need optional packages


def _has_extras() -> bool:
    try:
        return find_spec("pydantic") is not None
    except ValueError:  # somebody has hidden it
        return False


# Without the extras, `from clearhead import *` still works.
_HERE = _HOMES.keys() if _has_extras() else _HOMES.keys() - _EXTRA
__all__ = sorted(name for name, home in _HOME_OF.items() if home in _HERE)


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
    if name in ("attention", "errors", "lens", "model"):
        return import_module(f"clearhead.{name}")
    raise AttributeError(f"module 'clearhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
