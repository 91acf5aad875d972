"""Decoders written for transformers: GPT-2, Llama and Mistral compute what ours compute, before and after training."""

import json

import pytest
import torch
import transformers

from clearhead import Decoder, ModelConfig, from_huggingface, to_huggingface
from clearhead.errors import CheckpointError
from tests.model.checkpoints import assert_same, saved, shaken
from tests.model.test_huggingface import DECODERS, EXACT, decoder, tokens


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_are_read_changed_and_written_back(name, tmp_path):
    ours = from_huggingface(saved(decoder(name), tmp_path / "before"))
    torch.manual_seed(5)
    with torch.no_grad():  # as training would: every weight, also the bias that Qwen2 has not
        for parameter in ours.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    to_huggingface(ours, tmp_path / "after", pad=2, eos=2, start=1, max_length=61)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "after").eval()
    assert_same(theirs(tokens()).logits, ours.logits(ours(tokens())), EXACT)
    again = from_huggingface(tmp_path / "after")
    assert torch.equal(again.logits(again(tokens())), ours.logits(ours(tokens())))
    config = json.loads((tmp_path / "after" / "config.json").read_text(encoding="utf-8"))
    assert config["bos_token_id"] == 1
    assert config["tie_word_embeddings"] == ours.config.tie_embeddings


@pytest.mark.parametrize("heads", [6, 2])
def test_our_modern_decoder_becomes_a_llama(heads, tmp_path):
    config = ModelConfig.named("modern", vocabulary=31, width=30, heads=6, kv_heads=heads, head_dim=14, layers=2)
    ours = shaken(Decoder(config.change(feedforward=37, dropout=0.0)))
    to_huggingface(ours, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert_same(theirs(tokens()).logits, ours.logits(ours(tokens())), EXACT)


def test_a_written_decoder_continues_as_ours(tmp_path):
    ours = from_huggingface(saved(decoder("llama"), tmp_path / "before"))
    to_huggingface(ours, tmp_path / "after", pad=2, eos=2, start=1)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "after").eval()
    given = tokens()[:1, :5]
    wanted = theirs.generate(given, max_new_tokens=7, do_sample=False, eos_token_id=None)
    for _ in range(7):
        given = torch.cat([given, ours.logits(ours(given)[:, -1]).argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(given, wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "sinusoidal"}, "a Llama checkpoint cannot express .*positions='sinusoidal'"),
        (
            {"positions": "learned", "scale_embeddings": True},
            "a GPT-2 checkpoint .*scale_embeddings=True",
        ),
        ({"positions": "learned", "norm": "layer", "bias": True, "kv_heads": 2}, "cannot express kv_heads=2"),
        ({"value_head_dim": 3}, "value_head_dim=3"),
        ({"window": 5, "attention_bias": True}, "a Mistral checkpoint cannot express attention_bias=True"),
        ({"activation": "relu"}, "activation='relu'"),
    ],
)
def test_what_neither_can_express_is_refused(changes, message, tmp_path):
    config = ModelConfig.named("modern", vocabulary=31, width=24, heads=4, layers=1, feedforward=37)
    if changes.get("norm") == "layer":
        changes = {**changes, "activation": "gelu"}
    with pytest.raises(CheckpointError, match=message):
        to_huggingface(Decoder(config.change(**changes)), tmp_path)
    assert not list(tmp_path.iterdir())
