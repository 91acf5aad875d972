"""The measures tile by tile, judged by the definition in float64; what must not change them; and what is skipped."""

import dataclasses
import math
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Bias, Mask
from clearhead.attention.call import check_call
from clearhead.lens import measure
from clearhead.lens.measures import tile_job, top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures, sum_blocks
from clearhead.lens.measures.measure_dispatch import plan_job, run_job
from tests.attention.cases import Case as Attention
from tests.attention.cases import cases as attentions
from tests.lens.cases import CASES, TIES, random
from tests.lens.tolerances import TENSORS, assert_exact, assert_same_keys

# Tiles as they are; of a few rows and blocks, so that there are many seams; and of several heads or samples.
SIZES = {
    "large": {},
    "small": {
        "CPU_TILE_SCORES": 1,
        "MAX_TILE_QUERIES": 37,
        "MIN_PRODUCT_ROWS": 31,
        "MASK_FROM_SCORES": 0,
        "MIN_MASK_BLOCK_KEYS": 5,
        "BLOCK": 4,
        "SHORT": 8,
    },
    "some": {
        "CPU_TILE_SCORES": 9000,
        "MAX_TILE_QUERIES": 31,
        "MASK_FROM_SCORES": 0,
        "MIN_MASK_BLOCK_KEYS": 16,
        "BLOCK": 16,
        "SHORT": 33,
    },
}


@contextmanager
def tiles_of(size: str):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SIZES[size].items():
            patch.setattr(top_keys if hasattr(top_keys, name) else tile_job, name, value)
        yield


@pytest.fixture(params=SIZES)
def sizes(request: pytest.FixtureRequest):
    with tiles_of(request.param):
        yield


@pytest.mark.parametrize("size", ["large", "small"])
@pytest.mark.parametrize("name", CASES)
def test_every_measure_is_exact(name, size, device):
    job = CASES[name].job(device=device)
    with tiles_of(size):
        assert_exact(run_job(job, "tiled"), job)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["causal, padding left", "everything", "a bias of −inf", "equal keys", "top 1"])
def test_other_precisions_are_exact_too(name, dtype, device):
    job = CASES[name].job(dtype, device)
    assert_exact(run_job(job, "tiled"), job)


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_ties_go_to_the_smallest_key(name, dtype, sizes, device):
    job = CASES[name].job(dtype, device)
    assert_same_keys(run_job(job, "tiled"), job)


def job_of(case: Attention, device: str, **asked) -> MeasureJob:
    arguments = case.to(torch.float32, device).arguments()
    q, k, mask = (arguments.pop(name) for name in ("q", "k", "mask"))
    arguments.pop("v")
    return plan_job(check_call(q, k, None, mask, **arguments), **asked)


def draw_detail(data: st.DataObject) -> dict[str, object]:
    """What is asked of a job, at random."""
    return {
        "pixels": data.draw(st.sampled_from([0, 1, 5, 256])),
        "top": data.draw(st.sampled_from([0, 1, 3, 40])),
        "every": data.draw(st.sampled_from([1, 1, 2, 5])),
        "offset": data.draw(st.sampled_from([None, None, 0, 17])),
        "received": data.draw(st.booleans()),
    }


@pytest.mark.parametrize("size", SIZES)
@given(data=st.data())
def test_any_attention_is_measured_exactly(size, device, data):
    job = job_of(data.draw(attentions()), device, **draw_detail(data))
    with tiles_of(size):
        assert_exact(run_job(job, "tiled"), job)


def assert_alike(found: Measures, other: Measures, *names: str) -> None:
    for name in names or TENSORS:
        torch.testing.assert_close(getattr(found, name), getattr(other, name), rtol=2e-5, atol=2e-6)


tokens = st.sampled_from([1, 5, 37, 101])


@given(queries=tokens, keys=tokens, seed=st.integers(0, 2**20), sink=st.booleans())
def test_keys_in_another_order_receive_the_same(queries, keys, seed, sink):
    q, k = random(seed, 2, 6, queries, 13).float(), random(seed + 1, 2, 3, keys, 13).float()
    order = torch.randperm(keys, generator=torch.Generator().manual_seed(seed))
    sinks = random(seed + 2, 6).float() if sink else None
    seen, other = (measure(q, x, sinks=sinks, top=keys) for x in (k, k[:, :, order]))
    torch.testing.assert_close(other.received, seen.received[:, :, order])
    assert_alike(seen, other, "logsumexp", "entropy", "peak", "top_weights")
    assert torch.equal(order[other.peak_key], seen.peak_key)


