"""The peer of transcription: transformers' Wav2Vec2ForCTC from scratch on raw sound, on the same batches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.decode.ctc import collapse_path
from clearhead.tasks.losses import UNCOUNTED
from clearhead.text.batches import BatchPlan


class PeerSettings(NamedTuple):
    width: int = 256
    layers: int = 8
    heads: int = 4
    feedforward: int = 1024
    channels: int = 256
    learning_rate: float = 5e-4
    warmup: int = 500
    mask_length: int = 10


def build_peer(vocabulary: int, settings: PeerSettings) -> Any:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=vocabulary,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.feedforward,
        conv_dim=(settings.channels,) * 7,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        conv_bias=True,
        layerdrop=0.0,
        mask_time_length=settings.mask_length,
        ctc_loss_reduction="sum",
        ctc_zero_infinity=True,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return Wav2Vec2ForCTC(config)


def train_peer(
    processor: Any, examples: Any, device: torch.device, minutes: float, batch: int, settings: PeerSettings
) -> Any:
    """Trains for so many minutes: warm-up, then a half cosine to zero at the end."""
    torch.manual_seed(1)
    model = build_peer(processor.target.size, settings).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    plan, examples = BatchPlan(examples.lengths, tokens=batch, seed=1), examples.to(device)
    begin, step, epoch, total, counted = time.monotonic(), 0, 0, 0.0, 0
    while True:
        for planned in plan.epoch(epoch):
            done = (time.monotonic() - begin) / 60 / minutes
            if done >= 1:
                return model.eval(), step
            rate = min(1.0, (step + 1) / settings.warmup) * (1 + math.cos(math.pi * done)) / 2
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * rate
            sound, lengths, _, labels = examples.collate(planned)
            tokens = labels.masked_fill(labels == processor.target.end, UNCOUNTED)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(**_inputs(sound, lengths), labels=tokens).loss
            count = int(examples.counts[planned.examples].sum())
            (loss / count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step, counted = step + 1, counted + count
            if step % 100 == 0:
                total = float(loss.detach()) / count
                print(f"peer: step {step}, {100 * done:.0f} % of the time, loss {total:.3f}", flush=True)
        epoch += 1


@torch.inference_mode()
def transcribe(model: Any, processor: Any, sounds: Sequence[Tensor], batch: int = 64) -> list[str]:
    """The texts of the most probable paths."""
    device, texts = next(model.parameters()).device, []
    for begin in range(0, len(sounds), batch):
        rows = list(sounds[begin : begin + batch])
        lengths = torch.tensor([len(row) for row in rows], device=device)
        sound = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        logits = model(**_inputs(sound, lengths)).logits
        positions = model._get_feat_extract_output_lengths(lengths).tolist()
        for path, length in zip(logits.argmax(-1).tolist(), positions, strict=True):
            texts.append(processor.target.decode(collapse_path(path[:length], processor.blank)))
    return texts


def _inputs(sound: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """Sounds with mean 0 and variance 1, as transformers' processor gives them."""
    inside = torch.arange(sound.shape[1], device=sound.device) < lengths[:, None]
    mean = (sound * inside).sum(1, keepdim=True) / lengths[:, None]
    centred = (sound - mean) * inside
    deviation = (centred.square().sum(1, keepdim=True) / lengths[:, None] + 1e-7).sqrt()
    return {"input_values": centred / deviation, "attention_mask": inside.long()}
