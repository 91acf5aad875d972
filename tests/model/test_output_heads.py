"""Output heads: a mean over real tokens only, and scores of labels from it."""

import pytest
import torch

from clearhead.attention import Mask
from clearhead.errors import ConfigError
from clearhead.model import Classifier, Labels, ModelConfig
from clearhead.model.output_heads import mean_pool

SIZES = {"vocabulary": 31, "width": 14, "heads": 7, "layers": 2, "feedforward": 23, "labels": Labels(5)}


def classifier(**changes: object) -> Classifier:
    torch.manual_seed(3)
    return Classifier(ModelConfig.named("tiny", **{**SIZES, **changes})).double().eval()


def test_the_mean_is_that_of_plain_code():
    hidden, lengths = torch.randn(3, 7, 11, dtype=torch.float64), [7, 1, 4]
    found = mean_pool(hidden, torch.tensor(lengths))
    for row, length, mean in zip(hidden.tolist(), lengths, found.tolist(), strict=True):
        wanted = [sum(column) / length for column in zip(*row[:length], strict=True)]
        assert mean == pytest.approx(wanted, abs=1e-12)


def test_what_stands_after_the_end_changes_nothing_even_if_it_is_no_number():
    hidden, lengths = torch.randn(2, 5, 3), torch.tensor([3, 5])
    spoiled = hidden.clone().requires_grad_()
    with torch.no_grad():
        spoiled[0, 3:] = float("nan")
    found = mean_pool(spoiled, lengths)
    assert torch.equal(found, mean_pool(hidden, lengths))
    found.sum().backward()
    assert torch.equal(spoiled.grad[0, 3:], torch.zeros(2, 3)), "nor the gradients"
    torch.testing.assert_close(spoiled.grad[0, :3], torch.full((3, 3), 1 / 3))


def test_the_mean_of_nothing_is_zero():
    assert mean_pool(torch.randn(2, 3, 5), torch.tensor([0, 2]))[0].tolist() == [0.0] * 5
    assert mean_pool(torch.randn(2, 0, 5), torch.tensor([0, 0])).tolist() == [[0.0] * 5] * 2


def test_half_precision_stays_what_it_is():
    assert mean_pool(torch.randn(2, 3, 5, dtype=torch.bfloat16), torch.tensor([2, 3])).dtype == torch.bfloat16


def test_label_scores_are_those_of_plain_code():
    model, tokens = classifier(), torch.randint(3, 31, (1, 6))
    with torch.no_grad():
        hidden = model(tokens)
        scores = model.label_scores(hidden, torch.tensor([6]))[0]
    mean = [sum(column) / 6 for column in zip(*hidden[0].tolist(), strict=True)]
    weight, bias = model.to_labels.weight.tolist(), model.to_labels.bias.tolist()
    wanted = [sum(w * x for w, x in zip(row, mean, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
    assert scores.tolist() == pytest.approx(wanted, abs=1e-12)
    assert scores.shape == (5,)


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary", "head_dim": 4}, {"positions": "learned", "window": 3}])
def test_pads_and_neighbours_change_nothing(changes):
    model = classifier(**changes)
    lengths = torch.tensor([5, 2, 7])
    texts = [torch.randint(3, 31, (length,)) for length in lengths.tolist()]
    padded = torch.full((3, 9), 0)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    with torch.no_grad():
        together = model.label_scores(model(padded, mask=Mask.padding(lengths, queries=True)), lengths)
        padded[padded == 0] = 17
        other = model.label_scores(model(padded, mask=Mask.padding(lengths, queries=True)), lengths)
        for text, scores in zip(texts, together, strict=True):
            alone = model.label_scores(model(text[None]), torch.tensor([len(text)]))
            torch.testing.assert_close(alone[0], scores, rtol=0, atol=1e-12)
    assert torch.equal(together, other), "whatever the pads are"


def test_dropout_is_for_training_alone():
    model = classifier(dropout=0.5)
    hidden, lengths = torch.randn(2, 3, 14, dtype=torch.float64), torch.tensor([3, 3])
    assert torch.equal(model.label_scores(hidden, lengths), model.label_scores(hidden, lengths))
    model.train()
    assert not torch.equal(model.label_scores(hidden, lengths), model.label_scores(hidden, lengths))


def test_a_classifier_without_labels_is_refused():
    with pytest.raises(ConfigError, match="needs to know how many labels there are: set labels in its ModelConfig"):
        classifier(labels=None)


@pytest.mark.parametrize("changes", [{"tie_embeddings": False}, {"logits_bias": True}, {"logits_transform": True}])
def test_what_only_scores_of_words_need_is_refused(changes):
    with pytest.raises(ConfigError, match="a Classifier has no logits over the vocabulary: leave"):
        classifier(**changes)
