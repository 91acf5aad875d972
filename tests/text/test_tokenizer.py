"""Tokenizers: any text comes back as it was read, nothing in it is taken for a sign of ours, and training repeats."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clearhead import shipped
from clearhead.errors import CheckpointError, ClearheadError, ConfigError, DataError, PackageError
from clearhead.text import Tokenizer, read
from clearhead.text.chinese import PAIRS, VARIANTS
from clearhead.text.hf_tokenizers import _make_deterministic
from clearhead.text.tokenizer import KINDS

FIXED = 3 + 256
ODD = [
    "a 中 b",
    "中文 English中文",
    "  leading, and trailing  ",
    "▁ ▁▁a▁b ▁",
    "<s> </s> <pad> <unk> <0x41> <0xE4>",
    "👩‍👩‍👧 ❤️ 🇨🇳",
    "don't, l’homme; it'S 'tis",
    "１２３ ①②③ ½ …——!!!!!!",
    "ＡＢＣ\u3000ﬁ\x00\x07\u200b\ufeff\u00ad\r\n\u2028\x85z",
    "e\u0301 \u0301 ´ İstanbul ß",
    "漢語和汉语 ⾺ 著 カタカナ ไทย 한국어",
    "",
    " ",
    "\n",
]
characters = st.characters(exclude_categories=["Cs"]) | st.sampled_from(sorted(set("".join(ODD))))


def corpus(part: str = "dev") -> list[str]:
    return [text for row in read(shipped.corpus(f"tatoeba-zh-en.{part}"), ["zh", "en"]) for text in row.values]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return Tokenizer.train(corpus()[:1000], kind=request.param, vocabulary=1009, script="simplified")


@pytest.fixture(scope="module")
def pairs():
    return Tokenizer.train(corpus(), vocabulary=2003)


def pieces(tokenizer: Tokenizer, text: str) -> str:
    return " ".join(tokenizer.pieces(tokenizer.encode(text)))


def examples(test):
    for text in ODD:
        test = example(text)(test)
    return test


@examples
@given(st.text(characters, max_size=40))
def test_any_text_comes_back_as_it_was_read(tokenizer, text):
    numbers = tokenizer.encode(text)
    assert tokenizer.decode(numbers) == tokenizer.normal(text)
    assert tokenizer.encode_all([text, "a"]) == [numbers, tokenizer.encode("a")]
    assert all(Tokenizer.end < number < tokenizer.size for number in numbers), "no padding, start or end from text"


@given(st.text(characters, max_size=40))
def test_what_is_normal_stays_as_it_is(text):
    for lowercase in (False, True):
        tokenizer = Tokenizer.train(["a"], kind="character", lowercase=lowercase)
        assert tokenizer.normal(tokenizer.normal(text)) == tokenizer.normal(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" Ｈello,\r\n\t ｗｏｒｌｄ！　", "Hello, world!"),
        ("ﬁ ① ² … Å", "fi 1 2 ... Å"),
        ("a\x00b\x07c\u200bd\ufeffe\u00adf", "abcdef"),
        ("a\x0bb\x0cc\x85d\u2028e", "a b c d e"),
        ("繁體字 ⾺", "繁體字 馬"),
        ("▁a▁", "▁a▁"),
        ("👩‍👩‍👧", "👩‍👩‍👧"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_normal_text_is_what_was_worked_out_by_hand(pairs, text, wanted):
    assert pairs.normal(text) == wanted


def test_numbers_are_padding_start_end_bytes_then_pieces(tokenizer):
    assert (Tokenizer.pad, Tokenizer.start, Tokenizer.end) == (0, 1, 2)
    assert tokenizer.pieces([0, 1, 2, 3, 258]) == ["<pad>", "<s>", "</s>", "<0x00>", "<0xFF>"]
    assert not any(piece.startswith("<0x") for piece in tokenizer.pieces(range(FIXED, tokenizer.size)))
    assert len(set(tokenizer.pieces(range(tokenizer.size)))) == tokenizer.size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [260, 263, 307, 523, 100_003])
def test_a_vocabulary_is_never_larger_than_asked_for(kind, vocabulary):
    tokenizer = Tokenizer.train(corpus()[:60], kind=kind, vocabulary=vocabulary)
    assert FIXED < tokenizer.size <= vocabulary
    assert tokenizer.size == vocabulary or vocabulary > 307, "there is more to learn than fits"
    assert tokenizer.decode(tokenizer.encode("Tom 喜欢 a 狗.")) == "Tom 喜欢 a 狗."


def test_a_character_is_the_same_piece_at_the_beginning_and_inside(pairs):
    first, inner = pairs.encode("我"), pairs.encode("a,我")[-1:]
    assert first == inner
    assert pieces(pairs, "Tom, 我 Tom,我") == "▁Tom , ▁ 我 ▁Tom , 我"


def test_a_word_is_the_same_piece_at_the_beginning_and_after_a_space(pairs):
    assert pairs.encode("Tom") == pairs.encode("我 Tom")[-1:]


def test_numbers_are_spelled_digit_by_digit_and_punctuation_stands_alone(pairs):
    assert pieces(pairs, "Tom 2013,我。") == "▁Tom ▁ 2 0 1 3 , 我 。"
    assert pairs.encode("2013") == pairs.encode("我2013")[1:]
    assert pieces(pairs, "I don't.") == "▁I ▁don 't ."


def test_characters_are_single_pieces_in_the_character_kind():
    tokenizer = Tokenizer.train(["low 我们", "lower"], kind="character")
    assert pieces(tokenizer, "lower 我好") == "l o w e r ▁ 我 <0xE5> <0xA5> <0xBD>"
    assert tokenizer.size == FIXED + len(set("lower 我们"))


def test_a_character_without_a_piece_is_spelled_in_bytes(tokenizer):
    numbers = tokenizer.encode("龘")
    assert tokenizer.pieces(numbers) == ["<0xE9>", "<0xBE>", "<0x98>"]
    assert tokenizer.decode(numbers) == "龘"
    assert tokenizer.decode(numbers[:2]) in ("�", "��"), "a model may write half a character"
    assert tokenizer.decode([*numbers, *numbers[:2], *numbers]).replace("��", "�") == "龘�龘", "which spoils no other"


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from("#Person12 :a人\n"), max_size=30))
def test_whole_pieces_are_one_number_wherever_they_are(kind, text):
    tokenizer = speakers(kind)
    numbers = tokenizer.encode(text)
    assert tokenizer.decode(numbers) == tokenizer.normal(text)
    shown = tokenizer.pieces(numbers)
    whole = tokenizer.normal(text).count("#Person1#")
    assert sum(piece in ("#Person1#", "▁#Person1#") for piece in shown) == whole
    assert not any("#Person1#" in piece and len(piece) > len("▁#Person1#") for piece in shown)


@cache
def speakers(kind: str) -> Tokenizer:
    texts = ["#Person1#: a person\n#Person2#: Person 1 人", "#Person1# and #Person2# 12"] * 3
    return Tokenizer.train(texts, kind=kind, vocabulary=300, pieces=["#Person1#", "#Person2#", "#Person1#"])


@pytest.mark.parametrize("kind", KINDS)
def test_whole_pieces_are_kept_in_the_file(kind, tmp_path):
    tokenizer = speakers(kind)
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.settings["pieces"] == ["#Person1#", "#Person2#"]
    text = "#Person1#: I like #Person2#'s coat."
    assert again.encode(text) == tokenizer.encode(text)
    if kind != "character":
        one, other = (tokenizer.encode(text)[0] for text in ("#Person1# is", "#Person1#"))
        assert one == other == tokenizer.encode("a #Person1#")[-1], "the same at the beginning and inside"


def test_pieces_that_cannot_be_are_refused():
    for wrong, said in (
        (["a b"], "without spaces, got 'a b'"),
        ([""], "got ''"),
        (["x" * n for n in range(1, 40)], "room"),
    ):
        with pytest.raises(ConfigError, match=said):
            Tokenizer.train(["text"], vocabulary=300, pieces=wrong)


def test_padding_start_and_end_are_left_out_of_decoded_text(pairs):
    numbers = pairs.encode("Hello.")
    assert pairs.decode([1, *numbers[:1], 0, *numbers[1:], 2, 0, 0]) == "Hello."
    assert pairs.decode([]) == ""


def test_numbers_that_are_not_in_the_vocabulary_are_refused(pairs):
    for numbers in ([-1], [5, 2003]):
        with pytest.raises(DataError, match=r"the vocabulary from 0 to 2002; is this the tokenizer"):
            pairs.decode(numbers)
        with pytest.raises(DataError, match="numbers run from"):
            pairs.pieces(numbers)


@pytest.mark.unchecked
@pytest.mark.parametrize("wrong", [None, 7, b"bytes"])
def test_what_is_no_text_is_refused(tokenizer, wrong):
    with pytest.raises(DataError, match=f"expected a text, got {wrong!r}"):
        tokenizer.encode(wrong)
    with pytest.raises(DataError, match="expected a text"):
        tokenizer.encode_all(["a", wrong])


def test_half_a_character_becomes_a_replacement_character(tokenizer):
    assert tokenizer.normal("a\udcff 中\ud800") == "a� 中�"
    assert tokenizer.decode(tokenizer.encode("a\udcff")) == "a�"
    assert tokenizer.encode_all(["\ud83d\ude00"]) == [tokenizer.encode("😀")], "two halves make a whole"


def test_traditional_characters_are_read_as_simplified_ones_where_asked():
    simplified = Tokenizer.train(["我们学习汉语"] * 2, script="simplified")
    assert simplified.normal("我們學習漢語 ⾺") == "我们学习汉语 马"
    assert simplified.encode("我們學習漢語") == simplified.encode("我们学习汉语")
    assert simplified.encode_all(["我們"] * 3) == [simplified.encode("我们")] * 3
    assert Tokenizer.train(["我"]).normal("我們") == "我們"


def test_lower_case_is_read_where_asked():
    tokenizer = Tokenizer.train(["Hello"] * 2, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("HELLO Ａ İ")) == "hello a i̇"


def test_variants_of_characters_are_read_and_written_in_their_usual_form(tmp_path):
    tokenizer = Tokenizer.train(["鴈雁雁，劒剑剑"], kind="character", script="simplified", exact=True)
    assert tokenizer.encode("鴈劒光") == tokenizer.encode("雁劍光")
    assert tokenizer.decode(tokenizer.encode("鴈劒")) == tokenizer.normal("鴈劒") == "雁剑"
    assert tokenizer.encode_with_offsets(["一鴈"])[0][1][-1] == (1, 2)
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).normal("鴈") == "雁"


def test_a_tokenizer_from_before_variants_were_known_keeps_them(tmp_path):
    """Its model has learned them; a folder that says it does not want them writes the usual form all the same."""
    old = Tokenizer.train(["鴈雁雁"], kind="character", exact=True)
    old.settings["script"] = "simplified"
    old.save(tmp_path)
    kept = Tokenizer.load(tmp_path)
    numbers = kept.encode("鴈雁")
    assert kept.decode(numbers) == kept.normal("鴈雁") == "鴈雁"
    changed(tmp_path, variants=True)
    assert Tokenizer.load(tmp_path).decode(numbers) == "雁雁"


def test_the_table_of_variants_ends_at_usual_forms():
    usual = set(VARIANTS.values())
    assert not usual & set(map(chr, VARIANTS))
    assert len(PAIRS) == 2 * len(VARIANTS), "no variant is listed twice"


TRAINING = """
import hashlib, sys
from clearhead import shipped
from clearhead.text import Tokenizer, read
texts = [text for row in read(shipped.corpus("tatoeba-zh-en.dev"), ["zh", "en"]) for text in row.values]
for kind in ("bpe", "unigram", "character"):
    engine = Tokenizer.train(texts[:: int(sys.argv[1])], kind=kind, vocabulary=2003, script="simplified").engine
    print(hashlib.sha256(engine.to_str().encode()).hexdigest())
