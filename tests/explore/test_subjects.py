"""Looking: at a text through a model, ours or Hugging Face's, from Python and from the command line."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead import MultiHeadAttention, Record, shipped
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.explore import Scene, live_model, subjects, write_page
from clearhead.explore.huggingface_folder import load_huggingface_folder
from clearhead.explore.live_model import LiveModel
from clearhead.lens.record.call_metadata import CallMetadata
from clearhead.predictor import Predictor, _count_pixels
from clearhead.tasks.translation import TASK
from tests.explore.records import drawn, weights_of
from tests.explore.test_page_file import read
from tests.tasks.translators import learned, write
from tests.train.corpus import sentences


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    answerer = learned()
    return Predictor(answerer.model, TASK, answerer.processor, name="toy")


@pytest.fixture(scope="module")
def text() -> str:
    return sentences(5, seed=3)[0][0]


def test_a_look_is_one_pass_over_the_text_and_what_the_model_answers(predictor, text):
    record = predictor.look(text)
    call, answer = record.calls[0], predictor.predict(text)
    assert len(record.calls) == 1
    assert call.about.text == answer.text
    target, source = predictor.processor.target, predictor.processor.source
    assert call.ids["source"].tolist() == [[*source.encode(text), source.end]]
    assert call.ids["target"][0, 0] == target.start
    assert target.decode([*call.ids["target"][0].tolist(), *call.about.written[-1:]]) == answer.text
    assert call.about.loss == pytest.approx(-answer.score, abs=1e-4)
    assert record["decoder.0.cross"].top(0, 0, 1)[0].text in target.pieces(range(target.size)) + source.pieces(
        range(source.size)
    )
    assert record["encoder.0.self"].norms is not None


def test_the_weights_are_those_of_the_model_itself(predictor, text):
    record = predictor.look(text)
    ids, found = record.calls[0].ids, {}
    attention = predictor.model.decoder.layers[0].cross_attention
    attention.observer = lambda seen: found.update(weights=seen.weights())
    try:
        with torch.no_grad():
            predictor.model(ids["source"], ids["target"])
    finally:
        attention.observer = None
    torch.testing.assert_close(weights_of(record["decoder.0.cross"]), found["weights"][0], atol=1e-6, rtol=1e-5)


def test_next_tokens_are_probabilities_and_the_answer_is_likely(predictor, text):
    about = predictor.look(text, beams=1).calls[0].about
    assert len(about.next) == len(about.writes) == len(about.written)
    for row, written in zip(about.next, about.writes, strict=True):
        shares = [share for _, share in row]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1.0001
        assert row[0][0] == written  # without beams it writes what is likeliest


def test_an_answer_that_is_given_is_looked_at_instead(predictor, text):
    call = predictor.look(text, answer="x y").calls[0]
    assert call.about.given
    assert call.about.text == "x y"
    assert call.ids["target"].tolist()[0][1:] == predictor.processor.target.encode("x y")
    assert call.about.loss > predictor.look(text).calls[0].about.loss


def test_a_long_text_is_looked_at_part_by_part(predictor):
    text = " ".join(f"{source}." for source, _ in sentences(40, seed=4))
    record = predictor.look(text)
    assert len(record.calls) > 1
    assert "parts" in record.calls[0].about.notes[0]
    scene = Scene(record, 1).to_json()
    assert len(scene["views"]) == len(record.calls)
    assert scene["output"]["text"] == record.calls[1].about.text


def test_nothing_to_look_at_is_said(predictor):
    for empty in ("", "  \n"):
        with pytest.raises(DataError, match="nothing to look at"):
            predictor.look(empty)


def test_options_of_watch_go_through_and_others_are_refused(predictor, text):
    record = predictor.look(text, layers="decoder.*", heads=[1], keep="none", top=3)
    assert record.names == ["decoder.0.self", "decoder.0.cross"]
    assert record["decoder.0.cross"].heads == (1,)
    assert record["decoder.0.cross"].kept is None
    with pytest.raises(ConfigError, match=r"no option 'pixel'; did you mean 'pixels'\?"):
        predictor.look(text, pixel=3)


def test_maps_of_long_texts_are_fine_as_far_as_there_is_room():
    model = torch.nn.ModuleList(MultiHeadAttention(24, 12) for _ in range(12))
    assert [_count_pixels(model, tokens) for tokens in (50, 8192, 8193)] == [256, 256, 1365]
    assert _count_pixels(model[0], 100_000) == 2048


def test_a_record_keeps_what_a_page_shows(predictor, text, tmp_path):
    record = predictor.look(text)
    record.save(tmp_path / "a.record")
    assert Scene(Record.load(tmp_path / "a.record")).to_json() == Scene(record).to_json()


def test_numbers_of_a_call_that_are_not_finite_break_nothing():
    record = drawn(5)
    record.calls[0].about = CallMetadata(text="a", loss=math.nan, chances=[math.inf], next=[None, [("b", math.nan)]])
    output = json.loads(json.dumps(Scene(record).to_json(), allow_nan=False))["output"]
    assert (output["loss"], output["chances"], output["next"]) == (None, [None], [None, []])


def test_heads_are_chosen_by_name_and_number():
    forward = drawn(5, layers=3, heads=4).calls[0]
    assert subjects.select_heads(["encoder.1.self:0,3", "encoder.1.self:2"], forward) == {"encoder.1.self": [0, 2, 3]}
    assert subjects.select_heads(["encoder.*.self:1"], forward) == {f"encoder.{n}.self": [1] for n in range(3)}
    assert subjects.select_heads(["encoder.2.self"], forward) == {"encoder.2.self": [0, 1, 2, 3]}
    for wrong in (
        "decoder.0.self:1",
        "encoder.1.self:x",
        "encoder.1.self:",
        ":1",
        "encoder.1.self:9",
        "encoder.1.self:٣",
    ):
        with pytest.raises(ConfigError, match="--heads"):
            subjects.select_heads([wrong], forward)


# Hugging Face


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Any:
    """A tokenizer that knows a few words, as transformers reads it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["<pad>", "</s>", "<s>", *(f"w{number}" for number in range(28))]
    engine = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<pad>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=engine, pad_token="<pad>", eos_token="</s>", bos_token="<s>")


