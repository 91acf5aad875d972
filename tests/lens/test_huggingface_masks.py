"""Dense masks of Hugging Face models, and the structured masks recovered from them."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from clearhead import Mask
from clearhead.attention.mask_kinds import Dense
from clearhead.lens.capture.watch_context import expected_bytes, watch
from clearhead.lens.huggingface import mask_recovery
from clearhead.lens.huggingface.mask_recovery import recover_mask
from tests.lens.huggingface_zoo import WINDOW, made, padding, tokens


def shown(mask: Mask | None, queries: int, keys: int) -> Tensor:
    return torch.ones(1, 1, queries, keys, dtype=torch.bool) if mask is None else mask.dense(queries, keys)


def is_square(mask: Mask | None) -> bool:
    return mask is not None and any(isinstance(part, Dense) for part in mask.parts())


BANDS = [None, Mask.causal(), Mask.window(2), Mask.window(0), Mask.window(3, 3), Mask.window(1, 2)]


@given(
    st.sampled_from(BANDS),
    st.tuples(st.integers(1, 7), st.integers(2, 11)),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, 1, 3, 13]),
)
def test_bands_with_padding_at_either_end_are_found_and_show_the_same(band, sizes, pads, causal, window):
    queries, keys = sizes
    right, left = (torch.tensor([keys - min(pad[n], keys) for pad in pads]) for n in (0, 1))
    mask = Mask.padding(right) & Mask.padding(left, side="left")
    seen = shown(mask if band is None else band & mask, queries, keys)
    found = recover_mask(seen, causal=causal, window=window)
    assert torch.equal(shown(found, queries, keys).expand_as(seen), seen)
    assert not is_square(found)


@given(st.integers(1, 5), st.integers(2, 5), st.integers(0, 2**25 - 1), st.booleans(), st.sampled_from([None, 2]))
def test_whatever_a_square_shows_is_shown_afterwards(queries, keys, bits, causal, window):
    cells = torch.tensor([bool(bits >> n & 1) for n in range(queries * keys)])
    seen = cells.view(1, 1, queries, keys)
    assert torch.equal(shown(recover_mask(seen, causal=causal, window=window), queries, keys), seen)


@pytest.mark.parametrize("hole", [(0, 5, 3), (1, 6, 0), (1, 4, 5)])
def test_one_cell_that_breaks_the_rule_leaves_the_square(hole):
    seen = shown(Mask.causal() & Mask.padding([7, 5]), 7, 7).clone()
    assert repr(recover_mask(seen, causal=True)) == "Mask.causal() & Mask.padding([7, 5])"
    sample, query, key = hole
    seen[sample, 0, query, key] ^= True
    found = recover_mask(seen, causal=True)
    assert is_square(found)
    assert torch.equal(found.dense(7, 7), seen)


def test_a_square_for_each_head_stays_one_unless_all_are_the_same():
    seen = shown(Mask.causal(), 5, 5).expand(3, 2, 5, 5)
    assert repr(recover_mask(seen, causal=True)) == "Mask.causal()"
    assert is_square(recover_mask(seen.clone(), causal=True))


def test_large_dense_masks_are_read_in_parts(monkeypatch):
    monkeypatch.setattr(mask_recovery, "CELLS_AT_ONCE", 2 * 13 * 3)
    mask = Mask.window(4) & Mask.padding([13, 11], side="left")
    assert repr(recover_mask(shown(mask, 11, 13), causal=True)) == repr(mask)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("family", "band"), [("llama", "causal()"), ("mistral", f"window({WINDOW - 1})"), ("bert", "")]
)
def test_masks_of_padded_batches_are_kept_as_rules(family, band, side, attention):
    model = made(family, attention)
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(tokens(), attention_mask=padding(side))
    lengths = "[11, 7, 5]" if side == "right" else "[11, 7, 5], side='left'"
    for name in record.names:
        assert repr(record[name].kept.call().mask) == " & ".join(
            part for part in (f"Mask.{band}" if band else "", f"Mask.padding({lengths})") if part
        )
    assert record.expected_bytes == expected_bytes(model, 11, batch=3, keep="qk")


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_one_row_for_all_queries_is_no_causal_mask(kind):
    model, real = made("llama"), padding("right")[:, None, None].bool()
    given = real if kind == torch.bool else torch.zeros(real.shape).masked_fill(~real, torch.finfo(kind).min)
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(tokens(), attention_mask=given)
    assert repr(record["decoder.1.self"].kept.call().mask) == "Mask.padding([11, 7, 5])"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_steps_of_a_padded_batch_follow_one_rule(cache):
    model = made("llama")
    with torch.no_grad(), watch(model, keep="qk") as record:
        options = {"max_new_tokens": 5, "min_new_tokens": 5, "cache_implementation": cache}
        model.generate(tokens(), attention_mask=padding("left"), do_sample=False, **options)
    (part,) = record["decoder.1.self"].kept.parts
    assert repr(part.mask) == "Mask.causal(offset=0) & Mask.padding([15, 11, 9], side='left')"


def test_a_mask_is_read_once_for_all_layers(monkeypatch):
    from clearhead.lens.huggingface import arguments

    looks = []
    monkeypatch.setattr(
        arguments, "recover_mask", lambda *args, **kwargs: looks.append(args) or recover_mask(*args, **kwargs)
    )
    with torch.no_grad(), watch(made("llama")):
        made("llama")(tokens(), attention_mask=padding("left"))
    assert len(looks) == 1