@given(data=st.data(), every=st.sampled_from([2, 3, 7, 40]))
def test_every_nth_query_is_measured_as_it_is_among_all(data, every):
    case = data.draw(attentions())
    whole = run_job(job_of(case, "cpu", pixels=0, received=False), "tiled")
    job = job_of(case, "cpu", pixels=0, received=False, every=every)
    rows = torch.tensor(job.rows, dtype=torch.long)
    assert torch.equal((rows + job.offset + 1) % every, torch.zeros_like(rows))
    chosen = {
        name: getattr(whole, name)[:, :, rows]
        for name in TENSORS
        if name not in ("received", "map", "max_score", "span_mass")
    }
    assert_alike(run_job(job, "tiled"), dataclasses.replace(whole, **chosen), *chosen)


@given(data=st.data(), high=st.integers(1, 9), wide=st.integers(1, 9), more=st.integers(2, 5))
def test_pixels_merge_into_larger_ones(data, high, wide, more):
    case = data.draw(attentions())
    fine, coarse = (
        run_job(job_of(case, "cpu")._replace(blocks=blocks), "tiled").map
        for blocks in ((high, wide), (high * more, wide * more))
    )
    torch.testing.assert_close(sum_blocks(sum_blocks(fine, more, 2), more, 3), coarse, rtol=2e-5, atol=2e-6)


def test_sums_over_a_hundred_thousand_keys_do_not_accumulate_rounding_errors():
    keys, line = 100_003, 8 * torch.finfo(torch.float32).eps
    q, k = random(1, 1, 1, 3, 5).float(), torch.full((1, 1, keys, 5), 0.3)
    seen = measure(q, k, offset=0)
    assert seen.entropy.flatten().tolist() == pytest.approx([math.log(keys)] * 3, rel=line)
    mean = (keys - 1) / 2
    wanted = [mean, mean - 1 + 2 / keys, mean - 2 + 6 / keys]
    assert seen.distance.flatten().tolist() == pytest.approx(wanted, rel=line)
    assert seen.map.sum().item() == pytest.approx(3, rel=line)


def test_sums_over_a_hundred_thousand_queries_do_not_accumulate_rounding_errors():
    queries, line = 100_003, 8 * torch.finfo(torch.float32).eps
    seen = measure(torch.full((1, 1, queries, 5), 0.3), torch.full((1, 1, 7, 5), 0.3), top=0)
    assert seen.received.flatten().tolist() == pytest.approx([queries / 7] * 7, rel=line)


@pytest.fixture
def threads(monkeypatch):
    """Three threads, even for the smallest job."""
    monkeypatch.setattr(tile_job, "SPLIT_FROM", 0)
    monkeypatch.setattr(tile_job, "THREADS_FROM_SCORES", 0)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["shared keys", "causal, padding left", "everything", "dense", "one query", "no keys"])
def test_threads_are_exact_and_deterministic(name, threads):
    job = CASES[name].job()
    seen, again = run_job(job, "tiled"), run_job(job, "tiled")
    assert_exact(seen, job)
    for name in TENSORS:
        assert torch.equal(getattr(seen, name), getattr(again, name)), name


def test_threads_work_in_inference_mode_and_on_tensors_that_require_gradients(threads):
    q, k = (random(n, 2, 3, 37, 13).float().requires_grad_() for n in (1, 2))
    wanting = measure(q, k, Mask.causal())
    assert not wanting.entropy.requires_grad
    with torch.inference_mode():
        assert_alike(measure(q * 1, k * 1, Mask.causal()), wanting)


