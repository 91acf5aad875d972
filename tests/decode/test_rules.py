"""Rules: what may be written, and what is refused before anything is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.decode import Writer
from clearhead.decode.rules import Rules
from clearhead.errors import DecodeError
from tests.decode.models import END, START, continuer
from tests.decode.oracle import may_follow

WRITER = Writer.continuing(continuer(), [[5], [6]])


def rules(**options) -> Rules:
    return Rules(WRITER, **{"start": START, "end": END, "max_length": 9, **options})


@given(st.data())
def test_what_is_barred_is_what_may_not_follow(data):
    words = st.integers(3, 9)
    ngram, forbidden = data.draw(st.integers(0, 4)), data.draw(st.sets(words, max_size=3))
    prefixes = data.draw(st.lists(st.lists(words, max_size=4), min_size=2, max_size=2))
    length = data.draw(st.integers(0, 9))
    row = st.lists(words, min_size=length, max_size=length)
    written = data.draw(st.lists(st.lists(row, min_size=3, max_size=3), min_size=2, max_size=2))
    logits = torch.randn(2, 3, 41)
    before = logits.clone()
    rule = rules(no_repeat_ngram=ngram, forbidden=sorted(forbidden), prefix=prefixes)
    rule.apply(logits, torch.tensor(written, dtype=torch.long).view(2, 3, length), [1, 0])
    for place, number in enumerate([1, 0]):
        for beam in range(3):
            tokens = written[place][beam]
            allowed = [may_follow(tokens, word, ngram, prefixes[number], tuple(forbidden)) for word in range(41)]
            assert torch.equal(logits[place, beam] > -math.inf, torch.tensor(allowed))
    assert torch.equal(logits.where(logits > -math.inf, before), before)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_length": 0}, "at least 1, since the end counts too, got 0"),
        ({"max_length": [3, -1]}, "got -1"),
        ({"max_length": [3]}, "max_length has 1 numbers for 2 rows"),
        ({"end": 41}, "end holds token 41, but the model's tokens go from 0 to 40"),
        ({"start": -1}, "start holds token -1"),
        ({"forbidden": [5, 99]}, "forbidden holds token 99"),
        ({"forbidden": [END]}, "the end token 2 is in forbidden"),
        ({"no_repeat_ngram": -1}, "0 .off. or more, got -1"),
        ({"prefix": [[3]]}, "1 prefixes for 2 rows"),
        ({"prefix": [[3], [44]]}, "the prefix of row 1 holds token 44"),
        ({"prefix": [[3], [END]]}, "the prefix of row 1 contains the end token 2"),
        ({"prefix": [[3] * 10, []]}, "the prefix of row 0 has 10 tokens, but max_length is 9"),
    ],
)
def test_wrong_rules_are_refused(wrong, words):
    with pytest.raises(DecodeError, match=words):
        rules(**wrong)
