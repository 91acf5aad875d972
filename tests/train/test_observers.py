"""Who hears of a run: the files they keep, the lines they print, and an observer of the user's own."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

from clearhead.errors import DiskFullError, TrainingError
from clearhead.model import EncoderDecoder
from clearhead.train import run_training
from clearhead.train.head_monitor import draw_heads
from clearhead.train.observers import (
    LossPlot,
    MetricsLog,
    Moment,
    Observer,
    ProgressReport,
    Sample,
    TensorBoardLog,
)
from tests.train.conftest import drawing
from tests.train.corpus import write_recipe

pytestmark = pytest.mark.unchecked  # whole runs


class Listener(Observer):
    """Keeps all that it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Moment | None]] = []

    def logged(self, moment: Moment) -> None:
        assert isinstance(moment.model, EncoderDecoder)
        assert moment.model.training
        self.heard.append(("logged", moment))

    def evaluated(self, moment: Moment) -> None:
        self.heard.append(("evaluated", moment))

    def close(self) -> None:
        self.heard.append(("close", None))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listener, str]:
    """A whole run: its folder, what an observer of ours heard, and what was printed."""
    base = tmp_path_factory.mktemp("[red]:smile: runs")
    recipe = write_recipe(base, train="steps = 12\ntensorboard = true")
    (base / "[bold]train.tsv").write_text((base / "train.tsv").read_text() + "\t\n")
    listener = Listener()
    with drawing(), pytest.MonkeyPatch.context() as patch, (base / "printed").open("w") as printed:
        patch.setattr(sys, "stderr", printed)
        change = 'data.train="[bold]train.tsv"'
        out = run_training(str(recipe), overrides=[change], out=base / "run", device="cpu", observers=[listener])
    return out, listener, (base / "printed").read_text()


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def moment(step: int, *, steps: int = 100, seconds: float | None = None, best: float | None = None, **metrics: float):
    """Two steps a second, a thousand tokens each."""
    seconds = step / 2 if seconds is None else seconds
    return Moment(step, steps, torch.nn.Linear(2, 2), metrics, 1000 * step, seconds, step / steps, best)


# files


def test_metrics_have_a_line_for_each_log_and_each_look_at_dev(watched):
    out, _, _ = watched
    lines = lines_of(out / "metrics.jsonl")
    assert [(line["step"], "dev" in line) for line in lines] == [
        (3, False),
        (6, False),
        (8, True),
        (9, False),
        (12, False),
        (12, True),
    ]
    for line in lines:
        if "dev" in line:
            assert {"loss", "bleu", "chrf", "bleu_signature", "chrf_signature"} == line["dev"].keys()
        else:
            assert {"step", "epoch", "loss", "learning_rate", "norm"} == line.keys()
            assert all(math.isfinite(value) for value in line.values())


def test_speed_has_a_line_for_each_log(watched):
    out, _, _ = watched
    lines = lines_of(out / "speed.jsonl")
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    for line in lines:
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"], rel=0.05)
    assert [line["tokens"] for line in lines] == sorted(line["tokens"] for line in lines)


def test_the_curve_is_a_png(watched):
    out, _, _ = watched
    content = (out / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    assert not (out / ".loss.png").exists()


@pytest.mark.parametrize("dev", [None, {"loss": 2.0, "bleu": 1.5}])
def test_a_curve_is_drawn_from_what_there_is(tmp_path, dev):
    journal = MetricsLog(tmp_path, 0)
    curve = LossPlot(tmp_path, "loss" if dev is None else "bleu")
    with drawing():
        curve.close()
    assert not (tmp_path / "loss.png").exists(), "there is nothing to draw"
    journal.logged(moment(1, loss=3.0))
    if dev is not None:
        journal.evaluated(moment(1, **dev))
    journal.close()
    with drawing():
        curve.close()
    assert (tmp_path / "loss.png").stat().st_size > 5000


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_shows_the_metrics(watched):
    out, _, _ = watched
    found, lines = scalars(out / "tensorboard"), lines_of(out / "metrics.jsonl")
    train = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    dev = [(line["step"], line["dev"]["bleu"]) for line in lines if "dev" in line]
    for name, wanted in (("train/loss", train), ("dev/bleu", dev)):
        assert [step for step, _ in found[name]] == [step for step, _ in wanted]
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in wanted], rel=1e-6)
    assert {"train/learning_rate", "train/tokens_per_second", "dev/loss", "dev/chrf"} <= found.keys()


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path):
    board = TensorBoardLog(tmp_path, 0)
    for step in (3, 6, 9):
        board.logged(moment(step, loss=1.0))
    board.close()
    board = TensorBoardLog(tmp_path, 6)
    for step in (9, 12):
        board.logged(moment(step, loss=2.0))
    board.close()
    assert scalars(tmp_path)["train/loss"] == [(3, 1.0), (6, 1.0), (9, 2.0), (12, 2.0)]


