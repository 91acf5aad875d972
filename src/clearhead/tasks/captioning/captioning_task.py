"""Captioning: a picture to a short text that says what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.decode import Writer
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.images import Augmentation, Preprocessing, convert_image
from clearhead.images.scenes import make_pairs, make_scenes
from clearhead.model import EncoderDecoder, ModelConfig, PictureToText
from clearhead.tasks.base import Baseline, Scores
from clearhead.tasks.captioning.caption_data import ARCHIVE, read_archive
from clearhead.tasks.captioning.caption_examples import CaptionExamples, Captions
from clearhead.tasks.captioning.caption_scores import score_captions
from clearhead.tasks.captioning.caption_settings import CaptionDecode, CaptionRecipe, Picture
from clearhead.tasks.captioning.nearest_neighbour import find_nearest
from clearhead.tasks.file_inputs import FileInputs
from clearhead.tasks.losses import token_loss
from clearhead.tasks.media import PictureInput
from clearhead.tasks.sequence_to_sequence import GeneratedText, SearchOptions, SequenceToSequence
from clearhead.tasks.settings import TaskRecipe, validate
from clearhead.tasks.trace import Trace

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

PREPROCESSING = "preprocessing.json"


class Captioning(
    FileInputs[EncoderDecoder, Captions, SearchOptions],
    SequenceToSequence[Any, Captions, Tensor],
):
    """One caption of each picture. Pictures are brought to one size, kept as bytes and cut into patches."""

    name = "captioning"
    output_name = "caption"
    input_kind = "picture"
    columns = ("image", "text")
    recipe = CaptionRecipe
    metrics = ("bleu", "chrf", "exact")
    metric = "chrf"
    suffixes = (".png", ".jpg", ".jpeg", ".webp", ".gif")
    generators = MappingProxyType(
        {
            "scenes": lambda part, count: (scene[:2] for scene in make_scenes(part, count or 1000)),
            "pairs": lambda part, count: (scene[:2] for scene in make_pairs(part, count or 1000)),
        }
    )
    decode: CaptionDecode

    def __init__(
        self,
        target: Tokenizer,
        config: ModelConfig,
        preprocessing: Preprocessing,
        decode: CaptionDecode,
    ) -> None:
        self.target, self.config, self.preprocessing, self.decode = target, config, preprocessing, decode
        self.label_smoothing = 0.0
        self.token_loss = token_loss

    @property
    def settings(self) -> dict[str, Any]:
        return self.decode.model_dump()

    # Data

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """Rows of a table, a folder, a program, or an .npz with the arrays `pixels` (bytes) and `texts`."""
        if not isinstance(source, Mapping) and Path(source).suffix == ARCHIVE:
            return read_archive(Path(source))
        return super().read(source, columns)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Captioning:
        assert isinstance(recipe, CaptionRecipe)
        texts = [str(row.values[1]) for row in rows]
        target = recipe.text.make_tokenizer(texts, start)
        config = cls.make_config(recipe, start, vocabulary=target.size)
        picture = recipe.picture.model_dump(exclude={"patch"})
        preprocessing = Preprocessing.from_dict({**picture, "background": tuple(picture["background"])})
        task = cls(target, config, preprocessing, recipe.decode)
        task.configure(recipe)
        if task.decode.longest is None:
            lengths = [len(tokens) for tokens in target.encode_all(texts)]
            longest = max((length for length in lengths if length <= recipe.data.longest), default=1)
            task.decode = task.decode.model_copy(update={"longest": max(longest, 1)})
        return task

    @classmethod
    def make_config(cls, recipe: TaskRecipe, start: Pretrained | None = None, **sizes: int) -> ModelConfig:
        """The model of a recipe with the grid of patches of its [picture]."""
        assert isinstance(recipe, CaptionRecipe)
        picture: Picture = recipe.picture
        rows, columns = picture.height // picture.patch, picture.width // picture.patch
        grid = {"patch_size": picture.patch, "patch_rows": rows, "patch_columns": columns}
        return super().make_config(recipe, start, **sizes, **grid)

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, CaptionRecipe)
        found = self.decode.longest
        self.decode, self.label_smoothing = recipe.decode, recipe.loss.label_smoothing
        if self.decode.longest is None:
            self.decode = self.decode.model_copy(update={"longest": found})

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> CaptionExamples:
        loaded = self.keep_readable(rows, report)
        targets = self.target.encode_all([str(row.values[1]) for row in loaded])
        kept = []
        for place, (row, target) in enumerate(zip(loaded, targets, strict=True)):
            if recipe is not None and len(target) > recipe.data.longest:
                report.drop(row, f"longer than {recipe.data.longest} tokens")
            else:
                report.keep()
                kept.append(place)
        if not kept:
            raise DataError(f"no picture is left to use: {report}")
        changes = recipe.augmentation.model_dump() if isinstance(recipe, CaptionRecipe) else {}
        hidden_words = changes.pop("words", 0.0)
        return CaptionExamples(
            torch.stack([loaded[place].values[0].content for place in kept]),
            [[self.target.start, *targets[place], self.target.end] for place in kept],
            [loaded[place] for place in kept],
            patches=self.patches,
            pad=self.target.pad,
            preprocessing=self.preprocessing,
            augmentation=Augmentation(**changes) if changes else None,
            hidden_words=hidden_words,
        )

    def input_tokenizer(self) -> Tokenizer:
        return self.target

    @property
    def patches(self) -> int:
        """How many patches a picture has."""
        return (self.config.patch_rows or 0) * (self.config.patch_columns or 0)

    # Pictures

    def load_file(self, path: Path) -> UInt8[Tensor, "3 height width"]:
        return _to_bytes(self.preprocessing.read(path))

    def load_value(self, value: Any) -> UInt8[Tensor, "3 height width"]:
        """A picture in memory: bytes (height, width, 3), a PIL image, or what a trace kept of one."""
        if isinstance(value, PictureInput):
            value = value.pixels
        elif hasattr(value, "getexif"):
            picture = convert_image(value, "the PIL image", background=self.preprocessing.background)
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

    def normalise(
        self, pictures: UInt8[Tensor, "batch 3 height width"], device: torch.device
    ) -> Float[Tensor, "batch 3 height width"]:
        """Pictures as the model takes them."""
        return self.preprocessing.normalise(pictures.to(device).float() / 255)

    # Model

    def build(self) -> PictureToText:
        return PictureToText(self.config)

    def loss(self, model: EncoderDecoder, batch: Captions) -> Float[Tensor, ""]:
        assert isinstance(model, PictureToText)
        context = model.encode_pictures(batch.pictures)
        smoothing = self.label_smoothing if model.training else 0.0
        return self.token_loss(model.vocabulary, model.decode(batch.target, context), batch.labels, smoothing)

    def compile_loss(self) -> None:
        self.token_loss = torch.compile(token_loss, dynamic=True)

    # Answers

    def split(self, given: Any) -> list[Tensor]:
        return [self.load_input(given).content]

    def part_length(self, part: Tensor) -> int:
        return self.patches

    def output_limit(self, part: Tensor) -> int:
        return 1 + (self.decode.longest or 64)

    def traced_part(self, trace: Trace) -> Tensor:
        if not isinstance(trace.media, PictureInput):
            raise ConfigError("the forward pass of a caption cannot be repeated without its picture")
        return torch.from_numpy(trace.media.pixels.copy()).permute(2, 0, 1)

    def writer(self, model: EncoderDecoder, parts: Sequence[Tensor]) -> Writer:
        assert isinstance(model, PictureToText)
        device = model.vocabulary.words.weight.device
        with torch.inference_mode():
            vectors = model.patches(self.normalise(torch.stack(list(parts)), device))
        return Writer.translating(model, vectors, [self.patches] * len(parts))

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """BLEU, chrF and the share of captions that are exactly right."""
        return score_captions([one.text for one in predictions], [str(row.values[1]) for row in rows])

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        """The caption of the training picture with the most similar pixels."""
        known = [row for row in self.load_rows(train) if not self.row_problem(row)]
        asked = self.load_rows(rows)
        pixels = (torch.stack([row.values[0].content for row in some]).flatten(1).float() for some in (known, asked))
        captions = [str(known[place].values[1]) for place in find_nearest(*pixels).tolist()]
        scores = score_captions(captions, [str(row.values[1]) for row in asked])
        return Baseline("nearest neighbour by pixels", scores)

    # Attention

    def traces(self, model: EncoderDecoder, given: Any, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A picture with its caption: the model's own, or the `answer`."""
        loaded = self.load_input(given)
        if answer is not None:
            return [self._trace(loaded.name, loaded.content, self.target.encode(answer), answer, given=True)]
        found = self.write(model, [loaded.content], self.make_search(options))
        best = found[0].hypotheses[0]
        notes = self._join(loaded, found, 1).notes
        return [self._trace(loaded.name, loaded.content, best.tokens, self.decode_text(best), notes=notes)]

    def _trace(self, name: str, picture: Tensor, target: list[int], text: str, **known: Any) -> Trace:
        reads = {"source": list(range(self.patches)), "target": [self.target.start, *target]}
        pixels = picture.permute(1, 2, 0).contiguous().numpy()
        media = PictureInput(pixels, self.config.patch_rows or 0, self.config.patch_columns or 0, name)
        return Trace(reads, [*target, self.target.end], text, media=media, **known)

    def run_trace(self, model: EncoderDecoder, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        device = model.vocabulary.words.weight.device
        target = torch.tensor([trace.reads["target"]], device=device)
        hidden = model(self.normalise(self.traced_part(trace)[None], device), target)
        return model.logits(hidden)[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        if kind != "source":
            return self.target.pieces(numbers)
        columns = self.config.patch_columns or 1
        return [f"r{number // columns + 1} c{number % columns + 1}" for number in numbers]

    # Model folder

    def save(self, folder: Path) -> None:
        self.target.save(folder)
        self.preprocessing.save(folder / PREPROCESSING)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Captioning:
        from clearhead.text import Tokenizer

        try:
            decode = validate(CaptionDecode, settings)
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are invalid: decode.{error}") from None
        target, preprocessing = Tokenizer.load(folder), Preprocessing.load(folder / PREPROCESSING)
        grid, own = (config.patch_rows or 0, config.patch_columns or 0), (preprocessing.height, preprocessing.width)
        sides = tuple(count * (config.patch_size or 0) for count in grid)
        if own != sides or target.size != config.vocabulary:
            raise CheckpointError(
                f"{folder} has pictures of {own[0]} × {own[1]} pixels and {target.size} tokens, but its model takes "
                f"{sides[0]} × {sides[1]} and {config.vocabulary}; copy the folder again"
            )
        return cls(target, config, preprocessing, decode)


def _to_bytes(picture: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    return (picture * 255).round().to(torch.uint8)
