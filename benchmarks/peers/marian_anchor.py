"""The anchor of our translation training: transformers' MarianMT from scratch, so many minutes on one GPU.

    python benchmarks/peers/marian_anchor.py --data zh-en --minutes 5 --out runs/anchor

Reads tatoeba.{train,dev}.tsv, 3am.{train,val}.{zh,en} and python-docs.tsv from the data folder, whose Chinese is
simplified already, and writes result.json, translations.json and tokenizer.json. Nothing of clearhead is used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from transformers import MarianConfig, MarianMTModel

PAD, EOS, UNK = 0, 1, 2
Texts = list[tuple[str, str]]
Pairs = list[tuple[list[int], list[int]]]


def table(path: Path) -> Texts:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [(row[0], row[1]) for row in rows]


def captions(folder: Path, name: str) -> Texts:
    sides = [(folder / f"{name}.{side}").read_text(encoding="utf-8").split("\n") for side in ("zh", "en")]
    return [pair for pair in zip(*sides, strict=True) if pair != ("", "")]


def train_tokenizer(texts: Texts, vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False, max_token_length=16
    )
    tokenizer.train_from_iterator((text for pair in texts for text in pair), trainer)
    return tokenizer


def encoded(tokenizer: Tokenizer, texts: Texts, longest: int) -> Pairs:
    sides = [tokenizer.encode_batch_fast([pair[side] for pair in texts]) for side in (0, 1)]
    return [([*s.ids[: longest - 1], EOS], [*t.ids[: longest - 1], EOS]) for s, t in zip(*sides, strict=True)]


class Batches(Sampler[list[int]]):
    """Shuffled pools, sorted by length and cut so that neither padded side has more than `tokens` tokens."""

    def __init__(self, pairs: Pairs, tokens: int, pool: int = 20_000, seed: int = 1) -> None:
        self.lengths = [(len(source), len(target)) for source, target in pairs]
        self.tokens, self.pool, self.random = tokens, pool, random.Random(seed)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(len(self.lengths)))
        self.random.shuffle(order)
        for start in range(0, len(order), self.pool):
            pool = sorted(order[start : start + self.pool], key=lambda i: (max(self.lengths[i]), self.lengths[i]))
            batches = list(self.cut(pool))
            self.random.shuffle(batches)
            yield from batches

    def cut(self, pool: list[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in pool:  # sorted: the newest is the longest
            if (len(batch) + 1) * up_to_8(max(self.lengths[index])) > self.tokens and batch:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def up_to_8(length: int) -> int:
    return -(-length // 8) * 8


def padded(rows: list[list[int]]) -> Tensor:
    longest = up_to_8(max(map(len, rows)))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def collate(pairs: Pairs) -> tuple[Tensor, Tensor, int]:
    source, target = padded([s for s, _ in pairs]), padded([t for _, t in pairs])
    return source, target, sum(len(s) + len(t) for s, t in pairs)


def build(vocabulary: int, width: int, layers: int) -> MarianMTModel:
    return MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary,
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            activation_function="swish",
            dropout=0.1,
            max_position_embeddings=512,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=None,
            eos_token_id=EOS,
            forced_eos_token_id=None,
            decoder_start_token_id=PAD,
            attn_implementation="sdpa",
        )
    )


def loss_of(model: MarianMTModel, source: Tensor, target: Tensor, smoothing: float, reduction: str = "mean") -> Tensor:
    begun = F.pad(target, (1, 0), value=PAD)[:, :-1]
    with torch.autocast(source.device.type, torch.bfloat16):
        logits = model(
            input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=begun, use_cache=False
        ).logits
        return F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction=reduction
        )


@torch.no_grad()
def dev_loss(model: MarianMTModel, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Nats a target token, end of sentence included."""
    model.eval()
    total = torch.stack([loss_of(model, source, target, 0.0, "sum") for source, target in batches]).sum()
    model.train()
    return total.item() / sum(int((target != PAD).sum()) for _, target in batches)


def train(model: MarianMTModel, pairs: Pairs, dev: Pairs, device: torch.device, settings: argparse.Namespace):
    """What was done, and the weights of the lowest dev loss; the clock holds everything from the first batch on."""
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=device.type == "cuda"
    )
    warmup = settings.warmup
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
    )
    batches = Batches(pairs, settings.tokens)
    held = [collate([dev[i] for i in batch])[:2] for batch in Batches(dev, settings.tokens)]
    held_batches = [(source.to(device), target.to(device)) for source, target in held]
    looks = [settings.minutes * 60 * part / 5 for part in range(1, 5)]
    log, step, tokens, lines, best, best_weights = [], 0, 0, 0, float("inf"), {}

    def look(seconds: float, loss: Tensor) -> None:
        nonlocal best, best_weights
        value = dev_loss(model, held_batches)
        if value < best:
            best, best_weights = value, {k: v.detach().clone() for k, v in model.state_dict().items()}
        log.append(entry(seconds, loss) | {"dev_loss": round(value, 4)})
        print(log[-1], flush=True)

    def entry(seconds: float, loss: Tensor) -> dict[str, Any]:
        return {"seconds": round(seconds, 1), "step": step, "tokens": tokens, "loss": round(loss.item(), 4)}

    model.train()
    begin = time.perf_counter()
    loader = DataLoader(
        pairs,  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=settings.workers,
        persistent_workers=settings.workers > 0,
        prefetch_factor=8 if settings.workers else None,
        pin_memory=device.type == "cuda",
    )
    seconds = 0.0
    while seconds < settings.minutes * 60:
        for source, target, count in loader:
            source, target = source.to(device, non_blocking=True), target.to(device, non_blocking=True)
            loss = loss_of(model, source, target, 0.1)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            step, tokens, lines = step + 1, tokens + count, lines + len(source)
            seconds = time.perf_counter() - begin
            if step % 100 == 0:
                log.append(entry(seconds, loss))
                print(log[-1], flush=True)
            if looks and seconds > looks[0]:
                looks.pop(0)
                look(seconds, loss)
            if seconds >= settings.minutes * 60:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    look(seconds, loss)  # outside the clock: the run is over
    done = {
        "seconds": round(seconds, 2),
        "steps": step,
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds),
        "epochs": round(lines / len(pairs), 2),
        "log": log,
    }
    return done, best_weights


