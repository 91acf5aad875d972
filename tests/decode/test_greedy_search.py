"""greedy: the likeliest token every time, in any batch and under every rule."""

import copy

import pytest
import torch

from clearhead.decode import Writer, greedy
from tests.decode.models import END, KINDS, START, continuer, sources, translator
from tests.decode.oracle import may_follow, of_continuer, of_translator


def followed(scores, *, max_length, no_repeat_ngram=0, prefix=(), forbidden=()):
    """The same, one token at a time and without a cache."""
    tokens, total = [], 0.0
    while len(tokens) < max_length and END not in tokens:
        gains = scores(tokens).log_softmax(-1).tolist()
        allowed = [word for word in range(len(gains)) if may_follow(tokens, word, no_repeat_ngram, prefix, forbidden)]
        tokens.append(max(allowed, key=gains.__getitem__))
        total += gains[tokens[-1]]
    return tokens, total


def assert_followed(found, scores, **options):
    tokens, total = followed(scores, **options)
    assert found.finished == (tokens[-1] == END)
    assert found.tokens == tokens[:-1] if found.finished else tokens
    assert found.log_probability == pytest.approx(total, abs=1e-9)
    assert found.score == pytest.approx(total / len(tokens), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram": 2, "forbidden": (4, 9)}], ids=str)
def test_each_row_follows_the_likeliest_token(kind, options):
    model, (source, lengths) = translator(kind).eval(), sources(5)
    found = greedy(Writer.translating(model, source, lengths), start=START, end=END, max_length=7, **options)
    for row, length in enumerate(lengths.tolist()):
        assert_followed(found[row], of_translator(model, source[row, :length].tolist(), START), max_length=7, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_each_prompt_is_followed_by_the_likeliest_token(kind):
    model, prompts = continuer(kind).eval(), [[7, 9, 11, 5], [], [20, 31]]
    found = greedy(Writer.continuing(model, prompts), start=START, end=END, max_length=7)
    for prompt, one in zip(prompts, found, strict=True):
        assert_followed(one, of_continuer(model, [START, *prompt]), max_length=7)


def test_a_trained_model_ends_row_by_row(trained):
    model, (source, lengths) = copy.deepcopy(trained).double(), sources(15)
    limits, prefix = [2 + row % 7 for row in range(15)], [[5, 6][: row % 3] for row in range(15)]
    found = greedy(Writer.translating(model, source, lengths), start=START, end=END, max_length=limits, prefix=prefix)
    assert {one.finished for one in found} == {True, False}
    for row, length in enumerate(lengths.tolist()):
        scores = of_translator(model, source[row, :length].tolist(), START)
        assert_followed(found[row], scores, max_length=limits[row], prefix=prefix[row])


def test_a_trained_model_has_learned_its_task(trained):
    """Else the other tests that use it would see nothing end."""
    source, lengths = sources(50, seed=1000)
    found = greedy(Writer.translating(trained, source, lengths), start=START, end=END, max_length=9)
    wanted = [source[row, :length].flip(0).tolist() for row, length in enumerate(lengths.tolist())]
    assert sum(one.tokens == words for one, words in zip(found, wanted, strict=True)) > 20


def test_no_rows_in_no_rows_out(trained):
    assert greedy(Writer.translating(trained, torch.zeros(0, 3).long(), []), start=START, end=END, max_length=5) == []
