"""Fewer queries, spans of keys and the largest score: against the weights in float64, for tensors and whole models."""

import math

import pytest
import torch

from clearhead import KeyValueCache, Mask, Record, measure, watch
from clearhead.attention import reference
from clearhead.decode import Writer, beam
from clearhead.errors import LensError, RecordError, ShapeError
from clearhead.lens import expected_bytes
from clearhead.lens.measures.definition import MeasureJob, choose_blocks, sum_blocks
from clearhead.lens.measures.measure_dispatch import run_job
from clearhead.lens.measures.selections import FAR, find_query_runs
from tests.lens import huggingface_zoo as zoo
from tests.lens.cases import CASES, SPANS
from tests.lens.seen_calls import SHAPES, built, tokens
from tests.lens.tolerances import TENSORS, in_float64

CHOICES = {
    "the last": slice(-5, None),
    "every third": slice(2, 90, 3),
    "positions": (0, 1, 2, 17, 40, 41, 77, -1),
    "none": slice(7, 7),
}


def chosen_rows(choice: slice | tuple[int, ...], queries: int) -> list[int]:
    if isinstance(choice, slice):
        return list(range(queries))[choice]
    return sorted({row % queries for row in choice if -queries <= row < queries})


def assert_measures_rows(found, job: MeasureJob, rows: list[int], pixels: int) -> None:
    """Every measure of these queries, within the accuracy line of what follows from the weights in float64."""
    exact = in_float64(job)
    whole, weights = run_job(exact, "defined"), reference.weights(exact.call)[:, :, rows]
    scores, visible = (t.expand(job.call.sizes)[:, :, rows] for t in reference.scores(exact.call))
    scores = scores.masked_fill(~visible, -math.inf)
    keys = job.call.k.shape[2]
    high, wide = choose_blocks(len(rows), keys, pixels)
    per_query = {
        name: getattr(whole, name)[:, :, rows] for name in TENSORS if name not in ("received", "map", "max_score")
    }
    sums = {"received": weights.sum(2), "map": sum_blocks(sum_blocks(weights, high, 2), wide, 3)}
    sums["max_score"] = torch.nn.functional.pad(scores.flatten(2), (0, 1), value=-math.inf).amax(-1)
    finite = scores.masked_fill(scores == -math.inf, 0.0).abs()
    slack = 8 * torch.finfo(torch.float32).eps * (1 + (finite.max().item() if finite.numel() else 0.0))
    for name, right in (per_query | sums).items():
        value = getattr(found, name)
        assert value.shape == right.shape, name
        if value.is_floating_point() and value.numel():
            torch.testing.assert_close(
                value.double(), right, rtol=slack, atol=slack, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if "every" not in case.asked and "no " not in name]
)
def test_chosen_queries_are_measured_as_they_are_among_all(name, choice):
    job = CASES[name].job()
    call, pixels = job.call, 13
    rows = chosen_rows(choice, call.q.shape[2])
    given = choice if isinstance(choice, slice) else [row for row in choice if row < call.q.shape[2]]
    scale = call.scale.flatten() if isinstance(call.scale, torch.Tensor) else call.scale
    options = {"scale": scale, "bias": call.bias, "softcap": call.softcap, "sinks": call.sinks}
    found = measure(
        call.q, call.k, call.mask, **options, pixels=pixels, top=5, queries=given, spans=SPANS, offset=job.offset
    )
    assert_measures_rows(found, job._replace(top=5), rows, pixels)


def test_by_hand():
    x = torch.eye(4)[None, None]
    seen = measure(x, x, Mask.causal(), scale=math.log(3.0), queries=[3], spans={"a": slice(0, 2), "b": slice(3, None)})
    assert seen.mass["a"].item() == pytest.approx(2 / 6)
    assert seen.mass["b"].item() == pytest.approx(3 / 6)
    assert seen.max_score.item() == pytest.approx(math.log(3.0))
    assert seen.received[0, 0].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 3 / 6])
    assert measure(x, x).mass == {}
    with pytest.raises(RecordError, match=r"no span is called 'c'; there are 'a', 'b': spans="):
        seen.mass["c"]
    with pytest.raises(RecordError, match=r"no span is called 'c'; none were given"):
        measure(x, x).mass["c"]


