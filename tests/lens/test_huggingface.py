"""watch() on Hugging Face models: every measure is that of their own eager attention, and no output changes."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from clearhead.lens.capture.watch_context import watch
from tests.lens.huggingface_zoo import FAMILIES, assert_sees, eager_weights, inputs, made
from tests.model.test_huggingface import minilm


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def flat(output: Any) -> list[Tensor]:
    """Every tensor of an output."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return [tensor for part in parts for tensor in flat(part)]


def assert_identical(found: Any, wanted: Any) -> None:
    found, wanted = flat(found), flat(wanted)
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True)), "a bit of an output changed"


CASES = [(name, side) for name in FAMILIES for side in (None, "left", "right") if side is None or FAMILIES[name].text]


@pytest.mark.parametrize(("family", "side"), CASES)
def test_every_measure_is_that_of_eager_attention_and_no_bit_of_an_output_changes(family, side):
    model, given = made(family), inputs(family, side)
    before = model(**given)
    with watch(model) as record:
        assert_identical(model(**given), before)
    assert record.names == FAMILIES[family].names
    for name, weights in eager_weights(model, given, record.names).items():
        padded = "decoder_input_ids" not in given or name.startswith("encoder")
        assert_sees(record[name], weights, given.get("attention_mask") if padded and "vision" not in name else None)


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "whisper", "clip"])
def test_eager_attention_can_be_watched_as_well(family):
    model, given = made(family, "eager"), inputs(family)
    before = model(**given)
    with watch(model) as record:
        assert_identical(model(**given), before)
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights)


def test_minilm_is_seen_as_its_eager_attention_sees():
    model = transformers.BertModel.from_pretrained(minilm()).eval()
    tokens = torch.randint(1000, 30000, (2, 61), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": tokens, "attention_mask": torch.ones(2, 61).index_fill(1, torch.arange(43, 61), 0).long()}
    before = model(**given)
    with watch(model) as record:
        assert_identical(model(**given), before)
    assert record.names == [f"encoder.{n}.self" for n in range(6)]
    for name, weights in eager_weights(model, given, record.names).items():
        assert_sees(record[name], weights, within=3e-5)  # six layers of float32, fused against eager
