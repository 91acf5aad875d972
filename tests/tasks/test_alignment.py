"""Word alignment from cross-attention: by hand, against the reference, and on files with mistakes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import EncoderDecoder, ModelConfig
from clearhead.errors import ConfigError, ShapeError
from clearhead.tasks.alignment import (
    AlignedPair,
    alignment_error_rate,
    alignment_links,
    cross_attentions,
    merge_words,
    score_heads,
    share_tokens,
    word_attentions,
)
from clearhead.text import Tokenizer


@pytest.fixture(scope="module")
def model() -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(
        ModelConfig.named("tiny", vocabulary=300, width=24, heads=3, layers=2, feedforward=37)
    ).double()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["low lower lowest newer newest wide 我爱你 我爱他"] * 5, vocabulary=290)


def by_hand(model: EncoderDecoder, source: list[int], target: list[int]) -> torch.Tensor:
    """softmax(q·k/√d) from each layer's own input, which its forward pass is asked for."""
    inputs = []
    hooks = [
        layer.cross_attention.register_forward_hook(
            lambda part, given, kwargs, out: inputs.append((part, given[0], kwargs["context"])), with_kwargs=True
        )
        for layer in model.decoder.layers
    ]
    model(torch.tensor([source]), torch.tensor([target]))
    for hook in hooks:
        hook.remove()
    found = []
    for part, x, context in inputs:
        q, k = part.to_q(x), part.to_kv(context)[..., :24]
        q, k = (t.view(-1, 3, 8).transpose(0, 1) for t in (q, k))
        found.append((q @ k.transpose(1, 2) / math.sqrt(8)).softmax(-1))
    return torch.stack(found)


def test_it_is_every_heads_attention_when_a_token_is_written_or_read(model):
    model.eval()
    source, target = [5, 6, 7, 8, 2], [9, 10, 11]
    wanted = by_hand(model, source, [1, *target])
    [written], [read] = (
        cross_attentions(model, [source], [target], start=1, when=when) for when in ("written", "read")
    )
    assert written.shape == read.shape == (2, 3, 3, 5)
    torch.testing.assert_close(written, wanted[:, :, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(read, wanted[:, :, 1:], rtol=0, atol=1e-12)


def test_pairs_of_different_lengths_are_the_same_in_a_batch_and_the_model_as_before(model):
    model.train()
    seen = []
    watched = model.decoder.layers[1].cross_attention
    watched.observer = seen.append
    sources, targets = [[5, 6, 7, 8, 2], [9, 2], [10, 11, 2]], [[3], [4, 5, 6], []]
    together = cross_attentions(model, sources, targets, start=1, batch=2)
    assert [tuple(one.shape) for one in together] == [(2, 3, 1, 5), (2, 3, 3, 2), (2, 3, 0, 3)]
    for source, target, batched in zip(sources, targets, together, strict=True):
        [alone] = cross_attentions(model, [source], [target], start=1)
        torch.testing.assert_close(batched, alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(batched.sum(-1), torch.ones(batched.shape[:3]).double(), rtol=0, atol=1e-12)
    assert not seen
    assert watched.observer == seen.append
    assert model.training
    watched.observer = None


@pytest.mark.parametrize("separator", ["", " "])
def test_tokens_belong_to_the_words_they_spell(tokenizer, separator):
    words = ["lower", "我", "爱", "她", "newest"]
    numbers, shares = share_tokens(tokenizer, words, separator)
    assert numbers == tokenizer.encode(separator.join(words))
    assert shares.shape == (5, len(numbers))
    torch.testing.assert_close(shares.sum(0), torch.ones(len(numbers)))
    pieces = tokenizer.pieces(numbers)
    for word, own in zip(words, shares, strict=True):
        spelled = "".join(piece for piece, share in zip(pieces, own, strict=True) if share > 0)
        assert word in spelled or word == "她"
    if not separator:
        assert shares[[1, 2], pieces.index("我爱")].tolist() == [0.5, 0.5]
    assert (shares[3] > 0).sum() >= 3  # the bytes of a character that has no piece


@given(st.lists(st.text("lowerst 我爱她ABc①Ａ🙂", min_size=0, max_size=5), max_size=6), st.sampled_from(["", " "]))
def test_any_words_can_be_told_apart(words, separator):
    made = Tokenizer.train(["low lower lowest 我爱你"], vocabulary=270)
    numbers, shares = share_tokens(made, words, separator)
    assert shares.shape == (len(words), len(numbers))
    assert (shares >= 0).all()
    if numbers and any(made.normal(word) for word in words):
        torch.testing.assert_close(shares.sum(0), torch.ones(len(numbers)))


def test_words_are_merged_by_hand():
    weights = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.2, 0.4]])
    target = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # the first two tokens are a word
    source = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]])  # the second lies in both; the fourth is the end
    wanted = torch.tensor([[(0.65 + 0.2) / 2, (0.25 + 0.4) / 2], [0.3, 0.3]])
    torch.testing.assert_close(merge_words(weights, target, source), wanted)


