"""What examples/long_document.py shows, with fewer tokens."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.lens.huggingface_zoo import LLAMA, shaken, transformers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Examples import each other, as scripts of one folder do."""
    sys.path.insert(0, str(ROOT / "examples"))
    yield importlib.import_module("long_document")
    sys.path.remove(str(ROOT / "examples"))


def test_heads_built_by_hand_are_found_and_switched_off(example, capsys):
    assert example.main(["--tokens", "700", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "for 700 tokens and 8 heads" in said
    assert "100% with all heads" in said
    assert "  0% without the induction head" in said
    assert "Where a head looks is not why the model answers" in said


def test_heads_that_are_something_else_are_noticed(example, capsys, monkeypatch):
    monkeypatch.setattr(example, "LAYERS", [["previous", "first", "itself", "delimiter"], ["broad"] * 4])
    assert example.main(["--tokens", "700", "--device", "cpu"]) == 1
    assert "found were previous, first, itself, delimiter, induction" in capsys.readouterr().err


def test_the_built_model_reads_a_hundred_thousand_tokens_as_it_reads_few(example):
    """The place of a token turns its features; what compares codes must not turn, and what compares places must."""
    built = importlib.import_module("hand_built")
    angles = 100_000 * built.BASE ** (-torch.tensor(built.SLOW[:16]) / built.PAIRS)
    assert angles.max() < 0.01
    q, k = built.places(1, 1.0)
    turns = built.BASE ** (-torch.arange(8) / built.PAIRS)
    apart = torch.arange(100_000)[:, None] * turns
    fits = (q[:8] * (k[:8] * apart.cos() + k[built.PAIRS : built.PAIRS + 8] * apart.sin())).sum(1)
    assert fits.argmax() == 1
    assert fits[1] - fits[torch.arange(100_000) != 1].max() > 0.4


def test_a_real_folder_is_read_with_its_own_tokenizer(example, tmp_path, capsys):
    tokenizers = importlib.import_module("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "<s>": 1, "the": 2, "\n": 3, ",": 4}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="?")
    fast.save_pretrained(tmp_path)
    config = transformers.LlamaConfig(**{**LLAMA, "max_position_embeddings": 61})
    shaken(transformers.LlamaForCausalLM(config)).save_pretrained(tmp_path)
    assert example.main(["--model", str(tmp_path), "--tokens", "97", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "It has 61 positions" in said
    assert "for 61 tokens" in said
