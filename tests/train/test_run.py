"""Whole runs: what they leave behind, and that every way to train gives the model it promises."""

import json
import os
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.fx.experimental._config as symbols
from safetensors.torch import load_file
from torch._dynamo.testing import CompileCounterWithBackend

import clearhead
from clearhead import cli
from clearhead.errors import ConfigError, DataError
from clearhead.model_folder import ModelFolder
from clearhead.storage import verify_checksums
from clearhead.tasks.translation import TranslationProcessor
from clearhead.train import run_training, training_run
from clearhead.train.processes import Processes
from clearhead.train.recipe import Train
from tests.train.conftest import drawing
from tests.train.corpus import sentences, write_recipe

pytestmark = pytest.mark.unchecked  # whole runs

SHORT = "steps = 4\nlog_every = 2\nevaluate_every = 4\nsave_every = 100"


def train(recipe: Path, out: Path, *overrides: str, **more: bool) -> Path:
    return run_training(str(recipe), overrides=overrides, out=out, device="cpu", **more)


def quick(folder: Path, **changes: str) -> Path:
    """A corpus and a recipe for when it does not matter how good the model is."""
    return write_recipe(folder, **{"train": SHORT, "decode": "beam = 1", **changes})


def metrics_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in metrics_of(out) if "loss" in line]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("finished")
    with drawing():
        return train(write_recipe(base, train="tensorboard = true\nheads_every = 12"), base / "run")


# the folder


def test_a_run_leaves_what_it_promises(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "recipe.toml",
        "report.txt",
        "task",
        "checkpoints",
        "metrics.jsonl",
        "speed.jsonl",
        "loss.png",
        "heads.jsonl",
        "heads.png",
        "tensorboard",
        "model",
    }
    assert not [path for path in finished.rglob("*") if path.name.startswith(".")], "and nothing half-written"
    assert not [path for path in finished.rglob("*") if path.suffix in (".pt", ".pkl", ".bin")], "and no pickle"
    recipe = tomllib.loads((finished / "recipe.toml").read_text())
    assert recipe["train"]["clip"] == 1.0, "the defaults are written out too"
    report, _, warning = (finished / "report.txt").read_text().partition("warning: ")
    assert report == "train: kept 61 of 61\ndev: kept 7 of 7\n"
    assert warning.startswith("2 of 7 inputs of dev are also in train (dev.tsv:4, dev.tsv:7)")


def test_the_newest_checkpoints_stay_and_the_best(finished):
    kept = sorted(int(path.name) for path in (finished / "checkpoints").iterdir())
    dev = [(line["dev"]["bleu"], -line["dev"]["loss"], line["step"]) for line in metrics_of(finished) if "dev" in line]
    best = max(dev)[2]
    assert kept == sorted({20, 24, best})
    for path in (finished / "checkpoints").iterdir():
        assert verify_checksums(path) == {"state.json", "state.safetensors"}


def test_the_finished_model_loads_and_answers(finished):
    translator = clearhead.load(finished, device="cpu")
    assert translator.name == "run"
    assert len(translator.predict(["我爱你", ""])) == 2
    metrics = ModelFolder.open(finished).metrics
    assert metrics["stopped"] == "steps"
    assert metrics["examples"] == 61
    assert metrics["parameters"] == sum(parameter.numel() for parameter in translator.model.parameters())
    assert translator.evaluate(finished.parent / "dev.tsv") == metrics["dev"]
    assert metrics["dev_first_200"] == metrics["dev"], "of seven lines, the first 200 are all"
    card = (finished / "model" / "README.md").read_text()
    assert "| data | train.tsv: 61 examples |" in card
    assert f"- bleu: {metrics['dev']['bleu']}" in card


def test_one_example_and_one_step_are_not_called_several(tmp_path, capsys):
    out = train(quick(tmp_path), tmp_path / "run", "data.lines=1", "train.steps=1")
    assert " weights, 1 example, 1 step an epoch, " in capsys.readouterr().err
    card = (out / "model" / "README.md").read_text()
    assert ": 1 example |" in card
    assert "| trained | 1 step, " in card


