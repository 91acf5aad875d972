"""Generation of Hugging Face models, step by step: one record that grows, whatever cache keeps the keys."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from clearhead.lens.watching import watch
from tests.lens.zoo import DECODERS, FAMILIES, PAIRS, assert_sees, eager_weights, inputs, made, padding, tokens

NEW = 8  # tokens that are generated; with 11 that go in, more than thrice the window of those that slide


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def generated(model: Any, given: dict[str, Tensor], **options: Any) -> tuple[Any, Tensor]:
    """What is seen while the model goes on for NEW tokens, and all tokens."""
    with watch(model) as record:
        out = model.generate(**given, max_new_tokens=NEW, min_new_tokens=NEW, **{"do_sample": False, **options})
    return record, out


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_steps_join_to_what_one_pass_over_all_tokens_sees(family, cache):
    model, real = made(family), padding("left")
    record, out = generated(model, {"input_ids": tokens(), "attention_mask": real}, cache_implementation=cache)
    assert len(record.calls) == 1
    assert torch.equal(record.calls[0].ids["tokens"], out[:, :-1])
    real = torch.cat([real, real.new_ones(3, NEW - 1)], 1)
    given = {"input_ids": out[:, :-1], "attention_mask": real, "position_ids": (real.cumsum(1) - 1).clamp(min=0)}
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights, real)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", PAIRS)
def test_a_context_is_seen_once_and_its_decoder_grows(family, cache):
    model, given = made(family), inputs(family)
    given.pop("decoder_input_ids")
    record, out = generated(model, given, cache_implementation=cache)
    assert len(record.calls) == 1
    assert record.names == FAMILIES[family].names
    given["decoder_input_ids"] = record.calls[0].ids["target"]
    assert torch.equal(given["decoder_input_ids"][:, 1:], out[:, -NEW:-1])
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights)