def test_a_journal_is_cut_back_to_where_the_run_goes_on(tmp_path):
    journal = MetricsLog(tmp_path, 0)
    for step in (3, 6, 9):
        journal.logged(moment(step, loss=1.0))
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "lo')  # a kill in the middle of a line
    journal = MetricsLog(tmp_path, 6)
    journal.logged(moment(8, loss=2.0))
    journal.close()
    for name in ("metrics.jsonl", "speed.jsonl"):
        assert [line["step"] for line in lines_of(tmp_path / name)] == [3, 6, 8]


# what is printed


def printed(capsys, *moments: tuple[str, Moment], metric: str = "bleu") -> list[str]:
    progress = ProgressReport(metric)
    for what, heard in moments:
        getattr(progress, what)(heard)
    progress.close()
    return capsys.readouterr().err.splitlines()


def test_without_a_terminal_progress_is_plain_lines(capsys):
    lines = printed(
        capsys,
        ("logged", moment(10, steps=1000, loss=4.5678)),
        ("evaluated", moment(10, steps=1000, best=12.345, loss=4.0, bleu=12.345, bleu_signature="nrefs:1")),
        ("logged", moment(20, steps=1000, loss=3.21)),
        ("logged", moment(1000, steps=1000, loss=1.0)),
    )
    assert lines == [
        "step 10 of 1,000 · loss 4.568 · 2,000 tokens/s · about 8 min 15 s left",
        "  dev at step 10: loss 4, bleu 12.35",
        "step 20 of 1,000 · loss 3.210 · 2,000 tokens/s · best bleu 12.35 · about 8 min 10 s left",
        "step 1,000 of 1,000 · loss 1.000 · 2,000 tokens/s · best bleu 12.35",
    ]


def test_answers_are_shortened_to_where_they_differ_from_the_right_ones(capsys):
    text = "a word " * 20
    samples = [Sample(text, text, text), Sample(text, f"{text}[Rome](LOC)", f"{text}Rome"), Sample("a", "b", "c")]
    lines = printed(capsys, ("evaluated", moment(1, loss=1.0)._replace(samples=samples)))
    assert lines[1].startswith("    a word a word ")
    assert lines[1].endswith("… (right)")
    assert "word [Rome](LOC) (right would be: …" in lines[2]
    assert lines[2].endswith("a word Rome)")
    assert max(map(len, lines)) < 3 * 60 + 40
    assert lines[3] == "    a → b (right would be: c)"


def test_the_best_loss_is_shown_without_its_minus(capsys):
    lines = printed(
        capsys,
        ("evaluated", moment(1, best=-2.5, loss=2.5)),
        ("logged", moment(2, loss=2.0)),
        metric="loss",
    )
    assert "best loss 2.5 ·" in lines[1]


def test_a_run_that_goes_on_shows_the_best_score_before(tmp_path, capsys):
    recipe = write_recipe(tmp_path, train="steps = 12")
    out = run_training(str(recipe), out=tmp_path / "run", device="cpu")
    best = max(line["dev"]["bleu"] for line in lines_of(out / "metrics.jsonl") if "dev" in line)
    run_training(str(recipe), overrides=["train.steps=18"], out=out, device="cpu", resume=True)
    first = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("step 15 of 18"))
    assert f" · best bleu {best:.4g} · " in first


def test_a_long_line_is_not_broken(capsys):
    (line,) = printed(capsys, ("logged", moment(10**8 - 1, steps=10**12, seconds=1e7, loss=123456.0)))
    assert line.startswith("step 99,999,999 of 1,000,000,000,000")
    assert line.endswith("min left")


