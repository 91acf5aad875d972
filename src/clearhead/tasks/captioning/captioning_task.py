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

from clearhead.decode import Hypothesis, Writer
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.images import Augmentation, Preprocessing, convert_image
from clearhead.images.appearance import WIDTHS, describe_appearance
from clearhead.images.scenes import make_pairs, make_scenes
from clearhead.model import EncoderDecoder, ModelConfig, PictureToText
from clearhead.tasks.base import Baseline, Scores
from clearhead.tasks.captioning.caption_data import ARCHIVE, count_keywords, has_word, read_archive, split_keywords
from clearhead.tasks.captioning.caption_examples import CaptionExamples, Captions
from clearhead.tasks.captioning.caption_memory import CaptionMemory
from clearhead.tasks.captioning.caption_scores import score_captions
from clearhead.tasks.captioning.caption_settings import CaptionData, CaptionDecode, CaptionRecipe, Picture
from clearhead.tasks.captioning.minimum_bayes_risk import search_by_risk
from clearhead.tasks.captioning.nearest_neighbour import find_nearest
from clearhead.tasks.file_inputs import FileInputs, is_generated, resolve_paths
from clearhead.tasks.losses import token_loss
from clearhead.tasks.media import PictureInput
from clearhead.tasks.sequence_to_sequence import GeneratedText, PartNumber, Search, SearchOptions, SequenceToSequence
from clearhead.tasks.settings import Data, TaskRecipe, validate
from clearhead.tasks.trace import Trace
from clearhead.text.corpora import read

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

