"""beam, greedy: line by line what transformers' generate writes with the same weights."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers

from clearhead import EncoderDecoder, to_huggingface
from clearhead.decode import Writer, beam, greedy
from tests.decode.models import END, PAD, START, sources, translator

LIMIT = 12


@pytest.fixture(scope="module")
def marian(trained, tmp_path_factory) -> transformers.MarianMTModel:
    return exported(trained, tmp_path_factory.mktemp("trained"))


def exported(model: EncoderDecoder, folder) -> transformers.MarianMTModel:
    transformers.utils.logging.disable_progress_bar()
    to_huggingface(model, folder, pad=PAD, eos=END, start=START)
    return transformers.MarianMTModel.from_pretrained(folder).eval()


def generated(model, source, lengths, best: int = 1, beams: int = 5, **options):
    """Their lines without start, end and pads, `best` for each row, and their scores."""
    found = model.generate(
        input_ids=source,
        attention_mask=(torch.arange(source.shape[1]) < lengths[:, None]).long(),
        num_beams=beams,
        num_return_sequences=best,
        max_new_tokens=LIMIT,
        do_sample=False,
        forced_eos_token_id=None,  # Marian's habit of ending by force, whatever the model says
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    lines = [line[1:] for line in found.sequences.tolist()]
    lines = [line[: line.index(END)] if END in line else line for line in lines]
    return [lines[row : row + best] for row in range(0, len(lines), best)], getattr(found, "sequences_scores", None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length_penalty": 0.0},
        {"length_penalty": 1.7},
        {"beams": 3, "length_penalty": 0.6},
    ],
    ids=str,
)
def test_a_trained_model_writes_their_lines(trained, marian, options):
    source, lengths = sources(200, seed=77)
    theirs, scores = generated(marian, source, lengths, **options)
    ours = beam(Writer.translating(trained, source, lengths), start=START, end=END, max_length=LIMIT, **options)
    same = [row[0].tokens == lines[0] for row, lines in zip(ours, theirs, strict=True)]
    assert sum(same) >= 198, f"{sum(same)} of 200 lines are the same"
    found = torch.tensor([row[0].score for row in ours])
    torch.testing.assert_close(found[torch.tensor(same)], scores[torch.tensor(same)], rtol=0, atol=1e-4)


def test_the_best_three_are_their_best_three(trained, marian):
    source, lengths = sources(100, seed=78)
    theirs, _ = generated(marian, source, lengths, best=3)
    ours = beam(Writer.translating(trained, source, lengths), start=START, end=END, max_length=LIMIT, best=3)
    same = sum([one.tokens for one in row] == lines for row, lines in zip(ours, theirs, strict=True))
    assert same >= 99, f"{same} of 100 lines are the same"


def test_no_ngram_comes_twice_by_their_rule(trained, marian):
    source, lengths = sources(100, seed=79)
    source[::2] = source[::2].where(source[::2] == PAD, 7)  # a word again and again
    theirs, _ = generated(marian, source, lengths, no_repeat_ngram_size=2)
    writer = Writer.translating(trained, source, lengths)
    ours = beam(writer, start=START, end=END, max_length=LIMIT, no_repeat_ngram=2)
    same = sum(row[0].tokens == lines[0] for row, lines in zip(ours, theirs, strict=True))
    assert same >= 99, f"{same} of 100 lines are the same"
    assert theirs != generated(marian, source, lengths)[0]


def test_a_random_model_writes_their_lines(tmp_path):
    model, (source, lengths) = translator(dtype=torch.float32), sources(100, seed=80)
    theirs, _ = generated(exported(model, tmp_path), source, lengths)
    ours = beam(Writer.translating(model, source, lengths), start=START, end=END, max_length=LIMIT)
    same = sum(row[0].tokens == lines[0] for row, lines in zip(ours, theirs, strict=True))
    assert same >= 99, f"{same} of 100 lines are the same"


def test_greedy_writes_their_lines(trained, marian):
    source, lengths = sources(100, seed=81)
    theirs, _ = generated(marian, source, lengths, beams=1)
    ours = greedy(Writer.translating(trained, source, lengths), start=START, end=END, max_length=LIMIT)
    same = sum(row.tokens == lines[0] for row, lines in zip(ours, theirs, strict=True))
    assert same >= 99, f"{same} of 100 lines are the same"
