"""Masks: what each kind shows, that tiles and blocks agree with the whole, and that polarity is never guessed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Mask
from clearhead.attention.mask_kinds import Documents
from clearhead.attention.tile_scores import find_visible_runs
from tests.attention.cases import masks, simple_masks

SIZES = (2, 3)  # batch, heads


def picture(*rows: str) -> str:
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "wanted"),
    [
        (Mask.causal(), 2, 5, ["■■■■·", "■■■■■"]),
        (Mask.causal(), 3, 2, ["··", "■·", "■■"]),
        (Mask.causal(offset=1), 2, 5, ["■■···", "■■■··"]),
        (Mask.causal(offset=-1), 2, 3, ["···", "■··"]),
        (Mask.window(1), 3, 5, ["·■■··", "··■■·", "···■■"]),
        (Mask.window(0, 2, offset=0), 2, 5, ["■■■··", "·■■■·"]),
        (Mask.window(None, 1), 3, 3, ["■■·", "■■■", "■■■"]),
        (Mask.window(1, None), 3, 3, ["■■■", "■■■", "·■■"]),
        (Mask.padding([2]), 2, 3, ["■■·", "■■·"]),
        (Mask.padding([2], side="left"), 1, 3, ["·■■"]),
        (Mask.padding([2], queries=True), 3, 3, ["■■·", "■■·", "···"]),
        (Mask.padding([2], side="left", queries=True), 3, 3, ["···", "·■■", "·■■"]),
        (Mask.padding([4], queries=True), 2, 5, ["■■■■·", "·····"]),  # the last two of five tokens
        (Mask.padding([0]), 2, 3, ["···", "···"]),
        (Mask.prefix(2), 2, 3, ["■■·", "■■·"]),
        (Mask.documents(torch.tensor([4, 4, 9, 9, 4])), 2, 5, ["··■■·", "■■··■"]),
        (Mask.documents(torch.tensor([4, 9]), torch.tensor([9, 9, 4])), 3, 2, ["·■", "·■", "■·"]),
        (Mask.visible(torch.tensor([True, False, True])), 2, 3, ["■·■", "■·■"]),
        (Mask.hidden(torch.tensor([[True], [False]])), 2, 3, ["···", "■■■"]),
        (Mask.causal() & Mask.window(1, 1), 3, 3, ["■··", "■■·", "·■■"]),
        (Mask.causal() | Mask.prefix(2), 3, 3, ["■■·", "■■·", "■■■"]),
        ((Mask.causal() | Mask.prefix(3)) & Mask.padding([2]), 3, 3, ["■■·", "■■·", "■■·"]),
    ],
    ids=lambda value: repr(value) if isinstance(value, Mask) else "",
)
def test_a_mask_shows_what_was_drawn_by_hand(mask, queries, keys, wanted):
    assert mask.draw(queries, keys) == picture(*wanted)


def test_lengths_may_be_a_list_a_tensor_or_one_number_for_all():
    as_list, as_tensor = Mask.padding([1, 3]), Mask.padding(torch.tensor([1, 3], dtype=torch.int32))
    assert torch.equal(as_list.dense(2, 5), as_tensor.dense(2, 5))
    assert as_list.dense(2, 5).shape == (2, 1, 2, 5)
    assert torch.equal(Mask.padding(3).dense(2, 5)[0], as_list.dense(2, 5)[1])


def test_one_length_for_all_combines_with_a_length_for_each():
    both = Mask.prefix(2) & Mask.padding([1, 3])
    assert torch.equal(both.dense(1, 5), Mask.padding([1, 2]).dense(1, 5))


def test_visible_and_hidden_are_opposites():
    tensor = torch.tensor([[True, False], [False, False]])
    assert torch.equal(Mask.visible(tensor).dense(2, 2), ~Mask.hidden(tensor).dense(2, 2))
    assert Mask.visible(tensor).dense(2, 2)[0, 0].tolist() == tensor.tolist()


def test_printing_a_mask_draws_it_and_its_repr_says_how_to_build_it():
    mask = Mask.causal() & Mask.padding([3, 2], side="left")
    assert str(mask) == picture("■··", "■■·", "■■■", "(the first of 2 samples)")
    assert str(Mask.padding([2])) == picture("■■·", "■■·", "■■·")
    assert repr(Mask.window(2)) == "Mask.window(2)"
    assert repr(mask) == "Mask.causal() & Mask.padding([3, 2], side='left')"
    assert repr((mask | Mask.prefix(2)) & Mask.window(2, 1, offset=3)) == (
        "((Mask.causal() & Mask.padding([3, 2], side='left')) | Mask.prefix([2])) & Mask.window(2, 1, offset=3)"
    )


def test_a_mask_too_large_to_draw_says_so_instead():
    assert Mask.causal().draw(65_536, 65_536) == "Mask.causal() (65536×65536: too large to draw)"


@given(data=st.data(), queries=st.integers(1, 7), keys=st.integers(1, 11))
def test_a_mask_comes_back_from_its_state(data, queries, keys):
    mask = data.draw(masks(*SIZES, queries, keys))
    again = Mask.from_state(mask.state())
    assert repr(again) == repr(mask)
    assert torch.equal(again.dense(queries, keys), mask.dense(queries, keys))


def test_masks_move_between_devices_with_all_their_parts():
    mask = (Mask.padding([1, 2]) & Mask.causal() | Mask.visible(torch.ones(3, dtype=torch.bool))).to("meta")
    assert {tensor.device.type for tensor in mask.tensors()} == {"meta"}


@given(data=st.data(), queries=st.sampled_from([1, 5, 11]), keys=st.sampled_from([1, 7, 13]))
def test_combined_masks_show_what_both_or_either_show(data, queries, keys):
    one, other = (data.draw(masks(*SIZES, queries, keys)) for _ in range(2))
    assert torch.equal((one & other).dense(queries, keys), (one.dense(queries, keys) & other.dense(queries, keys)))
    assert torch.equal((one | other).dense(queries, keys), (one.dense(queries, keys) | other.dense(queries, keys)))


sides = st.sampled_from([1, 2, 3, 5, 16])


@given(data=st.data(), queries=st.sampled_from([1, 5, 11]), keys=st.sampled_from([1, 7, 13]))
def test_a_tile_is_a_piece_of_the_whole(data, queries, keys):
    mask = data.draw(masks(*SIZES, queries, keys))
    rows, columns = (slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in (queries, keys))
    rows = slice(rows.start, rows.stop, data.draw(st.sampled_from([None, 2, 3])))
    whole = mask.dense(queries, keys)[:, :, rows, columns]
    assert torch.equal(mask.tile(rows, columns, queries, keys).expand(whole.shape), whole)


@given(data=st.data(), queries=st.sampled_from([1, 5, 11]), keys=st.sampled_from([1, 7, 13]), rows=sides, columns=sides)
def test_runs_contain_all_visible_keys_and_mark_where_some_are_hidden(data, queries, keys, rows, columns):
    mask = data.draw(masks(*SIZES, queries, keys))
    whole = mask.dense(queries, keys).flatten(0, 1)
    found = find_visible_runs(mask, queries, keys, rows, columns)
    assert len(found) == -(-queries // rows)
    for number, run in enumerate(found):
        block = whole[:, number * rows : (number + 1) * rows]
        doubtful = torch.zeros(keys, dtype=torch.bool)
        for piece in run.partial:
            doubtful[piece] = True
        inside = torch.zeros(keys, dtype=torch.bool)
        inside[run.columns] = True
        assert not block[..., ~inside].any(), "outside of the run nothing is visible"
        assert block[..., inside & ~doubtful].all(), "inside, what is not partial is visible"
        assert not (doubtful & ~inside).any()


def blocks_of(whole: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """By looking into every block: is anything in it visible, and is all of it?"""
    grid = [line.split(columns, 3) for line in whole.split(rows, 2)]
    some = [torch.stack([block.flatten(2).any(-1) for block in line], -1) for line in grid]
    every = [torch.stack([block.flatten(2).all(-1) for block in line], -1) for line in grid]
    return torch.stack(some, -2), torch.stack(every, -2)


@given(data=st.data(), queries=st.sampled_from([1, 5, 11]), keys=st.sampled_from([1, 7, 13]), rows=sides, columns=sides)
def test_blocks_never_hide_what_is_visible_nor_show_what_is_hidden(data, queries, keys, rows, columns):
    mask = data.draw(masks(*SIZES, queries, keys))
    some, every = mask.blocks(queries, keys, rows, columns)
    really_some, really_every = blocks_of(mask.dense(queries, keys), rows, columns)
    assert not (really_some & ~some).any(), "a block said to be hidden is hidden"
    assert not (every & ~really_every).any(), "a block said to be visible is visible"


@given(data=st.data(), queries=st.sampled_from([1, 5, 11]), keys=st.sampled_from([1, 7, 13]), rows=sides, columns=sides)
def test_blocks_of_one_mask_alone_are_exact(data, queries, keys, rows, columns):
    mask = data.draw(simple_masks(*SIZES, queries, keys).filter(lambda mask: not isinstance(mask, Documents)))
    wanted = blocks_of(mask.dense(queries, keys), rows, columns)
    for said, really in zip(mask.blocks(queries, keys, rows, columns), wanted, strict=True):
        assert torch.equal(said.expand(really.shape), really)
