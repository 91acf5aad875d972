"""The parts of answers, each against what one computes by hand or by another library."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.tasks.answers.answer_finder import AnswerFinder
from clearhead.tasks.answers.answer_index import AnswerIndex, Entry
from clearhead.tasks.answers.answer_objective import (
    OUT_OF_SCOPE,
    intent_loss,
    mine_negatives,
    pair_loss,
    question_contrast,
)
from clearhead.tasks.answers.answer_processor import AnswerExamples
from clearhead.tasks.answers.answer_settings import AnswerPrediction, AnswersSection, Match
from clearhead.tasks.answers.answers_task import score_bm25, score_tf_idf, split_words
from clearhead.tasks.answers.out_of_scope import Calibration, Gaussians, area_under_curve
from clearhead.tasks.answers.question_answerer import make_report, score_answers
from clearhead.tasks.processor import TextExamples
from clearhead.text import Row
from clearhead.text.batches import Batch


def unit(*rows: list[float]) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=-1)


# losses


def test_intents_out_of_scope_should_be_uniform():
    scores = torch.tensor([[1.0, 2.0, 0.0], [5.0, 5.0, 5.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    logs = scores.log_softmax(-1)
    uniform = -float(logs[2].mean()) - math.log(3)
    loss = intent_loss(scores, torch.tensor([1, OUT_OF_SCOPE, OUT_OF_SCOPE]), smoothing=0.0, outliers=0.5)
    assert loss.item() == pytest.approx(-float(logs[0, 1]) + 0.5 * uniform)


def test_questions_of_one_answer_attract_each_other():
    vectors, answers = unit([1, 0], [1, 1], [0, 1], [-1, 0]), torch.tensor([4, 4, 6, OUT_OF_SCOPE])
    total = 0.0
    for row, other in ((0, 1), (1, 0)):
        rest = [place for place in range(4) if place != row]
        scores = {place: float(vectors[row] @ vectors[place]) / 0.5 for place in rest}
        total -= scores[other] - math.log(sum(map(math.exp, scores.values())))
    assert question_contrast(vectors, answers, 0.5).item() == pytest.approx(total)


def test_pairs_with_equal_answers_are_no_negatives_of_each_other():
    questions, answers = unit([1, 0.2], [0.8, 1], [0.1, 1]), unit([1, 0], [0.3, 1], [1, 0])
    negatives, numbers = unit([1, 1], [1, 0]), torch.tensor([5, 7, 5])
    loss = pair_loss(questions, answers, negatives, numbers, torch.tensor([9, 5]), temperature=0.4, outliers=1.0)

    def entropy(row: torch.Tensor, right: torch.Tensor, others: list[torch.Tensor]) -> float:
        scores = [float(row @ one) / 0.4 for one in (right, *others)]
        return -scores[0] + math.log(sum(map(math.exp, scores)))

    to_answers = (
        entropy(questions[0], answers[0], [answers[1], negatives[0]])
        + entropy(questions[1], answers[1], [answers[0], answers[2], *negatives])
        + entropy(questions[2], answers[2], [answers[1], negatives[0]])
    )
    to_questions = (
        entropy(answers[0], questions[0], [questions[1]])
        + entropy(answers[1], questions[1], [questions[0], questions[2]])
        + entropy(answers[2], questions[2], [questions[1]])
    )
    assert loss.item() == pytest.approx((to_answers + to_questions) / 2)


def test_a_pair_out_of_scope_fits_no_answer_and_is_a_negative_of_all():
    questions, answers = unit([1, 0.2], [0.8, 1]).requires_grad_(), unit([1, 0], [0.3, 1])
    none = torch.zeros(0, 2, dtype=torch.float64)
    numbers = torch.tensor([5, OUT_OF_SCOPE])
    some = torch.zeros(0, dtype=torch.long)
    loss = pair_loss(questions, answers, none, numbers, some, temperature=1.0, outliers=1.0)
    scores = (questions @ answers[0]).tolist()
    # one candidate: nothing to choose for the first, and uniform already for the second
    wanted = (0 + (-scores[0] + math.log(math.exp(scores[0]) + math.exp(scores[1])))) / 2
    assert loss.item() == pytest.approx(wanted)
    loss.backward()
    assert questions.grad.isfinite().all()


def test_mined_negatives_are_similar_and_wrong():
    questions, answers = unit([1, 0], [0, 1]), unit([1, 0], [1, 0.01], [1, 1], [0, 1], [-1, 0])
    found = mine_negatives(questions, answers, torch.tensor([0, 3]), 2)
    # answer 1 is within the margin of question 0's right one and may be right, too
    assert found.tolist() == [[2, 3], [2, 1]]
    assert mine_negatives(questions[:1], answers, torch.tensor([OUT_OF_SCOPE]), 2).tolist() == [[0, 1]]
    assert mine_negatives(questions[:1], answers[:2], torch.tensor([0]), 1).tolist() == [[1]], "no others are left"


# examples


def rows(count: int) -> list[Row]:
    return [Row(("q", "a"), "data/train.tsv", line) for line in range(1, count + 1)]


def test_a_batch_of_pairs_is_what_one_writes_down_by_hand():
    texts = {"first": [1, 8, 8, 8, 2], "second": [1, 9, 2]}
    examples = AnswerExamples(
        [[1, 5, 2], [1, 6, 6, 2], [1, 2]], [1, OUT_OF_SCOPE, 0], texts, rows(3), pad=0, negatives=1
    )
    assert examples.lengths.tolist() == [[3, 3], [4, 1], [2, 5]]
    examples.negatives = torch.tensor([[1], [0], [1]])
    batch = examples.collate(Batch(np.array([2, 1]), (4, 5)))
    assert batch.tokens.tolist() == [[1, 2, 0, 0], [1, 6, 6, 2]]
    assert batch.answer_tokens.tolist() == [[1, 8, 8, 8, 2], [0, 0, 0, 0, 0]]
    assert (batch.answers.tolist(), batch.answer_lengths.tolist()) == ([0, OUT_OF_SCOPE], [5, 1])
    assert batch.negatives.tolist() == [1, 0]
    assert batch.negative_tokens.shape == (2, 16)
    assert batch.negative_tokens[0, :4].tolist() == [1, 9, 2, 0]


def test_negatives_are_the_state_of_the_examples_and_not_in_their_fingerprint():
    def make() -> AnswerExamples:
        return AnswerExamples([[1, 5, 2]] * 3, [0, 1, 2], {"a": [1], "b": [2], "c": [3]}, rows(3), pad=0, negatives=2)

    examples = make()
    before = examples.fingerprint()
    examples.negatives = torch.tensor([[2, 1], [0, 2], [1, 0]])
    assert examples.fingerprint() == before
    other = make()
    other.restore(examples.state())
    assert other.negatives.tolist() == [[2, 1], [0, 2], [1, 0]]
    one = AnswerExamples([[1, 5, 2]], [0], {"a": [1]}, rows(1), pad=0, negatives=2)
    assert one.negatives.shape == (1, 0), "where there is one answer, there are no wrong ones"
    assert one.collate(Batch(np.array([0]), (3, 1))).negative_tokens.shape[0] == 0


def test_other_questions_have_another_fingerprint():
    made = [TextExamples(q, a, rows(2), 0) for q, a in (([[1], [2]], [0, -1]), ([[1], [2]], [-1, 0]))]
    assert made[0].fingerprint() != made[1].fingerprint()


# detectors


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_the_area_under_the_curve_is_a_share_of_pairs(inside, outside):
    won = [(one > other) + (one == other) / 2 for one in inside for other in outside]
    found = area_under_curve(np.array(inside, dtype=np.float64), np.array(outside, dtype=np.float64))
    assert found == pytest.approx(sum(won) / len(won))


def test_the_area_under_the_curve_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    chance = np.random.default_rng(3)
    inside, outside = chance.integers(0, 40, 97).tolist(), chance.integers(0, 30, 53).tolist()
    truth = [1] * len(inside) + [0] * len(outside)
    wanted = metrics.roc_auc_score(truth, [*inside, *outside])
    found = area_under_curve(np.array(inside, dtype=np.float64), np.array(outside, dtype=np.float64))
    assert found == pytest.approx(wanted)


def test_the_distance_is_mahalanobis_own():
    chance = torch.Generator().manual_seed(3)
    vectors = torch.randn(400, 3, generator=chance) @ torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, 0, 0.3]])
    classes = torch.arange(400) % 2
    vectors = vectors + 5.0 * classes[:, None]
    fitted = Gaussians.fit(vectors, classes, 2)
    means = torch.stack([vectors[classes == one].mean(0) for one in (0, 1)]).double()
    rest = vectors.double() - means[classes]
    covariance = rest.T @ rest / 400
    covariance = 0.9 * covariance + 0.1 * covariance.diagonal().mean() * torch.eye(3)
    question = torch.tensor([[1.0, 2.0, 3.0]])
    squared = [(question.double() - mean) @ covariance.inverse() @ (question.double() - mean).T for mean in means]
    assert fitted.nearness(question).item() == pytest.approx(-(min(float(one) for one in squared) ** 0.5), rel=1e-4)
    assert fitted.nearness(question, torch.tensor([1])).item() == pytest.approx(-(float(squared[1]) ** 0.5), rel=1e-4)


def test_the_best_detector_on_dev_is_kept_and_rejects_the_stated_share():
    chance = np.random.default_rng(5)
    inside = np.arange(1100) < 1000
    good = chance.standard_normal(1100) + 3 * inside
    evidence = {"energy": chance.standard_normal(1100), "neighbours": good}
    fitted = Calibration.fit(evidence, good, inside, detector="auto", reject=0.05, temperature=1.0)
    assert fitted.detector == "neighbours"
    assert (good[inside] < fitted.thresholds["neighbours"]).mean() == 0.05
    assert fitted.auroc["neighbours"] == round(area_under_curve(good[inside], good[~inside]), 4)
    assert fitted == Calibration(**fitted.model_dump())
    for share in (0.0, 0.05, 0.123, 1.0):
        other = fitted.with_reject(share)
        assert (good[inside] < other.thresholds["neighbours"]).mean() == pytest.approx(share, abs=0.01), share
        assert other.reject == share
    assert fitted.with_reject(0.05).thresholds == pytest.approx(fitted.thresholds)
    assert fitted.with_reject(0.05).nearest == pytest.approx(fitted.nearest)
    alone = Calibration.fit(
        {name: scores[:1000] for name, scores in evidence.items()},
        good[:1000],
        inside[:1000],
        detector="auto",
        reject=0.1,
        temperature=1.0,
    )
    assert (alone.detector, alone.auroc) == ("mean", {}), "nothing to choose by"
    named = Calibration.fit(evidence, good, inside, detector="energy", reject=0.05, temperature=1.0)
    assert named.detector == "energy"


# ranking


def finder(index: AnswerIndex, neighbours: int = 10) -> AnswerFinder:
    made = AnswerFinder([], index.vectors.shape[1], AnswersSection(neighbours=neighbours), 0.05)
    made.index = index
    return made


def test_labels_that_were_removed_are_not_found_and_added_questions_have_a_vote():
    vectors = unit([1, 0, 0], [0, 1, 0], [0, 0.9, 0.1]).float().numpy()
    entries = [Entry(0, "zero", "a"), Entry(2, "two", "b"), Entry(2, "two", "c")]
    index = AnswerIndex.empty(3).extend(entries, vectors)
    scores = torch.tensor([[1.0, 9.0, 2.0], [1.0, 9.0, 2.0]])
    asked = unit([1, 0, 0], [0, 0, 1]).float()
    before = finder(index, neighbours=3).rank(asked, scores, best=5, temperature=1.0)
    assert before.ids[:, :2].tolist() == [[2, 0], [2, 0]], "label 1 is gone"
    assert before.scores[0, :2] == pytest.approx(torch.tensor([2.0, 1.0]).softmax(0).numpy())
    assert before.evidence["neighbours"].shape == (2,)
    more = index.extend([Entry(7, "seven", "d", added=True)], unit([0, 0, 1]).float().numpy())
    after = finder(more, neighbours=4).rank(asked, scores, best=5, temperature=1.0)
    assert after.ids[1, 0] == 7
    assert after.scores[1, 0] > 0.99
    assert after.ids[0, 0] == 2, "far from the added question the classifier decides"
    assert after.added.tolist() == [False, True]
    assert after.scores.sum(-1) == pytest.approx([1, 1])


def test_an_answer_of_a_pair_is_as_similar_as_the_nearest_of_its_vectors():
    vectors = unit([1, 0], [0, 1], [1, 1]).float().numpy()
    entries = [Entry(0, "zero", None), Entry(1, "one", None), Entry(1, "one", "a question")]
    index = AnswerIndex.empty(2).extend(entries, vectors)
    found = finder(index).rank(unit([0.6, 0.8]).float(), None, best=4, temperature=1.0)
    assert found.ids.tolist() == [[1, 0, -1, -1]]
    assert found.scores[0, :2] == pytest.approx([1.4 / 2**0.5, 0.6], abs=1e-6)
    empty = finder(AnswerIndex.empty(2)).rank(unit([1, 0]).float(), None, best=3, temperature=1.0)
    assert empty.ids.tolist() == [[-1, -1, -1]]


# scores


def prediction(*texts: str, known: bool = True, in_scope: float = 0.0) -> AnswerPrediction:
    matches = tuple(Match(number, text, 1.0 / (1 + number)) for number, text in enumerate(texts))
    evidence = {"energy": in_scope, "mean": in_scope}
    return AnswerPrediction(texts[0], known=known, matches=matches, in_scope=in_scope, evidence=evidence)


def test_scores_are_those_counted_by_hand():
    right = ["a", "b", "c", "d", "", ""]
    found = [
        prediction("a", "b", in_scope=3.0),
        prediction("x", "b", known=False, in_scope=1.0),
        prediction("x", "y", "z", "v", "w", "c", in_scope=2.0),
        prediction("x", in_scope=4.0),
        prediction("a", known=False, in_scope=1.0),
        prediction("a", in_scope=0.0),
    ]
    assert score_answers(right, found) == {
        "accuracy": 0.25,
        "recall_at_5": 0.5,
        "mrr": round((1 + 1 / 2 + 1 / 6) / 4, 4),
        "auroc": round((2 + 1.5 + 2 + 2) / 8, 4),
        "false_rejection_rate": 0.25,
        "false_acceptance_rate": 0.5,
    }
    report = make_report(right, found)
    worst, *_, best = report.split("\n\n")[0].splitlines()[1:]
    assert worst.split() == ["0.0000", "0.0000", "0.0000", "1", "1", "b"]
    assert "0.9375  energy" in report
    assert best.split()[-1] in "acdx"


def test_scores_without_questions_out_of_scope():
    assert score_answers(["a"], [prediction("a")]) == {
        "accuracy": 1.0,
        "recall_at_5": 1.0,
        "mrr": 1.0,
        "false_rejection_rate": 0.0,
    }


# baselines

KNOWN = [
    ("where is my card", "card"),
    ("my card has not arrived", "card"),
    ("what is the exchange rate", "rate"),
    ("rate for dollars", "rate"),
    ("信用卡丢了怎么办", "挂失"),
    ("我的卡丢了", "挂失"),
    ("who are you", ""),
]


@pytest.mark.parametrize("method", [score_bm25, score_tf_idf])
def test_baselines_find_answers_by_their_words(method):
    if method is score_bm25:
        pytest.importorskip("bm25s")
    asked = [("my card is where", "card"), ("dollars rate please", "rate"), ("卡丢了", "挂失"), ("hm", "")]
    found = method(KNOWN, asked)
    assert found.scores["accuracy"] == 1.0
    assert found.scores["auroc"] > 0.6
    assert set(found.scores) == {"accuracy", "recall_at_5", "mrr", "auroc"}


def test_words_of_chinese_are_characters():
    assert split_words("Ｖisa卡 card_arrival") == ["ｖisa", "卡", "card_arrival"]