def saved(folder: Path, words: Any, kind: str) -> Path:
    import transformers
    from transformers import BertConfig, GPT2Config, MarianConfig

    torch.manual_seed(9)
    sizes = {"vocab_size": 31, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    if kind == "GPT2LMHeadModel":
        config: Any = GPT2Config(**sizes, n_embd=18, n_head=3, n_layer=2, n_positions=64)
    elif kind == "BertModel":
        wide = {"hidden_size": 18, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 37}
        config = BertConfig(**sizes, **wide, max_position_embeddings=64)
    else:
        deep = {"encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
        thin = {"d_model": 18, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "max_position_embeddings": 64}
        config = MarianConfig(**sizes, **deep, **thin, decoder_start_token_id=2, forced_eos_token_id=1)
    getattr(transformers, kind)(config).eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "BertModel", "MarianMTModel"])
def test_a_folder_of_hugging_face_is_looked_into(tmp_path, words, kind, monkeypatch):
    folder = saved(tmp_path / "theirs", words, kind)
    assert subjects.is_huggingface_folder(folder)
    live = load_huggingface_folder(folder, device="cpu")
    record = live.look("w3 w5 w8 w5")
    scene = Scene(record).to_json()
    tokens = scene["axes"]["source" if kind == "MarianMTModel" else "tokens"]["shown"]
    assert tokens[:4] == ["w3", "w5", "w8", "w5"]
    assert scene["title"] == "theirs"
    monkeypatch.setattr(live_model, "LONG_TEXT", 0)
    long = live.look("w3 w5 w8 w5")  # with modules of its own over the same weights
    assert Scene(long).to_json() == scene
    if kind == "BertModel":
        assert scene["output"] is None
        return
    assert len(scene["output"]["next"]) == (4 if kind == "GPT2LMHeadModel" else len(scene["axes"]["written"]["tokens"]))
    without = live.answer_without(record, 0, {record.names[-1]: [0, 1, 2]})
    assert without.loss[0] == pytest.approx(scene["output"]["loss"], rel=1e-4)
    assert without.loss[1] != without.loss[0]
    text = "source" if kind == "MarianMTModel" else "tokens"
    assert live.answer_without(record, 0, {}, {text: [1]}).loss[1] not in without.loss
    chosen = live.tracer.pieces("tokens", [record.calls[0].about.choices[1][1]])[0]
    assert chosen in live.continue_answer(record, 0, 1, 1).text.split()
    opened = live.look_at_continuation(record, 0, 1, 1).calls[0]
    assert opened.about.writes[1] == chosen
    assert opened.about.forced == 2
    monkeypatch.setattr(live_model, "LONG_RECORD", 0)
    assert live.answer_without(long, 0, {record.names[-1]: [0, 1, 2]}) == without
    assert live.answer_without(long, 0, {}).loss[1] == pytest.approx(scene["output"]["loss"])


