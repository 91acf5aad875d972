"""What it costs to watch a whole model, as a multiple of the same model unwatched.

    python benchmarks/watched_model_speed.py llama [--sizes 1b 8b] [--tokens 2048 8192 32768 65536] [--rounds 5]
    python benchmarks/watched_model_speed.py bert [--tokens 128 512 2048] [--threads 2]

`llama`: random Llamas in bfloat16 on a GPU, of 1B size (16 layers, 32 heads on 8 key heads of width 64) and of 8B width
(8 layers, heads of width 128); on a CPU a small one. One prefill with all measures, without top keys, with q and k
kept, with the last 64 queries and 8 spans; then `generate` of 64 tokens after 1,024. `bert`: 6 layers of width 384 on a
CPU. Where the weights of all heads fit, eager attention with `output_attentions` stands beside them.

Below the table there is a line for each limit of time and, on a GPU, of memory, "within" or "OVER". With `--profile`
the operations (on a GPU, the kernels and copies) of one watched pass are listed, too, the longest first.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from clearhead import watch

from measuring import Report, Timing, compare

KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = {"1b": (2048, 8192, 16, 32, 8), "8b": (4096, 14336, 8, 32, 8), "small": (128, 256, 2, 4, 2)}
SPANS = 8
MOST_WEIGHTS = 16 * 2**30  # bytes of attention weights that eager may take
KEPT_AT = 32768  # tokens at which q and k are kept
MORE_MEMORY = 2**30  # most bytes of a GPU that a watch may take beside the model

# Most times of a watched Llama on a GPU, as multiples of the unwatched one, by tokens.
LIMITS = {
    "watched": {2048: 1.8, 8192: 1.5, 32768: 1.9, 65536: 2.1},
    "watched, top=0": {2048: 1.5, 8192: 1.35, 32768: 1.65, 65536: 1.8},
    'watched, keep="qk"': {KEPT_AT: 2.2},
    "watched, 64 queries, 8 spans": {2048: 1.25, 8192: 1.1, 32768: 1.1, 65536: 1.1},
}
GENERATE_LIMIT = 1.5
BERT_LIMIT, EAGER_LIMIT = 1.5, 1.0  # of the unwatched BERT on a CPU; of eager attention with weights


def build_llama(size: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, max_position_embeddings=2**17, **dict(zip(KEYS, SIZES[size], strict=True)), use_cache=False
    )
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32).eval()


def build_bert() -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        vocab_size=1000,
        max_position_embeddings=4096,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def split_spans(tokens: int) -> dict[str, slice]:
    width = tokens // SPANS
    return {f"part {number}": slice(number * width, (number + 1) * width) for number in range(SPANS)}


def make_competitors(model: nn.Module, ids: torch.Tensor, *, few: bool) -> dict[str, Callable[[], object]]:
    """The model alone, watched in several ways, and eager with weights where they fit; `few`: only the defaults."""
    batch, tokens = ids.shape
    base = getattr(model, "model", model)  # without the scores over the vocabulary

    @torch.inference_mode()
    def run(**options: Any) -> None:
        base(ids, **options)

    def run_watched(**options: Any) -> None:
        with watch(model, **options):
            run()

    @torch.inference_mode()
    def run_eager() -> None:
        kept = base.config._attn_implementation
        base.config._attn_implementation = "eager"
        try:
            base(ids, output_attentions=True)
        finally:
            base.config._attn_implementation = kept

    competitors: dict[str, Callable[[], object]] = {"unwatched": run, "watched": run_watched}
    competitors["watched, top=0"] = lambda: run_watched(top=0)
    if not few:
        chosen = {"queries": slice(-64, None), "spans": split_spans(tokens)}
        competitors["watched, 64 queries, 8 spans"] = lambda: run_watched(**chosen)
        if tokens == KEPT_AT:
            competitors['watched, keep="qk"'] = lambda: run_watched(keep="qk")
    heads = base.config.num_hidden_layers * base.config.num_attention_heads
    if batch * heads * tokens**2 * next(base.parameters()).element_size() < MOST_WEIGHTS:
        competitors["eager, output_attentions"] = run_eager
    return competitors


def judge_llama(report: Report, case: str, tokens: int, timings: dict[str, Timing]) -> None:
    """The verdicts on one prefill on a GPU."""
    for name, limits in LIMITS.items():
        if name in timings and tokens in limits:
            report.judge(f"{case}, {tokens:,} tokens: {name}", timings[name].ratio, limits[tokens], " × unwatched")
    more = (timings["watched"].memory or 0.0) - (timings["unwatched"].memory or 0.0)
    report.judge(f"{case}, {tokens:,} tokens: more memory than unwatched", more / 1e6, MORE_MEMORY / 1e6, " MB")


def judge_bert(report: Report, tokens: int, timings: dict[str, Timing]) -> None:
    """The verdicts on one pass of BERT on a CPU."""
    watched, eager = timings["watched"], timings["eager, output_attentions"]
    report.judge(f"BERT, {tokens:,} tokens: watched", watched.ratio, BERT_LIMIT, " × unwatched")
    report.judge(f"BERT, {tokens:,} tokens: watched", watched.median / eager.median, EAGER_LIMIT, " × eager")


def measure_generation(model: nn.Module, device: str, report: Report, rounds: int, label: str) -> None:
    prompt, new = (1024, 64) if device == "cuda" else (64, 16)
    ids = torch.randint(1, 1000, (1, prompt), device=device)  # 0 is padding

    @torch.inference_mode()
    def generate() -> None:
        model.generate(  # type: ignore[operator]
            ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
        )

    def generate_watched() -> None:
        with watch(model):
            generate()

    competitors: dict[str, Callable[[], object]] = {"unwatched": generate, "watched": generate_watched}
    timings = compare(competitors, rounds=rounds)
    report.add(f"{label}, generate", f"{new} after {prompt:,} tokens", timings)
    if device == "cuda":
        report.judge(f"{label}, generate: watched", timings["watched"].ratio, GENERATE_LIMIT, " × unwatched")


def print_profile(run: Callable[[], object], label: str, *, shown: int = 16) -> None:
    """The operations of one run by their time: on the GPU if there is one."""
    activity = torch.profiler.ProfilerActivity
    on_gpu = torch.cuda.is_available()
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        run()
    found = [
        ((one.self_device_time_total if on_gpu else one.self_cpu_time_total) / 1e3, one.count, one.key)
        for one in profile.key_averages()
    ]
    print(f"{label}: {sum(time for time, *_ in found):.1f} ms, {sum(count for _, count, _ in found)} operations")
    for time, count, name in sorted(found, reverse=True)[:shown]:
        print(f"  {time:9.2f} ms {count:6}  {name[:90]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=("llama", "bert"))
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--profile", action="store_true", help="list the operations of a watched pass")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    device = "cuda" if torch.cuda.is_available() and given.family == "llama" else "cpu"
    report = Report(f"watched_{given.family}", f"A watched {given.family.title()}, end to end")
    if given.family == "bert":
        model = build_bert()
        for tokens in given.tokens or [128, 512, 2048]:
            ids = torch.randint(0, 1000, (1, tokens))
            competitors = make_competitors(model, ids, few=True)
            timings = compare(competitors, rounds=given.rounds)
            report.add("BERT, prefill", f"{tokens:,} tokens", timings)
            judge_bert(report, tokens, timings)
            if given.profile:
                print_profile(competitors["watched"], f"BERT watched, {tokens:,} tokens")
    else:
        for size in given.sizes or (["1b", "8b"] if device == "cuda" else ["small"]):
            model = build_llama(size, device)
            for tokens in given.tokens or ([2048, 8192, 32768, 65536] if device == "cuda" else [128, 512]):
                ids = torch.randint(0, 1000, (1, tokens), device=device)
                competitors = make_competitors(model, ids, few=False)
                timings = compare(competitors, rounds=given.rounds)
                report.add(f"Llama {size}, prefill", f"{tokens:,} tokens", timings)
                if device == "cuda":
                    judge_llama(report, f"Llama {size}", tokens, timings)
                if given.profile:
                    print_profile(competitors["watched"], f"Llama {size} watched, {tokens:,} tokens")
            measure_generation(model, device, report, given.rounds, f"Llama {size}")
    report.save()


if __name__ == "__main__":
    main()
