"""What it costs to watch a few queries and spans of a whole model, as a multiple of the model unwatched.

    python benchmarks/lens_queries.py [--tokens 2048 8192 32768] [--rounds 7]

The model is a random Llama of 1B size (16 layers, 32 heads on 8 key heads of width 64) in bfloat16 on a GPU; on a CPU
it is small. Each prefill is watched for its last 64 queries, with the weight on 8 spans of keys.
"""

from __future__ import annotations

import argparse
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel

from clearhead import watch

from measuring import Report, compare

LARGE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
LARGE |= {"num_key_value_heads": 8, "max_position_embeddings": 2**17}
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 2**17}
SPANS = 8


def build_model(cuda: bool) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=1000, **(LARGE if cuda else SMALL))
    with torch.device("cuda" if cuda else "cpu"):
        model = LlamaModel(config)
    return model.to(torch.bfloat16 if cuda else torch.float32).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    cuda = torch.cuda.is_available()
    model = build_model(cuda)
    report = Report("lens_queries", "Watching the last 64 queries with 8 spans")
    for tokens in given.tokens:
        ids = torch.randint(0, 1000, (1, tokens), device="cuda" if cuda else "cpu")
        width = tokens // SPANS
        spans = {f"part {n}": slice(n * width, (n + 1) * width) for n in range(SPANS)}

        @torch.inference_mode()
        def run(ids: torch.Tensor = ids) -> None:
            model(ids, use_cache=False)

        def run_watched(ids: torch.Tensor = ids, spans: dict[str, slice] = spans) -> None:
            with watch(model, queries=slice(-64, None), spans=spans):
                run(ids)

        def run_spans_only(ids: torch.Tensor = ids, spans: dict[str, slice] = spans) -> None:
            with watch(model, queries=slice(-64, None), spans=spans, pixels=0, top=0):
                run(ids)

        competitors = {"unwatched": run, "64 queries, 8 spans": run_watched, "without map and top keys": run_spans_only}
        report.add("prefill", f"{tokens:,} tokens", compare(competitors, rounds=given.rounds))
    report.save()


if __name__ == "__main__":
    main()
