"""The judge of every way of measuring: the float64 definition on the very same inputs, and DESIGN.md's accuracy line.

A measure may be off by `8·eps·(1 + the largest |score|)·(1 + |value|)`, with the eps of the arithmetic: float32's, also
for half precision, whose rounding of q and k the judge shares. A score is what the softmax gets: scaled, capped, with
its bias; under a cap the products may be larger by far. Of keys whose scores are closer together than that,
any may come first; `assert_same_keys` is for inputs without rounding, where ties go to the smallest key.
"""

import dataclasses

import torch
from torch import Tensor

from clearhead.attention import reference
from clearhead.lens.measures.definition import MeasureJob, Measures, measure_by_definition

TENSORS = [field.name for field in dataclasses.fields(Measures) if field.name != "span_names"]


def in_float64(job: MeasureJob) -> MeasureJob:
    """The same job, on the same numbers, in double precision; a logsumexp that was given is worked out anew."""
    call = job.call
    doubled = call._replace(
        q=call.q.double(),
        k=call.k.double(),
        v=call.v.double(),
        scale=call.scale.double() if isinstance(call.scale, Tensor) else call.scale,
        bias=None if call.bias is None else call.bias.replace(call.bias.parameter.double()),
        sinks=None if call.sinks is None else call.sinks.double(),
    )
    return job._replace(call=doubled, logsumexp=None)


def assert_exact(found: Measures, job: MeasureJob) -> None:
    """Every measure within the accuracy line; keys among the best; sums that add up."""
    exact = in_float64(job)
    truth, scores = measure_by_definition(exact), _scores(exact)
    eps = torch.finfo(torch.promote_types(job.call.q.dtype, torch.float32)).eps
    finite = scores.masked_fill(scores == -torch.inf, 0.0).abs()
    slack = 8 * eps * (1 + (finite.max().item() if finite.numel() else 0.0))
    assert found.span_names == truth.span_names
    for name in TENSORS:
        value, right = getattr(found, name), getattr(truth, name)
        if right is None or value is None:
            assert value is right, f"{name} is {value!r}, and should be {right!r}"
            continue
        assert value.shape == right.shape, f"{name} is {tuple(value.shape)}, not {tuple(right.shape)}"
        if value.is_floating_point():
            _assert_close(value, right, slack, name)
    _assert_best(found.peak_key[..., None], truth.peak_key[..., None], scores, slack, "peak_key")
    _assert_best(found.top_keys, truth.top_keys, scores, slack, "top_keys")
    own = _at(reference.weights(exact.call)[:, :, _rows(exact)], found.top_keys, 0.0)
    _assert_close(found.top_weights, own, slack, "top_weights, by its own keys,")
    _assert_sums(found, exact, slack)


def assert_same_keys(found: Measures, job: MeasureJob) -> None:
    """The very keys of the definition, ties included: for small whole numbers, whose scores have no rounding."""
    truth = measure_by_definition(in_float64(job))
    for name in ("peak_key", "top_keys"):
        wrong = getattr(found, name) != getattr(truth, name)
        assert not wrong.any(), f"{name}: {getattr(found, name)[wrong][:8]} for {getattr(truth, name)[wrong][:8]}"


def _rows(job: MeasureJob) -> Tensor:
    return torch.tensor(job.rows, dtype=torch.long, device=job.call.q.device)


def _scores(job: MeasureJob) -> Tensor:
    """(batch, heads, rows, keys), −inf where hidden"""
    scores, visible = (t.expand(job.call.sizes)[:, :, _rows(job)] for t in reference.scores(job.call))
    return scores.masked_fill(~visible, -torch.inf)


def _at(values: Tensor, keys: Tensor, missing: float) -> Tensor:
    """The value of each key, and what a key of −1 has instead."""
    if values.shape[-1] == 0:
        return values.new_full(keys.shape, missing)
    return values.gather(-1, keys.clamp(min=0).long()).masked_fill(keys < 0, missing)


def _assert_close(value: Tensor, right: Tensor, slack: float, name: str) -> None:
    assert torch.equal(value == -torch.inf, right == -torch.inf), f"{name} is −inf elsewhere"
    value, right = (t.double().masked_fill(t == -torch.inf, 0.0) for t in (value, right))
    error, limit = (value - right).abs(), slack * (1 + right.abs())
    wrong = ~(error <= limit)  # so that a NaN is wrong
    if wrong.any():
        worst = (error / limit).nan_to_num(nan=torch.inf).flatten().argmax()
        raise AssertionError(
            f"{name} is off by {error.flatten()[worst]:.2e} at {right.flatten()[worst]:.6g}, {int(worst)} of "
            f"{tuple(right.shape)}: the limit is {limit.flatten()[worst]:.2e} ({int(wrong.sum())} are wrong)"
        )


def _assert_best(keys: Tensor, right: Tensor, scores: Tensor, slack: float, name: str) -> None:
    """Different visible keys, each with as good a score as its place demands; −1 where there is none left."""
    assert not keys.is_floating_point(), f"{name} are whole numbers"
    assert torch.equal(keys < 0, right < 0), f"{name} has keys where there are none, or none where there are"
    assert bool(((keys >= -1) & (keys < max(scores.shape[-1], 1))).all()), f"{name} has keys out of range"
    ordered = keys.sort(-1).values
    assert not bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()), f"{name} repeats a key"
    behind = _at(scores, right, 0.0) - _at(scores, keys, 0.0)
    assert bool((behind <= slack).all()), f"{name}: a key whose score is {behind.max().item():.2e} below the best"


def _assert_sums(found: Measures, exact: MeasureJob, slack: float) -> None:
    """Each query that sees anything gives one, less what its sink takes."""
    scores, sinks = _scores(exact), exact.call.sinks
    given = (scores > -torch.inf).any(-1).double()
    if sinks is not None:
        logits = sinks.view(1, -1, 1)
        total = torch.logaddexp(scores.logsumexp(-1), logits.expand(given.shape))
        given = given * (1 - (logits - total).exp().nan_to_num())
    wanted = given.sum(-1)
    if found.received is not None:
        _assert_close(found.received.double().sum(-1), wanted, slack, "the sum of received")
    if 0 not in exact.blocks:
        _assert_close(found.map.double().sum((-1, -2)), wanted, slack, "the sum of the map")
