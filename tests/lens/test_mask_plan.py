"""A mask as kernel arguments, and the plan of tiles to visit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Mask
from clearhead.lens.measures.kernels import mask_plan
from clearhead.lens.measures.kernels.tile_shapes import choose_shapes
from tests.attention.cases import masks

BATCH, HEADS, QUERIES, KEYS = 2, 3, 37, 53
SIZES = (BATCH, HEADS, QUERIES, KEYS)
CPU = torch.device("cpu")


def read(rules: mask_plan.MaskArguments) -> torch.Tensor:
    """What `scoring.visible` makes of the rules, in plain torch: (batch, heads, queries, keys)."""
    table, table_sample, query_ids, query_sample, key_ids, key_sample, dense, *strides = rules.arguments
    b, h = torch.arange(BATCH).view(-1, 1, 1, 1), torch.arange(HEADS).view(1, -1, 1, 1)
    i, j = torch.arange(QUERIES).view(1, 1, -1, 1), torch.arange(KEYS).view(1, 1, 1, -1)

    def at(tensor, place):
        behind = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return torch.as_strided(tensor, (behind,), (1,))[place]

    seen = torch.zeros(1, 1, QUERIES, KEYS, dtype=torch.bool)
    for term in range(rules.terms):
        bounds = [at(table, b * table_sample + term * 6 + n) for n in range(6)]
        holds = [j - i >= bounds[0], j - i <= bounds[1], j >= bounds[2], j < bounds[3], i >= bounds[4], i < bounds[5]]
        one = torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool)
        for number, held in enumerate(holds):
            one = one & held if rules.bounds >> term * 6 + number & 1 else one
        if rules.documents >> term & 1:
            one = one & (at(query_ids, b * query_sample + i) == at(key_ids, b * key_sample + j))
        if rules.dense >> term & 1:
            place = b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3]
            one = one & (at(dense, place) != 0)
        seen = seen | one
    return seen.expand(SIZES)


@given(masks(*SIZES))
def test_mask_arguments_evaluate_to_the_mask(mask):
    rules = mask_plan.build_mask_arguments(mask, SIZES, CPU)
    assert torch.equal(read(rules), mask.dense(QUERIES, KEYS).expand(SIZES))


def test_structure_is_kept_as_numbers():
    mask = (Mask.causal() | Mask.prefix([3, 5])) & Mask.padding([37, 31], queries=True) & Mask.window(20, 9)
    rules = mask_plan.build_mask_arguments(mask, SIZES, CPU)
    assert (rules.terms, rules.documents, rules.dense) == (2, 0, 0)
    assert max(t.numel() for t in rules.arguments if isinstance(t, torch.Tensor)) == BATCH * 2 * 6


def test_a_mask_of_too_many_terms_is_made_dense_or_refused():
    ids = torch.zeros(KEYS, dtype=torch.long)
    mask = Mask.documents(ids) & Mask.documents(ids + 1)  # two of them: more than the kernels carry
    assert mask_plan.explain_refusal(mask, SIZES) is None
    assert mask_plan.build_mask_arguments(mask, SIZES, CPU).dense == 1
    assert "too many to build it whole" in str(mask_plan.explain_refusal(mask, (1, 1, 2**17, 2**17)))


def visits(plan: mask_plan.TilePlan, samples: int, heads: int, tiles: int) -> list[tuple[list[int], list[int]]]:
    """For each sample, head and tile: the tiles of the run without its hole, and the others, as a kernel reads them."""
    runs, runs_sample, runs_head, others, others_sample, others_head, others_tile = plan
    found = []
    for b in range(samples):
        for h in range(heads):
            for tile in range(tiles):
                begin = b * runs_sample + h * runs_head + tile * 5
                first, end, hole, hole_end, count = runs.flatten()[begin : begin + 5].tolist()
                assert first <= hole <= hole_end <= end
                begin = b * others_sample + h * others_head + tile * others_tile
                run = [n for n in range(first, end) if not hole <= n < hole_end]
                found.append((run, others.flatten()[begin : begin + count].tolist()))
    return found


@given(st.none() | masks(*SIZES), st.sampled_from([1, 3, 7]), st.sampled_from([(16, 16), (8, 4)]), st.integers(-9, 60))
def test_every_visible_tile_is_visited_once_and_runs_hide_nothing(mask, every, tile, offset):
    rows = range(every - 1, QUERIES, every)
    dense = torch.ones(SIZES, dtype=torch.bool) if mask is None else mask.dense(QUERIES, KEYS).expand(SIZES)
    dense = dense[:, :, rows.start :: every]
    high, wide = -(-len(rows) // tile[0]), -(-KEYS // tile[1])
    pieces = [
        (dense[b, h, r * tile[0] : (r + 1) * tile[0], c * tile[1] : (c + 1) * tile[1]], r, c)
        for b in range(BATCH)
        for h in range(HEADS)
        for r in range(high)
        for c in range(wide)
    ]
    by_rows = visits(mask_plan.plan_rows(mask, (QUERIES, KEYS), rows, offset, tile, CPU), BATCH, HEADS, high)
    by_columns = visits(mask_plan.plan_columns(mask, (QUERIES, KEYS), rows, tile, CPU), BATCH, HEADS, wide)
    for number, (piece, r, c) in enumerate(pieces):
        sample = number // (high * wide)
        for (run, others), one in ((by_rows[sample * high + r], c), (by_columns[sample * wide + c], r)):
            assert [*run, *others].count(one) == (1 if bool(piece.any()) else [*run, *others].count(one)) <= 1
            if one in run:
                assert piece.all()
                assert c * tile[1] + tile[1] <= KEYS
        run, _ = by_rows[sample * high + r]
        if c in run:  # and its keys lie on one side of its queries
            positions = [offset + row for row in rows[r * tile[0] : (r + 1) * tile[0]]]
            assert c * tile[1] + tile[1] - 1 < positions[0] or c * tile[1] > positions[-1]
        assert r not in by_columns[sample * wide + c][0] or (r + 1) * tile[0] <= len(rows)


@pytest.mark.parametrize(("mask", "visited"), [(Mask.causal(), 8 * 9 // 2), (Mask.window(16), 15), (None, 64)])
def test_hidden_tiles_are_not_visited(mask, visited):
    plan = mask_plan.plan_rows(mask, (128, 128), range(128), 0, (16, 16), CPU)
    assert sum(len(run) + len(others) for run, others in visits(plan, 1, 1, 8)) == visited


def test_few_tiles_are_all_visited_without_evaluating_the_mask_by_blocks(monkeypatch):
    mask = Mask.causal()
    monkeypatch.setattr(mask, "blocks", None, raising=False)
    plans = [
        mask_plan.plan_rows(mask, (32, 32), range(32), 0, (16, 16), CPU),
        mask_plan.plan_columns(mask, (32, 32), range(32), (16, 16), CPU),
    ]
    for plan in plans:
        assert visits(plan, 1, 1, 2) == [([], [0, 1]), ([], [0, 1])]


def test_cached_tensors_are_made_once_and_their_number_is_bounded():
    made = []
    for number in (1, 2, 1):
        assert mask_plan.cache_on_device(("a test", number), CPU, lambda n=number: made.append(n) or [n]) == [number]
    assert made == [1, 2]
    for number in range(200):
        mask_plan.cache_on_device(("a test", number), CPU, list)
    assert len(mask_plan._cached) <= 64


def test_tiles_are_no_larger_than_the_job_and_suit_the_map():
    shapes = choose_shapes(128, 2, 16384, 16384, 64, 8)
    assert shapes.rows.queries * shapes.rows.keys >= 64 * 128
    assert choose_shapes(16, 4, 1, 19, 1, 0).rows[:2] == (16, 32)
    assert choose_shapes(16, 4, 999, 999, 4, 0).rows.keys == 64
    assert choose_shapes(16, 4, 999, 999, 5, 0).rows.keys == 32  # or a tile would touch dozens of pixels
