"""Maps, windows, rows and columns that a page gets agree with attention_weights."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from clearhead import Alibi, Bias, KeyValueCache, Mask, MultiHeadAttention, measure, watch
from clearhead.explore import attention_map, from_weights
from clearhead.explore.attention_map import AttentionMap, is_hidden
from clearhead.lens.measures.definition import sum_blocks
from clearhead.lens.record import exact_windows
from clearhead.lens.record.attention_views import Sight
from clearhead.lens.record.kept_inputs import KeptInputs, Step
from tests.explore.records import MEASURES, drawn, visible_of, weights_of, writer

CLOSE = {"atol": 2e-6, "rtol": 1e-5}


def sight_of(q: Tensor, k: Tensor, mask: Mask | None, **options) -> Sight:
    """What was seen of these, with q and k kept."""
    found = measure(q, k, mask, pixels=16, **options)
    batch, heads, queries, d = q.shape
    bias = options.get("bias")
    part = Step(0, 0, queries, k.shape[2], mask, bias)
    scale = options.get("scale", d**-0.5)
    kept = KeptInputs(
        q,
        k,
        scale.view(-1, 1, 1) if isinstance(scale, Tensor) else scale,
        options.get("softcap"),
        options.get("sinks"),
        (part,),
        torch.full((batch,), queries),
        found.logsumexp,
    )
    high, wide = (-(-n // 16) for n in (queries, k.shape[2]))
    tensors = {name: getattr(found, name) for name in MEASURES}
    return Sight(
        **tensors,
        **visible_of(q, k, mask, bias=bias),
        name="some",
        cross=queries != k.shape[2],
        heads=tuple(range(heads)),
        queries=torch.arange(queries),
        blocks=(high, wide),
        inputs=tuple(range(batch)),
        kept=kept,
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and blocks of the mask so small that every window has many of them."""
    monkeypatch.setattr(exact_windows, "MAX_TILE_SCORES", 97)
    monkeypatch.setattr(exact_windows, "MASK_BLOCK", 5)