def test_runs_of_queries():
    assert find_query_runs(slice(None), 3, 4) == [range(4)]
    assert find_query_runs(slice(1, None, 4), 3, 8) == [range(2, 7, 4)]
    assert find_query_runs(slice(-1, None), 9, 1) == [range(1)]
    assert find_query_runs(slice(0, 3), 9, 1) == []
    assert find_query_runs((5, 5, -1), 5, 3) == [range(0, 3, 2)]


def test_the_mask_is_evaluated_for_the_chosen_queries_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(Mask.causal().__class__, "blocks", lambda self, queries, *_: asked.append(queries))
    q, k = torch.randn(1, 2, 3000, 8), torch.randn(1, 2, 3000, 8)
    with pytest.raises(TypeError):
        measure(q, k, Mask.causal(), queries=slice(-7, None))
    assert asked == [7]


WRONG = [True, "last", 1.5, [1, 2.0], slice(None, None, -1), slice(0.5, 2)]


@pytest.mark.unchecked
@pytest.mark.parametrize("queries", WRONG, ids=repr)
def test_queries_of_another_kind_are_refused(queries):
    x = torch.randn(1, 1, 5, 3)
    with pytest.raises(ShapeError, match="queries are"):
        measure(x, x, queries=queries)
    with pytest.raises(LensError, match="queries are"), watch(built("Decoder"), queries=queries):
        pass


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "spans", [[slice(0, 2)], {"a": 3}, {"a": slice(0, 9, 2)}, {1: slice(0, 2)}, {"a": (0, 2)}], ids=repr
)
def test_spans_of_another_kind_are_refused(spans):
    x = torch.randn(1, 1, 5, 3)
    with pytest.raises(ShapeError, match="span"):
        measure(x, x, spans=spans)
    with pytest.raises(LensError, match="span"), watch(built("Decoder"), spans=spans):
        pass


@pytest.mark.unchecked
def test_positions_may_be_numbers_of_numpy_and_of_tensors():
    numpy, x = pytest.importorskip("numpy"), torch.randn(1, 1, 5, 3)
    for queries in (numpy.array([1, 3]), [numpy.int64(1), torch.tensor(3)], slice(numpy.int64(1), torch.tensor(4), 2)):
        assert torch.equal(measure(x, x, queries=queries).entropy, measure(x, x, queries=[1, 3]).entropy)
    spans = {"a": slice(numpy.int64(1), torch.tensor(4))}
    assert torch.equal(measure(x, x, spans=spans).mass["a"], measure(x, x, spans={"a": slice(1, 4)}).mass["a"])


def test_what_excludes_each_other_is_refused():
    x = torch.randn(1, 1, 5, 3)
    with pytest.raises(ShapeError, match="5 queries, numbered from 0"):
        measure(x, x, queries=[5])
    with pytest.raises(ShapeError, match="exclude each other"):
        measure(x, x, queries=[1], every=2)
    words = r"rows=0\.25 and queries= exclude each other: queries=slice\(3, None, 4\) is one in 4"
    with pytest.raises(LensError, match=words), watch(built("Decoder"), rows=1 / 4, queries=[1]):
        pass


SPAN = {"prompt": slice(0, 7), "then": slice(7, None), "middle": slice(3, 9), "last of the prompt": slice(-2, None)}


def weights_of(record: Record, name: str) -> torch.Tensor:
    """All weights, from q and k that were kept beside."""
    sight = record[name]
    heads = [[sight.weights(batch, head) for head in sight.heads] for batch in range(len(sight.inputs))]
    return torch.stack([torch.stack(one) for one in heads])


