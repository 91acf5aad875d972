"""Fine-tuning across architectures and with adapters: what is taken, what changes, what is stored, what is resumed."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import clearhead
from clearhead import ModelConfig
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError
from clearhead.model_folder import ModelFolder, merge
from clearhead.tasks.pretrained import Pretrained
from clearhead.train import run_training
from clearhead.train.recipe import check_recipe
from clearhead.train.starting_weights import read_pretrained
from tests.tasks.test_classification import labelled
from tests.train.corpus import sentences

pytestmark = pytest.mark.unchecked  # whole runs

MODEL = 'shape = "tiny"\nwidth = 16\nheads = 2\nfeedforward = 32\nlayers = 2\ndropout = 0.1'
RECIPE = """
task = "{task}"
seed = 3
[data]
train = "{task}.tsv"
{dev}
[text]
vocabulary = 330
[model]
{model}
[train]
steps = 2
evaluate_every = 2
save_every = 1
batch_tokens = 256
shapes = 2
warmup = 1
learning_rate = 0.01
tensorboard = false
heads_every = 0
{more}
"""
LORA = ("train.lora_rank=3", "train.lora_alpha=6", 'train.lora_on=["attention", "feedforward"]')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes and data of a classifier and a translator, each trained a little, to start others from."""
    base = tmp_path_factory.mktemp("fine")
    for task, pairs in (("classification", labelled(30, 1)), ("translation", sentences(30, 1))):
        lines = [f"{source}\t{target}\n" for source, target in pairs]
        (base / f"{task}.tsv").write_text("".join(lines[1:]), encoding="utf-8")
        (base / f"{task}-dev.tsv").write_text("".join(lines[:1]), encoding="utf-8")
        dev = (
            'dev = "classification-dev.tsv"' if task == "classification" else ""
        )  # untrained translators write for long
        (base / f"{task}.toml").write_text(RECIPE.format(task=task, dev=dev, model=MODEL, more=""), encoding="utf-8")
        text = RECIPE.format(task=task, dev=dev, model="dropout = 0.1", more=f'init_from = "{task}-base"')
        (base / f"{task}-on.toml").write_text(text, encoding="utf-8")
        train(base, task, base / f"{task}-base")
    return base


def train(folder: Path, recipe: str, out: Path, *settings: str, **options: bool) -> Path:
    settings = (*settings, "decode.beam=1") if "translation" in recipe else settings
    return run_training(str(folder / f"{recipe}.toml"), overrides=settings, out=out, device="cpu", **options)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return ModelFolder.open(run).model().state_dict()


# across architectures


def test_an_encoder_becomes_that_of_an_encoder_decoder_and_its_decoder_is_new(folder, tmp_path, capsys):
    start = read_pretrained("classification-base", folder)
    run = train(folder, "translation-on", tmp_path / "run", "train.init_from=classification-base")
    said = capsys.readouterr().err
    assert re.search(r"\n  taken: \d+ tensors \([\d,]+ weights\): vocabulary, encoder\n", said)
    assert re.search(r"\n  new: \d+ tensors \([\d,]+ weights\): decoder\n", said)
    assert re.search(r"\n  left: 2 tensors \([\d,]+ weights\): to_labels\n", said)
    record = json.loads((run / "start.json").read_text(encoding="utf-8"))
    assert set(record["taken"]) == {name for name in start.tensors if name.startswith(("encoder.", "vocabulary."))}
    assert all(name.startswith("decoder.") for name in record["new"])
    assert record["left"] == ["to_labels.weight", "to_labels.bias"]
    assert clearhead.load(run).processor.tokenizer.size == start.tokenizer.size


def test_the_encoder_of_an_encoder_decoder_becomes_a_classifier(folder, tmp_path):
    run = train(folder, "classification-on", tmp_path / "run", "train.init_from=translation-base")
    record = json.loads((run / "start.json").read_text(encoding="utf-8"))
    assert any(name.startswith("encoder.layers.1.") for name in record["taken"])
    assert record["new"] == ["to_labels.weight", "to_labels.bias"]
    assert all(name.startswith("decoder.") for name in record["left"])


def test_frozen_layers_are_those_that_were_taken_and_new_weights_learn_alone_at_first(folder, tmp_path):
    start = read_pretrained("classification-base", folder).tensors
    more = ("train.init_from=classification-base",)
    frozen = weights(train(folder, "translation-on", tmp_path / "frozen", *more, "train.frozen_layers=1"))
    for name, tensor in frozen.items():
        if name.startswith(("vocabulary.", "encoder.layers.0.")):
            assert torch.equal(tensor, start[name]), name
        elif name.startswith("encoder.layers.1."):
            assert not torch.equal(tensor, start[name]), name
    run = train(folder, "translation-on", tmp_path / "warm", *more, "train.head_warmup=9")
    torch.manual_seed(3)
    begun, warm = ModelFolder.open(run).processor().build().state_dict(), weights(run)
    for name, tensor in warm.items():
        if name.startswith(("vocabulary.", "encoder.layers.")):
            assert torch.equal(tensor, start[name]), name
        elif name.endswith("feedforward.up.weight"):
            assert not torch.equal(tensor, begun[name]), name


