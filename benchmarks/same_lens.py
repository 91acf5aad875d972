"""Whether a refactoring changed any number of the lens: records what it measures, and compares two recordings.

    python benchmarks/same_lens.py record before       # at the old commit
    python benchmarks/same_lens.py record after        # at the new one
    python benchmarks/same_lens.py compare before after

A recording holds every measure and exact windows of six Hugging Face families (padded, and generating with beams) and
of our own models (caches, grouped heads, ALiBi, relative positions), the measures of single attentions with every
option, rollout, a record file, and the numbers in a page. `compare` also loads the record file of the first recording.
Only public names are used, so one script serves both commits; PYTHONPATH chooses the checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor

import clearhead
from clearhead import Bias, Decoder, Encoder, EncoderDecoder, Mask, ModelConfig, Record, measure, watch
from same_results import about, differences

MEASURES = [
    "logsumexp",
    "entropy",
    "peak",
    "peak_key",
    "distance",
    "first",
    "top_keys",
    "top_weights",
    "received",
    "map",
]
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 53}
SEQ = {"vocab_size": 53, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 40}
SEQ |= {"decoder_ffn_dim": 40, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0}
T5 = {"vocab_size": 53, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_heads": 4, "num_layers": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertModel", "BertConfig", SIZES),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 53, "n_embd": 24, "n_layer": 2, "n_head": 4},
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {**SIZES, "num_key_value_heads": 2}),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "num_key_value_heads": 2, "sliding_window": 5}),
    "T5": ("T5Model", "T5Config", T5),
    "BART": ("BartForConditionalGeneration", "BartConfig", {**SEQ, "forced_eos_token_id": None}),
}


def digest(tensor: Tensor | None) -> str | None:
    if tensor is None:
        return None
    plain = tensor.detach().cpu().contiguous()
    raw = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode() + raw).hexdigest()


def measures_of(record: Record) -> list[dict[str, Any]]:
    """A checksum for every measure of every attention, and for a window of one head's weights."""
    found = []
    for call in record.calls:
        own: dict[str, Any] = {}
        for name in call.names:
            seen = call[name]
            own[name] = {one: digest(getattr(seen, one, None)) for one in [*MEASURES, "queries", "visible", "norms"]}
            own[name]["window"] = digest(seen.weights(batch=0, head=int(seen.heads[-1]), queries=slice(0, 4)))
        found.append(own)
    return found


def families() -> Iterator[tuple[str, Record]]:
    tokens = torch.randint(3, 50, (2, 17), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([17, 11])
    for name, (kind, config, sizes) in FAMILIES.items():
        torch.manual_seed(3)
        model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
        for side in ("right", "left"):
            places = torch.arange(17)
            real = (places < lengths[:, None] if side == "right" else places >= 17 - lengths[:, None]).long()
            more = {"decoder_input_ids": tokens[:, :7]} if model.config.is_encoder_decoder else {}
            with torch.no_grad(), watch(model, keep="qk", norms=name != "T5") as record:
                model(input_ids=tokens, attention_mask=real, **more)
            yield f"{name}, padded {side}", record
        if model.can_generate():
            with torch.no_grad(), watch(model, keep="qk") as record:
                model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=6, num_beams=3)
            yield f"{name}, three beams", record


def own_models() -> Iterator[tuple[str, Record]]:
    tokens = torch.randint(3, 50, (2, 19), generator=torch.Generator().manual_seed(2))
    small = {"vocabulary": 53, "width": 24, "heads": 4, "layers": 2, "feedforward": 40}
    for shape, changes in (("tiny", {}), ("modern", {}), ("tiny", {"positions": "alibi"}), ("tiny", {"window": 5})):
        torch.manual_seed(5)
        config = ModelConfig.named(shape, **{**small, **changes})
        for model in (Encoder(config).eval(), Decoder(config).eval()):
            with torch.no_grad(), watch(model, keep="qk", norms=True, rows=None) as record:
                model(tokens, mask=Mask.padding([19, 13]))
            yield f"{type(model).__name__}, {shape} {changes}", record
    torch.manual_seed(7)
    model = EncoderDecoder(ModelConfig.named("tiny", **small, positions="relative")).eval()
    writer = clearhead.Writer.translating(model, tokens, [19, 13])
    with watch(model, keep="qk", top=3, pixels=7) as record:
        clearhead.beam(writer, start=1, end=2, max_length=9, beams=3)
    yield "EncoderDecoder, relative, three beams", record
    with torch.no_grad(), watch(model, rows=1 / 4, heads=[1, 3], layers="*.cross", keep="qk") as record:
        model(tokens, tokens[:, :11])
    yield "EncoderDecoder, a quarter of the rows", record


