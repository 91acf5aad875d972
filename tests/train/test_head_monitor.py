"""What is seen of the heads while they learn."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead.train
from clearhead import Decoder, EncoderDecoder, Mask, ModelConfig
from clearhead.lens.analysis.roles import score_repeated_tokens
from clearhead.tasks.language_model.language_processor import PackedExamples
from clearhead.text.packed_documents import PackedDocuments
from clearhead.train import head_monitor
from clearhead.train.head_monitor import (
    HeadLog,
    HeadMonitor,
    HeadState,
    choose_equal_lengths,
    measure_heads,
    read_role_histories,
)
from clearhead.train.processes import Processes
from tests.train.conftest import drawing
from tests.train.corpus import write_recipe
from tests.train.test_observers import scalars


@pytest.fixture
def model() -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(ModelConfig.named("tiny", vocabulary=31, width=24, heads=3, layers=2, dropout=0.0)).eval()


def states(model: EncoderDecoder) -> dict[str, HeadState]:
    torch.manual_seed(1)
    source, target = torch.randint(5, 31, (3, 11)), torch.randint(5, 31, (3, 7))
    return measure_heads(model, lambda: model(source, target, Mask.padding([11, 11, 11])))


def head_of(attention: torch.nn.Module, head: int, part: int) -> torch.Tensor:
    """The rows of one head in the projection to q (0), k (1) or v (2)."""
    size = attention.head_dim
    return attention.projections()[part][head * size : (head + 1) * size]


def test_every_attention_and_head_is_seen(model):
    found = states(model)
    names = [f"{name}.{layer}.{kind}" for name, layer, kind in _attentions()]
    assert sorted(found) == sorted(names)
    assert all(len(values) == 3 for state in found.values() for values in state.measured().values())
    assert not model.encoder.layers[0].self_attention.observer, "and nobody watches any more"


def _attentions() -> list[tuple[str, int, str]]:
    places = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]
    return [(side, layer, kind) for side, kind in places for layer in range(2)]


@pytest.mark.parametrize(("side", "kind"), [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")])
def test_a_head_that_looks_at_all_alike_has_the_greatest_entropy(model, side, kind):
    attention = getattr(getattr(model, side).layers[1], f"{kind}_attention")
    with torch.no_grad():
        head_of(attention, 2, 0).zero_()
    entropy = states(model)[f"{side}.1.{kind}"].entropy
    assert entropy[2] == pytest.approx(1.0, abs=1e-5)
    assert max(entropy[:2]) < 1 - 1e-4


def test_a_head_that_stares_has_collapsed(model):
    with torch.no_grad():
        head_of(model.encoder.layers[0].self_attention, 1, 0).mul_(1e6)
    state = states(model)["encoder.0.self"]
    assert state.entropy[1] < 0.02
    assert state.count_problems() == {"collapsed": 1, "sunk": 0, "dead": 0}


def test_a_head_without_values_is_dead(model):
    with torch.no_grad():
        head_of(model.decoder.layers[0].cross_attention, 0, 2).zero_()
    state = states(model)["decoder.0.cross"]
    assert state.strength[0] == 0
    assert np.mean(state.strength) == pytest.approx(1.0)
    assert state.count_problems()["dead"] == 1


def test_a_layer_whose_heads_all_die_is_dead(model):
    usual = states(model)["encoder.1.self"]
    assert usual.count_problems()["dead"] == 0
    with torch.no_grad():
        model.encoder.layers[1].self_attention.to_out.weight.mul_(1e-4)
    state = states(model)["encoder.1.self"]
    assert state.strength == pytest.approx(usual.strength), "against each other they are as they were"
    assert state.added == pytest.approx([1e-4 * value for value in usual.added], rel=1e-4)
    assert state.count_problems()["dead"] == 3


def test_what_a_head_adds_is_measured_by_the_width(model):
    attention = model.encoder.layers[0].self_attention
    with torch.no_grad():
        for part in (0, 2):
            attention.projections()[part].zero_()
        attention.to_qkv.bias[-24:] = 1.0  # every value is a vector of ones, 8 wide
        attention.to_out.weight.copy_(torch.eye(24))
    assert states(model)["encoder.0.self"].added == pytest.approx([(8 / 24) ** 0.5] * 3)


def test_the_mass_on_the_first_word_is_the_sink(model):
    state = states(model)["decoder.0.self"]
    assert all(0 < value < 1 for value in state.sink)
    with torch.no_grad():
        for part in (0, 1):
            head_of(model.decoder.layers[0].self_attention, 1, part).zero_()
    expected = np.mean([1 / n for n in range(1, 8)])  # alike over 1, 2, … 7 words
    assert states(model)["decoder.0.self"].sink[1] == pytest.approx(expected, abs=1e-5)


def test_examples_of_one_length_are_chosen_near_the_usual_one():
    lengths = np.array([[2, 2]] * 9 + [[5, 7]] * 8 + [[40, 40]] * 2 + [[6, 6]])
    chosen = choose_equal_lengths(lengths)
    assert (chosen.sizes, chosen.examples.tolist()) == ((5, 7), list(range(9, 17)))
    assert choose_equal_lengths(lengths[:3]).examples.tolist() == [0, 1, 2], "fewer, if there are no more"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("heads")
    recipe = write_recipe(base, train="steps = 7\nheads_every = 3")
    with drawing():
        return clearhead.train.run_training(
            str(recipe), out=base / "run", device="cpu", overrides=["train.tensorboard=true"]
        )


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "heads.jsonl").read_text().splitlines()]


def test_a_run_keeps_what_its_heads_did(watched):
    lines = lines_of(watched)
    assert [line["step"] for line in lines] == [3, 6, 7], "every third step, and at the end"
    assert set(lines[0]["heads"]) == {"encoder.0.self", "decoder.0.self", "decoder.0.cross"}
    assert lines[0]["heads"]["decoder.0.cross"].keys() == {"entropy", "sink", "strength", "added"}
    assert (watched / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_shows_the_heads(watched):
    found = scalars(watched / "tensorboard")
    lines = lines_of(watched)
    wanted = [np.mean(line["heads"]["encoder.0.self"]["entropy"]) for line in lines]
    assert [value for _, value in found["heads.entropy/encoder.0.self"]] == pytest.approx(wanted, abs=1e-4)
    assert [step for step, _ in found["heads/dead"]] == [3, 6, 7]


def test_looks_that_take_long_are_rare(tmp_path, monkeypatch):
    monkeypatch.setattr(head_monitor, "STEPS_BETWEEN", 1)
    monkeypatch.setattr(head_monitor, "measure_heads", lambda *given: time.sleep(0.3) or measure_heads(*given))
    recipe = write_recipe(tmp_path, train="steps = 9")
    recipe.write_text(recipe.read_text().replace("heads_every = 0\n", ""))
    run = clearhead.train.run_training(str(recipe), out=tmp_path / "run", device="cpu")
    assert [line["step"] for line in lines_of(run)] == [1, 2, 9], "the first is not counted, the second was too long"


def test_watching_changes_nothing_and_can_be_switched_off(watched, tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 7\nheads_every = 0")
    out = clearhead.train.run_training(str(recipe), out=tmp_path / "run", device="cpu")
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (watched / name).read_bytes()
    assert not list(out.glob("heads*"))


def test_a_run_that_goes_on_looks_again_only_at_what_it_does_again(watched, tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 7\nheads_every = 3\nsave_every = 4")
    run = clearhead.train.run_training(str(recipe), out=tmp_path / "run", device="cpu", overrides=["train.steps=4"])
    assert [line["step"] for line in lines_of(run)] == [3, 4]
    clearhead.train.run_training(str(recipe), out=run, device="cpu", resume=True)
    assert [line["step"] for line in lines_of(run)] == [3, 4, 6, 7]
    assert lines_of(run)[-1] == lines_of(watched)[-1]


def language_monitor(length: int = 22, seed: int = 0) -> tuple[Decoder, HeadMonitor]:
    torch.manual_seed(0)
    config = ModelConfig.named("tiny", vocabulary=31, width=24, heads=3, layers=2, dropout=0.0)
    documents = torch.randint(5, 23, (8, length + 1)).tolist()
    examples = PackedExamples(PackedDocuments(documents, context=length), [])
    return Decoder(config), HeadMonitor(examples, None, Processes(0, 1, torch.device("cpu")), seed)


def measured_by(monitor: HeadMonitor, model: Decoder) -> dict[str, HeadState]:
    return monitor.measure(model, lambda batch: model(batch.tokens))


def test_a_language_model_is_measured_on_tokens_of_its_data_that_are_repeated():
    model, monitor = language_monitor()
    found = measured_by(monitor, model)
    assert monitor.probe.shape == (4, 22), "as long as the rows of the data"
    assert 5 <= monitor.probe.min() <= monitor.probe.max() < 23, "of tokens that occur"
    expected = score_repeated_tokens(model.eval(), monitor.probe)
    for name, state in found.items():
        assert (state.previous, state.induction) == (expected[name]["previous"], expected[name]["induction"])
    probe = monitor.probe
    assert measured_by(monitor, model) == found, "and again on the same"
    assert monitor.probe is probe
    model, other = language_monitor(seed=1)
    measured_by(other, model)
    assert not torch.equal(other.probe, probe), "another seed draws others"


def test_rows_that_are_too_short_have_no_roles():
    model, monitor = language_monitor(length=9)
    assert all(state.induction is None for state in measured_by(monitor, model).values())


def test_an_encoder_decoder_has_no_roles(model):
    assert all("induction" not in state.measured() for state in states(model).values())


def test_roles_are_drawn_below_the_loss_from_the_step_where_they_appear(tmp_path):
    scores = {100: (0.1, 0.0), 200: (0.45, 0.1), 300: (0.8, 0.41), 400: (0.9, 0.7)}
    heads = [
        {"step": step, "heads": {"decoder.0.self": {"previous": [0.2, previous], "induction": [0.0, induction]}}}
        for step, (previous, induction) in scores.items()
    ]
    histories = read_role_histories(heads)
    assert [history.appeared for history in histories] == [200, 300]
    assert [history.best for history in histories] == [("decoder.0.self", 1)] * 2
    assert read_role_histories(heads[:1])[0].appeared is None
    without = {"entropy": [1.0], "sink": [1.0], "strength": [1.0]}
    assert read_role_histories([{"step": 1, "heads": {"encoder.0.self": without}}]) == []
    metrics = [{"step": step, "loss": 3.0 - step / 200} for step in scores] + [{"step": 400, "dev": {"loss": 1.2}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    for line in heads:
        line["heads"]["decoder.0.self"] |= {name: values * 2 for name, values in without.items()}
    (tmp_path / "heads.jsonl").write_text("".join(json.dumps(line) + "\n" for line in heads))
    with drawing():
        HeadLog(tmp_path, 400).close()
    assert (tmp_path / "roles.png").read_bytes().startswith(b"\x89PNG")