def test_layers_can_be_left_out_and_added(folder):
    start = read_pretrained("classification-base", folder)
    for layers, taken, new, left in ((1, 1, 0, 1), (3, 2, 1, 0)):
        model = clearhead.Encoder(start.config.change(layers=layers, labels=None))
        found = start.fill(model)
        counts = [len({name.split(".")[2] for name in names if ".layers." in name}) for names in found]
        assert counts == [taken, new, left]


# adapters


def test_of_a_run_with_adapters_only_these_and_the_head_are_stored(folder, tmp_path, capsys):
    run = train(folder, "classification-on", tmp_path / "run", *LORA)
    assert "of them trained" in (said := capsys.readouterr().err)
    assert "clearhead merge" in said
    assert not (run / "model" / "model.safetensors").exists()
    stored = load_file(run / "model" / "adapter.safetensors")
    assert {name.rpartition(".")[2] for name in stored} == {"lora_down", "lora_up", "weight", "bias"}
    assert all(name.startswith("to_labels.") or ".lora_" in name for name in stored)
    numbers = sum(tensor.numel() for tensor in stored.values())
    assert (run / "model" / "adapter.safetensors").stat().st_size < 4 * numbers + 200 * len(stored)
    base, adapted = (weights(folder / "classification-base"), weights(run))
    changed = {name for name in base if not torch.equal(base[name], adapted[name])}
    linear = {f"{name.removesuffix('.lora_up')}.weight" for name in stored if name.endswith(".lora_up")}
    assert linear < changed <= linear | {"to_labels.weight", "to_labels.bias"}
    state = load_file(sorted((run / "checkpoints").iterdir())[-1] / "state.safetensors")
    assert {name.split(".", 1)[1] for name in state if name.startswith("model.")} == set(stored)


def test_a_merged_adapter_is_a_whole_model_with_the_same_answers(folder, tmp_path, capsys):
    run = train(folder, "translation-on", tmp_path / "run", *LORA)
    before = clearhead.load(run)
    assert main(["merge", str(run), "--out", str(tmp_path / "merged")]) == 0
    after = clearhead.load(tmp_path / "merged")
    one, other = before.model.state_dict(), after.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert before.predict("我爱书").text == after.predict("我爱书").text
    assert before.look("我爱书").names == after.look("我爱书").names
    assert main(["merge", str(tmp_path / "merged"), "--out", str(tmp_path / "again")]) == 2
    assert "is a whole model already" in capsys.readouterr().err


def test_the_base_is_found_beside_the_adapter_and_a_missing_or_changed_one_is_refused(folder, tmp_path, capsys):
    moved = tmp_path / "before"
    shutil.copytree(folder, moved)
    train(moved, "classification-on", moved / "run", *LORA)
    wanted = clearhead.load(moved / "run").predict("the cat is here")
    capsys.readouterr()
    after = tmp_path / "after"
    moved.rename(after)
    assert clearhead.load(after / "run").predict("the cat is here") == wanted  # its place beside the adapter
    elsewhere = (after / "classification-base").rename(tmp_path / "elsewhere")
    assert main(["predict", str(after / "run"), "the cat is here"]) == 2
    said = capsys.readouterr().err.strip()
    assert "is an adapter of the model in" in said
    assert "which is not there" in said
    assert len(said.splitlines()) == 1
    assert clearhead.load(after / "run", base=elsewhere).predict("the cat is here") == wanted
    merge(after / "run", tmp_path / "merged", base=elsewhere)
    assert clearhead.load(tmp_path / "merged").predict("the cat is here") == wanted
    other = train(folder, "classification", tmp_path / "other", "seed=5")
    with pytest.raises(CheckpointError, match=r"is not the model that .* was trained with: .* has another checksum"):
        clearhead.load(after / "run", base=other)
    with pytest.raises(ConfigError, match="it needs no base"):
        clearhead.load(elsewhere, base=other)


def test_every_command_takes_the_base_of_an_adapter_where_it_was_moved(folder, tmp_path, capsys):
    shutil.copytree(folder / "classification-base", tmp_path / "base")
    run = train(folder, "classification-on", tmp_path / "run", *LORA, f"train.init_from={tmp_path / 'base'}")
    moved = (tmp_path / "base").rename(tmp_path / "moved")
    capsys.readouterr()
    data, page, figures = folder / "classification-dev.tsv", tmp_path / "page.html", tmp_path / "figures"
    for command in (
        ["predict", run, "the cat is here"],
        ["evaluate", run, data],
        ["look", run, "the cat", "--out", page],
        ["figures", run, "the cat", "--out", figures],
        ["merge", run, "--out", tmp_path / "merged"],
    ):
        words = list(map(str, command))
        assert main(words) == 2, words
        said = capsys.readouterr().err
        assert "which is not there; name that model's folder by --base FOLDER" in said
        assert main([*words, "--base", str(moved)]) == 0, words
        capsys.readouterr()
    assert page.exists()
    assert list(figures.iterdir())
    assert main(["predict", str(moved), "the cat", "--base", str(moved)]) == 2
    assert "is a whole model, not an adapter: it needs no base" in capsys.readouterr().err
    clearhead.load(moved).look("the cat").save(tmp_path / "cat.record")
    assert main(["look", str(tmp_path / "cat.record"), "--base", str(moved), "--out", str(page)]) == 2
    assert "--base is for the folder of a LoRA adapter" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("train.average=ema", "train.weights=bfloat16", "train.frozen_layers=1")])
