"""Models of n-grams, compared with scikit-learn and bm25s."""

import json
from concurrent.futures import ThreadPoolExecutor

import bm25s
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from clearhead.errors import CheckpointError, ConfigError, DataError, ShapeError
from clearhead.tasks.lexical.logistic_regression import LinearScores, fit_softmax
from clearhead.tasks.lexical.ngrams import Bm25, NgramFeatures, SparseRows, split_ngrams

ENGLISH = [
    "The film was good, good!",
    "a bad film",
    "GOOD story;  bad end",
    "ﬁne ６ İstanbul",
    "",
    "bad bad film",
    "one more, two more",
]
CHINESE = ["房间很大", "房间  很小 OK", "服务很好，房间很好", "早餐\n好", "早餐差ﬁ", "", "很好很好很好"]
TEXTS = st.lists(st.text("ab 好大 \n\tß.", max_size=11), min_size=1, max_size=7)
SPECIAL = ["\ud800 half", '</script>"\\', "__proto__ \x00 nul", "好"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters(rows: int = 61, width: int = 7, labels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.arange(rows) % labels
    return random(rows, width) + random(labels, width, seed=1)[targets], targets


def scikit_model(strength: float, **options: object) -> LogisticRegression:
    return LogisticRegression(C=strength, tol=1e-9, max_iter=10_000, **options)


def dense_rows(matrix: torch.Tensor) -> SparseRows:
    """Every value of a matrix as a sparse one, some of which are 0."""
    rows, width = matrix.shape
    return SparseRows(torch.arange(rows + 1) * width, torch.arange(width).repeat(rows), matrix.flatten(), width)


# TF-IDF


@pytest.mark.parametrize("rarest", [1, 2])
@pytest.mark.parametrize("texts", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_features_are_those_of_scikit_learn(texts, rarest):
    chinese = texts is CHINESE
    kind = {"analyzer": "char", "ngram_range": (1, 3)} if chinese else {"ngram_range": (1, 2)}
    theirs = TfidfVectorizer(**kind, sublinear_tf=True, min_df=rarest).fit(texts)
    features = NgramFeatures.fit(texts, rarest=rarest)
    assert features.characters == chinese
    assert list(features.counts) == list(theirs.get_feature_names_out())
    unseen = [*texts, "a good good good film was here", "房间好"]
    assert np.allclose(features.transform(unseen).dense(), theirs.transform(unseen).toarray(), atol=1e-6)


@given(TEXTS, st.booleans())
def test_a_row_has_unit_length_or_nothing(texts, characters):
    try:
        features = NgramFeatures.fit(texts, characters=characters)
    except DataError:
        assert not any(split_ngrams(text, 1, characters) for text in texts)
        return
    lengths = features.transform([*texts, "?"]).dense().norm(dim=1)
    known = [bool(set(split_ngrams(text, 2, characters)) & features.counts.keys()) for text in [*texts, "?"]]
    assert torch.allclose(lengths, torch.tensor(known).float(), atol=1e-6)
    assert all(count <= len(texts) for count in features.counts.values())


def test_the_n_grams_of_most_texts_are_kept_the_first_in_order_among_equals():
    texts = ["dd bb", "dd aa", "dd cc"]
    assert list(NgramFeatures.fit(texts, most=3).counts) == ["aa", "bb", "dd"]
    assert NgramFeatures.fit(texts, most=3).counts["dd"] == 3


def test_texts_without_n_grams_are_refused():
    with pytest.raises(DataError, match=r"no n-gram of words of two letters or more is in 1 of 2 texts; give more"):
        NgramFeatures.fit(["!", "a b"])
    with pytest.raises(DataError, match="no n-gram of characters is in 2 of 1 texts"):
        NgramFeatures.fit(["好"], rarest=2)


def test_features_come_back_from_their_file_whatever_the_texts_hold(tmp_path):
    features = NgramFeatures.fit(SPECIAL, characters=True)
    features.save(tmp_path)
    loaded = NgramFeatures.load(tmp_path)
    assert list(loaded.counts.items()) == list(features.counts.items())
    for ours, theirs in zip(loaded.transform(SPECIAL), features.transform(SPECIAL), strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "was written by a newer clearhead"),
        ({"characters": 1}, "lacks characters"),
        ({"texts": "7"}, "lacks characters"),
        ({"ngrams": {}}, "or ngrams with counts"),
        ({"ngrams": ["a"]}, "or ngrams with counts"),
        ({"ngrams": {"aa": 8}}, "'aa' is in 8 of 7 texts"),
        ({"ngrams": {"aa": 0}}, "'aa' is in 0 of 7 texts"),
        ({"ngrams": {"aa": True}}, "'aa' is in True of 7 texts"),
        ({"ngrams": {"aa": float("nan")}}, "'aa' is in nan of 7 texts"),
    ],
)
def test_a_damaged_file_of_n_grams_is_refused_in_one_line(change, said, tmp_path):
    NgramFeatures.fit(ENGLISH).save(tmp_path)
    path = tmp_path / "ngrams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=said) as caught:
        NgramFeatures.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_threads_may_share_features():
    features, bm25 = NgramFeatures.fit(CHINESE), Bm25.fit(CHINESE)
    wanted, ranked = features.transform(CHINESE).dense(), bm25.scores(CHINESE)
    with ThreadPoolExecutor(4) as pool:
        for matrix in pool.map(lambda _: features.transform(CHINESE).dense(), range(23)):
            assert torch.equal(matrix, wanted)
        for scores in pool.map(lambda _: bm25.scores(CHINESE), range(23)):
            assert torch.equal(scores, ranked)


# the sparse matrix


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=7))
def test_sparse_products_are_those_of_the_dense_matrix(rows):
    dense = torch.tensor(rows, dtype=torch.float64)
    places = dense.nonzero()
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (dense != 0).sum(1).cumsum(0)])
    sparse = SparseRows(starts, places[:, 1], dense[dense != 0], 5)
    assert torch.equal(sparse.dense(), dense)
    assert torch.equal(sparse.T.dense(), dense.T)
    assert torch.allclose(sparse @ random(5, 3), dense @ random(5, 3))
    assert torch.allclose(sparse.T @ random(len(rows), 2), dense.T @ random(len(rows), 2))


