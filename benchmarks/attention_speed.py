"""attend against bare scaled_dot_product_attention, in one run; on the GPU if there is one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead import Bias, Mask, attend, explain

from measuring import Report, compare


def tensors(device: str, dtype: torch.dtype, shape: tuple[int, int, int, int], kv_heads: int | None = None):
    batch, heads, tokens, d = shape
    sizes = [(batch, n, tokens, d) for n in (heads, kv_heads or heads, kv_heads or heads)]
    return [torch.randn(size, device=device, dtype=dtype) for size in sizes]


def forward(q: Tensor, k: Tensor, v: Tensor, masks: dict, lengths: Tensor) -> dict[str, dict]:
    """Case → competitors, the bare call first."""
    tokens = q.shape[2]
    bare = F.scaled_dot_product_attention
    key_row = (torch.arange(tokens, device=q.device) < lengths[:, None])[:, None, None]
    return {
        "full": {"sdpa": lambda: bare(q, k, v), "attend": lambda: attend(q, k, v)},
        "causal": {
            "sdpa": lambda: bare(q, k, v, is_causal=True),
            "attend": lambda: attend(q, k, v, masks["causal"]),
        },
        "causal+padding, pad queries hidden": {
            "sdpa causal, no padding": lambda: bare(q, k, v, is_causal=True),
            "attend": lambda: attend(q, k, v, masks["causal"] & masks["rows"]),
        },
        "causal+padding": {
            "sdpa causal, no padding": lambda: bare(q, k, v, is_causal=True),
            "sdpa with a dense mask": lambda: bare(q, k, v, (masks["causal"] & masks["keys"]).dense(tokens, tokens)),
            "attend": lambda: attend(q, k, v, masks["causal"] & masks["keys"]),
        },
        "padding": {
            "sdpa, no padding": lambda: bare(q, k, v),
            "sdpa with a key mask": lambda: bare(q, k, v, key_row),
            "attend": lambda: attend(q, k, v, masks["keys"]),
        },
        "sinks, causal": {
            "sdpa causal, no sinks": lambda: bare(q, k, v, is_causal=True),
            "attend": lambda: attend(q, k, v, masks["causal"], sinks=masks["sinks"]),
        },
        "window 256": {
            "sdpa with a dense mask": lambda: bare(q, k, v, masks["dense window"]),
            "attend": lambda: attend(q, k, v, masks["window"]),
            "tiled": lambda: attend(q, k, v, masks["window"], backend="tiled"),
        },
        "alibi, causal": {
            "sdpa with a dense bias": lambda: bare(q, k, v, masks["dense alibi"]),
            "attend": lambda: attend(q, k, v, masks["causal"], bias=masks["alibi"]),
            "tiled": lambda: attend(q, k, v, masks["causal"], bias=masks["alibi"], backend="tiled"),
        },
        "softcap, causal": {
            "reference": lambda: attend(q, k, v, masks["causal"], softcap=30.0, backend="reference"),
            "attend": lambda: attend(q, k, v, masks["causal"], softcap=30.0),
        },
        "tiled, causal": {
            "sdpa": lambda: bare(q, k, v, is_causal=True),
            "tiled": lambda: attend(q, k, v, masks["causal"], backend="tiled"),
        },
    }


def prepared(q: Tensor, lengths: Tensor) -> dict:
    tokens, heads = q.shape[2], q.shape[1]
    causal, window = Mask.causal(), Mask.window(255)
    alibi = Bias.alibi(heads).to(q.device)
    dense = alibi.dense(tokens, tokens).masked_fill(~causal.dense(tokens, tokens).to(q.device), -torch.inf)
    return {
        "causal": causal,
        "keys": Mask.padding(lengths),
        "rows": Mask.padding(lengths, queries=True),
        "window": window,
        "dense window": window.dense(tokens, tokens).to(q.device),
        "alibi": alibi,
        "dense alibi": dense.to(q.dtype),
        "sinks": torch.zeros(heads, device=q.device),
    }


def with_gradients(q: Tensor, k: Tensor, v: Tensor, masks: dict) -> dict[str, dict]:
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    upstream = torch.randn_like(q)

    def both_ways(run):
        return lambda: torch.autograd.grad(run(*leaves), leaves, upstream)

    def bare(*t: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*t, is_causal=True)

    def ours(**options):
        return lambda *t: attend(*t, masks["causal"], **options)

    return {
        "causal, forward+backward": {"sdpa": both_ways(bare), "attend": both_ways(ours())},
        "causal+padding (pad queries hidden), forward+backward": {
            "sdpa causal, no padding": both_ways(bare),
            "attend": both_ways(lambda *t: attend(*t, masks["causal"] & masks["rows"])),
        },
        "tiled causal, forward+backward": {
            "sdpa": both_ways(bare),
            "tiled": both_ways(ours(backend="tiled")),
        },
    }


def main() -> None:
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    report = Report("attention_speed", "attend against scaled_dot_product_attention")
    shapes = [(4, 16, 4096, 128), (4, 16, 4096, 64)] if cuda else [(1, 8, 512, 64), (1, 8, 2048, 64)]
    for shape in shapes:
        q, k, v = tensors(device, dtype, shape)
        lengths = torch.linspace(shape[2] / 4, shape[2], shape[0], device=device).long()
        masks = prepared(q, lengths)
        with torch.no_grad():
            for case, competitors in forward(q, k, v, masks, lengths).items():
                report.add(case, str(shape), compare(competitors, calls=10 if cuda else 5))
            if cuda:
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    report.add(
                        "cuDNN, causal",
                        str(shape),
                        compare(forward(q, k, v, masks, lengths)["causal"], calls=10),
                    )
        for case, competitors in with_gradients(q, k, v, masks).items():
            report.add(case, str(shape), compare(competitors, calls=10 if cuda else 2))
        q, k, v = tensors(device, dtype, shape, kv_heads=shape[1] // 4)
        with torch.no_grad():
            shared = {
                "sdpa": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                "attend": lambda q=q, k=k, v=v: attend(q, k, v, Mask.causal()),
            }
            report.add("shared heads, causal", str(shape), compare(shared, calls=10 if cuda else 5))
        print(explain(q, k, v, Mask.causal() & Mask.padding(lengths)))
    report.save()


if __name__ == "__main__":
    main()
