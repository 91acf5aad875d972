"""One predictor in several threads: everybody gets what they would have got alone."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import clearhead
from clearhead.errors import ConfigError
from clearhead.lens import Record
from clearhead.predictor import Predictor
from clearhead.tasks import Prediction

SUBJECTS = ["我", "老师", "孩子们", "她妈妈"]
ENDINGS = ["爱你。", "在吃米饭。", "昨天买了一本新书。", "今天去公园吗?", "不知道这个问题的答案。"]
PAIRS = [[subject + ending for subject in SUBJECTS[n : n + 2]] for n in (0, 2) for ending in ENDINGS]
THREADS = 4


@pytest.fixture(scope="module")
def translator() -> Predictor:
    return clearhead.load("zh-en", device="cpu")


def test_twenty_sentences_from_four_threads_have_the_texts_and_scores_of_one_thread(translator):
    alone = [one for pair in PAIRS for one in translator.predict(pair, beams=2)]
    assert len(alone) == 20
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda pair: translator.predict(pair, beams=2), PAIRS)
        together = [one for pair in answers for one in pair]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.score for one in together] == [one.score for one in alone]


def while_another_predicts(translator: Predictor, work: Callable[[], None]) -> list[list[Prediction]]:
    """What a second thread answered to the first pairs of sentences, over and over, while this one worked."""
    done, ready, answers = threading.Event(), threading.Event(), []

    def predict() -> None:
        for number in itertools.count():
            answers.append(translator.predict(PAIRS[number % 3], beams=2))
            ready.set()
            if done.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(predict)
        try:
            assert ready.wait(60)
            work()
        finally:
            done.set()
        other.result()
    return answers


def test_looking_while_another_thread_predicts_changes_neither_the_record_nor_the_answers(translator):
    text = PAIRS[7][0]
    alone, wanted = translator.look(text), [translator.predict(pair, beams=2) for pair in PAIRS[:3]]

    def look() -> None:
        for _ in range(3):
            assert_same(translator.look(text), alone)

    answers = while_another_predicts(translator, look)
    assert len(answers) > 2
    assert answers == [wanted[number % 3] for number in range(len(answers))]


def assert_same(one: Record, other: Record) -> None:
    assert one.names == other.names
    for call, same in zip(one.calls, other.calls, strict=True):
        assert call.about == same.about
        assert {kind: ids.tolist() for kind, ids in call.ids.items()} == {
            kind: ids.tolist() for kind, ids in same.ids.items()
        }
        for name in one.names:
            for measure in ("map", "entropy", "received"):
                assert torch.equal(getattr(call[name], measure), getattr(same[name], measure)), (name, measure)


def test_records_that_differ_are_not_taken_for_the_same(translator):
    with pytest.raises(AssertionError):
        assert_same(translator.look(PAIRS[0][0]), translator.look(PAIRS[1][0]))


def test_which_threads_are_heard_is_no_option_of_looking(translator):
    with pytest.raises(ConfigError, match="no option 'own_thread'"):
        translator.look("我", own_thread=False)
