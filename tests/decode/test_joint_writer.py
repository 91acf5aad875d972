"""Joint decoding against enumeration: CTC prefix scores, and searches with a JointWriter."""

import itertools
import math

import pytest
import torch

from clearhead import ModelConfig
from clearhead.decode import JointWriter, beam, greedy
from clearhead.decode.ctc import CtcPrefixes, collapse_path
from clearhead.model import SpeechModel

BLANK, END, FRAMES, LABELS = 0, 2, 5, 4


def spelled(frames: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every text, by enumeration of all paths."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(frames.shape[1]), repeat=len(frames)):
        text = tuple(collapse_path(path, BLANK))
        chance = math.exp(sum(float(frames[place, label]) for place, label in enumerate(path)))
        found[text] = found.get(text, 0.0) + chance
    return found


def random_frames(rows: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, FRAMES, LABELS, generator=torch.Generator().manual_seed(seed)).double().log_softmax(-1)


def test_the_scores_of_a_prefix_are_those_of_all_texts_that_begin_with_it() -> None:
    frames, lengths = random_frames(3), torch.tensor([5, 3, 4])
    texts = [spelled(one[:length]) for one, length in zip(frames, lengths.tolist(), strict=True)]
    prefixes, written = CtcPrefixes(frames, lengths, blank=BLANK, end=END), [(), (), ()]
    for step in ((1, 3, 3), (1, 1, 3), (3, 1, 1)):
        scores = prefixes.next_scores().exp()
        for row, prefix in enumerate(written):
            begun = sum(chance for text, chance in texts[row].items() if text[: len(prefix)] == prefix)
            for token in (1, 3):
                longer = (*prefix, token)
                wanted = sum(chance for text, chance in texts[row].items() if text[: len(longer)] == longer)
                assert scores[row, token] == pytest.approx(wanted / begun, rel=1e-9, abs=1e-12)
            assert scores[row, END] == pytest.approx(texts[row].get(prefix, 0.0) / begun, rel=1e-9)
            assert scores[row, BLANK] == 0
        prefixes.append(torch.tensor(step))
        written = [(*prefix, token) for prefix, token in zip(written, step, strict=True)]


def test_prefixes_follow_the_beams_and_the_rows_that_are_left() -> None:
    frames, lengths = random_frames(3), torch.tensor([5, 3, 4])
    prefixes = CtcPrefixes(frames, lengths, blank=BLANK, end=END)
    prefixes.select(torch.tensor([2, 2, 0, 0]), torch.tensor([2, 0]))
    prefixes.append(torch.tensor([1, 3, 1, 3]))
    alone = CtcPrefixes(frames[:1], lengths[:1], blank=BLANK, end=END)
    alone.append(torch.tensor([3]))
    torch.testing.assert_close(prefixes.next_scores()[3:], alone.next_scores())


def test_long_sounds_lose_no_digits() -> None:
    frames = torch.full((1, 400, 3), -30.0, dtype=torch.float64)
    frames[..., 0] = 0.0
    frames[0, 390] = torch.tensor([-30.0, 0.0, -30.0])
    prefixes = CtcPrefixes(frames, torch.tensor([400]), blank=0, end=2)
    assert prefixes.next_scores()[0, 1] == pytest.approx(0.0, abs=1e-6)
    prefixes.append(torch.tensor([1]))
    assert prefixes.next_scores()[0, 2] == pytest.approx(0.0, abs=1e-6)


def make_model() -> SpeechModel:
    torch.manual_seed(5)
    return (
        SpeechModel(ModelConfig.named("tiny", vocabulary=LABELS + 1, sound={"bands": 16}, width=16, heads=2))
        .eval()
        .requires_grad_(False)
    )


def make_writer(weight: float) -> JointWriter:
    model = make_model()
    with torch.no_grad():
        context, lengths = model.encode_sound(torch.randn(2, 20, 16), torch.tensor([20, 12]))
    return JointWriter(model, context, lengths, weight=weight, blank=BLANK, end=END)


def test_a_beam_search_finds_the_best_mixture_of_both_probabilities() -> None:
    weight, writer = 0.4, make_writer(0.4)
    found = beam(writer, beams=5, best=1, length_penalty=0.0, start=1, end=END, max_length=7, forbidden=[1])
    model = writer.model
    assert isinstance(model, SpeechModel)
    assert writer._context is not None
    for row, length in enumerate((5, 3)):
        context = writer._context[row : row + 1, :length]
        log_probs = model.ctc_log_probs(context)[0]
        best, text = -math.inf, ()
        for one, chance in spelled(log_probs).items():
            if END in one or 1 in one or len(one) > 4:
                continue
            scores = model.logits(model.decode(torch.tensor([[1, *one]]), context))[0].log_softmax(-1)
            said = sum(float(scores[place, token]) for place, token in enumerate((*one, END)))
            total = (1 - weight) * said + weight * math.log(chance)
            best, text = max((best, text), (total, one))
        hypothesis = found[row][0]
        assert (hypothesis.log_probability, tuple(hypothesis.tokens)) == (pytest.approx(best, abs=1e-4), text)


def test_without_ctc_the_writer_is_the_plain_one() -> None:
    options = {"start": 1, "end": END, "max_length": 6}
    plain = greedy(make_writer(0.0), **options)
    assert all(one.log_probability < 0 for one in plain)


def test_all_ctc_finds_the_most_probable_text_of_all_paths() -> None:
    writer = make_writer(1.0)
    found = beam(writer, beams=5, best=1, length_penalty=0.0, start=1, end=END, max_length=7, forbidden=[1])
    assert writer._log_probs is not None
    for row, length in enumerate((5, 3)):
        texts = spelled(writer._log_probs[row, :length])
        best = max((text for text in texts if not {1, END} & {*text}), key=lambda text: texts[text])
        assert tuple(found[row][0].tokens) == best
        assert found[row][0].log_probability == pytest.approx(math.log(texts[best]), abs=1e-4)
