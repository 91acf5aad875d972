"""What `make demo` and `make lesson` show, without their minutes of training."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch

import clearhead
from clearhead import shipped
from clearhead.tasks import TASKS, Prediction
from clearhead.train import read_recipe

ROOT = Path(__file__).resolve().parent.parent
PICTURE = b"\x89PNG"


@pytest.fixture(scope="module", autouse=True)
def examples():
    """Examples import each other, as scripts of one folder do."""
    sys.path.insert(0, str(ROOT / "examples"))
    yield
    sys.path.remove(str(ROOT / "examples"))


@pytest.fixture(scope="module")
def lesson(examples: None) -> ModuleType:
    return importlib.import_module("first_look")


@pytest.fixture(scope="module")
def demo(examples: None) -> ModuleType:
    return importlib.import_module("translate")


@pytest.fixture(scope="module")
def translator() -> clearhead.predictor.Predictor:
    return clearhead.load("zh-en", device="cpu")


class Silent:
    """A translator that has nothing to say."""

    name, model = "silent", torch.nn.Linear(1, 1)

    def predict(self, text: str) -> Prediction:
        return Prediction("")


def test_the_shipped_model_translates_what_the_demo_shows(demo, translator, capsys) -> None:
    assert demo.translate(translator)
    printed = capsys.readouterr().out
    assert all(sentence in printed for sentence in demo.UNSEEN)


def test_a_translator_that_says_nothing_is_not_called_a_success(demo, capsys) -> None:
    assert not demo.translate(Silent())
    said = capsys.readouterr().err
    assert "went wrong" in said
    assert all(sentence in said for sentence in demo.UNSEEN)


def test_what_the_demo_translates_is_not_in_the_shipped_corpora(demo) -> None:
    names = [name for name in shipped.corpora() if "zh-en" in name]
    known = {row.values[0] for name in names for row in TASKS["translation"].processor.read(shipped.corpus(name))}
    assert len(known) > 30_000
    assert not known & {*demo.UNSEEN, "".join(demo.WORDS)}


def test_the_sentence_that_is_watched_is_one_that_is_taught(demo) -> None:
    recipe, _ = read_recipe(demo.RECIPE)
    rows = list(islice(TASKS["translation"].processor.read(shipped.corpus("tatoeba-zh-en.train")), recipe.data.lines))
    processor = TASKS["translation"].processor.prepare(rows, recipe)
    pairs = demo.taught(processor, recipe)
    assert 5000 < len(pairs) < recipe.data.lines
    assert pairs[demo.WATCHED] == ["I am eating rice."]
    assert max(len(processor.source.encode(sentence)) for sentence in pairs) == recipe.data.longest


def test_the_tiny_recipe_keeps_its_last_weights(demo) -> None:
    recipe, _ = read_recipe(demo.RECIPE)
    assert recipe.train.evaluate_every == recipe.train.steps, "or those that do best on dev, which know less by heart"


@pytest.fixture
def few(tmp_path: Path) -> list[str]:
    """A recipe that is learned in seconds: few sentences, a narrow model, a dev of two lines."""
    dev = tmp_path / "dev.tsv"
    dev.write_text("你好。\tHello.\n我是学生。\tI am a student.\n", encoding="utf-8")
    changes = {"data.dev": f'"{dev}"', "data.lines": 45, "text.vocabulary": 400, "model.width": 64}
    changes |= {"data.longest": 18, "train.warmup": 10, "train.log_every": 40, "train.shapes": 1}
    changes |= {"train.tensorboard": "false"}
    return [f"{key}={value}" for key, value in changes.items()]


def test_a_small_model_says_what_it_was_taught(demo, few, tmp_path, capsys) -> None:
    assert demo.learn(tmp_path / "run", [*few, "train.steps=80", "train.evaluate_every=80"])
    printed = capsys.readouterr().out
    assert f"{demo.WATCHED} → I am eating rice." in printed, "what is watched is what the newest weights say"
    assert "✗" not in printed
    assert "10 of 10 came out as taught" in printed


def test_a_small_model_that_did_not_learn_is_not_called_a_success(demo, few, tmp_path, capsys) -> None:
    assert not demo.learn(tmp_path / "run", [*few, "train.steps=1"])
    said = capsys.readouterr()
    assert "0 of 10 came out as taught" in said.out
    assert "learned too little" in said.err


def test_the_pictures_show_every_head_and_the_one_that_aligns(demo, translator, tmp_path, capsys) -> None:
    assert demo.look(translator, tmp_path)
    for name in ("heads.png", "head.png"):
        assert (tmp_path / name).read_bytes().startswith(PICTURE)
    printed = capsys.readouterr().out
    assert "of 24 heads look back" in printed


def test_attention_between_words_is_all_of_it(demo, translator) -> None:
    weights = demo.between_words(translator, demo.WORDS, ["I", " bought", " books", "."])
    assert weights.shape == (3, 8, 4 + 1, len(demo.WORDS) + 1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 8, 5))


def test_an_error_is_one_line_and_exit_code_1(demo, tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / demo.RECIPE).write_text("in the way")
    monkeypatch.setattr(demo, "translate", lambda translator: True)
    assert demo.main(runs=tmp_path) == 1
    said = capsys.readouterr().err
    assert "is a file" in said
    assert said.count("\n") == 1


def test_the_decoder_is_told_one_step_less_than_it_answers(lesson: ModuleType) -> None:
    told, answer = lesson.backwards(["abc", "ab"])
    a, b, c = 3, 4, 5
    assert told.tolist() == [[lesson.START, c, b, a], [lesson.START, b, a, lesson.PAD]]
    assert answer.tolist() == [[c, b, a, lesson.END], [b, a, lesson.END, lesson.PAD]]


def test_weights_by_hand_are_those_of_the_formula(lesson: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    lesson.attention_by_hand()
    printed = capsys.readouterr().out
    expected = torch.tensor([9.0, 6.0, 3.0, 1.0]).div(2).softmax(0)
    first = next(line for line in printed.splitlines() if line.startswith("     人"))
    assert [f"{weight:.2f}" for weight in expected] == [word for word in first.split() if word.startswith("0.")]
    assert printed.count("sum 1.00") == 12


def test_a_lesson_that_was_not_learned_is_not_called_a_success(
    lesson: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lesson.main(steps=2, folder=tmp_path) == 1
    assert "did not learn" in capsys.readouterr().err
    assert (tmp_path / "attention.png").read_bytes().startswith(PICTURE)


def test_what_is_seen_of_cross_attention_is_every_head_of_every_layer(lesson: ModuleType) -> None:
    size = {"layers": 3, "width": 20, "heads": 5}
    config = lesson.ModelConfig.named("tiny", vocabulary=lesson.FIRST + len(lesson.LETTERS), **size)
    weights = lesson.cross_attention(lesson.EncoderDecoder(config).eval(), "attention")
    assert weights.shape == (3, 5, 9 + 1, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5, 10))


def test_a_character_that_no_font_has_is_noticed(tmp_path: Path) -> None:
    drawing = importlib.import_module("drawing")
    look = {"title": "人工智能", "note": "圖書館"}
    weights = torch.eye(2)[None, None]
    drawing.draw_heads(weights, ["人", "工"], ["a", "b"], tmp_path / "all.png", **look)
    with pytest.warns(UserWarning, match="missing from font"):
        drawing.draw_heads(weights, ["人", "\U00030000"], ["a", "b"], tmp_path / "none.png", **look)
