"""Small Hugging Face models with telling weights, and the files that they are saved in."""

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

transformers.utils.logging.disable_progress_bar()

# Sizes are distinct primes, or products of two, so that no transposition hides.
BERT = {
    "vocab_size": 31,
    "hidden_size": 3 * 7,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 19,
}
GPT2 = {"vocab_size": 31, "n_embd": 3 * 7, "n_head": 3, "n_layer": 2, "n_positions": 17, "n_inner": 37}
LLAMA = {
    "vocab_size": 31,
    "hidden_size": 6 * 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 2 * 7,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 61,
}
MARIAN = {
    "vocab_size": 31,
    "d_model": 2 * 11,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 43,
    "pad_token_id": 30,
    "decoder_start_token_id": 30,
}


def shaken(model: Any) -> Any:
    """The model with every weight drawn anew, biases and norms too: at their start they would hide mistakes."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            norm = weight.ndim == 1 and name.endswith("weight")
            if weight.is_floating_point() and "embed_positions" not in name and "inv_freq" not in name:
                nn.init.normal_(weight, mean=1.0 if norm else 0.0, std=0.3)
    return model.eval()


def saved(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def change_config(folder: Path, *, without: tuple[str, ...] = (), **changes: Any) -> Path:
    values = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in {**values, **changes}.items() if key not in without}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def change_tensors(folder: Path, change: Any) -> Path:
    """`change` gets all tensors by name and returns those to keep instead."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def assert_same(found: Tensor, wanted: Tensor, within: float) -> None:
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is not {tuple(wanted.shape)}"
    assert wanted.abs().max() > 0.1, "nothing was computed that could differ"
    off = (found - wanted).abs().max().item()
    assert off <= within, f"off by {off:.1e}, more than {within:.1e}"  # not a number is off too
