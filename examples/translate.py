"""Translation from end to end in three minutes: use a translator, train one, see where its heads look.

Run it with `make demo`. Nothing is downloaded: model, sentences and font come with clearhead.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead
from clearhead import ClearheadError, ModelConfig, shipped
from clearhead.predictor import Predictor
from clearhead.tasks.translation import TranslationAnswerer, TranslationOptions, TranslationProcessor
from clearhead.text import Report
from clearhead.train import Moment, Observer, Recipe, read_recipe, run_training
from drawing import draw_heads, draw_lines
from word_alignment import cross_attentions, merge_words, share_tokens

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "translate-zh-en-tiny"

# Sentences that the shipped model has never seen, and a word that no good translation can do without.
UNSEEN = {
    "他昨天没有去学校，因为他病了。": "school",
    "你今天晚上想吃什么？": "eat",
    "一个穿着红色衬衫的男人在弹吉他。": "guitar",
    "这座桥是两年前建成的。": "bridge",
    "如果明天下雨，我们就待在家里。": "rain",
    "請告訴我怎麼去圖書館。": "library",  # this one and the next are in traditional characters
    "老師給我們講了一個有趣的故事。": "story",
}
WATCHED = "我在吃米饭。"  # one of the sentences that the small model is taught

# The sentence of the pictures in its words, and what they mean: so that we can tell which head has found that out.
WORDS = ["我", "昨天", "在", "商店", "里", "买", "了", "三", "本", "英语", "书", "。"]
MEANINGS = {"I": "我", "yesterday": "昨天", "store": "商店", "shop": "商店", "bought": "买", "three": "三"}
MEANINGS |= {"English": "英语", "books": "书", ".": "。"}


def translate(translator: Predictor) -> bool:
    """Part 1: what the shipped model makes of sentences that it has never seen."""
    size = sum(parameter.numel() for parameter in translator.model.parameters())
    print(f"1. A translator that comes with clearhead: {translator.name}, {size / 1e6:.0f} million weights\n")
    missed = []
    for sentence, word in UNSEEN.items():
        began = time.monotonic()
        answer = translator.predict(sentence).text
        print(f"   {sentence}\n   → {answer}  ({time.monotonic() - began:.2f} s)\n")
        if word not in answer:
            missed.append(f"{answer!r} for {sentence}")
    return succeeded(not missed, f"the shipped model said {', '.join(missed)}")


class Watching(Observer):
    """Prints the loss as a bar, and what the model makes of one sentence by then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "task"

    @cached_property
    def processor(self) -> TranslationProcessor:
        values = json.loads((self.folder / "task.json").read_text(encoding="utf-8"))
        return TranslationProcessor.load(self.folder, ModelConfig.from_dict(values["model"]), values["settings"])

    def logged(self, moment: Moment) -> None:
        model = deepcopy(moment.model).eval()  # the trainer's own is not touched
        with torch.no_grad():
            translator = TranslationAnswerer(self.processor, model)
            answer = translator.predict([WATCHED], TranslationOptions(beams=1))[0].text
        loss = float(moment.metrics["loss"])
        print(f"   loss {loss:4.2f} {'▇' * round(3 * loss + 0.5):20} {WATCHED} → {answer}")


def learn(folder: Path, overrides: Sequence[str] = ()) -> bool:
    """Part 2: trains a small translator from nothing, then asks it for what it was taught."""
    recipe, _ = read_recipe(RECIPE, overrides)
    print(f"2. A small translator of your own. How it learns is written in {shown(shipped.RECIPES)}/{RECIPE}.toml\n")
    began = time.monotonic()
    run_training(RECIPE, out=folder, overrides=overrides, device="cpu", overwrite=True, observers=[Watching(folder)])
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]
    took = f"{time.monotonic() - began:.0f} s"
    print(f"\n   In {took} the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}: see {shown(folder)}/loss.png")

    print("   Ten of the sentences that it was taught, drawn at random:\n")
    translator = clearhead.load(folder, device="cpu")
    pairs = taught(translator.processor, recipe)
    asked = random.Random(1).sample(sorted(pairs), 10)
    right = 0
    for sentence, prediction in zip(asked, translator.predict(asked), strict=True):
        answer = prediction.text
        listed = answer in pairs[sentence]
        right += listed
        print(f"   {'✓' if listed else '✗'} {sentence} → {answer}", "" if listed else f"(taught: {pairs[sentence][0]})")
    small, large = (bleu(model) for model in (folder / "model", shipped.MODELS / "zh-en"))
    print(f"\n   {right} of 10 came out as taught. It was taught {len(pairs):,} sentences, and knows little else:")
    print(f"   on new ones it has {small:.0f} BLEU, where the shipped model, larger and better read, has {large:.0f}\n")
    return succeeded(right >= 8, f"the small model learned too little: {right} of 10 as taught, at least 8 wanted")