PREPROCESSING = "preprocessing.json"
AT_ONCE = 64  # pictures that are encoded together for the baseline


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
        keywords: Sequence[str] = (),
    ) -> None:
        self.target, self.config, self.preprocessing, self.decode = target, config, preprocessing, decode
        self.keywords = {word: place for place, word in enumerate(keywords)}
        self.memory: CaptionMemory | None = None
        self.label_smoothing = self.keyword_loss = 0.0
        self.token_loss = token_loss

    @property
    def settings(self) -> dict[str, Any]:
        kept = self.memory is not None  # not yet, while a run trains
        return {**self.decode.model_dump(), "keywords": list(self.keywords), "memory": kept}

    # Data

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """Rows of a table, a folder, a program, or an .npz with the arrays `pixels` (bytes) and `texts`."""
        if not isinstance(source, Mapping) and Path(source).suffix == ARCHIVE:
            return read_archive(Path(source), keywords=False)
        return super().read(source, columns)

    @classmethod
    def read_source(cls, source: str | Path | Mapping[str, str | Path], data: Data) -> Iterator[Row]:
        if not isinstance(data, CaptionData) or not data.keywords:
            return cls.read(source, data.columns)
        if not isinstance(source, Mapping) and Path(source).suffix == ARCHIVE:
            return read_archive(Path(source), keywords=True)
        if not isinstance(source, Mapping) and (is_generated(source) or Path(source).expanduser().is_dir()):
            raise ConfigError(f"data.keywords: {source} has no column for keywords; give a table or an {ARCHIVE}")
        wanted = (*cls.columns, "keywords")
        return resolve_paths(read(source, wanted, data.columns), wanted)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Captioning:
        assert isinstance(recipe, CaptionRecipe)
        texts = [str(row.values[1]) for row in rows]
        target = recipe.text.make_tokenizer(texts, start)
        keywords = count_keywords(rows) if recipe.loss.keywords else []
        sizes = {"labels": len(keywords)} if keywords else {}
        config = cls.make_config(recipe, start, vocabulary=target.size, **sizes)
        picture = recipe.picture.model_dump(exclude={"patch"})
        preprocessing = Preprocessing.from_dict({**picture, "background": tuple(picture["background"])})
        task = cls(target, config, preprocessing, recipe.decode, keywords)
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
        self.keyword_loss = recipe.loss.keywords
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
        hidden_words, fixed = changes.pop("words", 0.0), {word.lower() for word in changes.pop("flip_except", [])}
        flippable = [not has_word(loaded[place], fixed) for place in kept]
        return CaptionExamples(
            torch.stack([loaded[place].values[0].content for place in kept]),
            [[self.target.start, *targets[place], self.target.end] for place in kept],
            [loaded[place] for place in kept],
            patches=self.patches,
            pad=self.target.pad,
            preprocessing=self.preprocessing,
            augmentation=Augmentation(**changes) if changes else None,
            hidden_words=hidden_words,
            keywords=self._weigh_keywords([loaded[place] for place in kept]) if self.keywords else None,
            flippable=torch.tensor(flippable),
        )

    def _weigh_keywords(self, rows: Sequence[Row]) -> Float[Tensor, "rows keywords"]:
        """The keywords of each row: their weights sum to 1, or are all 0 where there are none."""
        weights = torch.zeros(len(rows), len(self.keywords))
        for place, row in enumerate(rows):
            known = [self.keywords[word] for word in split_keywords(row) if word in self.keywords]
            weights[place, known] = 1 / max(1, len(known))
        return weights

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
        loss = self.token_loss(model.vocabulary, model.decode(batch.target, context), batch.labels, smoothing)
        if self.keyword_loss and model.training:
            # A softmax over keywords, each with an equal share (Mahajan 2018): better than a yes or no for each
            loss = loss - self.keyword_loss * (batch.keywords * model.label_scores(context).log_softmax(1)).sum()
        return loss

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

    def make_search(self, options: SearchOptions) -> Search:
        """With `decode.samples`, unless the options name another way to decode."""
        other = options.beams is not None or options.temperature
        return super().make_search(options)._replace(samples=0 if other else self.decode.samples)

    def _search(
        self,
        model: EncoderDecoder,
        parts: Sequence[Tensor],
        search: Search,
        prefixes: Sequence[list[int]],
        numbers: Sequence[PartNumber],
    ) -> list[list[Hypothesis]]:
        if not search.samples or not parts:
            return super()._search(model, parts, search, prefixes, numbers)
        assert isinstance(model, PictureToText)
        return search_by_risk(self, model, parts, search, prefixes, numbers)

    def calibrate(self, model: EncoderDecoder, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Keeps the captions of the training pictures, if `decode.neighbours` uses them."""
        if not self.decode.neighbours:
            return None
        known = self.keep_known(train)
        features = self.describe_pictures(model, [row.values[0].content for row in known])
        rounded = {kind: one.half().float() for kind, one in features.items()}  # as the model folder keeps them
        self.memory = CaptionMemory(rounded, [str(row.values[1]) for row in known])
        return f"kept {len(known):,} training captions, which decode.neighbours uses"

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """BLEU, chrF and the share of captions that are exactly right."""
        return score_captions([one.text for one in predictions], [str(row.values[1]) for row in rows])

    # Baselines

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        """The caption of the training picture with the most similar pixels."""
        known, asked = self.keep_known(train), self.load_rows(rows)
        pixels = (torch.stack([row.values[0].content for row in some]).flatten(1).float() for some in (known, asked))
        return self._score_nearest("nearest neighbour by pixels", known, asked, *pixels)

    def baselines(self, model: EncoderDecoder, train: Sequence[Row], rows: Sequence[Row]) -> list[Baseline]:
        """By pixels, and by the encoder's features: the mean over all patches, with length one."""
        known, asked = self.keep_known(train), self.load_rows(rows)
        features = (self.encode_features(model, [row.values[0].content for row in some]) for some in (known, asked))
        name = "nearest neighbour by the encoder's features"
        return [self.baseline(known, asked), self._score_nearest(name, known, asked, *features)]

    def keep_known(self, train: Sequence[Row]) -> list[Row]:
        """The training rows that can be read."""
        return [row for row in self.load_rows(train) if not self.row_problem(row)]

    def describe_pictures(
        self, model: EncoderDecoder, pictures: Sequence[Tensor]
    ) -> dict[str, Float[Tensor, "pictures _"]]:
        """The features by which `decode.neighbours` are found, by kind."""
        found = dict[str, Tensor]()
        if "encoder" in self.decode.neighbour_kinds:
            found["encoder"] = self.encode_features(model, pictures)
        if self.decode.neighbour_features != "encoder":
            starts = range(0, len(pictures), AT_ONCE)
            parts = [describe_appearance(torch.stack(list(pictures[at : at + AT_ONCE])).cpu()) for at in starts]
            found |= {kind: torch.cat([part[kind] for part in parts]) for kind in WIDTHS}
        return found

    @torch.inference_mode()
    def encode_features(
        self, model: EncoderDecoder, pictures: Sequence[Tensor]
    ) -> Float[Tensor, "pictures model_width"]:
        """The mean of the encoder's hidden states of each picture, with length one."""
        assert isinstance(model, PictureToText)
        device, found = model.vocabulary.words.weight.device, []
        for first in range(0, len(pictures), AT_ONCE):
            some = torch.stack(list(pictures[first : first + AT_ONCE]))
            found.append(model.encode_pictures(self.normalise(some, device)).mean(1).float().cpu())
        return torch.nn.functional.normalize(torch.cat(found), dim=1)

    def _score_nearest(
        self, name: str, known: Sequence[Row], asked: Sequence[Row], features: Tensor, wanted: Tensor
    ) -> Baseline:
        nearest = find_nearest(features, wanted).tolist()
        texts = [str(row.values[1]) for row in asked]
        return Baseline(name, score_captions([str(known[place].values[1]) for place in nearest], texts))

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
        return [f"r{number // columns} c{number % columns}" for number in numbers]

    # Model folder

    def save(self, folder: Path) -> None:
        self.target.save(folder)
        self.preprocessing.save(folder / PREPROCESSING)
        if self.memory is not None:
            self.memory.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Captioning:
        from clearhead.text import Tokenizer

        try:
            values = dict(settings)
            keywords, kept = values.pop("keywords", []), values.pop("memory", bool(values.get("neighbours")))
            decode = validate(CaptionDecode, values)
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
        task = cls(target, config, preprocessing, decode, keywords)
        if kept:
            widths = {"encoder": config.width, **WIDTHS}
            task.memory = CaptionMemory.load(folder, {kind: widths[kind] for kind in decode.neighbour_kinds})
        return task


def _to_bytes(picture: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    return (picture * 255).round().to(torch.uint8)
