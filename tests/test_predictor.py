"""load: a model by its folder or its name, and what it says where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import predictor, shipped
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model.devices import resolve_device
from clearhead.predictor import Predictor, load
from clearhead.tasks import TASKS
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText
from clearhead.text import Row
from tests.echoing import ECHO, EchoProcessor, write_echo


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TASKS._loaded, "echo", ECHO)
    write_echo(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def echo(saved: Path) -> Predictor:
    return load(saved, device="cpu")


def test_one_text_gives_one_answer_and_several_a_list(echo: Predictor) -> None:
    assert echo.predict("abc").text == "cba!"
    assert [answer.text for answer in echo.predict(["abc", "", "de"])] == ["cba!", "", "ed!"]
    assert [answer.text for answer in echo.predict(("abc",))] == ["cba!"]
    assert echo.predict([]) == []


def test_options_reach_the_task_and_unknown_ones_are_refused(echo: Predictor) -> None:
    assert echo.predict("aB", best=2).alternatives == [("AB", -2.0)]
    with pytest.raises(ConfigError, match=r"predict has no option 'beam'; did you mean 'beams'\?"):
        echo.predict("aB", beam=2)
    with pytest.raises(ConfigError, match="evaluate has no option 'x'; choose from batch, beams, lowercase"):
        echo.evaluate([Row(("a", "b"), "f", 1)], x=2)


@pytest.mark.unchecked
def test_one_text_is_looked_at(echo: Predictor) -> None:
    with pytest.raises(DataError, match=r"look\(\) takes one text, got a list: \['abc'\]"):
        echo.look(["abc"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="look has no option 'x'; choose from answer, keep, layers, heads") as refusal:
        echo.look("abc", x=2)
    assert str(refusal.value).count("keep") == 1


def test_a_predictor_knows_what_it_is(echo: Predictor, saved: Path) -> None:
    assert echo.task is ECHO
    assert isinstance(echo.processor, EchoProcessor)
    assert echo.device == torch.device("cpu")
    assert not echo.model.training
    weights = sum(parameter.numel() for parameter in echo.model.parameters())
    assert repr(echo) == f"Predictor('saved': echo, {weights:,} weights, on cpu)"
    run = saved.parent / "run"
    run.mkdir()
    saved.rename(run / "model")
    assert load(run, device="cpu").name == "run"


def test_no_gradients_are_kept(echo: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.answerer, "_answer", lambda *_: GeneratedText(str(torch.is_grad_enabled())))
    assert echo.predict("x").text == "False"


def test_evaluation_reads_rows_files_and_shipped_corpora(
    echo: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [("abc", "cba!"), ("de", "wrong")]
    table, swapped = tmp_path / "pairs.tsv", tmp_path / "swapped.tsv"
    table.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    swapped.write_text("".join(f"{target}\t{source}\n" for source, target in pairs))
    for place, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[place]}\n" for pair in pairs))
    with pytest.raises(ConfigError, match=r"called 'tatoeba-zh-en\.tran'; did you mean 'tatoeba-zh-en\.train'"):
        echo.evaluate("shipped:tatoeba-zh-en.tran")
    monkeypatch.setattr(shipped, "corpus", {"pairs": table}.get)
    files = {"source": tmp_path / "source", "target": tmp_path / "target"}
    rows = [Row(pair, "somewhere", 1) for pair in pairs]
    for data in (rows, table, str(table), files, "shipped:pairs"):
        assert echo.evaluate(data)["same"] == 50.0
    assert echo.evaluate(swapped, columns=["target", "source"], lowercase=True) == {
        "same": 50.0,
        "signature": "lowercase:True|[red]",
    }
    named = tmp_path / "named.csv"
    named.write_text("".join(f"{target},{source}\n" for source, target in [("zh", "en"), *pairs]))
    assert echo.evaluate(named, columns={"target": "en", "source": "zh"})["same"] == 50.0
    with pytest.raises(ConfigError, match="columns must name target; they name -, source"):
        echo.evaluate(swapped, columns=["-", "source"])
    with pytest.raises(DataError, match="no file"):
        echo.evaluate(tmp_path / "nowhere.tsv")


def test_evaluation_takes_pairs_of_texts(echo: Predictor) -> None:
    assert echo.evaluate([("abc", "cba!"), ("de", "wrong")])["same"] == 50.0
    assert echo.evaluate([["abc", "cba!"]])["same"] == 100.0
    with pytest.raises(ConfigError, match=r"columns= applies to files only; give each example as \(source, target\)"):
        echo.evaluate([("abc", "cba!")], columns=["target", "source"])


@pytest.mark.unchecked
@pytest.mark.parametrize("wrong", ["ab", ("a",), ("a", "b", "c"), ("a", 1), {"source": "a", "target": "b"}, None])
def test_what_is_no_pair_of_texts_is_refused(echo: Predictor, wrong: object) -> None:
    with pytest.raises(DataError, match="example 2 must be 2 texts, source, target; got "):
        echo.evaluate([("a", "b"), wrong])  # type: ignore[list-item]


def test_a_shipped_model_is_found_by_its_name_and_a_path_wins(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "models", lambda: ["zh-en"])
    monkeypatch.setattr(shipped, "model", {"zh-en": saved}.get)
    monkeypatch.chdir(tmp_path)
    assert predictor.find_model("zh-en") == saved
    (tmp_path / "zh-en").mkdir()
    assert predictor.find_model("zh-en") == saved, "a folder that only has its name is none"
    (tmp_path / "zh-en" / "config.json").touch()
    assert predictor.find_model("zh-en") == Path("zh-en")
    assert predictor.find_model("shipped:zh-en") == saved


def test_an_unknown_name_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "models", lambda: ["en-zh", "zh-en"])
    with pytest.raises(CheckpointError, match=r"the shipped ones are en-zh, zh-en; did you mean 'zh-en'\?"):
        load("zh-em")
    monkeypatch.setattr(shipped, "models", list)
    with pytest.raises(CheckpointError, match="no folder 'zh-em', and no shipped model is called 'zh-em'; none are"):
        load("zh-em")


def test_devices_that_are_not_there_are_refused(saved: Path) -> None:
    with pytest.raises(ConfigError, match="'gpu' is no device; choose auto, cpu or cuda"):
        load(saved, device="gpu")
    missing = "cuda:99" if torch.cuda.is_available() else "cuda"
    with pytest.raises(ConfigError, match=f"{missing} was asked for, but"):
        load(saved, device=missing)
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("extras", [True, False])
def test_the_public_names_are_there_with_extras_and_without(extras: bool) -> None:
    heavy = ("transformers", "matplotlib", "rich", "typer", "fastapi")
    hidden = "" if extras else f"import sys; sys.modules |= dict.fromkeys(('pydantic', 'tokenizers', *{heavy}))\n"
    code = hidden + (
        "import clearhead, sys; print('torch' in sys.modules)\n"
        "from clearhead import *\n"
        "print([name for name in clearhead.__all__ if name not in globals()])\n"
        f"print([name for name in {heavy} if sys.modules.get(name)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n[]\n[]\n"
    assert clearhead.load is load
    assert set(clearhead.__all__) <= set(dir(clearhead))
    with pytest.raises(AttributeError, match="module 'clearhead' has no attribute 'laod'"):
        _ = clearhead.laod


def test_loading_predicting_and_looking_start_without_the_compiler_and_other_slow_imports():
    code = """if True:
        import sys
        import clearhead.predictor
        slow = ["torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "triton", "transformers"]
        print([name for name in slow if name in sys.modules])
        translator = clearhead.predictor.load("zh-en", device="cpu")
        translator.predict("你好"), translator.look("你好")
        print([name for name in slow if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
