"""Runs that start from trained weights: what is taken over, what stays frozen, and who learns how fast."""

import json
import os
import re
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from tokenizers import BertWordPieceTokenizer
from tokenizers.processors import BertProcessing

import clearhead
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError
from clearhead.model_folder import ModelFolder
from clearhead.tasks.pretrained import Pretrained, Transfer
from clearhead.text import Tokenizer
from clearhead.train import run_training
from clearhead.train.recipe import Train
from clearhead.train.starting_weights import print_start, read_pretrained
from clearhead.train.updater import layer_depth
from tests.model.checkpoints import shaken
from tests.tasks.test_classification import labelled

pytestmark = pytest.mark.unchecked  # whole runs

WIDTH = 21
RECIPE = """
task = "classification"
[data]
train = "train.tsv"
dev = "dev.tsv"
longest = 15
[model]
dropout = 0.0
[train]
init_from = "bert"
steps = 4
batch_tokens = 256
shapes = 2
evaluate_every = 2
warmup = 1
tensorboard = false
heads_every = 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A recipe with its data, and a small BERT with a WordPiece tokenizer to start from."""
    base = tmp_path_factory.mktemp("starting")
    for name, seed in (("train", 1), ("dev", 2)):
        lines = [f"{text}\t{label}\n" for text, label in labelled(60, seed)]
        (base / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator([text for text, _ in labelled(60, 1)], vocab_size=90, show_progress=False)
    special = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer._tokenizer.post_processor = BertProcessing(*special)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )
    fast.save_pretrained(base / "bert")
    sizes = {"hidden_size": WIDTH, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 37}
    config = transformers.BertConfig(**sizes, vocab_size=len(fast), max_position_embeddings=19)
    shaken(transformers.BertModel(config)).save_pretrained(base / "bert")
    (base / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return base


def train(folder: Path, out: Path, *settings: str, **options: object) -> Path:
    return run_training(str(folder / "recipe.toml"), overrides=settings, out=out, device="cpu", **options)


def test_weights_and_tokenizer_are_taken_over_and_answers_come_from_the_new_folder_alone(folder, tmp_path, capsys):
    run = train(folder, tmp_path / "run", "train.steps=1", "train.learning_rate=1e-12")
    said = capsys.readouterr().err
    assert "starting from bert:\n" in said
    assert re.search(r"\n  taken: 41 tensors \([\d,]+ weights\): vocabulary, encoder\n", said)
    assert "\n  new: 2 tensors (66 weights): to_labels\n" in said
    theirs = transformers.BertModel.from_pretrained(folder / "bert")
    model = ModelFolder.open(run).model()
    words = theirs.embeddings.word_embeddings.weight
    torch.testing.assert_close(model.vocabulary.words.weight, words, atol=1e-9, rtol=0)
    predictor = clearhead.load(run)
    assert predictor.processor.tokenizer.encode("the cat") == Tokenizer.from_huggingface(folder / "bert").encode(
        "the cat"
    )
    assert predictor.predict("the cat is here").label in {"animal", "food", "time"}
    assert "| started from | bert |" in (run / "model" / "README.md").read_text(encoding="utf-8")


def test_a_message_names_the_parts_of_a_stack_of_which_some_are_new_or_left(capsys):
    taken = {f"decoder.layers.{layer}.self_attention.to_q.weight": 4 for layer in (0, 1)} | {"vocabulary.words": 6}
    new = {"encoder.norm.bias": 2, **{f"decoder.layers.{layer}.cross_attention.to_q.weight": 4 for layer in (0, 1)}}
    print_start(torch.nn.Linear(2, 2), Transfer(taken, new, {"vocabulary.norm.bias": 2}), Train(init_from="gpt"))
    assert capsys.readouterr().err == (
        "starting from gpt:\n"
        "  taken: 3 tensors (14 weights): decoder.layers.self_attention, vocabulary.words\n"
        "  new: 3 tensors (10 weights): encoder, decoder.layers.cross_attention\n"
        "  left: 1 tensors (2 weights): vocabulary.norm\n"
    )
    left = {"encoder.layers.1.norm.bias": 2}
    print_start(torch.nn.Linear(2, 2), Transfer({"encoder.layers.0.norm.bias": 2}, {}, left), Train(init_from="gpt"))
    said = capsys.readouterr().err
    assert "(2 weights): encoder.layers.0\n" in said
    assert "(2 weights): encoder.layers.1\n" in said


def test_a_model_of_ours_is_a_start_too_and_its_head_only_with_the_same_labels(folder, tmp_path):
    first = train(folder, tmp_path / "first")
    start = read_pretrained(str(first), Path())
    again = ModelFolder.open(first).model()
    assert list(start.fill(again, ["animal", "food", "time"]).new) == []
    other = Pretrained(start.folder, start.config, start.tokenizer, start.tensors, ["x", "y", "z"])
    assert other.fill(again, ["animal", "food", "time"]).new.keys() == {"to_labels.weight", "to_labels.bias"}
    second = train(folder, tmp_path / "second", f"train.init_from={first}", "train.steps=1")
    assert (second / "model").is_dir()


def test_a_run_that_was_resumed_ends_like_one_that_was_not(folder, tmp_path):
    train(folder, tmp_path / "parts", "train.steps=2", "train.schedule=constant")
    whole = train(folder, tmp_path / "constant", "train.schedule=constant")
    parts = train(folder, tmp_path / "parts", "train.schedule=constant", resume=True)
    one, other = (ModelFolder.open(run).model().state_dict() for run in (whole, parts))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_frozen_layers_and_embeddings_stay_as_they_were(folder, tmp_path):
    run = train(folder, tmp_path / "run", "train.frozen_layers=2", "train.learning_rate=0.1")
    start, model = read_pretrained("bert", folder), ModelFolder.open(run).model()
    for name, tensor in model.state_dict().items():
        frozen = name.startswith(("vocabulary", "encoder.positions", "encoder.layers.0", "encoder.layers.1"))
        if name.startswith("encoder.layers.2.self_attention"):
            assert not torch.equal(tensor, start.tensors[name]), name
        if frozen:
            assert torch.equal(tensor, start.tensors[name]), name
    with pytest.raises(ConfigError, match="got 4, but the model has only 3 layers"):
        train(folder, tmp_path / "other", "train.frozen_layers=4")


def test_only_the_head_changes_while_it_warms_up(folder, tmp_path):
    run = train(folder, tmp_path / "run", "train.head_warmup=100", "train.learning_rate=0.1")
    start, model = read_pretrained("bert", folder), ModelFolder.open(run).model()
    for name, tensor in model.state_dict().items():
        if not name.startswith("to_labels"):
            assert torch.equal(tensor, start.tensors[name]), name
    assert model.to_labels.bias.abs().max() > 0.01


def test_layers_learn_at_rates_that_fall_toward_the_input():
    layers = {"encoder": 3, "decoder": 2}
    assert layer_depth("to_labels.weight", layers) == 0
    assert layer_depth("encoder.norm.weight", layers) == 0
    assert [layer_depth(f"encoder.layers.{number}.x", layers) for number in range(3)] == [3, 2, 1]
    assert [layer_depth(f"decoder.layers.{number}.x", layers) for number in range(2)] == [2, 1]
    for name in ("vocabulary.words.weight", "source_vocabulary.words.weight", "encoder.positions.weight"):
        assert layer_depth(name, layers) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.init_from=no/such-model"], "there is no folder no/such-model; weights are read from this machine"),
        (["model.width=24"], "leave the sizes out of [model]"),
        (["model.shape=tiny"], "the weights in train.init_from decide that"),
        (["data.longest=18"], "19 learned positions are too few for data.longest = 18"),
        (["train.init_from=train.tsv"], "there is no folder train.tsv"),
        (["train.init_from=."], "contains no model: it has no config.json"),
    ],
)
def test_wrong_starts_are_refused_in_one_line_and_leave_nothing(folder, tmp_path, capsys, settings, message):
    arguments = [part for setting in settings for part in ("--set", setting)]
    code = main(["train", str(folder / "recipe.toml"), "--out", str(tmp_path / "run"), "--device", "cpu", *arguments])
    said = capsys.readouterr().err.strip()
    assert code == 2
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_written_back_for_transformers_it_gives_the_same_answers(folder, tmp_path):
    run = train(folder, tmp_path / "run", "model.pooling=first")
    predictor = clearhead.load(run)
    back = tmp_path / "back"
    clearhead.to_huggingface(
        predictor.model, back, pad=predictor.processor.tokenizer.pad, labels=predictor.processor.labels
    )
    predictor.processor.tokenizer.to_huggingface(back)
    pipeline = transformers.pipeline("text-classification", model=str(back), device="cpu")
    for text, _ in labelled(12, 7):
        ours, [theirs] = predictor.predict(text), pipeline(text)
        assert ours.label == theirs["label"]
        assert ours.score == pytest.approx(theirs["score"], abs=1e-4)


def test_a_folder_without_a_tokenizer_is_refused(folder, tmp_path):
    copied = tmp_path / "bare"
    copied.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copied / name).write_bytes((folder / "bert" / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"train\.init_from: .* has no tokenizer\.json"):
        read_pretrained(str(copied), tmp_path)
    config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    (copied / "config.json").write_text(json.dumps({**config, "model_type": "unheard-of"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="unheard-of"):
        read_pretrained(str(copied), tmp_path)
