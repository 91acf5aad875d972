"""A first look at attention: computed by hand for 人工智能, then learned from nothing in half a minute.

Run it with `make lesson`. It needs no network, and it ends with a picture of where every head of the model looks.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from clearhead import EncoderDecoder, KeyValueCache, Mask, ModelConfig, Seen, attend, attention_weights, explain
from drawing import draw_heads

ROOT = Path(__file__).resolve().parent.parent
LETTERS = "abcdefghijklmnopqrstuvwxyz人工智能学会注意力上海自来水天地你我他大小多少中国"
PAD, START, END, FIRST = 0, 1, 2, 3  # FIRST is the number of the first letter
SHORTEST, LONGEST = 3, 10


def attention_by_hand() -> None:
    """Part 1: four characters, four numbers each, every step printed."""
    names = "人工智能"
    x = torch.tensor([[3, 0, 0, 0], [2, 2, 0, 0], [1, 1, 2, 0], [1 / 3, 0, 2, 2]])
    print("1. Attention by hand: 人工智能, each character a vector of four numbers\n")
    print("   First Q = K = V = X. The scores of 人 are its products with every character:", row((x @ x.T)[0]))
    print("   Divided by √d = √4 = 2 and sent through the softmax they become weights. (A textbook that assumes")
    print("   these scores prints .75 .15 .07 .03 as an illustration; this is what the formula gives.)\n")
    show(attention_weights(x[None, None], x[None, None])[0, 0], names)

    print("   Like this, each character mostly sees itself. W_Q and W_K let it look elsewhere. Here W_Q is solved")
    print("   for, so that 人 and 工, 智 and 能 look at each other; training finds such matrices by itself:\n")
    partner = torch.tensor([[0.0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    w_q, w_k, w_v = 6 * x.inverse() @ partner @ x.inverse().T, torch.eye(4), torch.eye(4)
    q, k, v = ((x @ w)[None, None] for w in (w_q, w_k, w_v))  # (batch, heads, tokens, width of a head)
    weights, gathered = attention_weights(q, k), attend(q, k, v)
    show(weights[0, 0], names)
    print(f"   人 gathers {row(gathered[0, 0, 0])}: nearly 工, which is {row(x[1])}")
    apart = (gathered - weights @ v).abs().max()
    print(f"   attend() never builds the weights; its result differs from weights @ v by {apart:.0e}\n")

    print("   A mask says who may look (■). Causal: nobody sees what comes later. Padding: fillers are hidden, here")
    print("   as if 能 were one. They combine with & and |, and draw themselves when printed:\n")
    both = Mask.causal() & Mask.padding([3])
    drawn = [mask.draw(4, 4).splitlines() for mask in (Mask.causal(), Mask.padding([3]), both)]
    print("     causal      padding     causal & padding")
    print("\n".join("     " + "        ".join(lines) for lines in zip(*drawn, strict=True)) + "\n")
    show(attention_weights(q, k, both)[0, 0], names)
    print("   explain() says what attend() would run for these:")
    print("   " + explain(q, k, v, both).replace("\n", "\n   ") + "\n")


def show(weights: Tensor, names: str) -> None:
    """A small heat map in text: the darker, the more is looked at."""
    print("          " + "     ".join(f"{name:>2}" for name in names))
    for name, weights_of_letter in zip(names, weights.tolist(), strict=True):
        cells = " ".join(f"{' ░▒▓█'[round(weight * 4)] * 2}{weight:5.2f}" for weight in weights_of_letter)
        print(f"     {name}  {cells}    sum {sum(weights_of_letter):.2f}")
    print()


def row(numbers: Tensor) -> str:
    return " ".join(f"{number:.3g}" for number in numbers.tolist())


def some_words(count: int, chance: random.Random) -> list[str]:
    return ["".join(chance.choices(LETTERS, k=chance.randint(SHORTEST, LONGEST))) for _ in range(count)]


def tokens(words: list[str]) -> tuple[Tensor, Tensor]:
    """Words as numbers, filled up with PAD, and how long each is."""
    rows = [torch.tensor([FIRST + LETTERS.index(letter) for letter in word]) for word in words]
    filled = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return filled, torch.tensor([len(word) for word in words])


def backwards(words: list[str]) -> tuple[Tensor, Tensor]:
    """What the decoder is told, START and the reversed word, and what it should answer: one step ahead, then END."""
    letters, lengths = tokens([word[::-1] for word in words])
    return F.pad(letters, (1, 0), value=START), F.pad(letters, (0, 1), value=PAD).scatter(1, lengths[:, None], END)


def train(model: EncoderDecoder, steps: int, chance: random.Random) -> set[str]:
    """Part 2: random words and their reverse, 64 at a time. Nobody tells the model where to look."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    seen: set[str] = set()
    columns = (TextColumn("  "), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=steps)
        for step in range(1, steps + 1):
            words = some_words(64, chance)
            seen.update(words)
            (source, lengths), (told, answer) = tokens(words), backwards(words)
            logits = model.logits(model(source, told, Mask.padding(lengths), Mask.padding(lengths + 1)))
            loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            right = (logits.argmax(-1) == answer)[answer != PAD].float().mean()
            said = f"loss {loss.item():.3f}  letters right {right:4.0%}"
            progress.update(task, advance=1, description=said)
            if step % 100 == 0 or step == 1:
                progress.print(f"   step {step:4}  {said}  {'▇' * round(5 * loss.item() + 0.5)}")
    return seen