def test_a_decoder_may_go_on_writing_or_be_given_how(tmp_path, words):
    live = load_huggingface_folder(saved(tmp_path / "theirs", words, "GPT2LMHeadModel"), device="cpu")
    longer = live.look("w3 w5", most=5).calls[0]
    assert 3 <= longer.ids["tokens"].shape[1] <= 7
    given = live.look("w3 w5", answer="w7 w9").calls[0]
    assert given.about.given
    assert words.convert_ids_to_tokens(given.ids["tokens"][0].tolist()) == ["w3", "w5", "w7", "w9"]


def test_a_folder_that_is_none_is_refused_and_nothing_is_fetched(tmp_path):
    assert not subjects.is_huggingface_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    assert subjects.is_huggingface_folder(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read as a Hugging Face model"):
        load_huggingface_folder(tmp_path, device="cpu")


# The command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "toy", learned().processor, learned().model)


def test_the_command_writes_a_page(folder, text, tmp_path, capsys):
    assert main(["look", str(folder), text, "--out", str(tmp_path / "page.html")]) == 0
    scene, numbers = read((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert scene["title"] == "toy"
    assert not scene["live"]
    assert scene["exact"]
    assert numbers["decoder.0.cross"]["weights"].shape[0] == 4
    assert any(head["effect"] for one in scene["attentions"] for head in one["heads"])
    assert "page.html (" in capsys.readouterr().err


def test_without_a_screen_the_command_says_the_address_and_how_to_forward_it(folder, text, capsys, monkeypatch):
    monkeypatch.setattr("clearhead.explore.server.Server.wait", lambda _: None)
    monkeypatch.setattr("clearhead.explore.has_screen", lambda: False)
    monkeypatch.setattr("webbrowser.open", None)  # a browser of text would take over the terminal
    assert main(["look", str(folder), text, "--open"]) == 0
    said = capsys.readouterr()
    port = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]+/\n", said.out)[1]
    assert f"ssh -L {port}:127.0.0.1:{port} THIS_MACHINE" in said.err


def test_a_page_replaces_a_page_and_no_other_file(folder, text, tmp_path, capsys, monkeypatch):
    page, command = tmp_path / "page.html", ["look", str(folder), text, "--out"]
    page.touch()  # as mktemp does
    for _ in range(2):
        assert main([*command, str(page)]) == 0
        assert read(page.read_text(encoding="utf-8"))[0]["title"] == "toy"
    saved = tmp_path / "some.record"
    subjects.open_subject(str(folder), text).record.save(saved)
    (tmp_path / "thesis.html").write_text("<html><title>About clearhead</title>")
    monkeypatch.setattr(subjects, "open_subject", None)  # refused before any model is loaded
    capsys.readouterr()
    for path in (saved, tmp_path / "thesis.html"):
        before = path.read_bytes()
        assert main([*command, str(path)]) == 2
        said = capsys.readouterr().err
        assert f"{path} exists and is not a clearhead page; name another file, or remove it first\n" in said
        assert said.count("\n") == 1
        assert path.read_bytes() == before
    assert main([*command, str(tmp_path / "no" / "page.html")]) == 2
    assert f"there is no folder {tmp_path / 'no'}; create it first" in capsys.readouterr().err


def test_a_page_goes_through_a_pipe_too(predictor, text, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (
        (tmp_path / "copy").open("wb") as copy,
        subprocess.Popen(["timeout", "60", "cat", tmp_path / "pipe"], stdout=copy),
    ):
        write_page(predictor.look(text), tmp_path / "pipe")
    assert read((tmp_path / "copy").read_text(encoding="utf-8"))[0]["exact"]


def test_the_command_reads_records_too(folder, text, tmp_path, predictor):
    predictor.look(text).save(tmp_path / "some.record")
    assert main(["look", str(tmp_path / "some.record"), "--out", str(tmp_path / "page.html")]) == 0
    scene, _ = read((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert scene["title"] == "some"
    with pytest.raises(ConfigError, match="a record has none"):
        subjects.write_subject(
            subjects.open_subject(str(tmp_path / "some.record"), None), tmp_path / "page.html", without=True
        )


def test_a_file_can_hold_what_the_model_does_without_each_head(predictor, text, tmp_path):
    live = LiveModel.from_predictor(predictor)
    record = live.look(text)
    written = subjects.write_subject(subjects.Subject(record, live, None), tmp_path / "page.html", without=True)
    scene, _ = read(written.read_text(encoding="utf-8"))
    assert {name: len(heads) for name, heads in scene["without"].items()} == dict.fromkeys(record.names, 4)
    one, asked = scene["without"]["decoder.0.cross"]["2"], live.answer_without(record, 0, {"decoder.0.cross": [2]})
    assert (one["text"], one["loss"]) == (asked.text, asked.loss)
    assert one["next"][0][0] == [asked.next[0][0][0], pytest.approx(asked.next[0][0][1], abs=0.00006)]
    effect = scene["attentions"][record.names.index("decoder.0.cross")]["heads"][2]["effect"]
    assert one["loss"][1] - one["loss"][0] == pytest.approx(effect, abs=1e-4)


def test_a_text_in_parts_is_answered_once_for_each_head(predictor, text, monkeypatch):
    live = LiveModel.from_predictor(predictor)
    record = live.look(text)
    record.calls.append(record.calls[0])  # as if it had been read in two parts
    kind, asked = type(live.tracer), []
    answers = kind.traces

    def twice(tracer, given, **options):
        asked.append(given)
        return answers(tracer, given, **options) * 2

    monkeypatch.setattr(kind, "traces", twice)
    done: list[bool] = []
    one, other = live.answer_without_each(record, [0, 1], lambda _: done.append(True))
    heads = sum(map(len, one.values()))
    assert asked == [text] * heads
    assert len(done) == heads
    assert one == other
    assert one["decoder.0.cross"]["2"] == live.answer_without(record, 0, {"decoder.0.cross": [2]})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch):
    for stream, shown in ((Terminal(), "3/4"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        with subjects.show_progress("heads", 4) as progress:
            progress(1)
            progress(2)
        assert shown in stream.getvalue() if shown else not stream.getvalue()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["{folder}"], "no INPUT was given"),
        (["{folder}", "", "--out", "x.html"], "nothing to look at"),
        (["{folder}", "ba", "--out", "{folder}"], "is a folder"),
        (["{folder}", "ba", "--heads", "a:1"], "are for --out: the server's page"),
        (["{folder}", "ba", "--without"], "are for --out: the server's page"),
        (["{folder}", "ba", "--out", "x.html", "--heads", "a:1"], "--heads a:1"),
        (["{folder}", "ba", "--out", "x.html", "--part", "9"], "there are 1"),
        (["nowhere", "ba"], "there is no folder 'nowhere'"),
        (["{file}", "ba"], "is a record"),
        (["{file}"], "cannot be read as a record"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, tmp_path, capsys, arguments, error, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("nothing")
    filled = [one.format(folder=folder, file=tmp_path / "file") for one in arguments]
    assert main(["look", *filled]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_the_command_serves_until_it_is_interrupted(folder, text):
    command = [sys.executable, "-m", "clearhead", "look", str(folder), text]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as running:
        assert running.stdout is not None
        try:
            address = running.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address), running.communicate()[1]
            with urllib.request.urlopen(f"{address}scene.json") as reply:
                assert json.load(reply)["live"]
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        finally:
            running.kill()


def test_new_text_is_not_endless(predictor):
    with pytest.raises(DataError, match="100,000 at most"):
        LiveModel.from_predictor(predictor).look("x" * 100_001)


def test_a_shipped_model_can_be_looked_into(tmp_path):
    if "zh-en" not in shipped.models():
        pytest.skip("the shipped model is not in this checkout")
    seen = subjects.open_subject("zh-en", "你好。", device="cpu")
    assert seen.record.calls[0].about.text
    assert "decoder.0.cross" in seen.record