def test_a_run_without_dev_keeps_its_last_weights(tmp_path):
    recipe = quick(tmp_path)
    recipe.write_text(recipe.read_text().replace('dev = "dev.tsv"', ""))
    out = train(recipe, tmp_path / "run")
    metrics = ModelFolder.open(out).metrics
    assert metrics["step"] == 4
    assert "dev" not in metrics
    newest = load_file(out / "checkpoints" / "00000004" / "state.safetensors")
    model = load_file(out / "model" / "model.safetensors")
    assert all(torch.equal(tensor, newest[f"average.{name}"]) for name, tensor in model.items())


# the weights


def test_the_last_checkpoints_are_averaged(tmp_path):
    changes = ["train.average=last", "train.keep=3", "train.steps=8", "train.save_every=2", "train.evaluate_every=8"]
    out = train(quick(tmp_path), tmp_path / "run", *changes)
    states = [load_file(out / "checkpoints" / f"{step:08d}" / "state.safetensors") for step in (4, 6, 8)]
    for name, tensor in load_file(out / "model" / "model.safetensors").items():
        parts = [state[f"model.{name}"].double() for state in states]
        assert torch.equal(tensor, ((parts[0] + parts[1] + parts[2]) / 3).float())
        assert not torch.equal(parts[0], parts[2])


@pytest.mark.parametrize("average", ["none", "ema"])
def test_the_best_weights_are_kept(tmp_path, average):
    changes = [f"train.average={average}", "train.metric=loss", "train.steps=6", "train.evaluate_every=2"]
    out = train(quick(tmp_path), tmp_path / "run", *changes)
    dev = {line["step"]: line["dev"]["loss"] for line in metrics_of(out) if "dev" in line}
    step = min(dev, key=dev.get)
    assert ModelFolder.open(out).metrics["step"] == step
    state = load_file(out / "checkpoints" / f"{step:08d}" / "state.safetensors")
    kind = "average" if average == "ema" else "model"
    for name, tensor in load_file(out / "model" / "model.safetensors").items():
        assert torch.equal(tensor, state[f"{kind}.{name}"])


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_scores_are_those_of_the_weights_as_they_are_stored(tmp_path, weights):
    out = train(quick(tmp_path), tmp_path / "run", f"train.weights={weights}", "train.steps=8")
    folder = ModelFolder.open(out)
    assert folder.config["weights"] == weights
    assert clearhead.load(out, device="cpu").evaluate(tmp_path / "dev.tsv") == folder.metrics["dev"]
    kinds = {str(tensor.dtype) for tensor in load_file(out / "model" / "model.safetensors").values()}
    assert f"torch.{weights}" in kinds


# precision


def test_bfloat16_runs_on_a_cpu_and_learns_the_same(tmp_path):
    recipe = quick(tmp_path)
    exact, rough = (train(recipe, tmp_path / kind, f"train.precision={kind}") for kind in ("float32", "bfloat16"))
    assert losses(exact) != losses(rough)
    assert losses(rough) == pytest.approx(losses(exact), rel=0.02)
    kinds = {tensor.dtype for tensor in load_file(rough / "model" / "model.safetensors").values()}
    assert kinds == {torch.float32}, "the weights themselves stay whole"


def test_float16_on_a_cpu_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.precision: float16 is for GPUs; choose float32 or bfloat16"):
        train(write_recipe(tmp_path), tmp_path / "run", "train.precision=float16")
    assert not (tmp_path / "run").exists(), "it is refused before anything is written"


# room


def test_a_model_larger_than_the_memory_is_refused_before_anything_is_written(tmp_path):
    wanted = r"a model of [\d,]+ weights needs at least [\d,.]+ GB to be trained, and cpu has [\d,.]+ GB; make model"
    with pytest.raises(ConfigError, match=wanted):
        train(write_recipe(tmp_path), tmp_path / "run", "model.width=100000")
    assert not (tmp_path / "run").exists()


