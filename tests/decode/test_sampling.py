"""sample: each cut by hand, the right frequencies, and rows that do not mind each other."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.decode import Writer, distribution, greedy, sample
from clearhead.errors import DecodeError
from tests.decode.models import END, START, continuer, sources, translator

CHANCES = torch.tensor([0.05, 0.4, 0.25, 0.1, 0.2], dtype=torch.float64)
OPTIONS = {"start": START, "end": END, "max_length": 8}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0.05, 0.4, 0.25, 0.1, 0.2]),
        ({"top_k": 2}, [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 99}, [0.05, 0.4, 0.25, 0.1, 0.2]),
        ({"top_p": 0.6}, [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),  # 0.4 is not enough, with 0.25 it is
        ({"top_p": 0.66}, [0, 0.4 / 0.85, 0.25 / 0.85, 0, 0.2 / 0.85]),
        ({"top_p": 0.01}, [0, 1, 0, 0, 0]),
        ({"top_p": 1.0}, [0.05, 0.4, 0.25, 0.1, 0.2]),
        ({"min_p": 0.45}, [0, 0.4 / 0.85, 0.25 / 0.85, 0, 0.2 / 0.85]),  # at least 0.18
        ({"min_p": 1.0}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.0025 / 0.275, 0.16 / 0.275, 0.0625 / 0.275, 0.01 / 0.275, 0.04 / 0.275]),  # squares
        ({"top_k": 4, "top_p": 0.7}, [0, 0.4 / 0.85, 0.25 / 0.85, 0, 0.2 / 0.85]),  # of 0.95: 0.65 are not enough
        ({"top_k": 3, "min_p": 0.6}, [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        ({"top_p": 0.9, "min_p": 0.2}, [0, 0.4 / 0.95, 0.25 / 0.95, 0.1 / 0.95, 0.2 / 0.95]),
    ],
)
def test_what_is_drawn_from_by_hand(options, wanted):
    found = distribution(CHANCES.log(), **options)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


@given(st.integers(0, 99), st.integers(1, 40), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.1, 5.0))
def test_cuts_keep_the_likeliest_and_sum_to_one(seed, top_k, top_p, min_p, temperature):
    logits = torch.randn(3, 37, generator=seeded(seed), dtype=torch.float64) * 3
    found = distribution(logits, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    torch.testing.assert_close(found.sum(-1), torch.ones(3, dtype=torch.float64))
    for row, chances in zip(logits, found, strict=True):
        kept = chances > 0
        assert 1 <= kept.sum() <= top_k
        assert row[kept].min() >= row[~kept].max() if (~kept).any() else True


def test_barred_tokens_are_never_drawn():
    logits = CHANCES.log()
    logits[1] = -math.inf
    assert distribution(logits, top_p=0.99, min_p=0.01)[1] == 0


def test_tokens_come_as_often_as_they_are_likely(device):
    rows = 20000
    model = translator(dtype=torch.float32).to(device)
    source = torch.tensor([[5, 9, 13]]).repeat(rows, 1).to(device)
    writer = Writer.translating(model, source, [3] * rows)
    found = sample(writer, start=START, end=END, max_length=1, generator=seeded(4), temperature=1.7)
    drawn = torch.tensor([END if one.finished else one.tokens[0] for one in found])
    wanted = distribution(writer.begin(START)[0].double().cpu(), temperature=1.7)
    often = drawn.bincount(minlength=len(wanted)) / rows
    deviation = (wanted * (1 - wanted) / rows).sqrt()
    assert ((often - wanted).abs() <= 5 * deviation + 1e-9).all()


def test_the_log_probability_is_the_models_own():
    model, (source, lengths) = translator().eval(), sources(3)
    for row, one in enumerate(sample(Writer.translating(model, source, lengths), temperature=2.0, top_k=9, **OPTIONS)):
        words = [*one.tokens, END] if one.finished else one.tokens
        hidden = model(source[row : row + 1, : lengths[row]], torch.tensor([[START, *words[:-1]]]))
        gains = model.logits(hidden)[0].log_softmax(-1).gather(1, torch.tensor(words)[:, None])
        assert one.log_probability == pytest.approx(gains.sum().item(), abs=1e-9)
        assert one.score == pytest.approx(gains.mean().item(), abs=1e-9)


def test_a_row_does_not_mind_the_others():
    model, (source, lengths) = translator(), sources(13)
    together = sample(Writer.translating(model, source, lengths), generator=seeded(7), **OPTIONS)
    assert len({tuple(one.tokens) for one in together}) > 9
    fewer = sample(Writer.translating(model, source[:4], lengths[:4]), generator=seeded(7), **OPTIONS)
    assert [one.tokens for one in fewer] == [one.tokens for one in together[:4]]
    own = [seeded(row) for row in range(13)]
    each = sample(Writer.translating(model, source, lengths), generator=own, **OPTIONS)
    for row in (3, 12):
        writer = Writer.translating(model, source[row : row + 1, : lengths[row]], lengths[row : row + 1])
        assert sample(writer, generator=[seeded(row)], **OPTIONS)[0].tokens == each[row].tokens


def test_a_seed_gives_the_same_again_and_a_longer_limit_the_same_beginning():
    writer = Writer.continuing(continuer(), [[5, 6], [7]])
    options = {"start": START, "end": END, "forbidden": [3]}
    first, again = (sample(writer, generator=seeded(1), max_length=20, **options) for _ in range(2))
    assert first == again
    assert first != sample(writer, generator=seeded(2), max_length=20, **options)
    shorter = sample(writer, generator=seeded(1), max_length=4, **options)
    assert [one.tokens[:4] for one in first] == [one.tokens for one in shorter]
    torch.manual_seed(9)
    without = sample(writer, max_length=20, **options)
    torch.manual_seed(9)
    assert without == sample(writer, max_length=20, **options)


def test_one_likeliest_token_is_greedy():
    source, lengths = sources(7)
    writer = Writer.translating(translator(), source, lengths)
    assert sample(writer, top_k=1, **OPTIONS) == greedy(writer, **OPTIONS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": 0.0}, "greater than 0, got 0.0; for the likeliest token use greedy"),
        ({"temperature": math.inf}, "got inf"),
        ({"top_k": 0}, "at least 1 token, got 0"),
        ({"top_p": 0.0}, "greater than 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "got 1.5"),
        ({"min_p": -0.1}, "from 0 to 1, got -0.1"),
        ({"generator": [seeded(1)]}, "1 generators for 2 rows"),
    ],
)
def test_wrong_options_are_refused(wrong, words):
    source, lengths = sources(2)
    with pytest.raises(DecodeError, match=words):
        sample(Writer.translating(translator(), source, lengths), **OPTIONS, **wrong)
