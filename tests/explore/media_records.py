"""Records of a caption and of a transcript with chosen weights: what a trained model does, without training one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from clearhead import Mask, Record, measure
from clearhead.lens.measures.definition import choose_blocks
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.call_metadata import CallMetadata
from clearhead.lens.record.kept_inputs import KeptInputs, Step
from clearhead.tasks.media import PictureInput, SoundInput, media_to_json
from tests.explore.records import MEASURES, visible_of

ROWS, COLUMNS, PATCH = 7, 9, 8
WORDS = ["▁a", "▁red", "▁circle", "▁left", "▁of", "▁a", "▁blue", "▁square", "</s>"]
CIRCLE, SQUARE = (3, 2), (2, 6)  # row and column of the middle patch
LETTERS = ["▁", "t", "o", "n", "e", "▁", "t", "w", "o", "</s>"]
POSITIONS, STEP = 83, 0.04


def sight(name: str, weights: Tensor, *, cross: bool = False, mask: Mask | None = None) -> Sight:
    """An attention with these weights, (heads, queries, keys), up to the smallest: keys are unit vectors."""
    heads, queries, keys = weights.shape
    logits = weights.clamp(min=1e-4).log()
    q, k = logits[None] * keys**0.5, torch.eye(keys).expand(1, heads, keys, keys).contiguous()
    found = measure(q, k, mask, pixels=256, top=8)
    kept = KeptInputs(
        q, k, keys**-0.5, None, None, (Step(0, 0, queries, keys, mask, None),), torch.tensor([queries]), found.logsumexp
    )
    return Sight(
        **{measure: getattr(found, measure) for measure in MEASURES},
        **visible_of(q, k, mask),
        name=name,
        cross=cross,
        heads=tuple(range(heads)),
        queries=torch.arange(queries),
        blocks=choose_blocks(queries, keys, 256),
        inputs=(0,),
        kept=kept,
        norms=torch.ones(1, heads, keys),
    )


def captioned(name: str = "scene.png") -> Record:
    """A picture of 7 × 9 patches: words for the circle and the square look at their patches in head 1."""
    picture = np.full((ROWS * PATCH, COLUMNS * PATCH, 3), 236, np.uint8)
    down, across = np.mgrid[: ROWS * PATCH, : COLUMNS * PATCH]
    middle = [(place + 0.5) * PATCH for place in CIRCLE]
    picture[(down - middle[0]) ** 2 + (across - middle[1]) ** 2 < (1.4 * PATCH) ** 2] = (214, 52, 44)
    top, left = ((place - 1) * PATCH + 3 for place in SQUARE)
    picture[top : top + 18, left : left + 18] = (38, 84, 190)
    media = PictureInput(picture, ROWS, COLUMNS, name)
    where = {1: CIRCLE, 2: CIRCLE, 6: SQUARE, 7: SQUARE}
    spot = torch.full((len(WORDS), ROWS, COLUMNS), 0.1)
    for word, (row, column) in where.items():
        spot[word, row - 1 : row + 2, column - 1 : column + 2] += 3.0
        spot[word, row, column] += 6.0
    spot[3] = torch.linspace(0.2, 1.0, COLUMNS)
    return _record(WORDS, spot.flatten(1), media, " ".join(word.strip("▁") for word in WORDS[:-1]))


def transcribed(name: str = "tones.wav", start: float = 0.0) -> Record:
    """A sound of 3.3 s: every letter looks at its moment in head 1, where CTC has its spike.

    It begins `start` seconds after its recording.
    """
    letters = len(LETTERS) - 1
    middles = torch.linspace(7, POSITIONS - 10, letters)
    times = torch.arange(POSITIONS)
    look = torch.stack([(-((times - middle) ** 2) / 6.0).exp() for middle in [*middles.tolist(), POSITIONS - 2.0]])
    frames, mels = np.mgrid[: 4 * POSITIONS, :40]
    spectrogram = np.full(frames.shape, -8.0, np.float32)
    for number, middle in enumerate(middles.tolist()):
        loud = np.exp(-(((frames - 4 * middle) / 9.0) ** 2))
        for tone in range(1, 4):
            spectrogram += 7 / tone * loud * np.exp(-(((mels - tone * (4 + number % 5)) / 1.3) ** 2))
    spikes = [
        (int(middle), text, 0.98 - 0.04 * i) for i, (middle, text) in enumerate(zip(middles, LETTERS, strict=False))
    ]
    media = SoundInput(spectrogram.astype(np.float32), 4 * POSITIONS * STEP / 4, STEP / 4, STEP, spikes, name, start)
    return _record(LETTERS, look, media, "tone two")


def _record(words: list[str], look: Tensor, media: PictureInput | SoundInput, text: str) -> Record:
    torch.manual_seed(3)
    count, places = len(words), look.shape[1]
    noise = torch.rand(2, 3, count, places) + 0.3
    crossing = noise.clone()
    crossing[1, 1] = look + 1e-3
    crossing[0, 2] = look.roll(1, 0) + 0.1
    crossing /= crossing.sum(-1, keepdim=True)
    apart = (torch.arange(places)[:, None] - torch.arange(places)).abs()
    near = torch.stack([(-apart / (2.0 + 6 * head)).exp() + 0.001 for head in range(3)])
    decoded = torch.rand(3, count, count) ** 3 + 0.01
    sights = {}
    for layer in range(2):
        sights[f"encoder.{layer}.self"] = sight(f"encoder.{layer}.self", near / near.sum(-1, keepdim=True))
    for layer in range(2):
        sights[f"decoder.{layer}.self"] = sight(f"decoder.{layer}.self", decoded, mask=Mask.causal())
        sights[f"decoder.{layer}.cross"] = sight(f"decoder.{layer}.cross", crossing[layer], cross=True)
    forward = Forward(sights, {"source": torch.arange(places)[None], "target": torch.arange(count)[None]})
    forward.sights = {name: replace(one, forward=forward) for name, one in sights.items()}
    forward.labels["target"] = dict(enumerate(["<s>", *words[:-1]]))
    forward.about = CallMetadata(
        model="tiny",
        task="captioning",
        input=media.name,
        text=text,
        writes=list(words),
        written=list(range(count)),
        next=[[(word, 0.8), ("▁x", 0.1)] for word in words],
        loss=0.25,
        media=media_to_json(media),
    )
    return Record(list(sights), [forward])
