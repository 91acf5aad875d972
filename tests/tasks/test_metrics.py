"""BLEU and chrF are sacrebleu's, with the signatures that say how they were computed."""

import pytest
import sacrebleu

import clearhead
from clearhead.errors import DataError
from clearhead.tasks.metrics import translation_scores
from clearhead.tasks.translation import TranslationAnswerer, TranslationOptions
from tests.tasks.translators import learned, prepared, rows_of, untrained, write
from tests.train.corpus import sentences

OUTPUTS = ["The cat sat on the mat.", "He never said that, did he?", "我", ""]
REFERENCES = ["The cat sat on a mat.", "he has never said that, has he?", "我们", "Nothing"]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "intl"])
def test_scores_are_those_of_sacrebleu(tokenize, lowercase):
    scores = translation_scores(OUTPUTS, REFERENCES, tokenize=tokenize, lowercase=lowercase)
    bleu = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], tokenize=tokenize, lowercase=lowercase)
    chrf = sacrebleu.metrics.CHRF(lowercase=lowercase).corpus_score(OUTPUTS, [REFERENCES])
    assert scores["bleu"] == round(bleu.score, 2)
    assert scores["chrf"] == round(chrf.score, 2)
    case = "lc" if lowercase else "mixed"
    assert scores["bleu_signature"].startswith(f"nrefs:1|case:{case}|eff:no|tok:{tokenize}|smooth:exp|version:")
    assert scores["chrf_signature"].startswith(f"nrefs:1|case:{case}|eff:yes|nc:6|nw:0|space:no|version:")


def test_a_case_counted_by_hand():
    # 1-grams 5 of 6, 2-grams 3 of 5, 3-grams 2 of 4, 4-grams 1 of 3, and as long as the reference.
    scores = translation_scores(["a b c d x f"], ["a b c d e f"])
    assert scores["bleu"] == round(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, 2)


def test_evaluate_scores_the_answers_of_predict(tmp_path):
    translator = clearhead.load(write(tmp_path / "toy", learned().processor, learned().model), device="cpu")
    pairs = sentences(30, seed=21)
    answers = [answer.text for answer in translator.predict([chinese for chinese, _ in pairs], beams=2)]
    scores = translator.evaluate(rows_of(pairs), beams=2)
    assert scores == translation_scores(answers, [english for _, english in pairs])
    assert scores["bleu"] == round(sacrebleu.corpus_bleu(answers, [[english for _, english in pairs]]).score, 2)
    assert scores["bleu"] > 50
    shouted = [(chinese, english.upper()) for chinese, english in pairs]
    assert translator.evaluate(rows_of(shouted), beams=2)["bleu"] < 50
    assert translator.evaluate(rows_of(shouted), beams=2, lowercase=True)["bleu"] == scores["bleu"]


def test_pairs_without_a_side_are_left_out_and_named():
    answerer, wanted = learned(), TranslationOptions()
    pairs = sentences(7, seed=21)
    rows = rows_of(pairs, "dev.tsv")
    scores = answerer.evaluate(rows, wanted).scores
    holes = [*pairs[:3], ("", "I"), *pairs[3:], ("我", " \u200b"), ("", "")]
    found = answerer.evaluate(rows_of(holes, "dev.tsv"), wanted)
    assert found.scores == {**scores, "note": "kept 7 of 10; dropped 3 with an empty side (dev.tsv:4, :9, :10)"}
    assert [row.values for row in found.rows] == pairs
    assert [answer.text for answer in found.predictions] == [
        answer.text for answer in answerer.predict([chinese for chinese, _ in pairs], wanted)
    ]
    with pytest.raises(DataError, match="no row is left to score: kept 0 of 1; dropped 1 with an empty side"):
        answerer.evaluate(rows_of([("", "I")]), wanted)


def test_chinese_is_scored_by_characters():
    turned = [(english, chinese) for chinese, english in sentences(40)]
    processor = prepared(turned)
    assert processor.settings["bleu_tokenizer"] == "zh"
    answerer = TranslationAnswerer(processor, untrained(processor))
    assert "|tok:zh|" in answerer.evaluate(rows_of(turned[:5]), TranslationOptions()).scores["bleu_signature"]
    assert prepared(sentences(40)).settings["bleu_tokenizer"] == "13a"
    assert prepared(turned, bleu_tokenizer="char").settings["bleu_tokenizer"] == "char"


def test_no_lines_cannot_be_scored():
    with pytest.raises(DataError, match="no rows to score"):
        translation_scores([], [])