@torch.inference_mode()
def translate(model: MarianMTModel, tokenizer: Tokenizer, pairs: Pairs, device: torch.device) -> list[str]:
    model.eval()
    order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]))
    result = [""] * len(pairs)
    for start in range(0, len(order), 250):
        rows = order[start : start + 250]
        source = padded([pairs[i][0] for i in rows]).to(device)
        out = model.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=5,
            do_sample=False,
            max_length=None,
            max_new_tokens=min(200, 2 * source.shape[1] + 10),
        )
        texts = tokenizer.decode_batch(out.tolist(), skip_special_tokens=True)
        for i, text in zip(rows, texts, strict=True):
            result[i] = text.strip()
    return result


def scores(translations: list[str], references: list[str]) -> dict[str, Any]:
    bleu, chrf = sacrebleu.BLEU(tokenize="13a"), sacrebleu.CHRF()
    return {
        "bleu": round(bleu.corpus_score(translations, [references]).score, 2),
        "chrf": round(chrf.corpus_score(translations, [references]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def machine(device: torch.device) -> dict[str, Any]:
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "cuda": torch.version.cuda,
        "cpu": cpus[0].split(":")[1].strip() if cpus else platform.processor(),
        "cpus": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{m.__name__: m.__version__ for m in (torch, transformers, tokenizers, sacrebleu)},
        },
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=12_000)
    parser.add_argument("--tokens", type=int, default=10_240, help="padded tokens a batch, each side")
    parser.add_argument("--longest", type=int, default=256, help="tokens, the rest is cut off")
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--dev", type=int, default=None, help="only so many lines of each dev set")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    settings = arguments()
    settings.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.perf_counter()
    folder = settings.data
    texts = table(folder / "tatoeba.train.tsv") + captions(folder, "3am.train") + table(folder / "python-docs.tsv")
    dev = {"tatoeba.dev": table(folder / "tatoeba.dev.tsv"), "3am.val": captions(folder, "3am.val")}
    dev = {name: pairs[: settings.dev] for name, pairs in dev.items()}
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    tokenizer.save(str(settings.out / "tokenizer.json"))
    encode = partial(encoded, tokenizer, longest=settings.longest)
    pairs, dev_pairs = encode(texts), {name: encode(these) for name, these in dev.items()}
    result: dict[str, Any] = {
        "what": "MarianMT of transformers from scratch, zh to en, bf16 autocast, eager (no torch.compile)",
        **machine(device),
        "settings": {k: v for k, v in vars(settings).items() if k not in ("data", "out")},
        "pairs": len(pairs),
        "tokens_an_epoch": sum(len(s) + len(t) for s, t in pairs),
        "cut_pairs": sum(max(len(s), len(t)) == settings.longest for s, t in pairs),
        "tokenizer_and_encoding_seconds": round(time.perf_counter() - begin, 1),
    }
    model = build(tokenizer.get_vocab_size(), settings.width, settings.layers).to(device)
    result["parameters"] = sum(p.numel() for p in model.parameters())
    print(json.dumps(result, indent=1), flush=True)

    done, best = train(model, pairs, [pair for these in dev_pairs.values() for pair in these], device, settings)
    result |= {"training": done, "scores": {}}
    (settings.out / "result.json").write_text(json.dumps(result, indent=1))
    last_is_best = done["log"][-1]["dev_loss"] <= min(entry.get("dev_loss", 1e9) for entry in done["log"])
    translations: dict[str, Any] = {}
    for weights in ["last"] if last_is_best else ["last", "lowest dev loss"]:
        if weights != "last":
            model.load_state_dict(best)
        for name, these in dev_pairs.items():
            started = time.perf_counter()
            written = translate(model, tokenizer, these, device)
            references = [target for _, target in dev[name]]
            translations.setdefault(weights, {})[name] = written
            (settings.out / "translations.json").write_text(json.dumps(translations, ensure_ascii=False, indent=1))
            score = scores(written, references)
            score |= {"lines": len(written), "seconds": round(time.perf_counter() - started, 1)}
            result["scores"].setdefault(weights, {})[name] = score
            (settings.out / "result.json").write_text(json.dumps(result, indent=1))
            print(weights, name, json.dumps(score), flush=True)


if __name__ == "__main__":
    main()
