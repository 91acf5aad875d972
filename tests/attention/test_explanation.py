"""explain, whose words the profiler confirms."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from clearhead import Bias, Mask, attend, explain
from clearhead.errors import BackendError

# What the profiler shows for each kernel that explain may name.
SHOWN = {
    ("cpu", "flash"): "aten::_scaled_dot_product_flash_attention_for_cpu",
    ("cpu", "math"): "aten::_scaled_dot_product_attention_math",
    ("cpu", "blocks of queries"): "_Tiled",
    ("cpu", "definition"): "aten::softmax",
    ("cuda", "flash"): "aten::_scaled_dot_product_flash_attention",
    ("cuda", "memory-efficient"): "aten::_scaled_dot_product_efficient_attention",
    ("cuda", "cuDNN"): "aten::_scaled_dot_product_cudnn_attention",
    ("cuda", "math"): "aten::_scaled_dot_product_attention_math",
    ("cuda", "blocks of queries"): "_Tiled",
    ("cuda", "definition"): "aten::softmax",
    ("cuda", "compiled FlexAttention"): "flex_attention",
}


def shown(run) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        run()
    return {event.key for event in seen.key_averages()}


def cases(device: str) -> dict[str, tuple[dict, dict]]:
    """Name → (shape, what attend gets)."""
    n = 37
    square = torch.rand(n, n, device=device) > 0.5
    return {
        "full": ({}, {}),
        "causal": ({}, {"mask": Mask.causal()}),
        "causal and padding": ({}, {"mask": Mask.causal() & Mask.padding([n, 3])}),
        "causal and pad queries": ({}, {"mask": Mask.causal() & Mask.padding([n, 3], queries=True)}),
        "padding": ({}, {"mask": Mask.padding([n, 3])}),
        "window": ({}, {"mask": Mask.window(5)}),
        "dense": ({}, {"mask": Mask.visible(square)}),
        "alibi": ({}, {"bias": Bias.alibi(6)}),
        "sinks": ({}, {"sinks": torch.randn(6)}),
        "softcap": ({}, {"softcap": 5.0}),
        "dropout": ({}, {"dropout": 0.1}),
        "shared heads": ({"kv_heads": 2}, {"mask": Mask.causal()}),
        "narrow values": ({"d_v": 5}, {}),
        "a learned bias": ({}, {"bias": torch.randn(6, n, n, requires_grad=True)}),
        "reference": ({}, {"backend": "reference"}),
        "tiled": ({}, {"backend": "tiled"}),
    }


def tensors(device: str, *, kv_heads: int = 6, d_v: int = 16, n: int = 37):
    q = torch.randn(2, 6, n, 16, device=device)
    return q, torch.randn(2, kv_heads, n, 16, device=device), torch.randn(2, kv_heads, n, d_v, device=device)


def moved(value, device: str):
    return value.to(device) if hasattr(value, "to") else value


@pytest.mark.parametrize("case", cases("cpu"))
def test_the_profiler_sees_the_kernel_that_is_named(case, device):
    shape, options = cases("cpu")[case]
    options = {name: moved(value, device) for name, value in options.items()}
    q, k, v = tensors(device, **shape)
    explanation = explain(q, k, v, **options)
    names = shown(lambda: attend(q, k, v, **options))
    assert any(SHOWN[device, explanation.kernel] in name for name in names), f"{explanation}\n{sorted(names)}"
    others = {name for (place, kernel), name in SHOWN.items() if place == device and kernel != explanation.kernel}
    if explanation.kernel not in ("math", "definition", "blocks of queries"):
        assert not any(name in names for name in others - {"aten::softmax"})


def test_a_window_over_a_long_text_is_tiled_and_says_why():
    q = torch.empty(1, 1, 65_536, 8)
    explanation = explain(q, q, q, Mask.window(100))
    assert explanation.backend == "tiled"
    assert "4,294,967,296 numbers that grow with queries × keys" in explanation


def test_causal_attention_over_a_long_padded_text_builds_no_mask():
    q = torch.empty(1, 1, 65_536, 8)
    for mask in (Mask.padding([9]), Mask.padding([9], queries=True), Mask.padding([9], side="left")):
        assert explain(q, q, q, Mask.causal() & mask).kernel == "flash"


def test_one_query_of_a_growing_cache_needs_no_mask():
    explanation = explain(torch.ones(1, 1, 1, 8), *[torch.ones(1, 1, 7, 8)] * 2, Mask.causal())
    assert str(explanation) == "sdpa: the flash kernel on cpu."


def test_a_named_backend_is_never_replaced():
    q = torch.ones(1, 1, 3, 8)
    with pytest.raises(BackendError, match="caps scores; 'auto' would take 'tiled'"):
        explain(q, q, q, softcap=3.0, backend="sdpa")