def test_the_speed_is_that_of_the_last_lines(capsys):
    slow = [("logged", moment(step, steps=1000, seconds=100.0 * step, loss=1.0)) for step in (1, 2)]
    fast = [("logged", moment(step, steps=1000, seconds=200 + 0.5 * (step - 2), loss=1.0)) for step in range(3, 14)]
    lines = printed(capsys, *slow, *fast)
    assert "· 10 tokens/s" in lines[0]
    assert "· 2,000 tokens/s · about 8 min 14 s left" in lines[-1]


def test_in_a_terminal_progress_is_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    lines = "\n".join(
        printed(
            capsys,
            ("logged", moment(10, loss=4.5678)),
            ("evaluated", moment(10, best=1.0, loss=4.0, bleu=1.0)),
            ("logged", moment(20, loss=3.0)),
        )
    )
    assert "step 20 of 100" in lines
    assert "loss 3.000 · 2,000 tokens/s · best bleu 1 · about 40 s left" in lines
    assert "━" in lines


def test_the_bar_that_stays_has_the_last_best_score(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    lines = printed(
        capsys,
        ("evaluated", moment(50, best=17.5, loss=4.0, bleu=17.5)),
        ("logged", moment(100, loss=3.0)),
        ("evaluated", moment(100, best=100.0, loss=0.1, bleu=100.0)),
    )
    bars = [line for line in lines if "step 100 of 100" in line]
    assert "loss 3.000 · 2,000 tokens/s · best bleu 100" in bars[-1]


def test_a_run_prints_where_it_is_how_it_goes_and_what_it_made(watched):
    _, _, said = watched
    assert "from the beginning" in said
    assert "step 12 of 12 · loss " in said
    assert "tokens/s · best bleu " in said
    assert " s left" in said
    assert "  dev at step 8: loss " in said
    assert "try it: clearhead predict " in said
    end = said.index("on dev: bleu ")
    scores, bleu, chrf, *_ = said[end:].splitlines()
    assert re.fullmatch(r"on dev: bleu [\d.]+, chrf [\d.]+", scores)
    assert bleu.startswith("  bleu_signature nrefs:1|")
    assert chrf.startswith("  chrf_signature nrefs:1|")
    assert "\x1b" not in said, "no colours where there is no terminal"


def test_names_are_printed_as_they_are(watched):
    out, _, said = watched
    assert "[red]:smile: runs" in str(out)
    assert f"{out}: translation, " in said
    assert f"wrote {out / 'model'}; try it" in said
    assert "train: kept 61 of 62; dropped 1 with an empty side ([bold]train.tsv:62)" in said
    assert "[bold]train.tsv" in (out / "model" / "README.md").read_text()


# one's own


def test_an_observer_of_ones_own_hears_everything_and_sees_the_model(watched):
    out, listener, _ = watched
    assert [(what, heard.step) for what, heard in listener.heard if heard] == [
        ("logged", 3),
        ("logged", 6),
        ("evaluated", 8),
        ("logged", 9),
        ("logged", 12),
        ("evaluated", 12),
    ]
    assert listener.heard[-1] == ("close", None)
    first = listener.heard[0][1]
    assert (first.steps, first.done) == (12, 0.25)
    assert first.metrics["loss"] == lines_of(out / "metrics.jsonl")[0]["loss"]
    assert listener.heard[-2][1].best is not None


def test_observers_are_closed_however_a_run_ends(tmp_path):
    class Breaking(Listener):
        def logged(self, moment: Moment) -> None:
            super().logged(moment)
            raise TrainingError("enough")

    breaking, other = Breaking(), Listener()
    recipe = write_recipe(tmp_path)
    with pytest.raises(TrainingError, match="enough"):
        run_training(str(recipe), out=tmp_path / "run", device="cpu", observers=[breaking, other])
    assert breaking.heard[-1] == other.heard[-1] == ("close", None)


def test_a_full_disk_names_the_picture_that_was_drawn(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 1.0}\n')
    with pytest.raises(DiskFullError, match=r"the disk is full: .*/loss\.png needs"), drawing():
        LossPlot(tmp_path, "loss").close()
    state = {"entropy": [0.5], "sink": [0.5], "strength": [0.5]}
    with pytest.raises(DiskFullError, match=r"the disk is full: .*/heads\.png needs"):
        draw_heads([{"step": 3, "heads": {"encoder.0.self": state}}], tmp_path / "heads.png")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
