"""Tiny random models of Hugging Face families under `watch`: passes with padding, generation, ablation, roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

import clearhead
from clearhead import watch
from recordings.random_models import VOCABULARY, draw_tokens, draw_weights
from recordings.recording import Items
from recordings.records import describe_record
from recordings.values import describe_folder, to_plain

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

Inputs = dict[str, Tensor]
TOKENS, LENGTHS = 17, (17, 11)
BERT = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
BERT_TEXT = {**BERT, "vocab_size": VOCABULARY}
LLAMA = {**BERT_TEXT, "num_key_value_heads": 2, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"vocab_size": VOCABULARY, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_heads": 4, "num_layers": 2}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "pad_token_id": 0,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
WHISPER = {**BART, "num_mel_bins": 7, "max_source_positions": 13, "max_target_positions": 43, "suppress_tokens": None}
VIT = {**BERT, "image_size": 15, "patch_size": 5, "num_channels": 3}


def make_text(side: str = "right") -> Inputs:
    """Two texts, the shorter padded on one side."""
    lengths, places = torch.tensor(LENGTHS)[:, None], torch.arange(TOKENS)
    real = places < lengths if side == "right" else places >= TOKENS - lengths
    return {"input_ids": draw_tokens(TOKENS), "attention_mask": real.long()}


def make_picture(_: str = "") -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 15, 15, generator=torch.Generator().manual_seed(2))}


def make_sound(_: str = "") -> Inputs:
    return {"input_features": torch.randn(2, 7, 26, generator=torch.Generator().manual_seed(3))}


class Family(NamedTuple):
    """The classes of a family, its sizes, and what goes into its model."""

    model: str
    config: str
    sizes: dict[str, Any]
    make_inputs: Callable[[str], Inputs] = make_text
    norms: bool = True  # whether ‖v W_O‖ can be measured
    readable: bool = False  # whether from_huggingface reads its checkpoints


FAMILIES = {
    "BERT": Family("BertModel", "BertConfig", BERT_TEXT, readable=True),
    "GPT-2": Family("GPT2LMHeadModel", "GPT2Config", GPT2, readable=True),
    "Llama": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, readable=True),
    "Mistral": Family("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 5}, readable=True),
    "T5": Family("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}, norms=False),
    "BART": Family("BartForConditionalGeneration", "BartConfig", BART),
    "Marian": Family("MarianMTModel", "MarianConfig", BART, readable=True),
    "Whisper": Family("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, make_sound),
    "ViT": Family("ViTModel", "ViTConfig", VIT, make_picture),
}


def record_family(folder: Path, name: str) -> Items:
    """What a family's model gives under all options of `watch`, and what is built on it."""
    family = FAMILIES[name]
    config = getattr(transformers, family.config)(**family.sizes)
    model: Any = draw_weights(getattr(transformers, family.model)(config))
    with torch.no_grad():
        yield f"{name}: passes", _watch_passes(family, model)
        yield f"{name}: analysis", _analyse(family, model)
        if model.can_generate():
            yield f"{name}: generation", _watch_generation(family, model)
        if family.readable:
            yield f"{name}: as our model", _convert(folder / name, model)


def _complete(family: Family, model: Any, side: str = "right") -> Inputs:
    """All that one pass needs."""
    decoder = {"decoder_input_ids": draw_tokens(7, seed=5)} if model.config.is_encoder_decoder else {}
    return family.make_inputs(side) | decoder