# logistic regression


@pytest.mark.parametrize("strength", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_regression_is_that_of_scikit_learn(strength, sparse):
    features, targets = clusters()
    weights = random(61, seed=2).abs()
    theirs = scikit_model(strength).fit(features, targets, sample_weight=weights.numpy())
    ours = fit_softmax(dense_rows(features) if sparse else features, targets, strength=strength, weights=weights)
    assert np.allclose(ours.weight.T, theirs.coef_, rtol=1e-3, atol=1e-3 * abs(theirs.coef_).max())
    shares = ours.scores(features).softmax(1)
    assert np.allclose(shares, theirs.predict_proba(features), atol=1e-3)
    assert shares.argmax(1).tolist() == theirs.predict(features).tolist()


def test_two_labels_need_half_of_the_strength_of_scikit_learn():
    features, targets = clusters(labels=2)
    ours = fit_softmax(features, targets, strength=1.5).scores(features).softmax(1)
    assert np.allclose(ours, scikit_model(3.0).fit(features, targets).predict_proba(features), atol=1e-4)


def test_several_labels_are_one_regression_each_with_weights_of_their_own():
    features, _ = clusters()
    targets = (features @ random(7, 3, seed=3) + random(61, 3, seed=4) > 0.5).double()
    balanced = torch.where(targets == 1, 0.5 / targets.mean(0), 0.5 / (1 - targets.mean(0)))
    ours = fit_softmax(features, targets, strength=2.0, weights=balanced, multi_label=True)
    for number in range(3):
        theirs = scikit_model(2.0, class_weight="balanced").fit(features, targets[:, number])
        assert np.allclose(ours.weight[:, number], theirs.coef_[0], rtol=1e-3, atol=1e-3 * abs(theirs.coef_).max())
        assert ours.bias[number].item() == pytest.approx(theirs.intercept_[0], rel=1e-3, abs=1e-3)


def test_a_soft_target_is_as_several_rows_with_weights():
    features, targets = clusters()
    soft = torch.nn.functional.one_hot(targets) * 0.75 + torch.tensor([0.25, 0.0, 0.0])
    hard = fit_softmax(
        torch.cat([features, features]),
        torch.cat([targets, torch.zeros_like(targets)]),
        strength=2.0,
        weights=torch.cat([torch.full((61,), 0.75), torch.full((61,), 0.25)]),
    )
    assert torch.allclose(fit_softmax(features, soft, strength=2.0).weight, hard.weight, atol=1e-4)


@given(st.integers(0, 99), st.sampled_from([0.01, 1.0, 1e4]), st.booleans())
def test_the_gradient_vanishes_at_the_result(seed, strength, multi_label):
    features, targets = random(13, 5, seed=seed) * 3, torch.arange(13) % 3
    goals = torch.nn.functional.one_hot(targets).double()
    model = fit_softmax(features, goals, strength=strength, multi_label=multi_label)
    shares = model.scores(features).sigmoid() if multi_label else model.scores(features).softmax(1)
    gradient = strength * features.T @ (shares - goals) + model.weight
    assert gradient.abs().max() < 1e-3 + 1e-9 * strength


def test_a_label_that_all_rows_have_is_answered_for_all():
    features, targets = clusters()
    assert (fit_softmax(features, torch.ones(61, 1), strength=1.0, multi_label=True).scores(features) > 0).all()
    assert fit_softmax(features, torch.zeros_like(targets), strength=1.0).weight.abs().max() == 0


def test_a_linear_model_keeps_the_dtype_and_can_be_stored(tmp_path):
    features, targets = clusters()
    model = fit_softmax(features.float(), targets, strength=1.0)
    assert model.weight.dtype == torch.float32
    save_file({name: tensor.contiguous() for name, tensor in model._asdict().items()}, tmp_path / "linear.safetensors")
    loaded = LinearScores(**load_file(tmp_path / "linear.safetensors"))
    assert torch.equal(loaded.scores(features.float()), model.scores(features.float()))


def test_what_cannot_be_fitted_is_refused():
    features, targets = clusters()
    with pytest.raises(ConfigError, match=r"must be larger than 0, got nan and 61.0"):
        fit_softmax(features, targets, strength=float("nan"))
    with pytest.raises(ConfigError, match=r"must be larger than 0, got 1.0 and 0.0"):
        fit_softmax(features[:0], targets[:0], strength=1.0)
    with pytest.raises(ShapeError, match="61 rows of features have 60 targets; give one for each row"):
        fit_softmax(features, targets[1:], strength=1.0)
    with pytest.raises(DataError, match="do not add up to 1; correct them, or set multi_label=True"):
        fit_softmax(features, torch.ones(61, 2), strength=1.0)
    with pytest.raises(DataError, match="got NaN or infinite features"):
        fit_softmax(features / 0, targets, strength=1.0)


def test_a_fit_that_does_not_converge_warns(monkeypatch):
    monkeypatch.setattr("clearhead.tasks.lexical.logistic_regression.LARGEST_STEPS", 1)
    with pytest.warns(UserWarning, match="did not converge in 1 steps; scale the features"):
        fit_softmax(*clusters(), strength=1.0)


# BM25


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_bm25_is_that_of_bm25s(texts):
    chinese = texts is CHINESE
    ngrams = [split_ngrams(text, 2 if chinese else 1, chinese) for text in texts]
    numbers = {ngram: number for number, ngram in enumerate(dict.fromkeys(ngram for text in ngrams for ngram in text))}
    theirs = bm25s.BM25(k1=1.5, b=0.75)
    theirs.index(([[numbers[ngram] for ngram in text] for text in ngrams], numbers), show_progress=False)
    scores = Bm25.fit(texts).scores(texts)
    for row, query in zip(scores, ngrams, strict=True):
        assert np.allclose(row, theirs.get_scores(query) if query else 0, atol=1e-5)


def test_bm25_by_hand():
    scores = Bm25.fit(["aa bb", "aa", "cc"]).scores(["bb zz"])
    rarity, length = np.log(1 + 2.5 / 1.5), 1.5 * (0.25 + 0.75 * 2 / (4 / 3))
    assert scores.tolist() == [[pytest.approx(rarity / (1 + length)), 0, 0]]


def test_scores_have_a_row_for_each_query_and_a_column_for_each_document():
    assert Bm25.fit([]).scores(["why"]).shape == (1, 0)
    assert Bm25.fit(["", "!"]).scores(["why"]).tolist() == [[0, 0]]
    assert Bm25.fit(["why"]).scores([]).shape == (0, 1)
    many = Bm25.fit(CHINESE).scores(CHINESE * 19)  # more than one block
    assert torch.allclose(many, Bm25.fit(CHINESE).scores(CHINESE).repeat(19, 1))