def test_how_much_a_model_needs_is_counted_by_hand(finished, monkeypatch):
    # Width 16, feedforward 32, one layer a side: 3 attentions, 2 feedforwards, 7 norms, and the words of both sides.
    processor = clearhead.load(finished, device="cpu").processor
    words = 16 * (processor.source.size + processor.target.size)
    weights = 3 * 4 * (16 * 16 + 16) + 2 * (2 * 16 * 32 + 32 + 16) + 7 * 2 * 16 + words
    alone = Processes(0, 1, torch.device("cpu"))
    needed = 5 * 4 * weights  # itself, its gradient, two moments of Adam and a moving average, 4 bytes each
    averaged = Train(average="ema")
    monkeypatch.setattr(training_run, "device_memory", lambda _: needed)
    training_run.check_memory(processor, averaged, alone)
    monkeypatch.setattr(training_run, "device_memory", lambda _: needed - 1)
    with pytest.raises(ConfigError, match=f"a model of {weights:,} weights needs"):
        training_run.check_memory(processor, averaged, alone)
    training_run.check_memory(processor, Train(average="ema", shard=True), Processes(0, 2, torch.device("cpu")))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_model_that_does_not_fit_leaves_everything_as_it_was(tmp_path, monkeypatch, overwrite):
    recipe, out = quick(tmp_path), tmp_path / "run"
    if overwrite:
        train(recipe, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def build(self):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes")

    monkeypatch.setattr(TranslationProcessor, "build", build)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train(recipe, out, overwrite=overwrite)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert out.exists() == overwrite


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own look
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training_gives_the_same_losses(tmp_path, monkeypatch, backend):
    if backend == "inductor" and "CLEARHEAD_SOAK" not in os.environ:
        pytest.skip("a C++ compiler takes a minute or two for it: part of make soak")
    counter = CompileCounterWithBackend(backend)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    recipe = quick(tmp_path, model="dropout = 0.0")
    with symbols.patch(use_duck_shape=True):
        plain, compiled = (train(recipe, tmp_path / name, f"train.compile={name}") for name in ("false", "true"))
        assert symbols.use_duck_shape, "switched off while a run trains, restored at its end"
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    graphs = [graph for graph in counter.graphs if len(graph.graph.nodes)]
    assert len(graphs) == 3, "a layer of the encoder, of the decoder, the loss: once each, for batches of any size"


# chance


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    recipe = quick(tmp_path)
    made = []
    for name, more in (("one", []), ("two", []), ("three", ["--seed", "4"])):
        command = ["train", str(recipe), "--out", str(tmp_path / name), "--device", "cpu", *more]
        assert cli.main(command) == 0
        made.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() == (tmp_path / "two" / "metrics.jsonl").read_bytes()


# data


def pairs_as(folder: Path, kind: str) -> str:
    """The corpus of `write_corpus` in another form; what a recipe's [data] says about it."""
    parts = {"train": sentences(61, 1), "dev": sentences(7, 2)}
    said = []
    for name, pairs in parts.items():
        if kind == "jsonl":
            lines = [json.dumps({"target": two, "source": one, "id": 1}, ensure_ascii=False) for one, two in pairs]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
            said.append(f'{name} = "{name}.jsonl"')
        elif kind == "parallel":
            (folder / f"{name}.zh").write_text("".join(f"{one}\n" for one, _ in pairs))
            (folder / f"{name}.en").write_text("".join(f"{two}\n" for _, two in pairs))
            said.append(f'{name} = {{ source = "{name}.zh", target = "{name}.en" }}')
        elif kind == "several":
            middle = len(pairs) // 2
            for number, some in enumerate((pairs[:middle], pairs[middle:])):
                (folder / f"{name}{number}.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in some))
            said.append(f'{name} = ["{name}0.tsv", "{name}1.tsv"]')
    if kind == "columns":
        for name, pairs in parts.items():
            rows = [f"{number}\t{two}\t{one}\n" for number, (one, two) in enumerate(pairs)]
            (folder / f"numbered.{name}.tsv").write_text("".join(rows))
            said.append(f'{name} = "numbered.{name}.tsv"')
        said.append('columns = ["-", "target", "source"]')
    return "\n".join(said)


@pytest.fixture(scope="module")
def from_tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tsv")
    return train(quick(base), base / "run")


@pytest.mark.parametrize("kind", ["jsonl", "parallel", "several", "columns"])
def test_the_form_of_the_files_changes_nothing(tmp_path, from_tsv, kind):
    recipe = quick(tmp_path, data=pairs_as(tmp_path, kind))
    out = train(recipe, tmp_path / "run")
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (from_tsv / name).read_bytes()


def test_columns_the_other_way_round_train_the_other_way_round(tmp_path, from_tsv):
    out = train(quick(tmp_path, data='columns = ["target", "source"]'), tmp_path / "run")
    here, there = (clearhead.load(path, device="cpu").processor for path in (out, from_tsv))
    assert (here.source.size, here.target.size) == (there.target.size, there.source.size)
    assert here.settings["bleu_tokenizer"] == "zh"
    assert here.target.pieces(here.target.encode("爱")) == ["爱"], "it writes Chinese"


def test_a_dev_file_that_does_not_fit_the_columns_is_refused_before_training(tmp_path):
    (tmp_path / "named.csv").write_text("zh,en\n" + "".join(f"{one},{two}\n" for one, two in sentences(61, 1)))
    recipe = quick(tmp_path, data='train = "named.csv"\ndev = "dev.tsv"\ncolumns = { source = "zh", target = "en" }')
    with pytest.raises(ConfigError, match=r"dev\.tsv: a TSV has no header line .*as \.csv with the header zh,en$"):
        train(recipe, tmp_path / "run")
    parallel = '{ source = "dev.zh", target = "dev.en" }'
    (tmp_path / "dev.zh").write_text("我\n")
    (tmp_path / "dev.en").write_text("I\n")
    out = train(recipe, tmp_path / "run", f"data.dev={parallel}")
    assert (out / "report.txt").read_text() == "train: kept 61 of 61\ndev: kept 1 of 1\n"


def test_only_the_first_lines_are_used_if_so_wanted(tmp_path):
    out = train(quick(tmp_path), tmp_path / "run", "data.lines=20")
    assert (out / "report.txt").read_text().startswith("train: kept 20 of 20\n")


def test_dropped_lines_are_in_the_report(tmp_path):
    recipe = quick(tmp_path)
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("\tnothing\n" + "我" * 40 + "\tI\n" + "我爱\t" + "love " * 5 + "\n")
    out = train(recipe, tmp_path / "run", "data.longest=35")
    assert (out / "report.txt").read_text().splitlines()[0] == (
        "train: kept 61 of 64; dropped 1 with an empty side (train.tsv:62), 1 longer than 35 tokens (train.tsv:63), "
        "1 with sides that differ more than 6 times in length (train.tsv:64)"
    )


def test_dev_is_scored_without_its_dropped_lines(tmp_path):
    recipe = quick(tmp_path)
    whole = (tmp_path / "dev.tsv").read_text()
    (tmp_path / "dev.tsv").write_text("\tI\n" + whole)
    out = train(recipe, tmp_path / "run", "train.evaluate_lines=1")  # the first line that can be used
    assert "dev: kept 7 of 8; dropped 1 with an empty side (dev.tsv:1)" in (out / "report.txt").read_text()
    (tmp_path / "dev.tsv").write_text(whole)
    assert clearhead.load(out, device="cpu").evaluate(tmp_path / "dev.tsv") == ModelFolder.open(out).metrics["dev"]


def test_a_broken_line_is_named_and_nothing_is_trained(tmp_path):
    recipe = write_recipe(tmp_path)
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("no tab in this line\n")
    with pytest.raises(DataError, match=r"train\.tsv:62: "):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_was_there_stays_though_the_data_are_wrong(tmp_path):
    recipe, out = quick(tmp_path), tmp_path / "run"
    out.mkdir()
    with pytest.raises(DataError, match="nofile"):
        train(recipe, out, "data.train=nofile.tsv")
    assert out.is_dir()
    train(recipe, out)
    assert (out / "model").is_dir(), "and needs no --overwrite"
