"""Trains a decoder of two layers on random refrains, and draws when its previous-token and induction heads appear.

    python examples/induction_heads.py roles.png

A line is a random sequence of 5 to 20 of 26 tokens, again and again. Takes about 20 seconds of CPU time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from clearhead import Decoder, ModelConfig
from clearhead.lens.analysis.roles import draw_repeated_tokens, score_repeated_tokens
from clearhead.train.head_monitor import draw_roles, read_role_histories

TOKENS, LENGTH, ROWS, STEPS, EVERY = 26, 60, 32, 400, 10
RATE, WARMUP = 6e-3, 50


def draw_refrain(chance: torch.Generator) -> Tensor:
    size = int(torch.randint(5, 21, (1,), generator=chance))
    refrain = 1 + torch.randperm(TOKENS, generator=chance)[:size]
    return torch.cat([torch.zeros(1, dtype=torch.long), refrain.repeat(13)[:LENGTH]])


def main(path: Path) -> None:
    torch.manual_seed(0)
    shape = {"width": 64, "heads": 4, "kv_heads": 4, "layers": 2, "feedforward": 128, "attention_bias": True}
    model = Decoder(ModelConfig.named("modern", vocabulary=TOKENS + 1, dropout=0.0, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    probe = draw_repeated_tokens(range(1, TOKENS + 1), 24, chance=torch.Generator().manual_seed(0))
    chance, metrics, heads = torch.Generator().manual_seed(1), list[dict[str, object]](), list[dict[str, object]]()
    for step in range(1, STEPS + 1):
        rows = torch.stack([draw_refrain(chance) for _ in range(ROWS)])
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, step / WARMUP)
        loss = cross_entropy(model.logits(model(rows[:, :-1])).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        metrics.append({"step": step, "loss": loss.item()})
        if step % EVERY == 0:
            heads.append({"step": step, "heads": score_repeated_tokens(model.eval(), probe)})
            model.train()
    histories = read_role_histories(heads)
    draw_roles(metrics, histories, path)
    for history in histories:
        print(f"{history.role}: from step {history.appeared}, best {history.best}, {history.scores[-1].max():.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FIGURE.png")
    main(Path(sys.argv[1]))