MASKS = {
    "all": lambda: None,
    "causal": Mask.causal,
    "window": lambda: Mask.window(4, 2),
    "padding": lambda: Mask.padding(torch.tensor([19, 11]), queries=True),
    "documents": lambda: Mask.documents(torch.arange(23)[None] // 7),
    "both": lambda: Mask.causal() & Mask.padding(torch.tensor([23, 13])),
    "either": lambda: Mask.causal() | Mask.prefix(3),
    "dense": lambda: Mask.visible(torch.rand(2, 3, 23, 23, generator=torch.Generator().manual_seed(3)) > 0.5),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_window_is_what_attention_weights_says_under_any_mask(name):
    torch.manual_seed(1)
    seen = sight_of(torch.randn(2, 3, 23, 5), torch.randn(2, 3, 23, 5), MASKS[name]())
    for sample, head in ((0, 0), (1, 2)):
        whole = weights_of(seen, sample)[head]
        weights = seen.windows(sample, head)
        torch.testing.assert_close(weights.sums(range(23), range(23)), whole, **CLOSE)
        some = weights.sums(range(3, 22), range(2, 19), (4, 3))
        torch.testing.assert_close(some, sum_blocks(sum_blocks(whole[3:22, 2:19], 4, 0), 3, 1), **CLOSE)
        torch.testing.assert_close(weights.sums(range(7, 8), range(23)), whole[7:8], **CLOSE)


OPTIONS = {
    "scale": lambda: {"scale": torch.tensor([0.3, 1.0, 2.0])},
    "softcap": lambda: {"softcap": 0.7},
    "sinks": lambda: {"sinks": torch.tensor([0.0, 2.0, -1.0])},
    "alibi": lambda: {"bias": Bias.alibi(torch.tensor([0.5, 0.25, 0.125]))},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_window_knows_scales_caps_sinks_and_biases(name):
    torch.manual_seed(2)
    seen = sight_of(torch.randn(2, 3, 23, 5), torch.randn(2, 3, 23, 5), Mask.causal(), **OPTIONS[name]())
    for head in range(3):
        whole = weights_of(seen, 1)[head]
        torch.testing.assert_close(seen.windows(1, head).sums(range(23), range(23)), whole, **CLOSE)


def test_heads_may_share_keys_and_keys_may_be_another_text():
    torch.manual_seed(3)
    seen = sight_of(torch.randn(1, 6, 7, 5), torch.randn(1, 3, 17, 5), None)
    for head in range(6):
        torch.testing.assert_close(seen.windows(0, head).sums(range(7), range(17)), weights_of(seen)[head], **CLOSE)


@given(
    st.integers(0, 40), st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9)
)
def test_any_window_holds_the_sums_of_its_blocks(q0, high, k0, wide, height, width):
    seen = drawn(41, heads=1, mask=Mask.window(11))["encoder.0.self"]
    whole, view = weights_of(seen)[0], AttentionMap(seen, 0)
    found = view.sum_window(0, range(q0, q0 + high), range(k0, k0 + wide), (height, width))
    cut = whole[q0 : min(41, q0 + high), k0 : min(41, k0 + wide)]
    assert found.exact
    assert found.blocks == (height, width)
    torch.testing.assert_close(found.sums, sum_blocks(sum_blocks(cut, found.blocks[0], 0), found.blocks[1], 1), **CLOSE)


def test_a_text_that_grew_step_by_step_is_one_window():
    torch.manual_seed(4)
    attention = MultiHeadAttention(12, 3, positions=Alibi(3))
    x, cache = torch.randn(1, 17, 12), KeyValueCache()
    with watch(attention, keep="qk") as record, torch.no_grad():
        for step in (slice(0, 7), *(slice(n, n + 1) for n in range(7, 17))):
            attention(x[:, step], mask=Mask.causal(), cache=cache)
    seen = record["attention"]
    torch.testing.assert_close(seen.windows(0, 1).sums(range(17), range(17)), weights_of(seen)[1], **CLOSE)


@pytest.mark.parametrize("near", [7, 8192])
def test_rows_and_columns_are_lines_of_the_weights_however_long_the_text(near, monkeypatch):
    monkeypatch.setattr(attention_map, "MAX_EXACT", near)
    seen = drawn(29, mask=Mask.causal(), pixels=5)["encoder.0.self"]
    whole, view = weights_of(seen), AttentionMap(seen, 0)
    row, column = view.compute_row(1, 20), view.compute_column(1, 3)
    assert row.weights is not None
    assert column.weights is not None
    torch.testing.assert_close(row.weights, whole[1, 20], **CLOSE)
    torch.testing.assert_close(column.weights, whole[1, :, 3], **CLOSE)
    assert [key for key, _ in row.top] == whole[1, 20, :21].argsort(descending=True)[: len(row.top)].tolist()
    assert column.top[0] == pytest.approx((int(whole[1, :, 3].argmax()), float(whole[1, :, 3].max())), abs=1e-6)
    torch.testing.assert_close(view.compute_received(1), whole[1].sum(0), atol=1e-5, rtol=1e-5)


def test_without_q_and_k_a_short_text_is_exact_and_a_long_one_has_its_top_keys():
    short = AttentionMap(drawn(29, keep=False)["encoder.0.self"], 0)
    assert short.exact
    assert short.sum_window(0, range(29), range(29), (1, 1)).exact
    long = AttentionMap(drawn(61, keep=False, pixels=16)["encoder.0.self"], 0)
    assert not long.exact
    assert long.sum_window(0, range(8), range(8), (1, 1)).blocks == (4, 4)  # of whole pixels, and no guesses inside
    line = long.compute_row(0, 37)
    assert line.weights is None
    assert [key for key, _ in line.top] == long.sight.top_keys[0, 0, 37].tolist()
    assert long.compute_column(0, 3).weights is None


def test_from_afar_a_window_is_made_of_whole_pixels_of_the_map(monkeypatch):
    monkeypatch.setattr(attention_map, "MAX_EXACT", 20)
    seen = drawn(61, pixels=16)["encoder.0.self"]
    whole, view = weights_of(seen)[0], AttentionMap(seen, 0)
    far = view.sum_window(0, range(61), range(61), (4, 4))
    assert (far.exact, far.blocks, far.area) == (True, (4, 4), (range(61), range(61)))
    torch.testing.assert_close(far.sums, sum_blocks(sum_blocks(whole, 4, 0), 4, 1), **CLOSE)
    uneven = view.sum_window(0, range(5, 47), range(11, 58), (1, 7))
    assert (uneven.exact, uneven.blocks, uneven.area) == (True, (4, 8), (range(4, 48), range(8, 60)))
    torch.testing.assert_close(uneven.sums, sum_blocks(sum_blocks(whole[4:48, 8:60], 4, 0), 8, 1), **CLOSE)
    assert view.sum_window(0, range(20), range(3, 23), (1, 1)).blocks == (1, 1)  # near: every weight


def test_many_weights_in_whole_pixels_of_the_map_are_not_computed_again(monkeypatch):
    monkeypatch.setattr(attention_map, "LARGE", 100)
    seen = drawn(61, pixels=16)["encoder.0.self"]
    whole, view, computed = weights_of(seen)[0], AttentionMap(seen, 0), []
    exact = view._sum_exact
    monkeypatch.setattr(view, "_sum_exact", lambda *given: (computed.append(given[1:]), exact(*given))[1])
    for queries, keys in ((range(8, 48), range(20, 61)), (range(61), range(61))):
        found = view.sum_window(0, queries, keys, (4, 8))
        expected = sum_blocks(sum_blocks(whole[queries.start : queries.stop, keys.start : keys.stop], 4, 0), 8, 1)
        torch.testing.assert_close(found.sums, expected, **CLOSE)
        assert (found.exact, found.area, computed) == (True, (queries, keys), [])
    for queries, blocks in ((range(4, 5), (4, 4)), (range(5, 47), (4, 4)), (range(4, 48), (4, 6))):  # few, or uneven
        view.sum_window(0, queries, range(61), blocks)
        assert computed == [(queries, range(61), blocks)]
        computed.clear()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("masked", [2**22, 0])
def test_hidden_weights_are_negative_zeros(name, masked, monkeypatch):
    monkeypatch.setattr(exact_windows, "MAX_MASKED_WEIGHTS", masked)  # 0: as of windows that are large
    torch.manual_seed(1)
    mask = MASKS[name]()
    seen = sight_of(torch.randn(2, 3, 23, 5), torch.randn(2, 3, 23, 5), mask)
    visible = torch.ones(23, 23, dtype=torch.bool) if mask is None else mask.dense(23, 23)[-1, -1].expand(23, 23)
    view = AttentionMap(seen, 1)
    for blocks in ((1, 1), (4, 3)):
        sums = view.sum_window(2, range(23), range(23), blocks).sums
        shown = sum_blocks(sum_blocks(visible.float(), blocks[0], 0), blocks[1], 1) > 0
        marked = is_hidden(sums)
        assert not (marked & shown).any()
        if masked or blocks == (4, 3):
            assert torch.equal(marked, ~shown) or name in ("both", "either", "documents")


def test_a_map_is_made_of_whole_pixels(monkeypatch):
    seen = drawn(61, pixels=32)["encoder.0.self"]
    view = AttentionMap(seen, 0)
    assert view.overview_blocks(16) == (4, 4)
    assert view.overview_blocks(7) == (10, 10)
    grid = view.sum_overview(1, 16)
    torch.testing.assert_close(grid.sums, sum_blocks(sum_blocks(weights_of(seen)[1], 4, 0), 4, 1), **CLOSE)
    bare = AttentionMap(drawn(61, pixels=0)["encoder.0.self"], 0)
    torch.testing.assert_close(
        bare.sum_overview(1, 16).sums, sum_blocks(sum_blocks(weights_of(bare.sight)[1], 4, 0), 4, 1), **CLOSE
    )


def test_every_fourth_query_stands_for_four():
    record = writer(37, rows=1 / 4, pixels=64)
    view = AttentionMap(record["decoder.0.self"], 0)
    assert (view.step, view.first, view.counts, view.blocks) == (4, (0, 0), (36, 37), (4, 1))
    assert float(view.sum_overview(0).sums.sum()) == pytest.approx(36, abs=1e-3)
    assert view.compute_row(0, 3).top
    assert view.compute_row(0, 4).top == []


def test_thumbnails_show_where_a_head_looks():
    torch.manual_seed(8)
    eye = torch.eye(48)[None, None] * 40
    seen = sight_of(eye, eye, None)
    thumbs = AttentionMap(seen, 0).draw_thumbnails()
    assert thumbs.shape == (1, 24, 24)
    assert thumbs[0].diagonal().min() > 150
    assert thumbs.max() == 255
    assert thumbs[0, 3, 12] < 60


def test_a_thumbnail_of_even_weights_is_pale():
    even = sight_of(torch.zeros(1, 1, 48, 5), torch.zeros(1, 1, 48, 5), None)
    assert set(AttentionMap(even, 0).draw_thumbnails().flatten().tolist()) <= {
        127,
        128,
    }  # a quarter of the scale, and its root


def test_only_exact_and_large_windows_are_worth_several_threads(monkeypatch):
    monkeypatch.setattr(attention_map, "MAX_EXACT", 50)
    monkeypatch.setattr(attention_map, "LARGE", 200)
    view = AttentionMap(drawn(61, pixels=16)["encoder.0.self"], 0)
    assert view.is_large_window(range(50), range(50))
    assert not view.is_large_window(range(5), range(5))
    assert not view.is_large_window(range(61), range(61))  # from the map
    assert not view.is_large_window(range(58, 900), range(50))  # of which three queries are there
    assert not AttentionMap(drawn(61, pixels=16, keep=False)["encoder.0.self"], 0).is_large_window(range(50), range(50))


def test_blocks_larger_than_the_window_need_no_more_memory_than_it():
    record = drawn(40, mask=Mask.causal())
    attention = AttentionMap(record.calls[0]["encoder.0.self"], 0)
    grid = attention.sum_window(0, range(5, 20), range(30), (10**11, 10**11))
    assert grid.sums.shape == (1, 1)
    torch.testing.assert_close(grid.sums[0, 0], attention.compute_weights(0)[5:20, :30].sum(), **CLOSE)


def test_thumbnails_of_even_heads_are_pale_whatever_the_mask_hides():
    """Of 96 keys a quarter is visible: a head that gives each of them the same has half the darkest shade at most."""
    even = drawn(96, heads=1, mask=Mask.padding([24]))["encoder.0.self"]
    even.map[:] = torch.where(torch.arange(96) < 24, 1 / 24, 0.0)
    assert AttentionMap(even, 0).draw_thumbnails().max() == 128


def test_a_causal_mask_is_known_whatever_weights_are_zero_besides():
    weights = torch.eye(5)[None].clone()
    weights[0, 3] = torch.tensor([0.5, 0, 0, 0.5, 0])
    found = AttentionMap(from_weights(weights, [*"abcde"])["decoder.0.self"], 0).compute_weights(0)
    assert is_hidden(found).equal(torch.ones(5, 5).triu(1).bool())


@pytest.mark.parametrize("blocks", [(1, 1), (2, 2)])
def test_a_map_without_q_and_k_has_the_mask_also_in_windows(blocks):
    weights = torch.ones(1, 7, 7).tril() / 7
    view = AttentionMap(from_weights(weights, [*"abcdefg"])["decoder.0.self"], 0)
    seen = sum_blocks(sum_blocks(weights[0], blocks[0], 0), blocks[1], 1) > 0
    for grid in (view.sum_overview(0), view.sum_window(0, range(7), range(7), blocks)):
        assert is_hidden(grid.sums).equal(~seen if grid.blocks == blocks else torch.ones(7, 7).triu(1).bool())
