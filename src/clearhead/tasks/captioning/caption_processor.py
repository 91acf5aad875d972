"""The stored part of captioning: its recipe, inputs, tokenizer, size of pictures; rows become patches and tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from pydantic import Field, model_validator
from torch import Tensor

from clearhead.errors import DataError
from clearhead.images import Augmentation, Preprocessing, convert_image
from clearhead.images.preprocessing import normalise
from clearhead.images.scenes import make_pairs
from clearhead.model import ModelConfig, Patches, PictureToText
from clearhead.tasks.file_inputs import FileInputs
from clearhead.tasks.media import PictureInput
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import Columns, Examples, Files, RowCheck
from clearhead.tasks.sequence_to_sequence.generation import GeneratingProcessor
from clearhead.tasks.sequence_to_sequence.search import LimitedDecode
from clearhead.tasks.sequence_to_sequence.text_to_text import Loss, shift_targets
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch, Ragged


class CaptionData(Data):
    """`[data]` of captions: tables of paths and texts, or folders."""

    longest: int = Field(64, ge=1)  # tokens of a caption; longer rows are dropped from training, and the report says so


class CaptionText(Text):
    """`[text]` of captions."""

    vocabulary: int = Field(2000, ge=300)


class Picture(Section, Preprocessing):
    """`[picture]`: the size that pictures are brought to, and the patches that they are cut into."""

    patch: int = Field(8, ge=1)  # pixels along a patch's side

    @model_validator(mode="after")
    def _check_grid(self) -> Picture:
        for name in ("height", "width"):
            if getattr(self, name) % self.patch:
                raise ValueError(f"{name} = {getattr(self, name)} is no multiple of patch = {self.patch}")
        return self


class PictureChanges(Section, Augmentation):
    """`[augmentation]`: random changes of training pictures, which differ each time; 0 switches one off."""


class CaptionRecipe(TaskRecipe):
    data: CaptionData
    text: CaptionText = CaptionText()
    picture: Picture = Picture()
    augmentation: PictureChanges = PictureChanges()
    loss: Loss = Loss()
    decode: LimitedDecode = LimitedDecode()


class CaptionSettings(LimitedDecode):
    """The settings that a model folder keeps."""

    picture: Preprocessing = Preprocessing()


class PictureInputs(FileInputs):
    """Pictures as bytes (3, height, width), resized as the preprocessing says."""

    kind = "picture"
    suffixes = (".png", ".jpg", ".jpeg", ".webp", ".gif")
    generators = MappingProxyType(
        {"pairs": lambda part, count: (scene[:2] for scene in make_pairs(part, count or 1000))}
    )

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def load_file(self, path: Path) -> UInt8[Tensor, "3 height width"]:
        return _to_bytes(self.preprocessing.read(path))

    def load_value(self, value: Any) -> UInt8[Tensor, "3 height width"]:
        """A picture in memory: bytes (height, width, 3), a PIL image, or what a trace kept of one."""
        if isinstance(value, PictureInput):
            value = value.pixels
        elif hasattr(value, "getexif"):
            picture = convert_image(value, "the PIL image")
            return _to_bytes(self.preprocessing.resize_picture(picture))
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
            raise DataError(f"a picture is a path, a PIL image or an array of bytes (height, width, 3), got {got}")
        if not value.size:
            raise DataError(f"a picture needs at least one pixel, got {value.shape}")
        picture = torch.from_numpy(value.copy()).permute(2, 0, 1).float() / 255
        return _to_bytes(self.preprocessing.resize_picture(picture))

    def save_file(self, content: UInt8[Tensor, "3 height width"], path: Path) -> None:
        from PIL import Image

        Image.fromarray(content.permute(1, 2, 0).contiguous().numpy()).save(path)


def _to_bytes(picture: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    return (picture * 255).round().to(torch.uint8)


class Captions(NamedTuple):
    """A batch: normalised pictures, the decoder's input tokens, and the tokens that it should predict."""

    pictures: Float[Tensor, "batch 3 height width"]
    target: Int[Tensor, "batch tokens"]
    labels: Int[Tensor, "batch tokens"]


