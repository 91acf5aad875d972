"""Viterbi, the partition and the probabilities of linear chains against all sequences; windows over long sentences."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.tasks.tagging.linear_chain import (
    IMPOSSIBLE,
    Steps,
    TagDecoder,
    best_sequences,
    chain_messages,
    log_partition,
    sequence_scores,
    viterbi,
)
from clearhead.tasks.tagging.schemes import count_repairs, legal_sequences, list_tags, read_tags
from clearhead.tasks.tagging.sentence_windows import plan_windows

LENGTHS = (1, 4, 3, 2)


def chain(scheme: str, seed: int, *, learned: bool) -> tuple[list[str], torch.Tensor, torch.Tensor, Steps]:
    """Random scores in float64 of a few short sentences, and steps that are legal, with learned scores if wanted."""
    tags = list_tags(["A", "B"] if scheme == "iob2" else ["A"], scheme)
    torch.manual_seed(seed)
    steps = Steps(*(part.double() for part in Steps.legal(legal_sequences(tags))))
    if learned:
        steps = steps + Steps(*(torch.randn_like(part.abs().nan_to_num(0, 0, 0)) for part in steps))
    emissions = 3 * torch.randn(len(LENGTHS), max(LENGTHS), len(tags), dtype=torch.float64)
    return tags, emissions, torch.tensor(LENGTHS), steps


def score_by_hand(emissions: torch.Tensor, path: tuple[int, ...], steps: Steps) -> float:
    score = float(steps.first[path[0]] + steps.last[path[-1]])
    score += sum(float(emissions[word, tag]) for word, tag in enumerate(path))
    return score + sum(float(steps.between[one, other]) for one, other in itertools.pairwise(path))


def all_scores(emissions: torch.Tensor, length: int, steps: Steps) -> dict[tuple[int, ...], float]:
    paths = itertools.product(range(emissions.shape[1]), repeat=length)
    return {path: score_by_hand(emissions, path, steps) for path in paths}


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_viterbi_finds_the_best_of_all_sequences(scheme, learned, seed):
    _, emissions, lengths, steps = chain(scheme, seed, learned=learned)
    found = viterbi(emissions, lengths, steps)
    assert torch.equal(best_sequences(emissions, lengths, steps, learned=learned), found)
    for row, length in enumerate(LENGTHS):
        scores = all_scores(emissions[row], length, steps)
        assert tuple(found[row, :length].tolist()) == max(scores, key=scores.__getitem__)
        assert found[row, length:].tolist() == [0] * (max(LENGTHS) - length)


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
@pytest.mark.parametrize("learned", [False, True])
def test_the_partition_is_the_sum_over_all_sequences(scheme, learned):
    _, emissions, lengths, steps = chain(scheme, 7, learned=learned)
    finite = Steps(*(part.clamp(min=IMPOSSIBLE) for part in steps))
    found = log_partition(emissions, lengths, finite)
    for row, length in enumerate(LENGTHS):
        scores = torch.tensor(list(all_scores(emissions[row], length, steps).values()), dtype=torch.float64)
        assert found[row].item() == pytest.approx(scores.logsumexp(0).item(), abs=1e-12)
    path = viterbi(emissions, lengths, steps)
    by_hand = [
        score_by_hand(emissions[row], tuple(path[row, :length].tolist()), steps) for row, length in enumerate(LENGTHS)
    ]
    assert sequence_scores(emissions, path, lengths, finite).tolist() == pytest.approx(by_hand, abs=1e-12)


def test_the_gradient_of_the_partition_is_finite_and_a_probability():
    _, emissions, lengths, steps = chain("bioes", 3, learned=True)
    emissions.requires_grad_()
    log_partition(emissions, lengths, Steps(*(part.clamp(min=IMPOSSIBLE) for part in steps))).sum().backward()
    real = torch.arange(max(LENGTHS)) < lengths[:, None]
    assert torch.allclose(emissions.grad.sum(-1), real.double(), atol=1e-12)
    assert (emissions.grad >= 0).all()


@pytest.mark.unchecked
def test_the_loss_of_a_crf_compiles_without_breaks():
    _, emissions, lengths, steps = chain("iob2", 3, learned=True)
    finite = Steps(*(part.clamp(min=IMPOSSIBLE) for part in steps))
    compiled = torch.compile(log_partition, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(emissions, lengths, finite), log_partition(emissions, lengths, finite), atol=1e-12)


@given(
    st.integers(0, 10_000),
    st.sampled_from(["iob2", "bioes"]),
    st.booleans(),
    st.sampled_from([1.0, 100.0, 1e30, math.inf, math.nan]),
)
def test_no_scores_whatever_give_an_illegal_sequence(seed, scheme, learned, scale):
    tags = list_tags(["A", "B"], scheme)
    steps = Steps.legal(legal_sequences(tags))
    torch.manual_seed(seed)
    if learned:
        steps = steps + Steps(torch.randn(len(tags)), 5 * torch.randn(len(tags), len(tags)), torch.randn(len(tags)))
    lengths = torch.randint(1, 12, (5,))
    emissions = torch.randn(5, 11, len(tags)) * torch.where(torch.rand(5, 11, len(tags)) < 0.3, scale, 1.0)
    for row, length in zip(best_sequences(emissions, lengths, steps, learned=learned), lengths.tolist(), strict=True):
        assert count_repairs([tags[tag] for tag in row[:length].tolist()], scheme) == 0


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
@pytest.mark.parametrize("learned", [False, True])
def test_an_entity_is_as_probable_as_all_sequences_with_it(scheme, learned):
    tags, emissions, _, steps = chain(scheme, 11, learned=learned)
    decoder = TagDecoder(tags, scheme)
    # The decoder adds what is illegal to the learned scores, which are finite.
    extra = Steps(*(part.nan_to_num(neginf=0.0) for part in steps)) if learned else None
    found = decoder.decode([emissions[row, :length].float() for row, length in enumerate(LENGTHS)], extra)
    assert any(found)
    for row, length in enumerate(LENGTHS):
        scores = all_scores(emissions[row], length, steps)
        total = torch.tensor(list(scores.values())).logsumexp(0).item()
        for span, probability in found[row]:
            having = [
                math.exp(score - total)
                for path, score in scores.items()
                if score > -math.inf and span in read_tags([tags[tag] for tag in path])
            ]
            assert probability == pytest.approx(sum(having), abs=1e-5)


# windows


@given(st.lists(st.integers(1, 4), min_size=1, max_size=200), st.integers(16, 40))
def test_every_word_is_scored_once_and_far_from_the_edges(pieces, size):
    windows = plan_windows(pieces, size)
    scored = [word for window in windows for word in range(window.first, window.last)]
    assert scored == list(range(len(pieces)))
    for window in windows:
        assert sum(pieces[window.begin : window.end]) <= size
        assert window.begin <= window.first <= window.last <= window.end
    for word in range(len(pieces)):
        margins = {
            window: min(
                math.inf if window.begin == 0 else sum(pieces[window.begin : word]),
                math.inf if window.end == len(pieces) else sum(pieces[word : window.end]),
            )
            for window in windows
            if window.begin <= word < window.end
        }
        own = next(window for window in windows if window.first <= word < window.last)
        assert margins[own] >= max(margins.values()) - 4, "farthest from an edge, but for the size of a word"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60), st.integers(24, 60), st.booleans(), st.data())
def test_windows_over_a_document_score_every_sentence_once_with_its_context(sentences, size, apart, data):
    context = data.draw(st.integers(0, size // 4))
    pieces, borders = [1] * sum(sentences), [0, *itertools.accumulate(sentences[:-1])]
    windows = plan_windows(pieces, size, borders=borders, context=context, apart=apart)
    scored = [word for window in windows for word in range(window.first, window.last)]
    assert scored == list(range(len(pieces)))
    for window in windows:
        assert window.begin <= window.first <= window.last <= window.end <= window.begin + size
        if apart:
            assert (window.begin, window.end) == (window.first, window.last)
            assert {window.begin, window.end} <= {*borders, len(pieces)}
        for edge, cut in ((window.begin, window.first), (window.end, window.last)):
            assert apart or edge in (0, len(pieces)) or abs(edge - cut) >= context / 2 - 1


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_products_of_probabilities_are_the_messages_of_a_chain(scheme, scale):
    """Relative to the largest message of a word, where a probability below the smallest float64 is 0."""
    _, emissions, lengths, steps = chain(scheme, 5, learned=True)
    scores = (scale * emissions).numpy()
    finite = [part.clamp(min=IMPOSSIBLE).double().numpy() for part in steps]
    products, sums = (chain_messages(scores, lengths.numpy(), finite, moderate=moderate) for moderate in (True, False))
    for product, total in zip(products, sums, strict=True):
        least = total.max(-1, keepdims=True) - 600
        np.testing.assert_allclose(product.clip(min=least), total.clip(min=least), rtol=0, atol=1e-10)


def test_an_entity_whose_scores_are_extreme_has_its_probability():
    """Scores beyond MODERATE_SCORE, where products of probabilities would be 0, are summed as logarithms."""
    tags = list_tags(["A"], "bioes")
    scores = torch.zeros(3, len(tags))
    scores[:, tags.index("O")] = 1e5
    scores[0, tags.index("B-A")], scores[1, tags.index("E-A")] = 1e5, 1e5 + 4  # e⁴ times as probable as O O
    ((found,),) = TagDecoder(tags, "bioes").decode([scores], None)
    assert (found.span.begin, found.span.end) == (0, 2)
    assert found.probability == pytest.approx(math.exp(4) / (math.exp(4) + 1), abs=1e-9)


def test_the_probability_of_an_entity_is_exact_in_long_texts():
    tags = list_tags(["A"], "bioes")
    torch.manual_seed(3)
    scores = torch.randint(-3, 4, (2003, len(tags))).float()  # whole numbers: nothing is rounded by what is added
    plain, raised, short = TagDecoder(tags, "bioes").decode([scores, scores + 64, scores[:5]], None)
    assert len(plain) > 100
    assert short
    assert [one.span for one in plain] == [one.span for one in raised]
    for one, other in zip(plain, raised, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-9)