"""


def printed(code: str, *arguments: str, **environment: str) -> tuple[list[str], str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**inherited, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1], done.stderr


def test_training_gives_the_same_bytes_in_every_process_and_in_every_order_of_the_texts():
    first, _ = printed(TRAINING, "1", PYTHONHASHSEED="1", RAYON_NUM_THREADS="1")
    second, _ = printed(TRAINING, "-1", PYTHONHASHSEED="2", RAYON_NUM_THREADS="4")
    here = [Tokenizer.train(corpus(), kind=kind, vocabulary=2003, script="simplified").engine for kind in KINDS]
    assert first == second == [hashlib.sha256(engine.to_str().encode()).hexdigest() for engine in here]


def test_scores_do_not_depend_on_the_order_of_a_walk():
    one = {"ab": -3.0, "c": -9.0, "d": -8.9999, "e": -8.9998, "f": -4.000000001}
    two = {"ab": -3.0, "c": -8.9999, "d": -8.9998, "e": -9.0, "f": -4.000000002}
    assert (
        _make_deterministic(one) == _make_deterministic(two) == {"ab": -3.0, "c": -9.0, "d": -9.0, "e": -9.0, "f": -4.0}
    )


def test_a_long_text_without_a_space_takes_time_by_its_length(tokenizer):
    text = "".join(character for text in corpus() for character in text if character >= "\u4e00")
    text = (text * 30)[:350_000]  # 1 MB in UTF-8
    begun = time.perf_counter()
    assert len(tokenizer.encode(text)) > 100_000
    assert time.perf_counter() - begun < 20, "0.4 s on two quiet cores; a quadratic search takes hours"


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_a_text_without_a_space_ends(kind):
    text = "".join(character for text in corpus() for character in text if character.isalpha())
    begun = time.perf_counter()
    Tokenizer.train([text], kind=kind, vocabulary=1009)
    assert time.perf_counter() - begun < 30, "under 1 s on two quiet cores"


def test_a_tokenizer_travels_to_other_processes(tokenizer):
    same = pickle.loads(pickle.dumps(tokenizer))
    assert same.encode_all(corpus()[:50]) == tokenizer.encode_all(corpus()[:50])


@pytest.mark.parametrize("name", ["tokenizer", "source-tokenizer"])
def test_a_saved_tokenizer_loads_as_it_was(tokenizer, tmp_path, name):
    tokenizer.save(tmp_path, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.json", f"{name}.settings.json"]
    loaded = Tokenizer.load(tmp_path, name)
    assert loaded.settings == tokenizer.settings
    assert loaded.notes == []
    assert loaded.size == tokenizer.size
    assert loaded.encode_all(ODD) == tokenizer.encode_all(ODD)
    assert [loaded.normal(text) for text in ODD] == [tokenizer.normal(text) for text in ODD]
    again = tmp_path / "again"
    again.mkdir()
    loaded.save(again, name)
    for path in again.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_the_tokenizers_library_reads_the_file_by_itself(pairs, tmp_path):
    from tokenizers import Tokenizer as Engine

    pairs.save(tmp_path)
    engine = Engine.from_file(str(tmp_path / "tokenizer.json"))
    assert [engine.encode(text).ids for text in ODD] == pairs.encode_all(ODD)


def changed(folder, **changes):
    path = folder / "tokenizer.settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(folder, name):
    (folder / name).unlink()


def cut(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-40])


def foreign(folder):
    from tokenizers import Tokenizer as Engine
    from tokenizers import models

    Engine(models.BPE({"a": 0, "b": 1}, [])).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: without(folder, "tokenizer.json"), r"tokenizer\.json is missing"),
        (lambda folder: without(folder, "tokenizer.settings.json"), r"tokenizer\.settings\.json is missing"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], r"tokenizer\.settings\.json is missing"),
        (lambda folder: cut(folder, "tokenizer.json"), r"tokenizer\.json is damaged, or no tokenizer"),
        (lambda folder: cut(folder, "tokenizer.settings.json"), r"tokenizer\.settings\.json is not readable JSON"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff\xfe"), r"is damaged, or no tokenizer"),
        (lambda folder: (folder / "tokenizer.settings.json").write_text("[]"), r"must contain a JSON object"),
        (lambda folder: foreign(folder), r"is not the tokenizer that tokenizer\.settings\.json describes"),
        (lambda folder: changed(folder, size=2004), r"is not the tokenizer that tokenizer\.settings\.json describes"),
        (
            lambda folder: changed(folder, format=2),
            r"by a newer clearhead \(format 2; this one reads 1\); upgrade",
        ),
        (lambda folder: changed(folder, format=0), r"says format = 0; this clearhead reads 1"),
    ],
)
def test_a_broken_or_foreign_file_is_refused(pairs, tmp_path, damage, said):
    pairs.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        Tokenizer.load(tmp_path)


def test_another_major_version_of_opencc_is_noted_and_no_other(tmp_path):
    Tokenizer.train(["我们"], script="simplified").save(tmp_path)
    here = json.loads((tmp_path / "tokenizer.settings.json").read_text())["opencc"]
    changed(tmp_path, opencc=f"{here.split('.')[0]}.0.99")
    assert Tokenizer.load(tmp_path).notes == []
    changed(tmp_path, opencc="0.9.1")
    assert Tokenizer.load(tmp_path).notes == [
        f"the script was converted by OpenCC 0.9.1 in training and is by {here} here"
    ]


def test_missing_packages_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(PackageError, match=r"needs the package opencc.*pip install 'clearhead\[train\]'"):
        Tokenizer.train(["我"], script="simplified")
    Tokenizer.train(["我"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "unigramm"}, "unknown kind of tokenizer 'unigramm'; did you mean 'unigram'?"),
        ({"kind": "xyz"}, "choose from bpe, unigram, character"),
        ({"vocabulary": 259}, "a vocabulary of 259 is too small: padding, start, end and the 256 bytes take 259"),
        ({"script": "latin"}, "unknown script 'latin'; choose 'simplified', or None to keep text as it is"),
        ({"texts": []}, "there is no text to learn a vocabulary from"),
        ({"texts": ["", " \n"]}, "there is no text to learn a vocabulary from"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, said):
    with pytest.raises(ClearheadError) as caught:
        Tokenizer.train(**{"texts": ["a"], **options})
    assert said in str(caught.value)
    assert isinstance(caught.value, ConfigError | DataError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a", "我", "!", "a a a a", "\u0301", "1"])
def test_very_little_text_is_enough(kind, text):
    tokenizer = Tokenizer.train([text], kind=kind)
    assert tokenizer.decode(tokenizer.encode(f"{text} b 们")) == f"{text} b 们"
