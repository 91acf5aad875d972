"""The demo's parts, without the half minute of training."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_look", ROOT / "examples" / "first_look.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_decoder_is_told_one_step_less_than_it_answers(demo: ModuleType) -> None:
    told, answer = demo.backwards(["abc", "ab"])
    a, b, c = 3, 4, 5
    assert told.tolist() == [[demo.START, c, b, a], [demo.START, b, a, demo.PAD]]
    assert answer.tolist() == [[c, b, a, demo.END], [b, a, demo.END, demo.PAD]]


def test_weights_by_hand_are_those_of_the_formula(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    demo.attention_by_hand()
    printed = capsys.readouterr().out
    expected = torch.tensor([9.0, 6.0, 3.0, 1.0]).div(2).softmax(0)
    first = next(line for line in printed.splitlines() if line.startswith("     人"))
    assert [f"{weight:.2f}" for weight in expected] == [word for word in first.split() if word.startswith("0.")]
    assert printed.count("sum 1.00") == 12


def test_a_model_that_did_not_learn_is_not_called_a_success(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(steps=2, folder=tmp_path) == 1
    assert "did not learn" in capsys.readouterr().err
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_a_letter_that_no_font_has_gets_no_font(demo: ModuleType) -> None:
    assert demo.font_with("\U0010fffd") is None
    assert demo.font_with("a") is not None


def test_what_is_seen_of_cross_attention_is_every_head_of_every_layer(demo: ModuleType) -> None:
    config = demo.ModelConfig.named("tiny", vocabulary=demo.FIRST + len(demo.LETTERS), layers=3, width=20, heads=5)
    weights = demo.cross_attention(demo.EncoderDecoder(config).eval(), "attention")
    assert weights.shape == (3, 5, 9 + 1, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5, 10))
