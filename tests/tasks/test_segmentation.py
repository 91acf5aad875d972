"""Where long texts are cut, how answers are joined, what counts as a loop."""

from hypothesis import given
from hypothesis import strategies as st

from clearhead.tasks.segmentation import has_loop, join_texts, split_text


def letters(text: str) -> list[int]:
    return list(text.encode())


def texts(pieces: list[list[int]]) -> list[str]:
    return [bytes(piece).decode() for piece in pieces]


@given(st.text(alphabet="ab 。.，,中!」", max_size=200), st.integers(3, 40))
def test_no_part_is_too_long_and_no_letter_is_lost(text, limit):
    pieces = split_text(text, letters, limit)
    assert all(len(piece) <= limit for piece in pieces)
    assert b"".join(map(bytes, pieces)).decode().replace(" ", "") == text.replace(" ", "")


def test_a_text_is_cut_after_its_sentences():
    assert texts(split_text("我来了。你在哪里？她说：“好。”走吧", letters, 24)) == [
        "我来了。",
        "你在哪里？",
        "她说：“好。”",
        "走吧",
    ]
    assert texts(split_text("It costs 3.50 now. Really? Yes.", letters, 20)) == [
        "It costs 3.50 now.",
        "Really?",
        "Yes.",
    ]


def test_only_the_shortest_sentences_go_with_what_follows():
    text = "Mr. Smith is here. Where? He is there."
    assert texts(split_text(text, letters, 64)) == ["Mr. Smith is here.", "Where?", "He is there."]


def test_a_long_sentence_is_cut_after_its_clauses_and_then_anywhere():
    assert texts(split_text("one two, three four", letters, 12)) == ["one two,", "three four"]
    assert texts(split_text("abcdefgh", letters, 3)) == ["abc", "def", "gh"]
    assert [len(piece) for piece in split_text("中文", letters, 2)] == [2, 1, 2, 1], "even within a character's bytes"


def test_answers_are_joined_as_their_script_wants():
    assert join_texts(["Hello.", "", "World."]) == "Hello. World."
    assert join_texts(["你好。", "世界。", "“好”"]) == "你好。世界。“好”"
    assert join_texts([]) == ""


def test_loops_are_noticed():
    assert has_loop([7, 7, 7, 7])
    assert has_loop([1, 2, 3] * 4)
    assert not has_loop([1, 2, 3] * 3)
    assert not has_loop([])
    assert not has_loop([1, 1, 1, 2, 1, 1, 1])