def taught(processor: TranslationProcessor, recipe: Recipe) -> dict[str, list[str]]:
    """Every sentence that the recipe trains on, and how it is translated there."""
    rows = list(islice(processor.read(shipped.corpus("tatoeba-zh-en.train")), recipe.data.lines))
    pairs: dict[str, list[str]] = {}
    for row in processor.examples(rows, Report(), recipe).rows:
        pairs.setdefault(row.values[0], []).append(row.values[1])
    return pairs


def bleu(model: Path) -> float:
    return float(json.loads((model / "metrics.json").read_text(encoding="utf-8"))["dev"]["bleu"])


def look(translator: Predictor, folder: Path) -> bool:
    """Part 3: every head of the shipped model, and large the one that knows best which word stands for which."""
    sentence = "".join(WORDS)
    answer = translator.predict(sentence).text
    written = re.findall(r"\s*(?:[\w']+|[^\w\s])", answer)  # words, with the space before them
    weights = between_words(translator, WORDS, written)
    reads, writes = [*WORDS, "end"], [*(word.strip() for word in written), "end"]
    print(f"3. Where its heads look: {sentence} → {answer}\n")

    links = [(row, reads.index(MEANINGS[word])) for row, word in enumerate(writes) if word in MEANINGS]
    if len(links) < 4:
        return succeeded(False, f"{answer!r} has too few of the words that the pictures are about")
    back = torch.stack([weights[:, :, row, column] for row, column in links]).mean(0)
    ahead = torch.stack([weights[:, :, row - 1, column] for row, column in links if row > 0]).mean(0)
    layer, head = divmod(int(back.argmax()), back.shape[1])
    name, share = f"layer {layer + 1}, head {head + 1}", float(back.max())

    summary = f"{(back > 0.5).sum()} of {back.numel()} heads look back at the Chinese word that it stands for"
    summary += f", {(ahead > 0.5).sum()} ahead at that of the next word."
    heads, best = shown(folder / "heads.png"), shown(folder / "head.png")
    note = f"A row is the moment after a word was written: {summary}"
    draw_heads(weights, reads, writes, heads, title=f"{sentence}  →  {answer}", note=note, framed=(layer, head))
    title = f"{name.capitalize()} has learned which word stands for which"
    draw_lines(weights[layer, head], reads, writes, best, title=title)
    print(f"   {heads} shows all of them. After a word was written,\n   {summary}\n")
    print(f"   {best} shows {name}, which gives {share:.0%} of its attention to the right word.")
    print("   Nobody told it which one that is.\n")
    return succeeded(share > 0.5, f"no head aligns the words: the best, {name}, gives {share:.0%} to the right ones")


def between_words(translator: Predictor, source: Sequence[str], target: Sequence[str]) -> Tensor:
    """What every head gives to each source word just after each target word; the ends count as words."""
    processor: Any = translator.processor
    numbers, shares = share_tokens(processor.source, source, separator="")
    written, written_shares = share_tokens(processor.target, target, separator="")
    tokens = [*numbers, processor.source.end], [*written, processor.target.end]
    weights = cross_attentions(translator.model, *tokens, start=processor.target.start)
    return merge_words(weights, with_end(written_shares), with_end(shares))


def with_end(shares: Tensor) -> Tensor:
    longer = F.pad(shares, (0, 1, 0, 1))
    longer[-1, -1] = 1
    return longer


def succeeded(well: bool, otherwise: str) -> bool:
    if not well:
        print(f"   This went wrong: {otherwise}", file=sys.stderr)
    return well


def shown(path: Path) -> Path:
    """As one would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main(runs: Path = ROOT / "runs", overrides: Sequence[str] = ()) -> int:
    """The whole story; 0 if every part did what it should, 1 if not."""
    # A model this small gains little from a second thread, and on a busy machine it waits for it.
    torch.set_num_threads(1)
    began, recipe = time.monotonic(), shown(runs / RECIPE)
    try:
        translator = clearhead.load("zh-en", device="cpu")
        well = [translate(translator), learn(recipe, overrides), look(translator, runs / "demo")]
    except ClearheadError as error:
        well = [succeeded(False, str(error))]
    if not all(well):
        return 1
    command = shown(Path(sys.executable).parent / "clearhead")
    print(f"Done in {time.monotonic() - began:.0f} s. What to try next:\n")
    print(f'   {command} predict zh-en "你想喝茶还是咖啡？"')
    print(f'   {command} predict {recipe} "{WATCHED}"')
    print(f"   {command} train {RECIPE} --set model.heads=1 --out runs/one-head")
    print("   make lesson    # attention by hand, and a model that learns where to look\n")
    print("docs/training.md tells how to train a translator on sentences of your own.")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # Chinese everywhere, and in step with stderr
    sys.exit(main())
