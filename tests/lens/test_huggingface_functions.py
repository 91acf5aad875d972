"""Attention functions that users register: what they compute is unknown, so they are refused by name."""

import functools
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.integrations.flash_attention import flash_attention_forward

from clearhead.errors import LensError
from clearhead.lens.capture.watch_context import watch
from tests.lens.huggingface_zoo import implementation, made, tokens


def flash_but_plain(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
    """Its name says flash; its masks are those of sdpa."""
    return transformers.AttentionInterface._global_mapping["sdpa"](module, q, k, v, mask, **options)


class CallableAttention:
    """An attention function that is an object, without code of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return flash_but_plain(*args, **kwargs)


@torch.no_grad()
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (flash_but_plain, "flash_but_plain"),
        (functools.partial(flash_but_plain, unused=1), "flash_but_plain"),
        (
            functools.wraps(flash_attention_forward)(lambda *args, **options: flash_but_plain(*args, **options)),
            "flash_attention_forward",
        ),
        (CallableAttention(), "CallableAttention"),
    ],
    ids=["flash in its name", "partial", "wraps", "an object"],
)
def test_a_function_of_ones_own_is_refused_by_name(monkeypatch, function, name):
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "mine", function)
    masks = transformers.AttentionMaskInterface._global_mapping
    monkeypatch.setitem(masks, "mine", masks["sdpa"])
    model = made("llama")
    refused = pytest.raises(LensError, match=rf"'decoder\.0\.self' cannot be recorded: .* '{name}' is not one of")
    with implementation(model, "mine"), refused, watch(model):
        model(tokens())