def assert_records_rows(chosen: Record, whole: Record, *, prompt: int | None = None) -> None:
    """What one watch recorded of some queries, against the weights of all of another that kept q and k."""
    assert chosen.names == whole.names
    for name in chosen.names:
        some, full = chosen[name], whole[name]
        weights = weights_of(whole, name)
        keep = [row for row, position in enumerate(full.queries.tolist()) if position in some.queries.tolist()]
        assert some.queries.tolist() == full.queries[keep].tolist()
        for measure_name in TENSORS:
            if measure_name not in ("received", "map", "max_score", "span_mass"):
                one, other = getattr(some, measure_name), getattr(full, measure_name)[:, :, keep]
                if one.is_floating_point():
                    torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
                else:  # of nearly equal scores either key may come first
                    assert (one != other).sum() <= 0.01 * one.numel(), measure_name
        own = weights[:, :, keep]
        torch.testing.assert_close(some.received, own.sum(2), rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(some.map.sum((2, 3)), own.sum((2, 3)), rtol=2e-5, atol=2e-5)
        for span_name, span in some.spans.items():
            mass = own[..., span.start : span.stop].sum(-1)
            torch.testing.assert_close(some.mass[span_name], mass, rtol=2e-5, atol=2e-5)
        peaks = (full.logsumexp + full.peak.log())[:, :, keep]  # the score of the peak
        best = torch.where(full.peak[:, :, keep] > 0, peaks, -math.inf).amax(-1)
        torch.testing.assert_close(some.max_score, best, rtol=1e-4, atol=1e-4)
        if prompt is not None:
            place = some.spans["last of the prompt"]
            assert (place.start, place.stop) == (prompt - 2, FAR)


@pytest.mark.parametrize("shape", SHAPES)
def test_our_models_by_steps(shape):
    model, text = built("Decoder", shape), tokens(2, 13)
    cache = KeyValueCache()
    with watch(model, keep="qk") as whole, watch(model, queries=slice(-4, None), spans=SPAN, pixels=5) as chosen:
        for step in (text[:, :7], text[:, 7:8], text[:, 8:12], text[:, 12:]):
            model(step, cache=cache)
    assert chosen["decoder.0.self"].queries.tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert_records_rows(chosen, whole, prompt=7)


def test_positions_are_those_of_the_document():
    model, text = built("Decoder", "modern"), tokens(2, 13)
    cache = KeyValueCache()
    with watch(model, keep="qk") as whole, watch(model, queries=[1, 2, 8, 11, 40], spans=SPAN) as chosen:
        for step in (text[:, :7], text[:, 7:8], text[:, 8:12], text[:, 12:]):
            model(step, cache=cache)
    assert chosen["decoder.0.self"].queries.tolist() == [1, 2, 8, 11]
    assert_records_rows(chosen, whole, prompt=7)


MASKS = {
    "padded right": Mask.padding([11, 5]),
    "padded left": Mask.padding([11, 5], side="left"),
    "no pad queries": Mask.padding([11, 5], queries=True),
    "packed": Mask.documents(torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [1] * 2])),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_padded_and_packed_batches(kind, mask):
    model = built(kind, "modern")
    with watch(model, keep="qk") as whole, watch(model, queries=slice(1, None, 2), spans=SPAN, itself=True) as chosen:
        model(tokens(2, 11), mask=mask)
    assert_records_rows(chosen, whole, prompt=11)
    for name in whole.names:
        some, weights = chosen[name], weights_of(whole, name)
        torch.testing.assert_close(some.itself, weights.diagonal(dim1=2, dim2=3)[..., 1::2], rtol=2e-5, atol=2e-5)
        visible = mask.hiding_queries(True).dense(11, 11)  # as our models attend to themselves
        if kind == "Decoder":
            visible = visible & Mask.causal().dense(11, 11)
        seen_by = visible[:, :, 1::2].sum(2).expand(2, -1, -1)
        assert torch.equal(some.seen_by, seen_by.int())
        mean = weights[:, :, 1::2].sum(2) / seen_by.clamp(min=1)
        torch.testing.assert_close(some.received_mean, mean, rtol=2e-5, atol=2e-5)


