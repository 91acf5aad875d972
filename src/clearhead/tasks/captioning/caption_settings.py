"""The sections of a captioning recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from clearhead.images import Augmentation
from clearhead.images.preprocessing import LARGEST_SIDE, Share
from clearhead.tasks.sequence_to_sequence.pair_processor import Loss
from clearhead.tasks.sequence_to_sequence.search import Decode
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text


class CaptionData(Data):
    """`[data]` of captions: tables of paths and texts, or folders."""

    longest: int = Field(64, ge=1)  # tokens of a caption; longer rows are dropped from training, and the report says so


class CaptionText(Text):
    """`[text]` of captions."""

    vocabulary: int = Field(2000, ge=300)


class Picture(Section):
    """`[picture]`: the size that pictures are brought to, and the patches that they are cut into."""

    height: int = Field(64, ge=1, le=LARGEST_SIDE)  # pixels
    width: int = Field(64, ge=1, le=LARGEST_SIDE)
    patch: int = Field(8, ge=1)  # pixels along a patch's side
    # Pictures of other proportions: "pad" fills with the background, "crop" keeps the middle, "stretch" distorts.
    resize: Literal["pad", "crop", "stretch"] = "pad"
    background: list[Share] = Field([1.0, 1.0, 1.0], min_length=3, max_length=3)  # red, green, blue, from 0 to 1

    @model_validator(mode="after")
    def _check_grid(self) -> Picture:
        for name in ("height", "width"):
            if getattr(self, name) % self.patch:
                raise ValueError(f"{name} = {getattr(self, name)} is no multiple of patch = {self.patch}")
        return self


class PictureChanges(Section, Augmentation):
    """`[augmentation]`: random changes of training pictures, which differ each time; 0 switches one off."""

    words: float = Field(0.0, ge=0, lt=1)  # share of a caption's words that the decoder does not see in training


class CaptionDecode(Decode):
    """`[decode]` of captions."""

    longest: int | None = Field(None, ge=1)  # tokens of a caption; None: as many as the longest in training


class CaptionRecipe(TaskRecipe):
    data: CaptionData
    text: CaptionText = CaptionText()
    picture: Picture = Picture()
    augmentation: PictureChanges = PictureChanges()
    loss: Loss = Loss()
    decode: CaptionDecode = CaptionDecode()
