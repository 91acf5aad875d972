"""CTC: the best path and the best texts judged by enumerating all paths; alignment by hand and by all paths."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.decode import align_tokens, ctc_beam_search, ctc_greedy
from clearhead.decode.ctc import collapse_path
from clearhead.errors import DecodeError

EXACT = 1e-11  # a few hundred additions of logarithms in float64


def random_frames(frames: int, labels: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, labels, dtype=torch.float64, generator=generator).mul(2).log_softmax(-1)


def all_paths(log_probs: torch.Tensor) -> list[tuple[tuple[int, ...], float]]:
    rows = log_probs.tolist()
    return [
        (path, sum(row[label] for row, label in zip(rows, path, strict=True)))
        for path in product(range(log_probs.shape[1]), repeat=len(rows))
    ]


@pytest.mark.parametrize(
    ("path", "tokens"),
    [([], []), ([0, 0], []), ([1, 1, 1], [1]), ([1, 0, 1], [1, 1]), ([0, 2, 2, 1, 0, 0, 1, 2], [2, 1, 1, 2])],
)
def test_paths_collapse_by_hand(path, tokens):
    assert collapse_path(path) == tokens


def test_greedy_is_the_best_path():
    for seed, frames in enumerate((5, 3, 1, 4)):
        log_probs = random_frames(frames, 3, seed)
        for blank in (0, 2):
            path, score = max(all_paths(log_probs), key=lambda pair: pair[1])
            best = ctc_greedy(log_probs, blank=blank)
            assert best.tokens == collapse_path(path, blank)
            assert best.log_probability == pytest.approx(score, abs=EXACT)
    assert ctc_greedy(torch.zeros(0, 3)).tokens == []


@given(st.integers(0, 5), st.integers(2, 4), st.integers(0, 10_000), st.data())
def test_a_wide_beam_search_is_the_sum_over_all_paths(frames, labels, seed, data):
    blank = data.draw(st.integers(0, labels - 1))
    log_probs = random_frames(frames, labels, seed)
    sums: dict[tuple[int, ...], float] = {}
    for path, score in all_paths(log_probs):
        tokens = tuple(collapse_path(path, blank))
        sums[tokens] = sums.get(tokens, 0.0) + math.exp(score)
    found = ctc_beam_search(log_probs, beams=2000, best=2000, blank=blank)
    assert [tuple(text.tokens) for text in found] == sorted(sums, key=lambda tokens: -sums[tokens])
    for text in found:
        assert text.log_probability == pytest.approx(math.log(sums[tuple(text.tokens)]), abs=EXACT)
        assert text.score == text.log_probability / (len(text.tokens) + 1)


def test_the_sum_may_beat_the_best_path():
    # Blank wins both frames with 0.6; "1" has 0.4·0.4 + 2·0.4·0.6 = 0.64 against 0.36 for nothing.
    log_probs = torch.tensor([[0.6, 0.4], [0.6, 0.4]], dtype=torch.float64).log()
    assert ctc_greedy(log_probs).tokens == []
    (found,) = ctc_beam_search(log_probs, beams=4)
    assert found.tokens == [1]
    assert math.exp(found.log_probability) == pytest.approx(0.64)


def test_a_narrow_beam_finds_what_is_clear():
    path = [0, 3, 3, 0, 0, 5, 5, 2, 0, 2, 2, 0] * 4
    log_probs = (8.0 * torch.nn.functional.one_hot(torch.tensor(path), 7)).double().log_softmax(-1)
    for beams in (1, 3):
        assert ctc_beam_search(log_probs, beams=beams)[0].tokens == collapse_path(path)


def test_alignment_by_hand():
    # Blank, a, a, blank, b, b (surer), blank: the tokens are 1 and 2.
    probabilities = [
        [0.8, 0.1, 0.1],
        [0.2, 0.7, 0.1],
        [0.1, 0.8, 0.1],
        [0.9, 0.05, 0.05],
        [0.3, 0.1, 0.6],
        [0.05, 0.05, 0.9],
        [0.8, 0.1, 0.1],
    ]
    one, two = align_tokens(torch.tensor(probabilities, dtype=torch.float64).log(), [1, 2])
    assert one == (1, 1, 3)
    assert two == (2, 4, 6)


def test_equal_neighbours_need_a_blank_between_them():
    spans = align_tokens(torch.full((3, 2), 0.5, dtype=torch.float64).log(), [1, 1])
    assert [(span.begin, span.end) for span in spans] == [(0, 1), (2, 3)]
    with pytest.raises(DecodeError, match="2 tokens, 1 of them like the one before, need 3 frames; there are 2"):
        align_tokens(torch.zeros(2, 2), [1, 1])


@given(st.integers(1, 6), st.integers(0, 10_000), st.data())
def test_alignment_is_the_best_of_all_paths(frames, seed, data):
    log_probs = random_frames(frames, 3, seed)
    spelled: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
    for path, score in all_paths(log_probs):
        tokens = tuple(collapse_path(path))
        spelled[tokens] = max(spelled.get(tokens, (-math.inf, ())), (score, path))
    tokens = data.draw(st.sampled_from(sorted(spelled)))
    found = [0] * frames
    for span in align_tokens(log_probs, tokens):
        found[span.begin : span.end] = [span.token] * (span.end - span.begin)
    assert tuple(found) == spelled[tokens][1]


def test_wrong_input_is_named():
    frames = random_frames(4, 3)

    for call, said in [
        (lambda: ctc_greedy(frames * math.nan), "NaN"),
        (lambda: ctc_beam_search(frames * math.nan, beams=2), "NaN"),
        (lambda: align_tokens(frames, [0]), "label 0 cannot be aligned"),
        (lambda: align_tokens(frames, [3]), "label 3 cannot be aligned"),
        (lambda: align_tokens(frames * math.nan, [1]), "NaN"),
        (lambda: align_tokens(torch.full((2, 3), -math.inf), [1]), "probability zero"),
    ]:
        with pytest.raises(DecodeError, match=said):
            call()


def test_nothing_is_aligned_to_nothing():
    assert align_tokens(random_frames(4, 3), []) == []
