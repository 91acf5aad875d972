"""The stored part of captioning: tokenizer, size of pictures, settings of decoding; rows become patches and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.images import Preprocessing
from clearhead.model import ModelConfig, Patches, PictureToText
from clearhead.storage import check_format, read_json, write_json
from clearhead.tasks.captioning.caption_examples import CaptionExamples, Captions
from clearhead.tasks.captioning.caption_settings import CaptionDecode, CaptionRecipe
from clearhead.tasks.captioning.picture_inputs import PictureInputs
from clearhead.tasks.processor import Columns, Files
from clearhead.tasks.sequence_to_sequence.generation import GeneratingProcessor
from clearhead.tasks.settings import validate

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

PREPROCESSING, FORMAT = "preprocessing.json", 1


class CaptionProcessor(GeneratingProcessor[CaptionRecipe, Captions]):
    """Pictures are brought to one size, kept as bytes and cut into patches."""

    columns = ("image", "text")
    metric = "chrf"
    inputs: PictureInputs
    decode: CaptionDecode

    def __init__(
        self, target: Tokenizer, config: ModelConfig, preprocessing: Preprocessing, decode: CaptionDecode
    ) -> None:
        self.target, self.config, self.preprocessing, self.decode = target, config, preprocessing, decode
        self.tokenizer = target
        self.inputs = PictureInputs(preprocessing)

    # Data

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        return PictureInputs.read(source, cls.columns, columns)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: CaptionRecipe, start: Pretrained | None = None) -> CaptionProcessor:
        texts = [str(row.values[1]) for row in rows]
        target = recipe.text.make_tokenizer(texts, start)
        config = cls.make_config(recipe, start, vocabulary=target.size)
        preprocessing = Preprocessing(**recipe.picture.model_dump(exclude={"patch"}))
        decode = recipe.decode
        if decode.longest is None:
            lengths = [len(tokens) for tokens in target.encode_all(texts)]
            longest = max((length for length in lengths if length <= recipe.data.longest), default=1)
            decode = decode.model_copy(update={"longest": max(longest, 1)})
        return cls(target, config, preprocessing, decode)

    def configure(self, recipe: CaptionRecipe) -> None:
        """The recipe's settings of decoding; without a `longest` there, that of the training data stays."""
        longest = self.decode.longest if recipe.decode.longest is None else recipe.decode.longest
        self.decode = recipe.decode.model_copy(update={"longest": longest})

    def examples(self, rows: Iterable[Row], report: Report, recipe: CaptionRecipe | None = None) -> CaptionExamples:
        loaded = self.inputs.keep_readable(rows, report)
        targets = self.target.encode_all([str(row.values[1]) for row in loaded])
        used = []
        for place, (row, target) in enumerate(zip(loaded, targets, strict=True)):
            if recipe is not None and len(target) > recipe.data.longest:
                report.drop(row, f"longer than {recipe.data.longest} tokens")
            else:
                report.keep()
                used.append(place)
        if not used:
            raise DataError(f"no picture is left to use: {report}")
        return CaptionExamples(
            torch.stack([loaded[place].values[0].content for place in used]),
            [[self.target.start, *targets[place], self.target.end] for place in used],
            [loaded[place] for place in used],
            patches=self.patches,
            pad=self.target.pad,
            preprocessing=self.preprocessing,
            augmentation=None if recipe is None else recipe.augmentation,
        )

    def row_problem(self, row: Row) -> str | None:
        return self.inputs.find_problem(row)

    @property
    def grid(self) -> Patches:
        """The patches of a picture."""
        assert self.config.patches is not None, "make_config and load give them"
        return self.config.patches

    @property
    def patches(self) -> int:
        """How many patches a picture has."""
        return self.grid.rows * self.grid.columns

    def normalise(
        self, pictures: UInt8[Tensor, "batch 3 height width"], device: torch.device
    ) -> Float[Tensor, "batch 3 height width"]:
        """Pictures as the model takes them."""
        return self.preprocessing.normalise(pictures.to(device).float() / 255)

    # Model

    @classmethod
    def make_config(cls, recipe: CaptionRecipe, start: Pretrained | None = None, **sizes: Any) -> ModelConfig:
        """The model of a recipe with the grid of patches of its [picture]."""
        picture = recipe.picture
        rows, columns = picture.height // picture.patch, picture.width // picture.patch
        grid = {"size": picture.patch, "rows": rows, "columns": columns}
        return super().make_config(recipe, start, **sizes, patches=grid)

    def build(self) -> PictureToText:
        return PictureToText(self.config)

    # Model folder

    @property
    def settings(self) -> dict[str, Any]:
        return self.decode.model_dump()

    def save(self, folder: Path) -> None:
        self.target.save(folder)
        write_json(folder / PREPROCESSING, {"format": FORMAT, **self.preprocessing.model_dump()})

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> CaptionProcessor:
        from clearhead.text import Tokenizer

        try:
            decode = validate(CaptionDecode, settings)
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are invalid: decode.{error}") from None
        target, preprocessing = Tokenizer.load(folder), read_preprocessing(folder / PREPROCESSING)
        if (grid := config.patches) is None:
            raise CheckpointError(f"{folder} holds a model that takes no pictures; copy the folder again")
        height, width = grid.rows * grid.size, grid.columns * grid.size
        if (preprocessing.height, preprocessing.width, target.size) != (height, width, config.vocabulary):
            raise CheckpointError(
                f"{folder} has pictures of {preprocessing.height} × {preprocessing.width} pixels and {target.size} "
                f"tokens, but its model takes {height} × {width} and {config.vocabulary}; copy the folder again"
            )
        return cls(target, config, preprocessing, decode)


def read_preprocessing(path: Path) -> Preprocessing:
    """The settings of pictures in a model folder; CheckpointError if they are damaged."""
    values = read_json(path)
    check_format(path, values.pop("format", None), FORMAT)
    try:
        return validate(Preprocessing, values, str(path))
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