class CaptionExamples(Examples[Captions]):
    """Pictures, decoded once and kept as bytes, with their captions as tokens.

    With an `augmentation`, `collate` changes pictures by PyTorch's random numbers, which a run seeds before each step.
    """

    on_device = ("pictures", "target")

    def __init__(
        self,
        processor: CaptionProcessor,
        rows: Sequence[Row],
        targets: list[list[int]],
        augmentation: PictureChanges | None,
    ) -> None:
        self.pictures = torch.stack([row.values[0].content for row in rows])
        self.target, self.rows, self.pad = Ragged(targets), rows, processor.target.pad
        self.augmentation = augmentation
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([np.full(len(rows), processor.patches), self.counts], axis=1)

    def collate(self, batch: Batch) -> Captions:
        rows = torch.from_numpy(batch.examples).to(self.pictures.device, non_blocking=True)
        pictures = self.pictures[rows].float() / 255
        if self.augmentation is not None:
            pictures = self.augmentation(pictures, torch.default_generator)
        targets = shift_targets(self.target, rows, batch.sizes[1], self.pad)
        return Captions(normalise(pictures), *targets)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.pictures.cpu().numpy().tobytes()).hexdigest()
        return f"{digest} {self.target.fingerprint()}"


class CaptionProcessor(GeneratingProcessor[CaptionRecipe, Captions]):
    """Pictures are brought to one size, kept as bytes and cut into patches."""

    columns = ("image", "text")
    metric = "chrf"
    inputs: PictureInputs
    stored_kind = CaptionSettings
    stored: CaptionSettings

    def __init__(self, target: Tokenizer, config: ModelConfig, stored: CaptionSettings) -> None:
        super().__init__(target, config, stored)
        self.target, self.preprocessing = target, stored.picture
        self.inputs = PictureInputs(stored.picture)

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        return PictureInputs.read(source, cls.columns, columns)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: CaptionRecipe, start: Pretrained | None = None) -> CaptionProcessor:
        texts = [str(row.values[1]) for row in rows]
        target = recipe.text.make_tokenizer(texts, start)
        config = cls.make_config(recipe, start, vocabulary=target.size)
        picture = Preprocessing(**recipe.picture.model_dump(exclude={"patch"}))
        decode = recipe.decode.limit_to(target.encode_all(texts), recipe.data.longest)
        return cls(target, config, CaptionSettings(**decode, picture=picture))

    def examples(self, rows: Iterable[Row], report: Report, recipe: CaptionRecipe | None = None) -> CaptionExamples:
        loaded = self.inputs.keep_readable(rows, report)
        targets = self.target.encode_all([str(row.values[1]) for row in loaded])
        find_excess = (lambda tokens: None) if recipe is None else recipe.data.find_excess
        pairs = zip(loaded, targets, strict=True)
        used = [(row, target) for row, target in pairs if report.admit(row, find_excess(len(target)))]
        report.refuse_empty("picture")
        targets = [[self.target.start, *target, self.target.end] for _, target in used]
        return CaptionExamples(self, [row for row, _ in used], targets, None if recipe is None else recipe.augmentation)

    def check_row(self, row: Row) -> RowCheck:
        return RowCheck(self.inputs.find_problem(row))

    @property
    def grid(self) -> Patches:
        assert self.config.patches is not None, "make_config and load give them"
        return self.config.patches

    @property
    def patches(self) -> int:
        return self.grid.rows * self.grid.columns

    def normalise(
        self, pictures: UInt8[Tensor, "batch 3 height width"], device: torch.device
    ) -> Float[Tensor, "batch 3 height width"]:
        """Pictures as the model takes them."""
        return normalise(pictures.to(device).float() / 255)

    @classmethod
    def make_config(cls, recipe: CaptionRecipe, start: Pretrained | None = None, **sizes: Any) -> ModelConfig:
        """The model of a recipe with the grid of patches of its [picture]."""
        picture = recipe.picture
        rows, columns = picture.height // picture.patch, picture.width // picture.patch
        grid = {"size": picture.patch, "rows": rows, "columns": columns}
        return super().make_config(recipe, start, **sizes, patches=grid)

    def build(self) -> PictureToText:
        return PictureToText(self.config)
