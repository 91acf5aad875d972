"""Small Hugging Face models of many families with non-uniform attention, and the weights of their eager attention.

Sizes are distinct primes, or products of two, so that no transposition hides. In float32: in double precision, rows
that see nothing turn eager attention's numbers into NaN.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor, nn

from clearhead.lens.huggingface import find_attentions
from clearhead.lens.huggingface.interposition import wrap_modules
from clearhead.lens.record.attention_views import Sight
from tests.model.checkpoints import BERT, GPT2, LLAMA, MARIAN, shaken

HEADS, TOKENS, LENGTHS = 3, 11, (11, 7, 5)
WINDOW = 5
WIDE = {"hidden_size": 3 * 7, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 37}
GROUPED = {**LLAMA, "head_dim": 2 * 5, "pad_token_id": 0}
VIT = {**WIDE, "image_size": 3 * 5, "patch_size": 5, "num_channels": 3}
BART = {**MARIAN, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}
CLIP_TEXT = {**WIDE, "vocab_size": 31, "max_position_embeddings": 19, "eos_token_id": 2, "bos_token_id": 1}
T5 = {"vocab_size": 31, "d_model": 3 * 7, "d_kv": 5, "d_ff": 37, "num_heads": 3, "num_layers": 2}
OSS = {"num_local_experts": 3, "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"]}
WHISPER = {"num_mel_bins": 7, "max_source_positions": 13, "max_target_positions": 43, "suppress_tokens": None}


def wrapped_attention(model: nn.Module, wrap: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within it every attention of a model goes through `wrap`."""
    return wrap_modules(find_attentions(model).values(), wrap)


class Family(NamedTuple):
    """How to make a model of it, what goes in besides `tokens`, and the names of its attentions."""

    make: Callable[[], Any]
    names: list[str]
    inputs: Callable[[], dict[str, Tensor]] = dict
    text: bool = True


def stack(name: str, layers: int, kind: str = "self") -> list[str]:
    return [f"{name}.{n}.{kind}" for n in range(layers)]


def pairs(encoder: int = 2, decoder: int = 2) -> list[str]:
    """The names of an encoder-decoder, in its order."""
    both = [name for n in range(decoder) for name in (f"decoder.{n}.self", f"decoder.{n}.cross")]
    return stack("encoder", encoder) + both


def target() -> dict[str, Tensor]:
    return {"decoder_input_ids": tokens(7)}


def image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(3, 3, 15, 15, generator=torch.Generator().manual_seed(2))}


def sound() -> dict[str, Tensor]:
    drawn = torch.randn(3, 7, 2 * 13, generator=torch.Generator().manual_seed(3))
    return {"input_features": drawn, **target()}


def tokens(length: int = TOKENS) -> Tensor:
    return torch.randint(3, 29, (3, length), generator=torch.Generator().manual_seed(length))


def padding(side: str) -> Tensor:
    """Which of three rows of tokens are real."""
    lengths, places = torch.tensor(LENGTHS)[:, None], torch.arange(TOKENS)
    return (places < lengths if side == "right" else places >= TOKENS - lengths).long()


def _made(model: str, config: str, **changes: Any) -> Callable[[], Any]:
    def make() -> Any:
        made = getattr(transformers, config)(**changes)
        return shaken(getattr(transformers, model)(made))

    return make


def _bert(model: str, config: str, **changes: Any) -> Family:
    return Family(_made(model, config, **{**BERT, **changes}), stack("encoder", 2))


def _llama(name: str, **changes: Any) -> Family:
    return Family(_made(f"{name}ForCausalLM", f"{name}Config", **{**GROUPED, **changes}), stack("decoder", 2))


def _clip() -> Any:
    config = transformers.CLIPConfig(text_config=CLIP_TEXT, vision_config=VIT, projection_dim=17)
    return shaken(transformers.CLIPModel(config))


def _seq2seq(model: str, config: str, **changes: Any) -> Family:
    return Family(_made(model, config, **changes), pairs(decoder=changes.get("decoder_layers", 2)), target)


