"""Tokenizer: text to token numbers and back; bytes cover every character, so no token is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from clearhead.errors import CheckpointError, ConfigError, DataError, PackageError
from clearhead.formatting import suggest_name
from clearhead.storage import check_format
from clearhead.text.chinese import load_converter

FORMAT = 1
KINDS = ("bpe", "unigram", "character")
SPACE_MARK = "▁"
AT_ONCE = 8192  # texts passed to the library at a time, which limits memory


class Tokenizer:
    """Text to token numbers and back: `decode(encode(text))` is `normal(text)`, for any text.

    Numbers 0, 1 and 2 are padding, start and end, the next 256 are bytes, the rest are pieces that were learned. A
    character that has no piece is spelled in the bytes of its UTF-8. Padding, start and end never come out of `encode`,
    whatever is written in the text.

    >>> tokenizer = Tokenizer.train(["Low, lower, lowest.", "我爱你", "我爱他"] * 3, vocabulary=300)
    >>> numbers = tokenizer.encode("lower 我爱她")
    >>> tokenizer.pieces(numbers)
    ['▁lower', '▁', '我爱', '<0xE5>', '<0xA5>', '<0xB9>']
    >>> tokenizer.decode(numbers)
    'lower 我爱她'
    """

    pad: int = 0
    start: int = 1
    end: int = 2

    def __init__(self, engine: Any, settings: dict[str, Any]) -> None:
        """Internal; use `train` or `load`."""
        self.engine = engine
        self.settings = settings
        self.notes: list[str] = []  # differences from the time of training, such as another OpenCC version
        self._convert: Callable[[str], str] | None = None
        if settings["script"] is not None:
            self._convert, version = load_converter(settings["script"])
            trained = settings.setdefault("opencc", version)
            if trained.split(".")[0] != version.split(".")[0]:
                self.notes.append(f"the script was converted by OpenCC {trained} in training and is by {version} here")

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: str = "bpe",
        vocabulary: int = 8000,
        script: str | None = None,
        lowercase: bool = False,
    ) -> Tokenizer:
        """A tokenizer with at most `vocabulary` numbers, learned from texts; the same texts give the same one.

        `kind` is "bpe" (pairs that occur often are merged), "unigram" (the likeliest pieces, found by EM; slow) or
        "character". `script="simplified"` reads traditional Chinese characters as simplified ones.
        """
        library = _import_library()
        if kind not in KINDS:
            raise ConfigError(f"unknown kind of tokenizer {kind!r}; {suggest_name(kind, KINDS)}")
        if vocabulary <= library.FIXED:
            raise ConfigError(
                f"a vocabulary of {vocabulary} is too small: padding, start, end and the 256 bytes take {library.FIXED}"
            )
        settings = {"format": FORMAT, "kind": kind, "script": script, "lowercase": lowercase}
        spaced = kind != "character"
        blank = cls(library.make_tokenizer(library.models.BPE(), lowercase=lowercase, spaced=spaced), settings)
        normal = [text for text in map(blank._normal, texts) if text]
        if not normal:
            raise DataError("there is no text to learn a vocabulary from: every text is empty")
        from clearhead.text.vocabulary_training import train_vocabulary

        engine = library.make_tokenizer(train_vocabulary(normal, kind, vocabulary), lowercase=lowercase, spaced=spaced)
        return cls(engine, {**settings, "size": engine.get_vocab_size()})

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        return int(self.engine.get_vocab_size())

    def normal(self, text: str) -> str:
        """The normalised text that `encode` reads: NFKC, one script, single spaces, no invisible characters.

        >>> Tokenizer.train(["a"], script="simplified", lowercase=True).normal(" Ｈello\\n\\n 漢語　①！")
        'hello 汉语 1!'
        """
        return self._normal(text).removeprefix(" ")

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without start and end."""
        numbers: list[int] = self.engine.encode(self._convert_script(text), add_special_tokens=False).ids
        return numbers

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of many texts; faster than one by one."""
        numbers: list[list[int]] = []
        for first in range(0, len(texts), AT_ONCE):
            some = [self._convert_script(text) for text in texts[first : first + AT_ONCE]]
            numbers += [found.ids for found in self.engine.encode_batch_fast(some, add_special_tokens=False)]
        return numbers

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of these numbers; padding, start and end are left out, and bytes that are no UTF-8 become �."""
        kept = [int(number) for number in self._check_numbers(numbers) if number > self.end]
        text: str = self.engine.decode(kept, skip_special_tokens=False)
        if "\ufffd" in text:
            text = self._decode_bytes(kept)
        return text.removeprefix(" ")

    def _decode_bytes(self, numbers: Sequence[int]) -> str:
        """Decodes like the library, but an invalid byte replaces one character, not all that are written in bytes."""
        first = self.end + 1
        raw = (
            bytes([number - first]) if number < first + 256 else self.engine.id_to_token(number).encode()
            for number in numbers
        )
        return b"".join(raw).decode("utf-8", "replace")

    def pieces(self, numbers: Sequence[int]) -> list[str]:
        """Each number as it can be shown: a space is "▁", a byte such as "<0xE4>", and "<s>" the start."""
        return [
            self.engine.id_to_token(int(number)).replace(" ", SPACE_MARK) for number in self._check_numbers(numbers)
        ]

    def save(self, folder: Path, name: str = "tokenizer") -> None:
        """Writes `{name}.json`, which the tokenizers library reads too, and `{name}.settings.json`."""
        folder = Path(folder)
        settings = json.dumps(self.settings, indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(self.engine.to_str() + "\n", encoding="utf-8")
        (folder / f"{name}.settings.json").write_text(settings + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str = "tokenizer") -> Tokenizer:
        """The tokenizer that was saved in a folder; `notes` says what may be different here."""
        library = _import_library()
        path = Path(folder) / f"{name}.json"
        settings = _read_settings(Path(folder), name)
        try:
            engine = library.Tokenizer.from_str(_read(path))
        except CheckpointError:
            raise
        except Exception as error:  # the library raises no class of its own
            raise CheckpointError(f"{path} is damaged, or no tokenizer: {error}") from None
        fixed = [engine.id_to_token(number) for number in range(library.FIXED)]
        if fixed != [*library.SPECIAL, *library.BYTES] or engine.get_vocab_size() != settings["size"]:
            raise CheckpointError(
                f"{path} is not the tokenizer that {name}.settings.json describes: it should have "
                f"{settings['size']} pieces, the first being {', '.join(library.SPECIAL)} and the 256 bytes"
            )
        return cls(engine, settings)

    def __repr__(self) -> str:
        script = "" if self.settings["script"] is None else f", script={self.settings['script']!r}"
        return f"<Tokenizer of {self.size:,} numbers, kind={self.settings['kind']!r}{script}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.engine, self.settings)  # for pickle: the script converter is created again

    def _convert_script(self, text: str) -> str:
        text = _repair_surrogates(text)
        return text if self._convert is None else self._convert(text)

    def _normal(self, text: str) -> str:
        normal: str = self.engine.normalizer.normalize_str(self._convert_script(text))
        return normal

    def _check_numbers(self, numbers: Sequence[int]) -> Sequence[int]:
        if len(numbers) and not 0 <= min(numbers) <= max(numbers) < self.size:
            raise DataError(
                f"numbers run from {min(numbers)} to {max(numbers)}, the vocabulary from 0 to {self.size - 1}; "
                "is this the tokenizer that they come from?"
            )
        return numbers


def _repair_surrogates(text: str) -> str:
    """Lone surrogates, which a command line makes of bytes that are not UTF-8, become �."""
    if not isinstance(text, str):
        raise DataError(f"expected a text, got {text!r:.60}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise CheckpointError(f"the tokenizer's file {path} {said}") from None


def _read_settings(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.settings.json"
    if not path.exists() and (folder / f"{name}.json").exists():
        raise CheckpointError(f"{folder / name}.json has no {path.name} beside it: it was not written by clearhead")
    try:
        settings = json.loads(_read(path))
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {error}") from None
    number = settings.get("format") if isinstance(settings, dict) else None
    check_format(path, number, FORMAT)
    kinds: dict[str, Any] = {"kind": str, "script": (str, type(None)), "lowercase": bool, "size": int}
    if wrong := [key for key, kind in kinds.items() if key not in settings or not isinstance(settings[key], kind)]:
        raise CheckpointError(f"{path} is damaged: {', '.join(wrong)} missing or wrong")
    return dict(settings)


def _import_library() -> ModuleType:
    try:
        from clearhead.text import hf_tokenizers
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != "tokenizers":
            raise
        raise PackageError(
            "text needs the package tokenizers, which is not installed; pip install 'clearhead[train]'"
        ) from None
    return hf_tokenizers
