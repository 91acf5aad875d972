"""The judge of the measures can say no: to every field, to a wrong key, to NaN, and to a sum that does not add up."""

import dataclasses

import pytest
import torch

from clearhead.lens.measures.definition import Measures, measure_by_definition
from tests.lens.cases import CASES
from tests.lens.tolerances import TENSORS, assert_exact, assert_same_keys

JOB = CASES["causal, padding left"].job()


def changed(**fields: object) -> Measures:
    return dataclasses.replace(measure_by_definition(JOB), **fields)


@pytest.mark.parametrize("name", CASES)
def test_the_definition_in_float32_passes(name):
    job = CASES[name].job()
    assert_exact(measure_by_definition(job), job)


@pytest.mark.parametrize("name", TENSORS)
def test_one_wrong_number_is_found(name):
    value = getattr(measure_by_definition(JOB), name).clone()
    last = (0,) + (-1,) * (value.ndim - 1)  # sample 0, the last of everything else: a query that sees much
    value[last] += {"peak_key": -3, "top_keys": 3}.get(name, 0.1)
    with pytest.raises(AssertionError, match=name.split("_")[0]):
        assert_exact(changed(**{name: value}), JOB)


@pytest.mark.parametrize("name", ["entropy", "received", "map", "top_weights"])
def test_a_nan_is_found(name):
    value = getattr(measure_by_definition(JOB), name).clone()
    value.view(-1)[5] = torch.nan
    with pytest.raises(AssertionError, match=name):
        assert_exact(changed(**{name: value}), JOB)


def test_an_error_somewhat_beyond_the_line_is_found_and_one_within_is_not():
    value, eps = measure_by_definition(JOB).entropy, torch.finfo(torch.float32).eps
    assert_exact(changed(entropy=value + eps), JOB)
    with pytest.raises(AssertionError, match="entropy is off by"):
        assert_exact(changed(entropy=value + 60 * eps * (1 + value)), JOB)


def test_a_key_that_is_hidden_or_named_twice_is_found():
    seen = measure_by_definition(JOB)
    twice, hidden, missing = seen.top_keys.clone(), seen.top_keys.clone(), seen.top_keys.clone()
    twice[0, 0, -1, 1], hidden[0, 0, 9, 0], missing[0, 0, -1, 2] = twice[0, 0, -1, 0], 162, -1
    for wrong, word in ((twice, "repeats"), (hidden, "below the best"), (missing, "none where there are")):
        with pytest.raises(AssertionError, match=word):
            assert_exact(changed(top_keys=wrong), JOB)


def test_what_is_missing_or_has_another_shape_is_found():
    with pytest.raises(AssertionError, match="received is None"):
        assert_exact(changed(received=None), JOB)
    with pytest.raises(AssertionError, match="map is"):
        assert_exact(changed(map=measure_by_definition(JOB).map[..., 1:]), JOB)


def test_a_blind_query_must_say_so():
    value = measure_by_definition(JOB).logsumexp.nan_to_num(neginf=0.0)
    with pytest.raises(AssertionError, match="−inf elsewhere"):
        assert_exact(changed(logsumexp=value), JOB)


def test_the_later_of_two_equal_keys_is_found():
    job = CASES["all alike"].job()
    seen = measure_by_definition(job)
    last = torch.where(seen.peak_key < 0, -1, seen.peak_key + 1)  # as good a score, but not the first
    with pytest.raises(AssertionError, match="peak_key"):
        assert_same_keys(dataclasses.replace(seen, peak_key=last), job)
    assert_same_keys(seen, job)