def test_a_run_with_adapters_resumes_exactly(folder, tmp_path, more):
    settings = (*LORA, *more, "train.lora_dropout=0.2", "train.schedule=constant")
    whole = train(folder, "classification-on", tmp_path / "whole", *settings, "train.steps=4")
    train(folder, "classification-on", tmp_path / "parts", *settings)
    parts = train(folder, "classification-on", tmp_path / "parts", *settings, "train.steps=4", resume=True)
    one, other = (load_file(run / "model" / "adapter.safetensors") for run in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_run_with_adapters_is_not_resumed_on_another_base(folder, tmp_path):
    copied = tmp_path / "base"
    shutil.copytree(folder / "classification-base", copied)
    more = (*LORA, f"train.init_from={copied}")
    train(folder, "classification-on", tmp_path / "run", *more)
    shutil.rmtree(copied)
    train(folder, "classification", copied, "seed=5")
    with pytest.raises(CheckpointError, match="is not as it was when the run began"):
        train(folder, "classification-on", tmp_path / "run", *more, "train.steps=4", resume=True)


def test_an_adapter_is_a_start_for_another(folder, tmp_path):
    first = train(folder, "classification-on", tmp_path / "first", *LORA)
    second = train(folder, "classification-on", tmp_path / "second", *LORA, f"train.init_from={first}")
    assert clearhead.load(second).predict("the cat is here").label in {"animal", "food", "time"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 4}, "name their folder in train.init_from"),
        ({"lora_rank": 4, "init_from": "x", "shard": True}, "leave train.shard out"),
        ({"lora_rank": -1, "init_from": "x"}, "greater than or equal to 0"),
        ({"lora_rank": 4, "init_from": "x", "lora_on": ["heads"]}, "'attention' or 'feedforward'"),
    ],
)
def test_impossible_adapters_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_recipe({"task": "translation", "data": {"train": "x.tsv"}, "train": settings}, "mine.toml")


# early stopping


def test_a_rising_loss_on_dev_ends_the_run_and_the_best_weights_stay(folder, tmp_path, capsys):
    settings = ("train.metric=loss", "train.patience=2", "train.evaluate_every=1", "train.steps=40")
    rising = ("train.learning_rate=1.5", "train.schedule=constant", "train.keep=1")
    run = train(folder, "classification-on", tmp_path / "run", *settings, *rising)
    said = capsys.readouterr().err
    assert "no better loss in 2 evaluations (train.patience)" in said
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {line["step"]: line["dev"]["loss"] for line in lines if "dev" in line}
    best = min(found, key=lambda step: found[step])
    assert max(found) == best + 2 < 40
    assert json.loads((run / "model" / "metrics.json").read_text(encoding="utf-8"))["step"] == best


@pytest.mark.parametrize(
    ("source", "stacks", "kind", "new"),
    [
        (clearhead.EncoderDecoder, ("decoder",), clearhead.Decoder, set()),
        (clearhead.EncoderDecoder, ("encoder",), clearhead.Encoder, set()),
        (clearhead.Encoder, ("encoder", "decoder"), clearhead.EncoderDecoder, {"decoder"}),
        (clearhead.Decoder, ("encoder", "decoder"), clearhead.EncoderDecoder, {"encoder", "decoder"}),
    ],
)
def test_any_stack_can_be_taken_out_or_put_in(folder, source, stacks, kind, new):
    tokenizer = read_pretrained("classification-base", folder).tokenizer
    config = ModelConfig.named("tiny", vocabulary=tokenizer.size, width=16, heads=2, layers=3, decoder_layers=2)
    start = Pretrained(folder, config, tokenizer, source(config).state_dict())
    model = kind(start.adapt_config(stacks, predicts_tokens=True))
    found = start.fill(model)
    assert {name.split(".")[0] for name in found.taken} == {"vocabulary", *set(stacks) & set(start.stacks)}
    assert {name.split(".")[0] for name in found.new} == new
    if source is clearhead.EncoderDecoder and kind is clearhead.Decoder:
        assert len(model.decoder.layers) == 2
        assert any(".cross_attention." in name for name in found.left)
    elif source is clearhead.Decoder:  # of its own decoder only cross-attention is new
        assert all(".cross_" in name for name in found.new if name.startswith("decoder."))


def test_models_without_a_common_stack_are_refused_in_one_line(folder):
    start = read_pretrained("classification-base", folder)
    config = start.adapt_config(("decoder",), predicts_tokens=True)
    with pytest.raises(ConfigError, match=r'has encoder layers only.*needs decoder layers.*objective = "next"'):
        start.fill(clearhead.Decoder(config))
