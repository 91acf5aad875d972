"""The measures of a single query, judged by the definition in float64; and how little a decoding step takes."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead import Mask
from clearhead.attention.call import check_call
from clearhead.errors import BackendError
from clearhead.lens import measure
from clearhead.lens.capture.growing_call import GrowingAttention
from clearhead.lens.capture.growing_tensors import BatchHistory
from clearhead.lens.capture.part_measurement import Part
from clearhead.lens.capture.watch_settings import MeasureDetail
from clearhead.lens.measures import one_query
from clearhead.lens.measures.definition import MeasureJob, choose_blocks
from clearhead.lens.measures.measure_dispatch import METHODS, Method, run_job
from tests.lens.cases import CASES, TIES
from tests.lens.tolerances import assert_exact, assert_same_keys

HERE = [name for name in CASES if 0 not in CASES[name].job().call.sizes]


def row_of(job: MeasureJob, share: float) -> MeasureJob:
    """The same job for one of its queries."""
    row = round(share * (job.call.q.shape[2] - 1))
    return job._replace(rows=range(row, row + 1), blocks=choose_blocks(1, job.call.k.shape[2], 13), logsumexp=None)


@pytest.mark.parametrize("share", [0.0, 0.43, 1.0])
@pytest.mark.parametrize("name", HERE)
def test_every_measure_is_exact(name, share, device):
    job = row_of(CASES[name].job(device=device), share)
    assert_exact(run_job(job, "single"), job)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["causal, padding left", "everything", "a bias of −inf", "equal keys", "top 1"])
def test_other_precisions_are_exact_too(name, dtype, device):
    job = row_of(CASES[name].job(dtype, device), 0.7)
    assert_exact(run_job(job, "single"), job)


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_ties_go_to_the_smallest_key(name, dtype, device):
    job = row_of(CASES[name].job(dtype, device), 0.7)
    assert_same_keys(run_job(job, "single"), job)


@pytest.mark.parametrize("every", [1, 7])
def test_one_query_is_measured_without_tiles(every, monkeypatch):
    taken = []
    monkeypatch.setitem(
        METHODS,
        "single",
        Method(lambda job: taken.append(job) or one_query.run(job), METHODS["single"].explain_refusal),
    )
    measure(torch.zeros(1, 2, every, 3), torch.zeros(1, 2, 11, 3), Mask.causal(), every=every)
    assert len(taken) == 1


def find_memory(tensor: torch.Tensor) -> set[int]:
    """The addresses of all elements."""
    places = torch.empty_strided(tensor.shape, tensor.stride()).untyped_storage().nbytes() // 4
    index = torch.arange(places).as_strided(tensor.shape, tensor.stride()) * tensor.itemsize
    return {tensor.data_ptr() + place for place in index.flatten().tolist()}


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize(("backend", "queries"), [("defined", 1), ("single", 1), ("tiled", 1), ("tiled", 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_measure_shares_memory_with_another_or_with_what_went_in(backend, queries, top, dtype):
    given = {"q": torch.randn(2, 3, queries, 7, dtype=dtype), "k": torch.randn(2, 3, 11, 7, dtype=dtype)}
    found = measure(**given, top=top, spans={"all": slice(None)}, backend=backend)
    tensors = {name: one for name, one in vars(found).items() if isinstance(one, torch.Tensor)} | given
    memory = {name: find_memory(tensor) for name, tensor in tensors.items()}
    for one, other in itertools.combinations(memory, 2):
        assert not memory[one] & memory[other], f"{one} and {other} share memory"


def test_several_queries_are_refused():
    with pytest.raises(BackendError, match="'single' cannot measure this: it measures one query with its keys, not 5"):
        measure(torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 11, 3), backend="single")


class Counting(TorchDispatchMode):
    """How many operations PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mask", [None, Mask.causal(), Mask.window(31)], ids=str)
def test_a_decoding_step_takes_few_operations_at_any_length(mask):
    growing, counts = GrowingAttention("decoder.0.self", (0, 1, 2), False, MeasureDetail(), BatchHistory(1)), []
    for step in range(231):
        call = check_call(torch.randn(1, 3, 1, 5), torch.randn(1, 3, step + 1, 5), None, mask)
        with Counting() as counting:
            growing.add(Part(call, step, grows=True))
        counts.append(counting.count)
    usual = sorted(counts)[len(counts) // 2]
    assert usual < 90, f"{usual} operations a step"
    assert sum(counts[-100:]) < 1.2 * sum(counts[30:130]) + 100
