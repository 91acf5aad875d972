"""GPT-2 and Llama folders fine-tuned as language models, and written back with the same logits."""

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import clearhead
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch
from clearhead.train import run_training
from clearhead.train.starting_weights import read_pretrained
from tests.model.checkpoints import GPT2, LLAMA, assert_same, shaken
from tests.train.corpus import write_corpus

pytestmark = pytest.mark.unchecked  # whole runs

EXACT = 1e-4  # logits are as large as 30
TEXT = "\n\n".join(
    f"{who}:\nThe {what} is <s> not   {how}, I say.\n  And so — 你好 — it ends!"
    for who in ("ROMEO", "JULIET", "NURSE")
    for what in ("moon", "night", "old rose")
    for how in ("here", "dead", "a thing of ours")
)
RECIPE = """
task = "language-model"
[data]
train = "plays.txt"
documents = "paragraphs"
dev = 0.1
longest = 16
[train]
init_from = "BASE"
steps = 3
warmup = 1
batch_tokens = 128
evaluate_every = 3
tensorboard = false
heads_every = 0
[decode]
longest = 5
"""

PAIRS = """
task = "translation"
[data]
train = "train.tsv"
[train]
init_from = "BASE"
steps = 2
batch_tokens = 256
tensorboard = false
heads_every = 0
[decode]
beam = 1
"""


def make_tokenizer(kind: str, folder: Path) -> None:
    """A tokenizer of GPT-2's kind (byte-level, one special token) or of Llama's (byte fallback, start and end)."""
    if kind == "gpt2":
        engine = Engine(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder, engine.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
        )
        special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    else:
        engine = Engine(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        engine.decoder = decoders.Sequence(parts)
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=pieces, show_progress=False)
        special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    engine.train_from_iterator([TEXT.replace("你好", "")], trainer)
    if kind == "llama":
        engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **special).save_pretrained(folder)


def make_base(kind: str, folder: Path, **changes: object) -> Path:
    make_tokenizer(kind, folder)
    # Three more rows than tokens, as some checkpoints have.
    size = {"vocab_size": Tokenizer.from_huggingface(folder).size + 3}
    if kind == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**GPT2, **size, **changes}))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **size, **changes}))
    shaken(model).save_pretrained(folder)
    return folder


def train(folder: Path, base: Path, *settings: str) -> Path:
    (folder / "plays.txt").write_text(TEXT, encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE.replace("BASE", str(base)), encoding="utf-8")
    return run_training(str(folder / "recipe.toml"), overrides=settings, out=folder / "run", device="cpu")


@pytest.mark.parametrize(
    ("kind", "changes", "settings"),
    [
        ("gpt2", {}, ()),
        ("gpt2", {"tie_word_embeddings": False}, ("train.lora_rank=3",)),
        ("llama", {}, ("train.lora_rank=3",)),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}, ("train.frozen_layers=1",)),
    ],
)
@torch.no_grad()
def test_a_folder_is_fine_tuned_and_goes_back_with_the_same_logits(kind, changes, settings, tmp_path):
    base = make_base(kind, tmp_path / "base", **changes)
    tokens = torch.tensor([Tokenizer.from_huggingface(base).encode("The moon is not\n here")])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    ours = clearhead.from_huggingface(base)
    before = ours.logits(ours(tokens))
    assert_same(before, theirs(tokens).logits, EXACT)
    with torch.enable_grad():
        run = train(tmp_path, base, *settings, "train.learning_rate=0.01")
    trained = clearhead.load(run)
    after = trained.model.logits(trained.model(tokens))
    assert (after - before).abs().max() > 100 * EXACT, "nothing was learned that could be lost"
    tokenizer, back = trained.processor.tokenizer, tmp_path / "back"
    clearhead.to_huggingface(trained.model, back, pad=tokenizer.pad, eos=tokenizer.end, start=tokenizer.start)
    tokenizer.to_huggingface(back, decoder=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(back).eval()
    assert_same(again(tokens).logits, after, EXACT)
    text = "JULIET:\nThe old rose"
    given = transformers.AutoTokenizer.from_pretrained(back)(text, return_tensors="pt")
    assert "token_type_ids" not in given
    assert given["input_ids"].tolist() == [transformers.AutoTokenizer.from_pretrained(base)(text)["input_ids"]]
    written = again.generate(**given, max_new_tokens=5, do_sample=False, pad_token_id=tokenizer.pad)
    assert written.shape[1] > given["input_ids"].shape[1]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_its_tokenizer_is_taken_along_and_keeps_every_character(kind, tmp_path):
    base = make_base(kind, tmp_path / "base")
    ours, theirs = Tokenizer.from_huggingface(base), transformers.AutoTokenizer.from_pretrained(base)
    for text in (TEXT, " a", "  a\n\n b ", "你好", "x"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"] or "<s>" in text
        assert ours.decode(ours.encode(text)) == text
    assert ours.end == theirs.eos_token_id
    assert ours.start == theirs.bos_token_id
    assert ours.pad == ours.end  # it has no padding token
    start = read_pretrained(str(base), tmp_path)
    assert start.config.vocabulary == ours.size + 3


def test_the_end_of_a_document_is_learned_though_it_is_the_padding_too(tmp_path):
    base = make_base("gpt2", tmp_path / "base", resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    run = train(tmp_path, base, "train.steps=1")
    processor = clearhead.load(run).processor
    examples = processor.examples([Row(("The moon",), "plays.txt", 1)], Report())
    batch = examples.collate(Batch(np.array([0]), (16,)))
    counted = int(examples.counts[0])
    assert counted == len(processor.tokenizer.encode("The moon")) + 1
    assert batch.labels[0, counted - 1] == processor.tokenizer.end


def test_a_decoder_becomes_that_of_a_translator_with_new_cross_attention(tmp_path):
    base = make_base("llama", tmp_path / "base")
    run = train(tmp_path, base)
    (tmp_path / "pairs").mkdir()
    write_corpus(tmp_path / "pairs")
    (tmp_path / "pairs" / "recipe.toml").write_text(PAIRS.replace("BASE", str(run)), encoding="utf-8")
    translator = run_training(str(tmp_path / "pairs" / "recipe.toml"), out=tmp_path / "translator", device="cpu")
    record = json.loads((translator / "start.json").read_text(encoding="utf-8"))
    assert all(name.startswith(("decoder.", "vocabulary.")) for name in record["taken"])
    assert {name.split(".")[3] for name in record["new"] if name.startswith("decoder.layers")} == {
        "cross_attention",
        "cross_norm",
    }
    assert record["left"] == []