def test_links_by_hand():
    weights = torch.tensor([[0.6, 0.3, 0.1], [0.7, 0.2, 0.1], [0.2, 0.4, 0.4], [0.0, 0.0, 0.0]])
    assert alignment_links(weights) == {(0, 0), (0, 1), (1, 2)}  # of equal weights the first; nothing from nothing
    assert alignment_links(weights, threshold=0.5) == {(0, 0), (0, 1)}
    assert alignment_links(torch.zeros(0, 3)) == set()


def test_the_error_rate_by_hand():
    # A = 5 links, S = 3, of which 2 are found; 3 of A are possible: 1 - (2 + 3) / (5 + 3)
    predicted = [{(0, 0), (1, 1), (2, 2)}, {(0, 1), (1, 0)}]
    sure = [{(0, 0), (1, 1)}, {(4, 4)}]
    possible = [{(0, 0), (1, 1)}, {(4, 4), (0, 1)}]
    assert alignment_error_rate(predicted, sure, possible) == pytest.approx(1 - 5 / 8)
    assert alignment_error_rate(sure, sure, possible) == 0
    assert alignment_error_rate([{(7, 7)}, set()], sure, possible) == 1
    assert alignment_error_rate([set()], [set()], [set()]) == 0
    without = [{(0, 1)} - own for own in sure]  # that possible includes sure need not be said
    assert alignment_error_rate(predicted, sure, without) <= alignment_error_rate(predicted, sure, possible)
    with pytest.raises(ShapeError, match="1 predictions for 2 sure"):
        alignment_error_rate([set()], sure, possible)


def test_every_head_is_scored(model, tokenizer):
    pairs = [
        AlignedPair(["我", "爱", "你"], ["lower", "newest"], {(0, 0)}, {(0, 0), (2, 1)}),
        AlignedPair(["他"], ["wide"], {(0, 0)}, {(0, 0)}),
    ]
    attentions = word_attentions(model, (tokenizer, tokenizer), pairs, separators=("", " "))
    assert [tuple(one.shape) for one in attentions] == [(2, 3, 2, 3), (2, 3, 1, 1)]
    rates = score_heads(attentions, pairs)
    links = [alignment_links(one[1, 2]) for one in attentions]
    gold = [pair.sure for pair in pairs], [pair.possible for pair in pairs]
    assert rates.shape == (2, 3)
    assert rates[1, 2] == pytest.approx(alignment_error_rate(links, *gold))
    perfect = torch.zeros(1, 2, 2, 3)
    perfect[0, 0, 0, 0] = perfect[0, 0, 1, 2] = 1
    perfect[0, 1] = 1 - perfect[0, 0]
    rates = score_heads([perfect, torch.ones(1, 2, 1, 1)], pairs)
    assert rates[0, 0] == 0
    assert rates[0, 1] > 0.3


def test_wrong_options_are_refused(model):
    with pytest.raises(ConfigError, match="when= must be 'written' or 'read', got 'heard'"):
        cross_attentions(model, [[5]], [[6]], start=1, when="heard")


def test_pads_get_no_attention(model):
    weights = cross_attentions(model, [[5, 6, 7], [8]], [[9], [9]], start=1)[1]
    torch.testing.assert_close(weights, torch.ones(2, 3, 1, 1).double())
