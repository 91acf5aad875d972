"""beam: against a plain search without cache, against itself in other batches, and by hand."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.decode import Writer, beam, greedy
from clearhead.decode.beam_search import BLOCK, top_continuations
from clearhead.errors import DecodeError
from tests.decode import oracle
from tests.decode.models import END, KINDS, START, VOCABULARY, continuer, sources, translator

OPTIONS = [
    {},
    {"length_penalty": 0.0},
    {"length_penalty": 2.0},
    {"length_penalty": -0.5},
    {"no_repeat_ngram": 2},
    {"no_repeat_ngram": 1, "forbidden": (5, 7, 11)},
    {"beams": 1},
    {"beams": 2, "length_penalty": 0.6},
]


class Told(Writer):
    """A writer whose model is a table: what comes after a token depends on that token alone."""

    def __init__(self, table: dict[int, dict[int, float]], rows: int = 1) -> None:
        self.inputs = self.rows = rows
        self.device, self.table, self.model = torch.device("cpu"), table, translator()

    vocabulary = 6

    def check_positions(self, max_length: int, start: int | None) -> None:
        pass

    def begin(self, start: int | None) -> Tensor:
        return self.advance(torch.tensor([start] * self.rows))

    def advance(self, tokens: Tensor) -> Tensor:
        chances = [
            [self.table.get(token, {END: 1.0}).get(word, 1e-9) for word in range(6)] for token in tokens.tolist()
        ]
        return torch.tensor(chances, dtype=torch.float64).log()

    def select_beams(self, parents: Tensor, kept_rows: Tensor | None = None) -> None:
        self.rows = len(parents)


def assert_same(found, wanted, within: float = 1e-9) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.finished for one in found] == [one.finished for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=within)
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=within)


def test_two_beams_find_by_hand_what_greedy_misses():
    # After the start, 3 is likelier than 4; but from 4 the end is nearly sure.
    table = {START: {3: 0.6, 4: 0.4}, 3: {3: 0.4, 5: 0.3, END: 0.3}, 4: {END: 0.9, 3: 0.1}, 5: {END: 1.0}}
    options = {"start": START, "end": END, "max_length": 4}
    assert greedy(Told(table), **options)[0].tokens == [3, 3, 3, 3]
    first, second = beam(Told(table), beams=2, best=2, length_penalty=0.0, **options)[0]
    assert first.tokens == [4]
    assert first.score == first.log_probability == pytest.approx(math.log(0.4 * 0.9))
    # 3 END is no less likely than 3 5 END, but it came third, after 4 END and 3 3, where only two are looked at.
    assert (second.tokens, second.finished) == ([3, 5], True)
    assert second.score == pytest.approx(math.log(0.6 * 0.3))


def test_the_score_divides_by_the_length_with_its_end():
    table = {START: {3: 0.5, END: 0.5}, 3: {END: 1.0}}
    found = beam(Told(table), beams=2, best=2, length_penalty=0.5, start=START, end=END, max_length=3)[0]
    assert [one.tokens for one in found] == [[3], []]
    assert found[0].score == pytest.approx(math.log(0.5) / 2**0.5)
    assert found[1].score == pytest.approx(math.log(0.5))


def test_what_is_cut_off_says_so():
    table = {START: {3: 1.0}, 3: {3: 0.9, END: 0.1}}
    found = beam(Told(table), beams=2, best=2, start=START, end=END, max_length=3)[0]
    assert [(one.tokens, one.finished) for one in found] == [([3, 3, 3], False), ([3, 3], True)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_random_model_writes_what_a_plain_search_finds(options):
    model, (source, lengths) = translator().eval(), sources(3)
    options = {"beams": 3, **options}
    found = beam(Writer.translating(model, source, lengths), start=START, end=END, max_length=7, best=1, **options)
    for row, (hypotheses, length) in enumerate(zip(found, lengths.tolist(), strict=True)):
        scores = oracle.of_translator(model, source[row, :length].tolist(), START)
        assert_same(hypotheses, oracle.search(scores, end=END, max_length=7, **options)[:1])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_trained_model_writes_what_a_plain_search_finds(trained, options):
    model, (source, lengths) = copy.deepcopy(trained).double(), sources(11)
    options = {"beams": 4, **options}
    limits = [length + 3 + row % 3 for row, length in enumerate(lengths.tolist())]
    best = options["beams"]
    found = beam(
        Writer.translating(model, source, lengths), start=START, end=END, max_length=limits, best=best, **options
    )
    assert any(one.finished for row in found for one in row)
    for row, (hypotheses, length) in enumerate(zip(found, lengths.tolist(), strict=True)):
        scores = oracle.of_translator(model, source[row, :length].tolist(), START)
        assert_same(hypotheses, oracle.search(scores, end=END, max_length=limits[row], **options))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_positions_writes_what_a_plain_search_finds(kind):
    model, (source, lengths) = translator(kind).eval(), sources(3)
    found = beam(Writer.translating(model, source, lengths), start=START, end=END, max_length=6, beams=3, best=3)
    for row, (hypotheses, length) in enumerate(zip(found, lengths.tolist(), strict=True)):
        scores = oracle.of_translator(model, source[row, :length].tolist(), START)
        assert_same(hypotheses, oracle.search(scores, end=END, max_length=6, beams=3))


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_different_lengths_are_continued_as_each_alone(kind):
    model = continuer(kind).eval()
    prompts = [[START, 7, 9, 11, 5], [START], [START, 20, 20, 31], [START, 13, 6]]
    found = beam(Writer.continuing(model, prompts), end=END, max_length=6, beams=3, best=2)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        wanted = oracle.search(oracle.of_continuer(model, prompt), end=END, max_length=6, beams=3)
        assert_same(hypotheses, wanted[:2])


def test_a_prefix_is_written_first_and_counts(trained):
    model, (source, lengths) = copy.deepcopy(trained).double(), sources(5)
    prefixes = [[9, 9, 30], [], [4], [17, 3], [8]]
    options = {"end": END, "max_length": 9, "beams": 3, "forbidden": (9, 4), "no_repeat_ngram": 1}
    found = beam(Writer.translating(model, source, lengths), start=START, best=3, prefix=prefixes, **options)
    for row, (hypotheses, length) in enumerate(zip(found, lengths.tolist(), strict=True)):
        assert all(one.tokens[: len(prefixes[row])] == prefixes[row] for one in hypotheses)
        scores = oracle.of_translator(model, source[row, :length].tolist(), START)
        assert_same(hypotheses, oracle.search(scores, prefix=prefixes[row], **options)[:3])


@pytest.mark.parametrize("random", [True, False], ids=["random", "trained"])
def test_a_row_comes_out_the_same_in_any_batch_exactly_in_float64(random, trained, device):
    model = (translator() if random else copy.deepcopy(trained).double()).to(device)
    source, lengths = sources(11)
    options = {"start": START, "end": END, "max_length": 10, "best": 5}
    together = beam(Writer.translating(model, source.to(device), lengths), **options)
    for row, length in enumerate(lengths.tolist()):
        alone = Writer.translating(model, source[row : row + 1, :length].to(device), [length])
        assert_same(beam(alone, **options)[0], together[row], within=1e-10)


@pytest.mark.parametrize("random", [True, False], ids=["random", "trained"])
def test_a_row_comes_out_the_same_in_any_batch_in_float32_but_for_near_ties(random, trained, device):
    model = (translator(dtype=torch.float32) if random else copy.deepcopy(trained)).to(device)
    source, lengths = sources(17, seed=8)
    options = {"start": START, "end": END, "max_length": 10}
    together = beam(Writer.translating(model, source.to(device), lengths), **options)
    different = 0
    for row, length in enumerate(lengths.tolist()):
        writer = Writer.translating(model, source[row : row + 1, :length].to(device), [length])
        (alone,), (batched,) = beam(writer, **options)[0], together[row]
        assert abs(alone.score - batched.score) < 1e-4
        different += alone.tokens != batched.tokens
    assert different <= 1


def test_one_beam_is_greedy(trained):
    source, lengths = sources(19)
    writer = Writer.translating(trained, source, lengths)
    options = {"start": START, "end": END, "max_length": 9}
    assert [row[0].tokens for row in beam(writer, beams=1, **options)] == [
        row.tokens for row in greedy(writer, **options)
    ]


def test_rows_that_are_over_leave_the_batch(trained, monkeypatch):
    sizes = []
    advance = Writer.advance
    monkeypatch.setattr(Writer, "advance", lambda self, tokens: (sizes.append(len(tokens)), advance(self, tokens))[1])
    source, lengths = sources(40)
    beam(Writer.translating(trained, source, lengths), start=START, end=END, max_length=30)
    assert sizes[0] == 200
    assert sizes[-1] < 100
    assert len(sizes) < 29  # nobody goes on to the longest length


def test_beams_share_the_keys_and_values_of_their_source(trained):
    source, lengths = sources(7)
    writer = Writer.translating(trained, source, lengths)
    beam(writer, start=START, end=END, max_length=3)
    assert {len(k) for k, _ in writer._cache._fixed.values()} == {7}
    assert {len(room.k) for room in writer._cache._buffers.values()} == {35}


def test_fewer_words_than_beams_are_enough():
    model = translator().eval()
    forbidden = tuple(range(3, VOCABULARY - 1))  # four words are left: pad, start, end and the last one
    options = {"end": END, "max_length": 3, "beams": 7, "forbidden": forbidden}
    found = beam(Writer.translating(model, torch.tensor([[5, 6]]), [2]), start=START, best=7, **options)[0]
    wanted = oracle.search(oracle.of_translator(model, [5, 6], START), **options)
    assert_same(found, wanted)


def test_no_rows_in_no_rows_out(trained):
    assert beam(Writer.translating(trained, torch.zeros(0, 3).long(), []), start=START, end=END, max_length=5) == []


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 30 * BLOCK), st.integers(1, 12), st.integers(0, 9))
def test_the_largest_are_those_of_topk(rows, beams, vocabulary, count, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, beams, vocabulary, generator=generator, dtype=torch.float64)
    logits[torch.rand(logits.shape, generator=generator) < 0.3] = -math.inf
    offsets = torch.randn(rows, beams, generator=generator, dtype=torch.float64)
    values, places = top_continuations(logits, offsets, count)
    totals = (logits + offsets[..., None]).view(rows, -1)
    assert torch.equal(values, totals.topk(min(count, totals.shape[1])).values)
    assert torch.equal(totals.gather(1, places), values)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"beams": 0}, "at least 1 beam, got 0"),
        ({"beams": VOCABULARY + 1}, f"{VOCABULARY + 1} beams are more than the model has tokens, {VOCABULARY}"),
        ({"best": 6}, "best=6 is not possible with 5 beams"),
        ({"length_penalty": math.nan}, "length_penalty must be a number"),
    ],
)
def test_wrong_options_are_refused(trained, wrong, words):
    source, lengths = sources(2)
    with pytest.raises(DecodeError, match=words):
        beam(Writer.translating(trained, source, lengths), start=START, end=END, max_length=5, **wrong)


def test_scores_that_are_not_numbers_are_an_error(trained):
    broken = copy.deepcopy(trained)
    with torch.no_grad():
        broken.vocabulary.words.weight[7] = math.nan
    source, lengths = sources(2)
    for search in (beam, greedy):
        with pytest.raises(DecodeError, match="NaN or infinite"):
            search(Writer.translating(broken, source, lengths), start=START, end=END, max_length=5)