@torch.no_grad()
def written(model: EncoderDecoder, words: list[str]) -> list[str]:
    """What the model writes, a letter a step; the cache keeps keys and values, so that none is computed twice."""
    source, lengths = tokens(words)
    mask, cache, token = Mask.padding(lengths), KeyValueCache(), torch.full((len(words), 1), START)
    context, steps = model.encode(source, mask), []
    for _ in range(LONGEST + 1):
        token = model.logits(model.decode(token, context, context_mask=mask, cache=cache)).argmax(-1)
        steps.append(token)
    rows = [row[: row.index(END)] if END in row else row for row in torch.cat(steps, 1).tolist()]
    return ["".join(LETTERS[number - FIRST] if number >= FIRST else "?" for number in row) for row in rows]


@torch.no_grad()
def cross_attention(model: EncoderDecoder, word: str) -> Tensor:
    """Part 3: every head's weights while the word is written backwards, (layers, heads, letters and end, letters)."""
    observed: list[Seen] = []
    for layer in model.decoder.layers:
        layer.cross_attention.observer = observed.append
    model(tokens([word])[0], backwards([word])[0])
    for layer in model.decoder.layers:
        layer.cross_attention.observer = None
    return torch.cat([seen.weights() for seen in observed])


def learning(steps: int) -> tuple[EncoderDecoder, float]:
    """A model that has learned, and the share of never seen words that it reverses without a mistake."""
    size = {"width": 64, "feedforward": 256, "dropout": 0.0}
    model, chance = EncoderDecoder(ModelConfig.named("tiny", vocabulary=FIRST + len(LETTERS), **size)), random.Random(0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"2. Learning where to look: an encoder-decoder of {parameters:,} parameters learns to write words of")
    print(f"   {SHORTEST} to {LONGEST} letters backwards, from {64 * steps:,} random examples\n")
    seen = train(model.train(), steps, chance)
    model.eval()
    shown = ["人工智能", "上海自来水", "attention", "stressed"]
    for word, answer in zip(shown, written(model, shown), strict=True):
        print(f"   {word} → {answer}  {'right' if answer == word[::-1] else 'wrong'}")
    fresh = [word for word in some_words(1000, chance) if word not in seen]
    right = sum(answer == word[::-1] for answer, word in zip(written(model, fresh), fresh, strict=True))
    print(f"\n   Of {len(fresh)} random words that it was never taught, it writes {right} without a mistake\n")
    return model, right / len(fresh)


def main(steps: int = 800, folder: Path = ROOT / "runs" / "first-look") -> int:
    """The whole story; 0 if the model learned to reverse words, 1 if not."""
    # A model this small gains nothing from a second thread, and on a busy machine it waits for it.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    began, path, word = time.monotonic(), folder / "attention.png", "人工智能学会注意力"
    attention_by_hand()
    model, share = learning(steps)
    title = f"Writing {word} backwards: where every head looks"
    note = "The darker, the more a head looks there. Reading backwards is the rising diagonal."
    draw_heads(cross_attention(model, word), word, [*reversed(word), "end"], path, title=title, note=note)
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    print(f"3. Where all the heads look: see {here}")
    if share < 0.9:
        print(f"   The model did not learn it: {share:.0%} of fresh words right, 90 % wanted.", file=sys.stderr)
        return 1
    print("   The last letter is read first: the weights lie on the other diagonal. Nobody told the model.\n")
    print(f"Done in {time.monotonic() - began:.0f} s. Next: make demo, which translates; or change this lesson,")
    print("examples/first_look.py: more heads, a single layer, letters to be sorted instead of reversed.")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # some consoles know no Chinese, and would stop the show
    sys.exit(main())
