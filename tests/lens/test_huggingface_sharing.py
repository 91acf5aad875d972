"""Layers that use the keys of another layer and have no entry of their own in the cache: Gemma 3n, Gemma 4."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from clearhead.lens.capture.watch_context import watch
from clearhead.lens.record.attention_views import Sight
from tests.lens.huggingface_zoo import GROUPED, WINDOW, assert_sees, eager_weights, padding, stack, tokens
from tests.model.checkpoints import shaken

NEW = 6
WITHIN = 1e-4  # their scores are not divided by √d: softmax magnifies how sums were rounded in the layers before
NAMES = stack("decoder", 5)
SHARING = {
    **GROUPED,
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 3,
    "sliding_window": WINDOW,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "vocab_size_per_layer_input": 31,
    "hidden_size_per_layer_input": 13,
    "eos_token_id": None,
}
OWN: dict[str, dict[str, Any]] = {
    "Gemma3n": {"laurel_rank": 11, "activation_sparsity_pattern": [0.0] * 5, "altup_num_inputs": 2},
    "Gemma4": {"global_head_dim": 2 * 5},
}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def sharing(family: str) -> Any:
    config = getattr(transformers, f"{family}TextConfig")(**SHARING, **OWN[family])
    return shaken(getattr(transformers, f"{family}ForCausalLM")(config))


def one_pass(model: Any, text: Tensor, real: Tensor) -> dict[str, Tensor]:
    places = (real.cumsum(1) - 1).clamp(min=0)
    return eager_weights(model, {"input_ids": text, "attention_mask": real, "position_ids": places}, NAMES)


def assert_windows(sight: Sight, weights: Tensor, real: Tensor) -> None:
    """The windows of every sample and head are these weights, for the queries that are real."""
    for sample, rows in enumerate(real.bool()):
        for head in sight.heads:
            off = (sight.weights(sample, head) - weights[sample, head])[rows].abs().max().item()
            assert off <= WITHIN, f"{sight.name}, sample {sample}, head {head}: off by {off:.1e}"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", OWN)
def test_layers_that_share_keys_are_seen_as_in_one_pass(family, cache):
    model, real = sharing(family), padding("left")
    with watch(model, keep="qk") as record:
        out = model.generate(
            tokens(), attention_mask=real, max_new_tokens=NEW, do_sample=False, cache_implementation=cache
        )
    assert len(record.calls) == 1
    real = torch.nn.functional.pad(real, (0, NEW - 1), value=1)
    for name, weights in one_pass(model, out[:, :-1], real).items():
        assert_sees(record[name], weights, real, within=WITHIN)
        assert_windows(record[name], weights, real)


@pytest.mark.parametrize("sizes", [(11, 1, 1, 4), (3, 4, 1, 1, 4, 4)])
@pytest.mark.parametrize("family", OWN)
def test_empty_slots_are_no_keys_of_layers_that_share_them(family, sizes):
    model, text, real, stop = sharing(family), tokens(17), torch.ones(3, 17).long(), 0
    real[1, :2] = real[2, 0] = 0
    cache = transformers.StaticCache(config=model.config, max_cache_len=29)
    places = (real.cumsum(1) - 1).clamp(min=0)
    with watch(model, keep="qk") as record:
        for size in sizes:
            start, stop = stop, stop + size
            given = {"attention_mask": real[:, :stop], "position_ids": places[:, start:stop]}
            model(text[:, start:stop], past_key_values=cache, **given)
            assert [record.calls[0][name].keys for name in NAMES] == [stop] * 5
    for name, weights in one_pass(model, text, real).items():
        assert_sees(record[name], weights, real, within=WITHIN)
        assert_windows(record[name], weights, real)
