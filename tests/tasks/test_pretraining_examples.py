"""What pre-training hides: whole words, the right share, drawn anew each epoch; the target keeps every token."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.model import Encoder, ModelConfig
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.pretraining.masked_examples import (
    SPECIAL,
    MaskedExamples,
    MaskedTexts,
    NeighbouringExamples,
    choose_words,
    cut_windows,
    find_sentences,
    make_generator,
    make_text_windows,
)
from clearhead.tasks.pretraining.masked_task import MaskedObjective, MaskedProcessor, contrast_loss, masked_loss
from clearhead.tasks.pretraining.pretraining_settings import HidingSettings, Masking, PretrainingRecipe
from clearhead.tasks.pretraining.pretraining_task import DenoisingExamples, choose_spans
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch
from clearhead.text.pieces import encode_words

TEXTS = [
    "The lowest river is slower than the newest one. Is it? Pi is 3.14!",
    "我爱你们，也爱他们。你们好吗？",
    "widest newest lowest",
    "a",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([*TEXTS, "wide new low slow", "爱你们 我爱 他们"] * 3, vocabulary=330, mask=True)


def rows(texts: list[str]) -> list[Row]:
    return [Row((text,), "texts.tsv", line) for line, text in enumerate(texts, start=1)]


def examples(kind, tokenizer: Tokenizer, texts: list[str], seed: int = 3, longest: int = 64, **masking):
    windows, used = make_text_windows(rows(texts), tokenizer, longest, Report())
    return kind(windows, used, tokenizer, Masking(**masking), seed)


def sequences(ragged) -> list[list[int]]:
    return [part.tolist() for part in ragged.flat[:-1].split(ragged.lengths.tolist())]


# words


def test_words_begin_where_the_tokenizer_splits_and_at_every_chinese_piece(tokenizer):
    [english, chinese] = encode_words(tokenizer, ["newest (low) 3.14", "我爱你 他们蟹"])
    pieces = tokenizer.pieces(english.tokens.tolist())
    words, word = [], ""
    for piece, start in zip(pieces, english.starts, strict=True):
        words += [word] if start and word else []
        word = piece if start else word + piece
    assert [one.replace("▁", " ") for one in [*words, word]] == [
        " newest",
        " <0x28>",
        "low",
        "<0x29>",
        " 3",
        ".",
        "1",
        "4",
    ]
    joined = list(zip(tokenizer.pieces(chinese.tokens.tolist()), chinese.starts.tolist(), strict=True))
    assert joined == [
        *(("我爱", True), ("你", True), ("▁", True), ("他们", False)),
        *(("<0xE8>", True), ("<0x9F>", False), ("<0xB9>", False)),  # 蟹, one character in three bytes
    ]


def test_windows_are_cut_between_words():
    starts = np.array([True, False, True, False, False, True])
    assert cut_windows(starts, 6) == [(0, 6)]
    assert cut_windows(starts, 4) == [(0, 2), (2, 5), (5, 6)]
    assert cut_windows(np.zeros(5, dtype=np.bool_), 2) == [(0, 2), (2, 4), (4, 5)]  # one endless word
    assert cut_windows(np.zeros(0, dtype=np.bool_), 2) == []


def test_sentences_end_at_marks_but_not_inside_numbers(tokenizer):
    windows, _ = make_text_windows(rows(TEXTS[:2]), tokenizer, 64, Report())
    english, chinese = find_sentences(windows, tokenizer)
    first = [tokenizer.decode(windows[0].tokens[place : place + 2]) for place, flag in enumerate(english) if flag]
    assert [text.split()[0] for text in first] == ["The", "Is", "Pi"]
    assert sum(chinese) == 2


# masked words


def test_whole_words_are_chosen_by_hand():
    """Two rows: <s> A a B </s>, <s> C D d d </s>; with room for two tokens each."""
    roles = torch.tensor([2, 1, 0, 1, 2, 2, 1, 1, 0, 0, 2])
    row = torch.tensor([0] * 5 + [1] * 6)
    seen = set()
    for seed in range(40):
        chosen = choose_words(roles, row, torch.tensor([2, 2]), make_generator(torch.device("cpu"), seed))
        seen.add(tuple(chosen.nonzero()[:, 0].tolist()))
    # A a is two tokens; B is one, and with A a there would be three. D d d is too long, but may come first.
    assert seen == {(1, 2, 6), (1, 2, 7, 8, 9), (3, 6), (3, 7, 8, 9)}


def test_only_masked_places_count_and_the_rest_is_read_as_it_is(tokenizer):
    made = examples(MaskedExamples, tokenizer, TEXTS, share=0.3, random=0.0, kept=0.0)
    batch = made.collate(Batch(np.arange(4), (int(made.lengths.max()),)))
    texts, inputs = sequences(made.texts), sequences(made.inputs)
    for number, (text, hidden) in enumerate(zip(texts, inputs, strict=True)):
        places = [place for place, token in enumerate(hidden) if token == tokenizer.mask]
        assert [token for place, token in enumerate(hidden) if place not in places] == [
            token for place, token in enumerate(text) if place not in places
        ]
        counted = batch.labels[number] != UNCOUNTED
        assert batch.places[number][counted].tolist() == places[: made.counts[number]]
        assert batch.labels[number][counted].tolist() == [text[place] for place in places][: made.counts[number]]
        assert 0 not in places
        assert len(text) - 1 not in places


def test_the_loss_is_that_of_the_masked_places_alone(tokenizer):
    config = ModelConfig.named("tiny", vocabulary=tokenizer.size, width=12, heads=2, layers=1, dropout=0.0)
    processor = MaskedProcessor(
        tokenizer, config, HidingSettings(objective="masked", longest=64, masking=Masking(share=0.3))
    )
    torch.manual_seed(0)
    model = Encoder(config).double().eval()
    made = processor.examples(rows(TEXTS), Report())
    batch = made.collate(Batch(np.arange(4), (int(made.lengths.max()),)))
    by_hand = 0.0
    for text, hidden in zip(sequences(made.texts), sequences(made.inputs), strict=True):
        number = sequences(made.texts).index(text)
        scores = model.logits(model(torch.tensor([hidden])))[0].log_softmax(-1)
        places = batch.places[number][batch.labels[number] != UNCOUNTED].tolist()
        by_hand -= sum(float(scores[place, text[place]].detach()) for place in places)
    assert float(masked_loss(model, batch).detach()) == pytest.approx(by_hand, abs=1e-9)
    assert int((batch.labels != UNCOUNTED).sum()) == made.counts.sum()


def test_the_share_of_masked_tokens_and_of_their_kinds_is_as_set(tokenizer):
    texts = [" ".join(["wide new low slow river is one"] * 6)] * 300
    made = examples(MaskedExamples, tokenizer, texts, share=0.2, random=0.1, kept=0.1)
    tokens, inputs, chosen = (part.flat[:-1] for part in (made.texts, made.inputs, made.is_masked))
    ordinary = len(tokens) - 2 * len(texts)
    assert 0.185 < float(chosen.sum()) / ordinary <= 0.2 + 1e-9
    masked = chosen.bool()
    assert float((inputs[masked] == tokenizer.mask).double().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((inputs[masked] == tokens[masked]).double().mean()) == pytest.approx(0.1, abs=0.02)
    assert torch.equal(inputs[~masked], tokens[~masked])
    others = inputs[masked & (inputs != tokens) & (inputs != tokenizer.mask)]
    assert int(others.min()) >= 259
    assert int(others.max()) < tokenizer.size - 1


@pytest.mark.parametrize("kind", [MaskedExamples, DenoisingExamples])
def test_every_epoch_and_seed_draws_anew_and_the_same_again(tokenizer, kind):
    def drawn(made) -> list[int]:
        return (made.inputs if kind is MaskedExamples else made.source).flat.tolist()

    one, other = (examples(kind, tokenizer, TEXTS, seed=seed, share=0.3) for seed in (3, 4))
    first = drawn(one)
    assert first != drawn(other)
    one.draw(1)
    second = drawn(one)
    assert first != second
    stored = one.state()
    one.draw(2)
    one.restore(stored)
    assert drawn(one) == second
    one.draw(0)
    assert drawn(one) == first
    assert one.fingerprint() == other.fingerprint()


def test_a_tokenizer_without_a_mask_masks_with_padding():
    plain = Tokenizer.train(TEXTS, vocabulary=300)
    made = examples(MaskedExamples, plain, TEXTS, share=0.3, random=0.0, kept=0.0)
    assert (made.inputs.flat[:-1] == plain.pad).sum() == made.is_masked.flat[:-1].sum()


# denoising


def test_the_target_has_every_token_of_the_original(tokenizer):
    made = examples(DenoisingExamples, tokenizer, TEXTS, share=0.4, span=2.0)
    for text, encoded in zip(sequences(made.target), tokenizer.encode_all(TEXTS), strict=True):
        assert text == [tokenizer.start, *encoded, tokenizer.end]
    batch = made.collate(Batch(np.arange(4), (int(made.lengths[:, 0].max()), int(made.lengths[:, 1].max()))))
    labels = batch.labels[0][batch.labels[0] != UNCOUNTED]
    assert labels.tolist() == sequences(made.target)[0][1:]


def test_the_source_has_the_other_tokens_and_one_mask_for_each_span(tokenizer):
    made = examples(DenoisingExamples, tokenizer, TEXTS, share=0.4, span=2.0, shuffle=False)
    for epoch in range(5):
        made.draw(epoch)
        for source, target in zip(sequences(made.source), sequences(made.target), strict=True):
            assert source[-1] == tokenizer.end
            assert len(source) <= len(target) - 1
            rest, place = [token for token in source if token != tokenizer.mask], 0
            for token in rest:  # in their order
                place = target.index(token, place) + 1
            both = itertools.pairwise(source)
            assert all(pair != (tokenizer.mask, tokenizer.mask) for pair in both)


def test_sentences_are_shuffled_whole(tokenizer):
    made = examples(DenoisingExamples, tokenizer, TEXTS[:1], share=1e-9, span=1.0)
    orders = set()
    for epoch in range(30):
        made.draw(epoch)
        orders.add(tokenizer.decode(sequences(made.source)[0]))
    sentences = ["The lowest river is slower than the newest one.", "Is it?", "Pi is 3.14!"]
    assert len(orders) == 6
    assert all(all(sentence in order for sentence in sentences) for order in orders)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0.05, 0.9), st.floats(1, 4), st.integers(0, 99))
def test_spans_have_whole_words_and_end_with_their_row(lengths, share, span, seed):
    chance = np.random.default_rng(seed)
    roles = [[1, *chance.integers(0, 2, length - 1).tolist(), SPECIAL] for length in lengths]
    flat = torch.tensor([role for row in roles for role in row])
    chosen = choose_spans(flat, share, span, make_generator(torch.device("cpu"), seed))
    assert not chosen[flat == SPECIAL].any()
    inside = (flat == 0).nonzero()[:, 0]
    assert torch.equal(chosen[inside], chosen[inside - 1])


def test_about_the_wanted_share_of_words_is_in_spans():
    roles = torch.ones(200_000, dtype=torch.long)
    roles[999::1000] = SPECIAL
    for share, span in ((0.3, 3.0), (0.15, 1.0)):
        chosen = choose_spans(roles, share, span, make_generator(torch.device("cpu"), 1))
        assert float(chosen.double().mean()) == pytest.approx(share, abs=0.02)
        runs = int((chosen[1:] & ~chosen[:-1]).sum())
        assert float(chosen.sum()) / runs == pytest.approx(span, rel=0.3)  # more: spans that touch are one


# neighbouring sentences


def test_every_sentence_comes_with_the_one_beside_it(tokenizer):
    document = "The river is slow. The newest is wide.\n我爱你们，也爱他们。你们好吗？？？"
    windows, used = make_text_windows(rows([document, "widest low"]), tokenizer, 64, Report(), sentences=True)
    made = NeighbouringExamples(windows, used, tokenizer, Masking(share=0.3), 3)
    texts = sequences(made.texts)
    parts = ["The river is slow.", "The newest is wide.", "我爱你们，也爱他们。", "你们好吗？？？", "widest low"]
    assert [tokenizer.decode(tokens) for tokens in texts] == [
        tokenizer.decode(tokenizer.encode(text)) for text in parts
    ]
    assert made.others.tolist() == [1, 2, 3, 2, 4]
    assert made.lengths.tolist() == [[len(texts[row]), len(texts[other])] for row, other in enumerate([1, 2, 3, 2, 4])]
    batch = made.collate(Batch(np.array([0, 4]), (40, 50)))
    assert (batch.tokens.shape, batch.other_tokens.shape) == ((2, 40), (2, 50))
    assert batch.other_tokens[0, : len(texts[1])].tolist() == texts[1]
    assert batch.other_tokens[1, : len(texts[4])].tolist() == texts[4]


def test_the_contrast_by_hand():
    vectors, others = torch.tensor([[1.0, 0], [0, 2.0], [3.0, 0]]), torch.tensor([[5.0, 0], [0, 1.0], [1.0, 0]])
    # Sentences 0 and 2 have the same neighbour, 7: neither is a wrong answer to the other.
    loss = contrast_loss(vectors, others, torch.tensor([0, 1, 2]), torch.tensor([7, 8, 7]), temperature=0.5)
    wrong = np.log(1 + np.exp(-2.0))  # a candidate at a right angle beside the right one
    assert float(loss) == pytest.approx((4 * wrong + 2 * np.log(1 + 2 * np.exp(-2.0))) / 2, rel=1e-5)
    alone = contrast_loss(vectors[:1], others[:1], torch.tensor([0]), torch.tensor([0]), temperature=0.5)
    assert float(alone) == 0.0


def test_training_adds_the_contrast_and_dev_is_judged_without_it(tokenizer):
    recipe = PretrainingRecipe(
        task="pretraining", data={"train": "x.txt", "documents": "lines"}, contrast={"weight": 0.5}
    )
    config = ModelConfig.named("tiny", vocabulary=tokenizer.size, width=24, heads=3, layers=1, dropout=0.0)
    config = config.change(logits_bias=True, logits_transform=True)
    processor = MaskedProcessor(tokenizer, config, HidingSettings(objective="masked", longest=64))
    made = processor.examples(rows([*TEXTS[:2]]), Report(), recipe)
    assert isinstance(made, NeighbouringExamples)
    batch, objective = made.collate(Batch(np.arange(len(made)), (64, 64))), MaskedObjective(processor, recipe)
    model = Encoder(config)
    with torch.no_grad():
        plain, trained = float(objective.loss(model.eval(), batch)), float(objective.loss(model.train(), batch))
        masked = float(masked_loss(model, MaskedTexts(*batch[:4])))
    assert plain == pytest.approx(masked, rel=1e-5)
    assert trained > plain + 0.1
    assert not objective.splits_batches