def _watch_passes(family: Family, model: Any) -> dict[str, Any]:
    inputs = _complete(family, model)
    spans = {"first": slice(0, 3), "rest": slice(3, None), "last two": slice(-2, None)}
    options: dict[str, dict[str, Any]] = {
        "defaults": {},
        "q and k kept": {"keep": "qk", "norms": family.norms},
        "some queries": {"queries": slice(-4, None), "spans": spans, "itself": True},
        "some heads": {"heads": [1, 3], "layers": "*.self", "pixels": 5, "top": 2, "keep": "qk"},
        "a quarter of the rows": {"rows": 1 / 4, "probes": {"before": lambda query: query - 1}},
        "statistics": {"keep": "statistics"},
    }
    found: dict[str, Any] = {}
    for title, own in options.items():
        with watch(model, **own) as record:
            for _ in range(2 if title == "statistics" else 1):
                model(**inputs)
        found[title] = describe_record(record)
    if family.make_inputs is make_text:
        with watch(model, keep="qk") as record:
            model(**_complete(family, model, "left"))
        found["padded left"] = describe_record(record)
    return found | {"expected bytes": clearhead.expected_bytes(model, tokens=100, keep="qk", spans=spans)}


def _watch_generation(family: Family, model: Any) -> dict[str, Any]:
    inputs = family.make_inputs("left")
    options: dict[str, dict[str, Any]] = {
        "greedy": {},
        "three beams": {"num_beams": 3, "num_return_sequences": 2},
        "sampled": {"do_sample": True, "top_k": 20},
    }
    found: dict[str, Any] = {}
    for title, own in options.items():
        torch.manual_seed(7)
        with watch(model, keep="qk", spans={"first": slice(0, 4)}) as record:
            written = model.generate(**inputs, max_new_tokens=6, **own)
        found[title] = {"written": written.tolist(), "record": describe_record(record)}
    return found


def _analyse(family: Family, model: Any) -> dict[str, Any]:
    """Ablation, hidden tokens, effects of heads, roles and rollout."""
    inputs = _complete(family, model)
    with watch(model, keep="qk", norms=family.norms) as record:
        output = model(**inputs)
    first, last = record.names[0], record.names[-1]
    found: dict[str, Any] = {"output": _describe_output(output), "rollout": to_plain(clearhead.rollout(record, -1))}
    with clearhead.ablate(model, {first: [0, 2], last: None}):
        found["ablated"] = _describe_output(model(**inputs))
    with clearhead.hide(model, {"source" if model.config.is_encoder_decoder else "tokens": [1, 3]}):
        found["hidden"] = _describe_output(model(**inputs))
    effects = clearhead.head_effects(model, lambda: _sum_output(model, inputs), [first, last])
    found["effects"] = to_plain(effects)
    if family.norms:
        sight = record[first]
        found["norm weights"] = to_plain(clearhead.norm_weights(sight, batch=0, head=1, queries=slice(0, 5)))
    return found | {"roles": to_plain(list(_find_roles(family, model, inputs)))}


def _find_roles(family: Family, model: Any, inputs: Inputs) -> Iterable[Any]:
    if family.make_inputs is not make_text:
        return clearhead.head_roles(model, run=lambda: model(**inputs))
    tokens, target = draw_tokens(40), draw_tokens(30, seed=5)
    given = (tokens, target) if model.config.is_encoder_decoder else tokens
    return clearhead.head_roles(model, given, delimiters={5, 9}, pad=0, near=1, seed=4)


def _sum_output(model: Any, inputs: Inputs) -> Tensor:
    return _find_output(model(**inputs)).double().sum()


def _find_output(output: Any) -> Tensor:
    found: Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


def _describe_output(output: Any) -> Any:
    return to_plain(_find_output(output))


def _convert(folder: Path, model: Any) -> dict[str, Any]:
    """The model read as one of ours, what that computes, and what is written back."""
    model.save_pretrained(folder)
    ours = clearhead.from_huggingface(folder).eval()
    tokens = draw_tokens(TOKENS)
    given = (tokens, draw_tokens(7, seed=5)) if model.config.is_encoder_decoder else (tokens,)
    found = {"weights": to_plain(ours.state_dict()), "output": to_plain(ours(*given))}
    clearhead.to_huggingface(ours, folder / "back", pad=0, eos=2, start=1)
    return found | {"written back": describe_folder(folder / "back", folder)}