def test_a_given_logsumexp_changes_nothing():
    job = CASES["everything"].job()
    given = job._replace(logsumexp=run_job(job, "defined").logsumexp)
    assert_exact(run_job(given, "tiled"), given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_best_weights_are_the_same_to_the_last_digit_whatever_the_tiles(dtype):
    q, k = (random(3, 1, 3, size, 16).mul(4).round().div(4).to(dtype) for size in (37, 41))  # scores are exact
    whole, cut = (measure(q, k, top=3, pixels=pixels, backend="tiled") for pixels in (0, 8))
    assert torch.equal(whole.top_weights, cut.top_weights)
    assert torch.equal(whole.peak, cut.peak)


def test_strides_and_gradients_make_no_difference():
    q, k = random(1, 2, 37, 6, 13).float(), random(2, 2, 53, 3, 13).float()
    plain = measure(*(x.transpose(1, 2).contiguous() for x in (q, k)), Mask.causal())
    assert_alike(measure(q.transpose(1, 2), k.transpose(1, 2), Mask.causal()), plain)
    wanting = measure(*(x.clone().requires_grad_().transpose(1, 2) for x in (q, k)), Mask.causal())
    assert_alike(wanting, plain)
    assert not wanting.entropy.requires_grad
    assert not wanting.map.requires_grad
    with torch.inference_mode():
        assert_alike(measure(q.transpose(1, 2), k.transpose(1, 2), Mask.causal()), plain)


def test_under_autocast_the_arithmetic_stays_in_float32():
    q, k = (x.float() for x in (CASES["causal"].q, CASES["causal"].k))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = measure(q, k, Mask.causal())
    assert_alike(seen, measure(q.bfloat16(), k.bfloat16(), Mask.causal()))


def test_inputs_are_not_modified():
    bias, q, k = random(5, 131, 197).float(), *(t.float() for t in (CASES["dense bias"].q, CASES["dense bias"].k))
    copies = [t.clone() for t in (bias, q, k)]
    measure(q, k, Mask.causal(), bias=bias, softcap=3.0, scale=1.0)
    for tensor, copy in zip((bias, q, k), copies, strict=True):
        assert torch.equal(tensor, copy)


def scores_computed(mask: Mask | None, tokens: int, every: int = 1) -> int:
    x = torch.empty(1, 4, tokens, 8, device="meta")
    job = plan_job(check_call(x, x, None, None), every=every)
    job = job._replace(call=job.call._replace(q=torch.empty(1, 4, tokens, 8), mask=mask))
    found = [tile for stack in tile_job.plan_stacks(job, tile_job.CPU_TILE_SCORES) for tile in stack]
    sides = [(tile.kv_heads, tile.rows, tile.run.columns) for tile in found]
    return sum(math.prod(side.stop - side.start for side in three) for three in sides)


def test_hidden_tiles_are_skipped():
    full = scores_computed(None, 4096)
    assert full == 4 * 4096**2
    assert scores_computed(Mask.causal(), 4096) < 0.53 * full
    assert scores_computed(Mask.causal(), 4096, every=16) < 0.6 * full / 16
    assert scores_computed(Mask.padding([1024]), 4096) == full / 4
    assert scores_computed(Mask.documents(torch.arange(4096) // 512), 4096) == full / 8


def test_a_window_makes_the_work_linear():
    once, often = (scores_computed(Mask.window(99), tokens) for tokens in (4096, 32 * 4096))
    assert often < 33 * once
    assert once < 4 * 4096 * (128 + 99 + 2 * 64)  # a tile's rows, the window, and blocks at both ends


@pytest.mark.parametrize("size", [4, 64, 256, 1088])
@pytest.mark.parametrize("count", [1, 3, 8, 70])
@pytest.mark.parametrize("values", [2, 50, 10**6])
def test_the_ranking_is_that_of_a_stable_sort(size, count, values):
    numbers = torch.randint(-values, values + 1, (3, 2, 37, size), generator=torch.Generator().manual_seed(1))
    scores = (numbers - values).float() / 8
    scores[scores == 0] = -0.0
    scores[..., ::5].masked_fill_(scores[..., ::5] == 0, 0.0)
    scores[0, 0] = -torch.inf
    scores[0, 1, :, 3:] = -torch.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_keys, "BLOCK", 4 if size == 4 else 64)
        blocks = top_keys.find_block_maxima(scores)
        (found, places), first = (
            top_keys.find_largest(scores, blocks, count, torch.empty(2 * scores.numel())),
            top_keys.find_first_visible(scores, blocks),
        )
    wanted, order = scores.sort(dim=-1, descending=True, stable=True)
    few = min(count, size)
    assert torch.equal(found, wanted[..., :few])
    real = found > -torch.inf
    assert torch.equal(places[real], order[..., :few][real])
    assert torch.equal(first[..., 0], (scores > -torch.inf).int().argmax(-1))


def test_a_bias_by_distance_is_never_built_for_all_heads_at_once(monkeypatch):
    built = []
    tile = Bias.tile
    monkeypatch.setattr(Bias, "tile", lambda self, *where: built.append(self.heads) or tile(self, *where))
    monkeypatch.setattr(tile_job, "CPU_TILE_SCORES", 1)
    q, k = random(1, 1, 6, 37, 5).float(), random(2, 1, 3, 41, 5).float()
    measure(q, k, bias=Bias.alibi(6))
    assert set(built) == {2}  # those that share one key head


@pytest.mark.parametrize("size", [1, 20, 60])
@pytest.mark.parametrize("cap", [1.0, 5.0, 30.0])
def test_under_a_cap_the_error_is_that_of_the_capped_scores(cap, size):
    drawn = torch.Generator().manual_seed(3)
    q, k = (torch.randn(1, 2, n, 32, generator=drawn) for n in (61, 67))
    job = plan_job(check_call(size * q, k, None, Mask.causal(), softcap=cap))
    assert_exact(run_job(job, "tiled"), job)