def test_beams_of_our_models():
    model = built("EncoderDecoder", "relative")
    spans = {"source": slice(0, 5), "all": slice(None), "last of the prompt": slice(-2, None)}
    with watch(model, keep="qk") as whole, watch(model, queries=slice(-1, None), spans=spans) as chosen:
        beam(Writer.translating(model, tokens(2, 9), [9, 6]), start=1, end=2, max_length=9, beams=3)
    assert_records_rows(chosen, whole)
    for name in whole.names:
        assert torch.equal(chosen[name].visible, whole[name].visible[:, :, -chosen[name].visible.shape[2] :])


@pytest.mark.parametrize("options", [{}, {"num_beams": 2, "num_return_sequences": 2}], ids=str)
@pytest.mark.parametrize("family", ["mistral", "gpt-oss", "t5"])
def test_generation_of_hugging_face_models(family, options):
    model = zoo.made(family)
    given = {"input_ids": zoo.tokens(), "attention_mask": zoo.padding("left"), "max_new_tokens": 5, "do_sample": False}
    with watch(model, keep="qk") as whole, watch(model, queries=slice(-2, None), spans=SPAN) as chosen:
        model.generate(**given, **options)
    assert_records_rows(chosen, whole)


def test_the_options_are_kept_in_the_file_and_the_record_is_smaller(tmp_path):
    model = built("Decoder", "modern")
    with watch(model, queries=slice(-3, None), spans=SPAN, itself=True) as record:
        model(tokens(2, 11))
    record.save(tmp_path / "some.record")
    again = Record.load(tmp_path / "some.record")
    one, other = record["decoder.1.self"], again["decoder.1.self"]
    for name in (*TENSORS, "itself", "seen_by", "received_mean"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert (one.spans, one.mass.keys(), one.sharing) == (other.spans, other.mass.keys(), other.sharing)
    assert again.settings["queries"] == {"start": -3, "stop": None, "step": None}
    assert again.settings["spans"]["then"] == [7, None]
    assert expected_bytes(model, 999, queries=slice(-3, None)) < expected_bytes(model, 999) / 5


def test_no_query_chosen():
    model = built("Decoder", "modern")
    with watch(model, queries=[50], spans=SPAN, itself=True) as record:
        model(tokens(2, 11))
    sight = record["decoder.0.self"]
    assert sight.entropy.shape == (2, 6, 0)
    assert sight.span_mass.shape == (2, 6, 0, 4)
    assert sight.received.shape == (2, 6, 11)
    assert not sight.seen_by.any()
    assert (sight.max_score == -math.inf).all()


def test_lookback_by_hand_and_from_whatever_the_record_has():
    model, text, n = built("Decoder", "modern"), tokens(2, 13), 7
    spans = {"a": slice(0, n), "b": slice(n, None)}
    with (
        watch(model, keep="qk") as whole,
        watch(model, spans=spans, pixels=3) as by_spans,
        watch(model, pixels=3) as without,
    ):
        model(text)
    weights = weights_of(whole, "decoder.1.self")
    wanted = torch.ones(2, 6, 13)
    for query in range(n, 13):
        context, new = weights[:, :, query, :n].mean(-1), weights[:, :, query, n : query + 1].mean(-1)
        wanted[:, :, query] = context / (context + new)
    for record in (whole, by_spans):
        torch.testing.assert_close(record["decoder.1.self"].lookback(n), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(RecordError, match=r"spans=\{'a name': slice\(0, 7\)\}"):
        without["decoder.1.self"].lookback(n)
    with pytest.raises(RecordError, match="itself=True"):
        _ = without["decoder.1.self"].itself


def test_lookback_of_a_padded_text_is_that_of_the_text_alone():
    model, text = built("Decoder", "modern"), tokens(1, 9)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), text], 1)
    with watch(model) as alone:
        model(text)
    with watch(model) as with_pads:
        model(padded, mask=Mask.padding([9], side="left"))
    one, other = alone["decoder.1.self"].lookback(5), with_pads["decoder.1.self"].lookback(9)[:, :, 4:]
    torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
