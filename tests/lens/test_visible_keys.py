"""How many keys a query sees, how many queries see a key, single weights: against the mask and the full weights."""

import math

import pytest
import torch

from clearhead import Bias, Mask
from clearhead.attention import reference
from clearhead.attention.call import check_call
from clearhead.errors import ShapeError
from clearhead.lens.measures import visible_keys
from clearhead.lens.measures.definition import MeasureJob
from clearhead.lens.measures.measure_dispatch import run_job
from clearhead.lens.measures.visible_keys import compute_probe_weights, count_seeing_queries, count_visible_keys
from tests.lens.cases import CASES
from tests.lens.tolerances import in_float64

BATCH, HEADS, QUERIES, KEYS = 3, 2, 101, 211


def masks() -> dict[str, Mask | None]:
    torch.manual_seed(0)
    ids = torch.arange(KEYS) // 43 + torch.tensor([[0], [1], [2]])
    return {
        "none": None,
        "causal": Mask.causal(),
        "causal from the start": Mask.causal(offset=0),
        "window": Mask.window(13, 7),
        "two windows": Mask.window(13, 7) & Mask.window(5, 11),
        "window and padding": Mask.window(31) & Mask.padding([3, KEYS, 167]),
        "pads that see nothing": Mask.causal() & Mask.padding([19, KEYS, 167], side="left", queries=True),
        "hidden keys": Mask.causal() & Mask.hidden(torch.rand(BATCH, 1, 1, KEYS) < 0.5),
        "documents": Mask.documents(ids),
        "documents, causal": Mask.documents(ids) & Mask.causal(),
        "prefix": Mask.causal() | Mask.prefix([4, 0, 150]),
        "any": Mask.visible(torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.5),
        "some heads": Mask.visible(torch.tensor([True, False]).view(HEADS, 1, 1)),
        "nothing": Mask.prefix(0),
    }


@pytest.mark.parametrize("rows", [range(QUERIES), range(2, QUERIES, 7), range(77, 78), range(3, 3)])
@pytest.mark.parametrize("chunk", [13_000, 2**22])
@pytest.mark.parametrize("name", masks())
def test_the_count_is_that_of_the_dense_mask(name, chunk, rows, monkeypatch):
    monkeypatch.setattr(visible_keys, "CHUNK_CELLS", chunk)
    hidden = torch.zeros(BATCH, 1, QUERIES, KEYS).masked_fill(torch.rand(BATCH, 1, QUERIES, KEYS) < 0.5, -math.inf)
    q, k = torch.zeros(BATCH, HEADS, QUERIES, 2), torch.zeros(BATCH, HEADS, KEYS, 2)
    for bias in (None, hidden, Bias.alibi(HEADS)):
        call = check_call(q, k, None, masks()[name], bias=bias)
        visible = reference.scores(call)[1].expand(call.sizes)[:, :, list(rows)]
        of_queries, of_keys = visible.sum(-1), visible.sum(-2)
        assert torch.equal(count_visible_keys(call, rows).expand(of_queries.shape), of_queries)
        assert torch.equal(count_seeing_queries(call, rows).expand(of_keys.shape), of_keys)


HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def truth(job: MeasureJob, keys: torch.Tensor) -> torch.Tensor:
    """From the full weights in float64; keys out of range get 0."""
    exact = in_float64(job)
    weights = reference.weights(exact.call)[:, :, list(job.rows)]
    size, keys = weights.shape[-1], keys.expand(len(weights), -1)
    there = (keys >= 0) & (keys < size)
    picked = weights.gather(-1, keys.clamp(0, size - 1)[:, None, :, None].expand(*weights.shape[:3], 1))[..., 0]
    return picked * there[:, None]


def judge(job: MeasureJob, keys: torch.Tensor) -> None:
    logsumexp = run_job(job, "tiled").logsumexp
    found, wanted = compute_probe_weights(job.call, keys, logsumexp, job.rows), truth(job, keys)
    scores, visible = reference.scores(in_float64(job).call)
    largest = scores.masked_fill(~visible, 0.0).abs().max().item()
    limit = 8 * torch.finfo(found.dtype).eps * (1 + largest) * (1 + wanted)
    assert found.shape == wanted.shape
    assert ((found - wanted).abs() <= limit).all(), f"off by {(found - wanted).abs().max():.2e}"


WITH_KEYS = [name for name in CASES if name not in ("no keys", "no samples", "no queries")]


@pytest.mark.parametrize("name", WITH_KEYS)
def test_a_key_for_each_query(name, device):
    job = CASES[name].job(device=device)
    keys = job.call.k.shape[2]
    named = torch.randint(-1, keys + 1, (len(job.rows),), generator=torch.Generator().manual_seed(1))
    judge(job, named.to(device))


@pytest.mark.parametrize("name", ["causal, padding left", "everything", "every 16th, causal", "a bias of −inf"])
@pytest.mark.parametrize("step", [0, -1, 1])
def test_neighbours_of_the_query_itself(name, step, device):
    job = CASES[name].job(device=device)
    positions = torch.tensor(job.rows, device=device) + job.offset
    judge(job, positions + step)


@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_promoted_before_any_arithmetic(name):
    job = CASES["everything"].job(HALF[name])
    judge(job, torch.tensor(job.rows) // 2)


def test_by_hand():
    job = CASES["one query"].job()
    x = torch.tensor([0.0, math.log(3)]).view(1, 1, 2, 1)
    job = job._replace(call=job.call._replace(q=torch.ones(1, 1, 2, 1), k=x, v=x, mask=None, scale=1.0))
    logsumexp = torch.full((1, 1, 2), math.log(4))
    assert compute_probe_weights(
        job.call, torch.tensor([0, 1]), logsumexp, range(2)
    ).flatten().tolist() == pytest.approx([1 / 4, 3 / 4])
    assert compute_probe_weights(job.call, torch.tensor([-1, 2]), logsumexp, range(2)).flatten().tolist() == [0, 0]


def test_a_query_that_sees_nothing_gives_nothing():
    job = CASES["nothing visible, sinks"].job()
    keys = torch.zeros(len(job.rows), dtype=torch.long)
    assert not compute_probe_weights(job.call, keys, run_job(job).logsumexp, job.rows).any()


@pytest.mark.parametrize("name", ["no keys", "no samples", "no queries"])
def test_empty_inputs_give_zeros(name):
    job = CASES[name].job()
    keys = torch.zeros(len(job.rows), dtype=torch.long)
    found = compute_probe_weights(job.call, keys, run_job(job).logsumexp, job.rows)
    assert found.shape == job.call.q.shape[:3]
    assert name != "no keys" or not found.any()


@pytest.mark.parametrize("query", [0, 1, 97, 162])
def test_probes_of_all_keys_add_up_to_one(query):
    job = CASES["causal"].job()._replace(rows=range(query, query + 1))
    logsumexp = run_job(job).logsumexp
    total = sum(compute_probe_weights(job.call, torch.tensor([key]), logsumexp, job.rows) for key in range(163))
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.unchecked
def test_keys_for_other_queries_are_refused():
    job = CASES["causal, padding left"].job()
    logsumexp = run_job(job).logsumexp
    for shape in [(7,), (3, 163)]:
        with pytest.raises(ShapeError, match=r"\(163,\), got"):
            compute_probe_weights(job.call, torch.zeros(shape, dtype=torch.long), logsumexp, job.rows)