def single_attentions() -> Iterator[tuple[str, Any]]:
    chance = torch.Generator().manual_seed(11)
    for dtype in (torch.float32, torch.float64):
        q = torch.randn(2, 6, 37, 16, generator=chance, dtype=dtype)
        k = torch.randn(2, 3, 41, 16, generator=chance, dtype=dtype)
        ids = torch.arange(41)[None].expand(2, -1) // 9
        masks = {
            "full": None,
            "causal": Mask.causal(),
            "window": Mask.window(5, 2),
            "prefix": Mask.causal() | Mask.prefix(4),
        }
        masks["documents"] = Mask.documents(ids, ids[:, :37])
        options: dict[str, dict[str, Any]] = {
            "plain": {},
            "capped, sinks": {"softcap": 3.0, "sinks": torch.linspace(-1, 1, 6, dtype=dtype)},
            "bias": {"bias": torch.randn(1, 6, 37, 41, generator=chance, dtype=dtype)},
            "alibi": {"bias": Bias.alibi(torch.linspace(0.1, 0.6, 6, dtype=dtype))},
            "scales": {"scale": torch.linspace(0.1, 0.6, 6, dtype=dtype)},
        }
        for mask_name, mask in masks.items():
            for name, option in options.items():
                seen = measure(q, k, mask, **option, pixels=8, top=3)
                yield f"{dtype}, {mask_name}, {name}", {one: digest(getattr(seen, one)) for one in MEASURES}


def page_numbers(page: str) -> dict[str, str]:
    """The blocks of numbers in a page, and its scene, by checksum."""
    blocks = re.findall(r'<script type="[\w/-]+" id="([\w-]+)">(.*?)</script>', page, re.DOTALL)
    assert blocks, "the page has numbers"
    return {name: hashlib.sha256(content.encode()).hexdigest() for name, content in blocks}


def record(folder: Path) -> None:
    folder.mkdir(parents=True)
    found: dict[str, Any] = {}
    for name, one in [*families(), *own_models()]:
        found[name] = measures_of(one)
    for name, values in single_attentions():
        found[name] = values
    translator = clearhead.load("zh-en", device="cpu")
    look = translator.look("我们昨天在公园里看见了很多漂亮的花。")
    found["look"] = measures_of(look)
    rolled = clearhead.rollout(look, 3)
    found["rollout"] = {name: digest(one) for name, one in rolled._asdict().items() if isinstance(one, Tensor)}
    look.save(folder / "look.record")
    clearhead.write_page(look, folder / "page.html")
    found["page"] = page_numbers((folder / "page.html").read_text(encoding="utf-8"))
    (folder / "found.json").write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")


def compare(before: Path, after: Path) -> int:
    old, new = (json.loads((one / "found.json").read_text(encoding="utf-8")) for one in (before, after))
    old["old record file"], new["old record file"] = old["look"], measures_of(Record.load(before / "look.record"))
    count, lines = 0, ["# Same numbers of the lens before and after", "", *about(), "", "| what | |", "|---|---|"]
    details = []
    for name, was in old.items():
        found = differences(was, new.get(name))
        count += len(found)
        lines.append(f"| {name} | {'identical' if not found else f'{len(found)} differences'} |")
        details += [f"- {name}{one}" for one in found[:5]]
    text = "\n".join([*lines, "", *details, ""])
    print(text)
    (after / "comparison.md").write_text(text, encoding="utf-8")
    return 1 if count else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    if given.what == "record":
        record(given.folders[0].resolve())
    else:
        sys.exit(compare(*(folder.resolve() for folder in given.folders)))
