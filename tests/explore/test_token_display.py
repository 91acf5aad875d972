"""Words: tokens of every spelling show as people read them."""

import pytest

from clearhead.explore.token_axis import display_tokens


def shown(*tokens: str) -> list[str]:
    return display_tokens(tokens).shown


def joined(*tokens: str) -> str:
    """The text that the eye reads: glued tokens side by side."""
    shown, glued, _ = display_tokens(tokens)
    return "".join(word if joined else f" {word}" for word, joined in zip(shown, glued, strict=True)).strip()


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["▁The", "▁un", "believ", "able", "."], "The unbelievable."),
        (["▁人工", "智能", "。"], "人工智能。"),
        (["[CLS]", "un", "##believ", "##able", "[SEP]"], "⟨CLS⟩ unbelievable ⟨SEP⟩"),
        (["The", "Ġun", "believ", "able"], "The unbelievable"),
        (["one", "two"], "one two"),
        (["日", "本", "の", "Yes"], "日 本 の Yes"),
        (["Yes", "\n", "No", "▁", "x"], "Yes ⏎No ␣x"),
        (["<s>", "▁a", "</s>"], "⟨s⟩ a ⟨/s⟩"),
        ([], ""),
    ],
)
def test_marks_of_spaces_become_gaps(tokens, text):
    assert joined(*tokens) == text


def test_bytes_that_spell_one_character_each_show_it():
    assert shown("▁", "<0xE5>", "<0xA5>", "<0xB9>", "▁x") == ["␣", "她₁", "她₂", "她₃", "x"]
    assert shown("Ġa", "å", "¥¹b") == ["a", "她₁", "她₂b"]
    assert shown("▁a", "<0xE5>", "<0xA5><0xB9>b") == ["a", "她₁", "她₂b"]
    assert shown("a<0xE5>", "<0xA5><0xB9>▁", "▁<0xE5>b\ud800") == ["a她₁", "她₂ ", "⟨E5⟩b⟨ED⟩⟨A0⟩⟨80⟩"]


def test_bytes_that_spell_nothing_show_their_numbers():
    assert shown("▁a", "<0xE5>", "▁b") == ["a", "⟨E5⟩", "b"]


def test_blank_tokens_can_be_seen():
    assert shown("▁", "▁▁") == ["␣", "␣"]
    assert shown("Ċ", "Ġ") == ["⏎", "␣"]
    assert shown("", "\t") == ["␣", "⇥"]


@pytest.mark.parametrize(
    "token", ["</script><img src=x onerror=alert(1)>", "\u202egnp.exe", "\ud800", "x" * 10_000, "<!--", "&lt;", "é"]
)
def test_hostile_tokens_stay_what_they_are(token):
    assert shown(token) == [token]
    assert len(shown("▁a", token, "<0x00>")) == 3


def test_latin_letters_of_other_tokenizers_are_no_bytes():
    assert shown("ñandú", "łódź") == ["ñandú", "łódź"]


def test_only_names_of_special_tokens_make_one():
    text = ["</script>", "<b>", "<iostream>", "[0]", "[i]", "[A]", "<T>", "<!--"]
    assert display_tokens(text).shown == text
    assert not any(display_tokens(text).special)
    special = ["[CLS]", "<s>", "</s>", "<pad>", "<|im_start|>", "<｜begin▁of▁sentence｜>", "<extra_id_3>", "[unused17]"]
    special += ["<start_of_turn>", "<unused99>", "[INST]", "[/INST]", "<mask>", "<17>", "<2en>", "<fim_prefix>"]
    assert all(display_tokens(special).special)