FAMILIES = {
    "bert": _bert("BertModel", "BertConfig"),
    "roberta": _bert("RobertaModel", "RobertaConfig", max_position_embeddings=23, pad_token_id=1),
    "layoutlm": _bert("LayoutLMModel", "LayoutLMConfig"),
    "distilbert": Family(
        _made("DistilBertModel", "DistilBertConfig", vocab_size=31, dim=21, n_heads=3, n_layers=2, hidden_dim=37),
        stack("encoder", 2),
    ),
    "modernbert": Family(
        _made(
            "ModernBertModel",
            "ModernBertConfig",
            **{**WIDE, "num_hidden_layers": 4, "hidden_size": 3 * 10},
            vocab_size=31,
            local_attention=6,
            pad_token_id=0,
        ),
        stack("encoder", 4),
    ),
    "gpt2": Family(_made("GPT2LMHeadModel", "GPT2Config", **{**GPT2, "n_positions": 43}), stack("decoder", 2)),
    "gpt-neox": Family(
        _made("GPTNeoXForCausalLM", "GPTNeoXConfig", **{**WIDE, "hidden_size": 3 * 10}, vocab_size=31),
        stack("decoder", 2),
    ),
    "llama": _llama("Llama"),
    "qwen2": _llama("Qwen2"),
    "qwen3": _llama("Qwen3"),
    "mistral": _llama("Mistral", sliding_window=WINDOW),
    "gemma2": _llama("Gemma2", sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=7),
    "gpt-oss": _llama("GptOss", sliding_window=WINDOW, experts_implementation="eager", **OSS),
    "t5": _seq2seq("T5ForConditionalGeneration", "T5Config", **T5, pad_token_id=0, decoder_start_token_id=0),
    "marian": _seq2seq("MarianMTModel", "MarianConfig", **MARIAN),
    "bart": _seq2seq("BartForConditionalGeneration", "BartConfig", **BART),
    "whisper": Family(
        _made("WhisperForConditionalGeneration", "WhisperConfig", **{**BART, **WHISPER}), pairs(2, 3), sound, text=False
    ),
    "vit": Family(_made("ViTModel", "ViTConfig", **VIT), stack("encoder", 2), image, text=False),
    "dinov2": Family(_made("Dinov2Model", "Dinov2Config", **VIT), stack("encoder", 2), image, text=False),
    "clip-text": Family(_made("CLIPTextModel", "CLIPTextConfig", **CLIP_TEXT), stack("encoder", 2)),
    "clip": Family(_clip, stack("text.encoder", 2) + stack("vision.encoder", 2), image),
}
DECODERS = [name for name, family in FAMILIES.items() if family.names[0].startswith("decoder")]
PAIRS = ["t5", "marian", "bart", "whisper"]


@functools.cache
def made(name: str, attention: str | None = None) -> Any:
    """A model of a family, with the attention that it would have by itself, or a certain one: one for all tests."""
    model = FAMILIES[name].make()
    if attention is not None:
        model.set_attn_implementation(attention)
    return model


@contextmanager
def implementation(model: Any, name: str) -> Iterator[None]:
    """The model with an attention of this name, even if it wants packages that are not here."""
    before = model.config._attn_implementation
    model.config._attn_implementation_internal = name
    try:
        yield
    finally:
        model.config._attn_implementation_internal = before


def inputs(name: str, side: str | None = None) -> dict[str, Tensor]:
    """Three rows that go in, padded on one side or not at all."""
    family = FAMILIES[name]
    given = dict(family.inputs())
    if family.text:
        given["input_ids"] = tokens()
        if side is not None:
            given["attention_mask"] = padding(side)
    return given


def eager_weights(model: Any, given: dict[str, Any], names: list[str]) -> dict[str, Tensor]:
    """What the model says itself that every head looked at: eager attention, output_attentions."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        out = model(**given, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    if "text_model_output" in out:
        found = [*out.text_model_output.attentions, *out.vision_model_output.attentions]
    elif "decoder_attentions" in out:
        both = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        found = [*out.encoder_attentions, *(weights for layer in both for weights in layer)]
    else:
        found = list(out.attentions)
    return dict(zip(names, found, strict=True))


def assert_sees(
    sight: Sight, weights: Tensor, real: Tensor | None = None, *, within: float = 1e-5, first: int = 0
) -> None:
    """Every measure as it follows from the weights, for the queries that are `real` tokens, (batch, queries).

    The others may see nothing, for which eager attention has equal weights, and so they differ ever after: of those
    only that the measures are of one mind. The queries stand at positions `first`, `first + 1`, …
    """
    weights, found = weights.detach().double(), sight.map.double()
    batch, heads, queries, keys = weights.shape
    assert found.shape == weights.shape, f"{tuple(found.shape)} for {tuple(weights.shape)}"
    real = torch.ones(batch, queries, dtype=torch.bool) if real is None else real.bool()
    assert (sight.logsumexp > -torch.inf).movedim(1, 2)[real].all(), "a real token sees nothing"
    weights = weights.where(real[:, None, :, None], found)
    positions = torch.arange(first, first + queries)
    apart = (positions[:, None] - torch.arange(keys)).abs()
    top = weights.sort(-1, descending=True).values[..., : sight.top_weights.shape[-1]]
    leading = (weights > 0).int().argmax(-1, keepdim=True)
    right = {
        "entropy": torch.special.entr(weights).sum(-1),
        "peak": weights.amax(-1),
        "distance": (weights * apart).sum(-1),
        "first": weights.gather(-1, leading)[..., 0],
        "top_weights": torch.nn.functional.pad(top, (0, sight.top_weights.shape[-1] - top.shape[-1])),
        "received": weights.sum(2),
        "map": weights,
    }
    for name, value in right.items():
        found = getattr(sight, name)
        assert found.shape == value.shape, f"{name} is {tuple(found.shape)}, not {tuple(value.shape)}"
        off = (found - value).abs().max().item()
        assert off <= within * (1 + value.abs().max().item()), f"{name} is off by {off:.1e}"
    for name, value in (("peak_key", sight.peak[..., None]), ("top_keys", sight.top_weights)):
        chosen = getattr(sight, name).view(batch, heads, queries, -1).long()
        own = weights.gather(-1, chosen.clamp(min=0)).masked_fill(chosen < 0, 0.0)
        assert (own - value.double()).abs().max() <= within, f"{name} are not the keys with these weights"
    assert torch.equal(sight.queries, positions), f"queries at {sight.queries.tolist()}"
