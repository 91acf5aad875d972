"""Beam-5 decoding of 200 sentences: ours against transformers' `generate`, with the same weights and rules.

    python benchmarks/decode_speed.py                             a model trained for minutes to copy its source
    python benchmarks/decode_speed.py MODEL pairs.tsv             a model folder, and source ⇥ reference lines

A `classic` translator is written out as Marian. Both then decode the same batches with 5 beams and the same
length rule; the share of identical lines stands beside each time, and BLEU where there are references.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from clearhead import EncoderDecoder, Mask, ModelConfig, to_huggingface
from clearhead.decode import Writer, beam

from measuring import Report, compare

SENTENCES, BEAMS, PAD, START, END = 200, 5, 0, 1, 2
# name, sentences in a batch, sorted by length, of how many sentences
CASES = [
    ("batches of 32, as they come", 32, False, SENTENCES),
    ("batches of 32, of similar length", 32, True, SENTENCES),
    ("all in one batch", SENTENCES, False, SENTENCES),
    ("one by one", 1, False, 20),
]


class Job(NamedTuple):
    """A model and what it translates; `text` turns tokens into a line, `references` are lines or None."""

    model: EncoderDecoder
    sources: list[list[int]]
    text: Callable[[list[int]], str]
    references: list[str] | None

    @property
    def limit(self) -> int:
        return 2 * max(map(len, self.sources)) + 10


def batches(sources: list[list[int]], size: int, by_length: bool) -> list[list[int]]:
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row])) if by_length else list(range(len(sources)))
    return [order[first : first + size] for first in range(0, len(order), size)]


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows]), lengths


def ours(job: Job, size: int, by_length: bool, count: int) -> list[list[int]]:
    lines: list[list[int]] = [[] for _ in range(count)]
    for rows in batches(job.sources[:count], size, by_length):
        writer = Writer.translating(job.model, *padded([job.sources[row] for row in rows]))
        found = beam(writer, start=START, end=END, beams=BEAMS, max_length=job.limit)
        for row, (best,) in zip(rows, found, strict=True):
            lines[row] = best.tokens
    return lines


def theirs(job: Job, marian: transformers.MarianMTModel, size: int, by_length: bool, count: int) -> list[list[int]]:
    lines: list[list[int]] = [[] for _ in range(count)]
    for rows in batches(job.sources[:count], size, by_length):
        source, lengths = padded([job.sources[row] for row in rows])
        found = marian.generate(
            input_ids=source,
            attention_mask=(torch.arange(source.shape[1]) < lengths[:, None]).long(),
            num_beams=BEAMS,
            max_new_tokens=job.limit,
            length_penalty=1.0,
            early_stopping=False,
            do_sample=False,
            forced_eos_token_id=None,  # else a line is ended by force at the limit, whatever the model says
        )
        for row, line in zip(rows, found[:, 1:].tolist(), strict=True):
            lines[row] = line[: line.index(END)] if END in line else line
    return lines


def from_folder(folder: str, pairs: str) -> Job:
    """A trained translator and the first sentences of a file."""
    from clearhead import load
    from clearhead.text import read

    predictor = load(folder, device="cpu")
    rows = [row.values for _, row in zip(range(SENTENCES), read(pairs, ["source", "target"]), strict=False)]
    tokenizers = predictor.processor.source, predictor.processor.target
    sources = [[*tokenizers[0].encode(source), END] for source, _ in rows]
    return Job(predictor.model, sources, tokenizers[1].decode, [target for _, target in rows])


def copier(steps: int = 500) -> Job:
    """A model of the classic size that copies, more or less: one layer is trained, the others hardly change anything.

    In a post-norm model a layer that adds next to nothing is the identity, so the time is that of six layers.
    """
    torch.manual_seed(0)
    shape = {"vocabulary": 12000, "dropout": 0.0}
    shallow = EncoderDecoder(ModelConfig.named("classic", **shape, layers=1))
    for side in (shallow.encoder, shallow.decoder):
        side.layers[0].feedforward_norm.requires_grad_(False)
    train_to_copy(shallow, steps)
    deep = EncoderDecoder(ModelConfig.named("classic", **shape))
    with torch.no_grad():
        for name, weight in deep.named_parameters():
            if ".layers." in name and name.endswith(("to_out.weight", "down.weight")):
                weight *= 0.02
    deep.load_state_dict(shallow.state_dict(), strict=False)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 22, (SENTENCES,), generator=generator).tolist()
    sources = [torch.randint(3, 12000, (length,), generator=generator).tolist() for length in lengths]
    return Job(deep.eval(), sources, str, None)


def train_to_copy(model: EncoderDecoder, steps: int) -> None:
    generator = torch.Generator().manual_seed(2)
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], fused=True)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 7e-4 * min((step + 1) / 100, 1) * (1 - step / steps) ** 0.5
        # Scores over 400 words at a time, since over all of them they would take most of the minutes.
        words = torch.cat([torch.arange(3), torch.randperm(11997, generator=generator)[:400] + 3])
        lengths = torch.randint(3, 22, (48,), generator=generator)
        source = torch.randint(3, 403, (48, int(lengths.max())), generator=generator)
        source = source.where(torch.arange(source.shape[1]) < lengths[:, None], PAD)
        target = F.pad(source, (0, 1))
        target[torch.arange(48), lengths] = END
        read = F.pad(source, (1, 0), value=START)
        hidden = model(words[source], words[read], Mask.padding(lengths), Mask.padding(lengths + 1))
        logits = (hidden @ model.vocabulary.words.weight[words].T).flatten(0, 1)
        loss = F.cross_entropy(logits, target.flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 49:
            print(f"learning to copy: step {step + 1} of {steps}, loss {loss.item():.2f}", flush=True)


def likeness(job: Job, mine: list[list[int]], other: list[list[int]]) -> str:
    """How alike two sets of lines are: the share of identical ones, and both BLEU scores."""
    same = sum(one == two for one, two in zip(mine, other, strict=True)) / len(mine)
    said = f"{same:.1%} of lines identical"
    if job.references is None:
        return said
    from sacrebleu import corpus_bleu

    both = [
        corpus_bleu([job.text(line) for line in lines], [job.references[: len(lines)]]).score for lines in (mine, other)
    ]
    return f"{said}, BLEU {both[0]:.2f} and theirs {both[1]:.2f}"


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    job = from_folder(*sys.argv[1:3]) if len(sys.argv) > 2 else copier()
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(job.model, folder, pad=PAD, eos=END, start=START)
        marian = transformers.MarianMTModel.from_pretrained(folder).eval()
    report = Report("decode_speed", "Beam-5 decoding of 200 sentences against transformers' generate")
    config = job.model.config
    for name, size, by_length, count in CASES:
        here, there = partial(ours, job, size, by_length, count), partial(theirs, job, marian, size, by_length, count)
        lines = here()
        said = likeness(job, lines, there())
        mean = sum(map(len, lines)) / len(lines)
        shape = f"{config.layers} layers, width {config.width}, {config.vocabulary} words, lines of {mean:.1f} tokens"
        timings = compare({"transformers": there, "clearhead": here}, rounds=3)
        report.add(f"{name}: {said}", shape, timings)
    report.save()


if __name__ == "__main__":
    main()
