"""The heads of an attention: how many there are, and the weight that merges them, where a family is known."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.huggingface.discovery import attending, refuse_if_blind
from clearhead.lens.huggingface.naming import attentions

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads", "heads", "groups")

# Families that apply this map to the merged heads and nothing before it; "^" is the module around the attention.
# Others have gates or norms in between, so they are not guessed. tests/lens/test_huggingface_norms.py has the proof.
MERGED_BY = {
    "o_proj": (
        "Llama Mistral Mixtral Ministral3 Qwen2 Qwen2Moe Qwen3 Qwen3Moe Gemma Gemma2 Gemma3 GptOss Phi3 Olmo Olmo2 "
        "Olmo3 StableLm Starcoder2 Cohere Cohere2 Granite GraniteMoe Helium SmolLM3 Glm Glm4 DeepseekV2 DeepseekV3 "
        "NomicBert ViT DeiT Beit Dinov2 DINOv3ViT"
    ),
    "out_proj": "Bart MBart Marian Pegasus M2M100 Blenderbot Whisper OPT BioGpt CLIP Siglip Wav2Vec2 Hubert",
    "o": "T5 MT5 UMT5",
    "c_proj": "GPT2 GPTBigCode",
    "dense": "GPTNeoX Phi Albert",
    "out_lin": "DistilBert",
    "Wo": "ModernBert",
    "^output.dense": "Bert Roberta Electra Camembert XLMRoberta LayoutLM",
}
SUFFIXES = ("Attention", "SelfAttention", "CrossAttention")
PLACES = {
    f"{name}{suffix}": place for place, names in MERGED_BY.items() for name in names.split() for suffix in SUFFIXES
}


def head_counts(model: nn.Module) -> dict[str, int]:
    """How many heads each attention of a model has; LensError for a model that cannot be watched."""
    refuse_if_blind(model)
    return {name: head_count(module) for name, module in attentions(model).items()}


def head_count(module: nn.Module) -> int:
    """As the module says, or its config."""
    places: tuple[Any, ...] = (module, getattr(module, "config", None))
    counts = (_told(place, name) for place in places for name in COUNTS)
    return next((count for count in counts if count > 0), 1)


def _told(place: Any, name: str) -> int:
    """A number that a module or a config has; 0 where there is none."""
    try:
        value = getattr(place, name, 0)
    except Exception:  # a config whose layers differ has an error of its own, which is no AttributeError
        return 0
    return value if isinstance(value, int) else 0


def output_weights(model: nn.Module, names: tuple[str, ...]) -> dict[nn.Module, Tensor]:
    """W_O of these attentions, (width, heads · d_v); LensError for a family that is not known to merge that way."""
    paths = {module: path for path, module in attending(model).items()}
    named = attentions(model)
    return {named[name]: _output_weight(model, name, paths[named[name]]) for name in names}


def _output_weight(model: nn.Module, name: str, path: str) -> Tensor:
    module = model.get_submodule(path)
    place = PLACES.get(type(module).__name__)
    if place is None:
        raise LensError(
            f"norms=True wants the map that merges the heads of {name!r}, and of {type(module).__name__} it is not "
            f"known that it follows right after; it is of {', '.join(' '.join(MERGED_BY.values()).split())}"
        )
    around = model.get_submodule(path.rpartition(".")[0]) if place.startswith("^") else module
    linear = around.get_submodule(place.removeprefix("^"))
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise LensError(
            f"norms=True wants the weight that merges the heads of {name!r}; {linear} does not have it as such"
        )
    return weight.T if type(linear).__name__ == "Conv1D" else weight
