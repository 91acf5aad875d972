"""Tokenizer: text to token numbers and back, trained here or taken over from a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import models

from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.formatting import suggest_name
from clearhead.storage import atomic_file, check_format, read_json, write_json
from clearhead.text.chinese import load_converter, replace_variants
from clearhead.text.hf_tokenizers import (
    BYTES,
    FIXED,
    MASK,
    SPECIAL,
    make_enclosing_processor,
    make_engine,
    train_vocabulary,
)

FORMAT = 1
KINDS = ("bpe", "unigram", "character")
HUGGINGFACE = "huggingface"  # the kind of a tokenizer that was taken over
ROLES = {"pad": ("pad_token",), "start": ("cls_token", "bos_token"), "end": ("sep_token", "eos_token")}
SPACE_MARK = "▁"
AT_ONCE = 8192  # texts passed to the library at a time, which limits memory


class Tokenizer:
    """Text to token numbers and back: `decode(encode(text))` is `normal(text)`, for any text.

    Numbers 0, 1 and 2 are padding, start and end, the next 256 are bytes, the rest are pieces that were learned. A
    character that has no piece is spelled in the bytes of its UTF-8. One that was trained with `mask=True` has a mask
    token, too: the last number. Special tokens never come out of `encode`, whatever is written in the text.

    One `from_huggingface` keeps its own numbers and normalisation: there `pad`, `start` and `end` are, for instance,
    [PAD], [CLS] and [SEP], and a text with unknown characters may not be decoded as it was.

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
    mask: int | None = None  # replaces tokens that a model should predict; None: there is no such token

    def __init__(self, engine: Any, settings: dict[str, Any]) -> None:
        """Internal; use `train`, `load` or `from_huggingface`."""
        self.engine = engine
        self.settings = settings
        if special := settings.get("special"):
            self.pad, self.start, self.end = (engine.token_to_id(special[role]) for role in ROLES)
        named = settings.get("mask") or settings.get("tokens", {}).get("mask_token")
        self.mask = None if named is None else engine.token_to_id(named)
        self._adds_space = not settings.get("exact")  # before the first word of a text
        if settings["kind"] == HUGGINGFACE:
            probe: str = engine.decode(engine.encode("a", add_special_tokens=False).ids, skip_special_tokens=False)
            self._adds_space = probe.startswith(" ")
        self.notes: list[str] = []  # differences from the time of training, such as another OpenCC version
        self._plain = bool(settings.get("variants"))  # no variants of Chinese characters, in texts read or written
        self._convert: Callable[[str], str] | None = None
        if settings["script"] is not None:
            self._convert, version = load_converter(settings["script"], variants=self._plain)
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
        exact: bool = False,
        pieces: Sequence[str] = (),
        mask: bool = False,
    ) -> Tokenizer:
        """A tokenizer with at most `vocabulary` numbers, learned from texts; the same texts give the same one.

        `kind` is "bpe" (pairs that occur often are merged), "unigram" (the likeliest pieces, found by EM; slow) or
        "character". `script="simplified"` reads traditional Chinese characters, and rare variants, as simplified ones.
        With `exact`, nothing else is normalised: line breaks, spaces and all characters come back as they were. Each
        of `pieces`, such as #Person1#, is one number wherever it is written. With `mask`, the last number is that of a
        mask token.

        >>> Tokenizer.train(["a"], kind="character", exact=True).normal(" a\\n\\n  ①")
        ' a\\n\\n  ①'
        """
        if kind not in KINDS:
            raise ConfigError(f"unknown kind of tokenizer {kind!r}; {suggest_name(kind, KINDS)}")
        if vocabulary <= FIXED:
            raise ConfigError(
                f"a vocabulary of {vocabulary} is too small: padding, start, end and the 256 bytes take {FIXED}"
            )
        settings: dict[str, Any] = {"format": FORMAT, "kind": kind, "script": script, "lowercase": lowercase}
        if script is not None:
            settings["variants"] = True
        if exact:
            settings["exact"] = True
        if mask:
            settings["mask"] = MASK
        options: dict[str, Any] = {"lowercase": lowercase, "spaced": kind != "character", "exact": exact}
        blank = cls(make_engine(models.BPE(), **options), settings)
        if whole := list(dict.fromkeys(map(blank.normal, pieces))):
            _check_pieces(whole, vocabulary - FIXED)
            settings["pieces"] = options["whole"] = whole
            blank = cls(make_engine(models.BPE(), **options), settings)
        normal = [text for text in map(blank._normal, texts) if text]
        if not normal:
            raise DataError("there is no text to learn a vocabulary from: every text is empty")
        last = [MASK] if mask else []
        model = train_vocabulary(normal, kind, vocabulary, last, exact=exact, whole=whole)
        engine = make_engine(model, **options)
        return cls(engine, {**settings, "size": engine.get_vocab_size()})

    @classmethod
    def from_huggingface(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a local Hugging Face checkpoint, with its own normalisation; it needs a tokenizer.json."""
        folder = Path(folder)
        if not (path := folder / "tokenizer.json").is_file():
            raise CheckpointError(
                f"{folder} has no tokenizer.json; write one with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        engine = _parse(path)
        tokens = _read_special_tokens(folder)
        special = {}
        for role, keys in ROLES.items():
            named = [token for key in keys if engine.token_to_id(token := tokens.get(key, "")) is not None]
            special[role] = named[0] if named else ""
        for role in ("pad", "start"):  # GPT-2 has no padding, Qwen2 no start: the end of a text takes their place
            special[role] = special[role] or special["end"]
        if missing := [role for role in ROLES if not special[role]]:
            raise CheckpointError(f"{folder}: no token for {', '.join(missing)} is named in tokenizer_config.json")
        settings = {"format": FORMAT, "kind": HUGGINGFACE, "script": None, "lowercase": False}
        settings |= {"size": engine.get_vocab_size(), "special": special, "tokens": tokens}
        return cls(_read_plainly(engine), settings)

    def to_huggingface(self, folder: str | Path, *, decoder: bool = False) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer reads.

        For a `decoder`, a text gets a start but no end, and no token types, which GPT-2 would take for words.
        """
        if self._convert is not None:
            raise ConfigError(
                f"a Hugging Face tokenizer cannot convert the script ({self.settings['script']!r}); "
                "only tokenizers trained with script=None can be exported"
            )
        engine = Engine.from_str(self.engine.to_str())
        tokens = self.settings.get("tokens")
        if tokens is None:
            pad, start, end = (str(engine.id_to_token(number)) for number in (self.pad, self.start, self.end))
            tokens = {"pad_token": pad, "bos_token": start, "eos_token": end, "cls_token": start, "sep_token": end}
            tokens |= {} if self.mask is None else {"mask_token": engine.id_to_token(self.mask)}
            ends = None if decoder else (end, self.end)
            engine.post_processor = make_enclosing_processor((start, self.start), ends)
        typed = not decoder and "cls_token" in tokens
        inputs = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **tokens}
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "tokenizer.json") as fresh:
            fresh.write_text(engine.to_str() + "\n", encoding="utf-8")
        with atomic_file(folder / "tokenizer_config.json") as fresh:
            write_json(fresh, config)

    @property
    def size(self) -> int:
        return int(self.engine.get_vocab_size())

    def normal(self, text: str) -> str:
        """The normalised text that `encode` reads: NFKC, one script, single spaces, no invisible characters.

        >>> Tokenizer.train(["a"], script="simplified", lowercase=True).normal(" Ｈello\\n\\n 漢語　①！")
        'hello 汉语 1!'
        """
        return self._without_first_space(self._normal(text))

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without start and end."""
        numbers: list[int] = self.engine.encode(self._convert_script(text), add_special_tokens=False).ids
        return numbers

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of many texts; faster than one by one."""
        numbers: list[list[int]] = []
        for first in range(0, len(texts), AT_ONCE):
            batch = [self._convert_script(text) for text in texts[first : first + AT_ONCE]]
            numbers += [encoding.ids for encoding in self.engine.encode_batch_fast(batch, add_special_tokens=False)]
        return numbers

    def encode_pieces(self, texts: Sequence[str]) -> list[Any]:
        """The library's encodings of many texts, with the number of the word that each piece is of (`word_ids`)."""
        texts = list(map(self._convert_script, texts))
        encodings: list[Any] = self.engine.encode_batch(texts, add_special_tokens=False)
        return encodings

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The numbers of each text, and where the piece of each begins and ends in it, in characters.

        Offsets refer to the text as given, whatever normalisation did to it, and leave out the space before a word.

        >>> tokenizer = Tokenizer.train(["low, low, low"], vocabulary=300, lowercase=True)
        >>> tokenizer.encode_with_offsets(["Ｌow  LOW"])[0][1]
        [(0, 3), (5, 8)]
        """
        results = []
        for first in range(0, len(texts), AT_ONCE):
            batch = texts[first : first + AT_ONCE]
            aligned = [self._convert_aligned(text) for text in batch]
            encodings = self.engine.encode_batch([text for text, _ in aligned], add_special_tokens=False)
            for text, (_, origins), encoding in zip(batch, aligned, encodings, strict=True):
                results.append((encoding.ids, [_trim(text, origins, *span) for span in encoding.offsets]))
        return results

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of these numbers; padding, start and end are left out, and bytes that are no UTF-8 become �."""
        special = (self.pad, self.start, self.end)
        written = [int(number) for number in self._check_numbers(numbers) if number not in special]
        text: str = self.engine.decode(written, skip_special_tokens=False)
        if "\ufffd" in text and self.settings["kind"] != HUGGINGFACE:
            text = self._decode_bytes(written)
        return self._without_first_space(replace_variants(text) if self._plain else text)

    def _without_first_space(self, text: str) -> str:
        """A text without the space that normalisation puts before its first word."""
        return text.removeprefix(" ") if self._adds_space else text

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
        (folder / f"{name}.json").write_text(self.engine.to_str() + "\n", encoding="utf-8")
        write_json(folder / f"{name}.settings.json", self.settings)

    @classmethod
    def load(cls, folder: Path, name: str = "tokenizer") -> Tokenizer:
        """The tokenizer that was saved in a folder; `notes` says what may be different here."""
        path, described = (Path(folder) / f"{name}.{suffix}" for suffix in ("json", "settings.json"))
        settings = read_json(described)
        check_format(described, settings.get("format"), FORMAT)
        engine = _parse(path)
        if settings.get("kind") == HUGGINGFACE:
            special = settings.get("special")
            fits = isinstance(special, dict) and all(
                engine.token_to_id(str(special.get(role))) is not None for role in ROLES
            )
            engine = _read_plainly(engine)
        else:
            fixed = [engine.id_to_token(number) for number in range(FIXED)]
            fits = fixed == [*SPECIAL, *BYTES] and {"script", "lowercase"} <= settings.keys()
        fits = fits and (settings.get("mask") is None or engine.token_to_id(str(settings["mask"])) is not None)
        if not fits or engine.get_vocab_size() != settings.get("size"):
            raise CheckpointError(f"{path} is not the tokenizer that {described.name} describes; copy the folder again")
        return cls(engine, settings)

    def __repr__(self) -> str:
        script = "" if self.settings["script"] is None else f", script={self.settings['script']!r}"
        return f"<Tokenizer of {self.size:,} numbers, kind={self.settings['kind']!r}{script}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.engine, self.settings)  # for pickle: the script converter is created again

    def _convert_script(self, text: str) -> str:
        text = _repair_surrogates(text)
        return text if self._convert is None else self._convert(text)

    def _convert_aligned(self, text: str) -> tuple[str, list[int] | None]:
        """The text as the library reads it; if its length changed, also the index in `text` of each character."""
        converted = self._convert_script(text)
        if len(converted) == len(text):
            return converted, None
        characters = [self._convert_script(character) for character in text]
        origins = [index for index, character in enumerate(characters) for _ in character]
        return "".join(characters), origins

    def _normal(self, text: str) -> str:
        text = self._convert_script(text)
        normalizer = self.engine.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _check_numbers(self, numbers: Sequence[int]) -> Sequence[int]:
        if len(numbers) and not 0 <= min(numbers) <= max(numbers) < self.size:
            raise DataError(
                f"numbers run from {min(numbers)} to {max(numbers)}, the vocabulary from 0 to {self.size - 1}; "
                "is this the tokenizer that they come from?"
            )
        return numbers


def _check_pieces(pieces: Sequence[str], room: int) -> None:
    """Raises ConfigError for a piece that is empty or contains a space, or too many of them."""
    if wrong := [piece for piece in pieces if not piece or " " in piece]:
        raise ConfigError(f"pieces must be texts without spaces, got {wrong[0]!r}")
    if 2 * len(pieces) >= room:
        raise ConfigError(f"{len(pieces)} pieces leave no room in the vocabulary; make it larger, or name fewer")


def _trim(text: str, origins: list[int] | None, begin: int, end: int) -> tuple[int, int]:
    """The span of a piece in the text as it was before conversion, without spaces around it."""
    if origins is not None and begin < end:
        begin, end = origins[begin], origins[end - 1] + 1
    while begin < end and text[begin].isspace():
        begin += 1
    while end > begin and text[end - 1].isspace():
        end -= 1
    return begin, end


def _read_plainly(engine: Any) -> Any:
    """Switches off what must not happen in `encode`: cutting, padding, and special tokens that a text spells out."""
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True
    return engine


def _parse(path: Path) -> Any:
    try:
        return Engine.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"the tokenizer's file {path} is missing") from None
    except Exception as error:  # the library raises no class of its own
        raise CheckpointError(f"{path} is damaged, or no tokenizer: {error}") from None


def _read_special_tokens(folder: Path) -> dict[str, str]:
    """The special tokens that a Hugging Face folder names, by their roles, such as cls_token."""
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_json(folder / name) if (folder / name).is_file() else {}
        for key, value in values.items():
            token = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(token, str):
                tokens[key] = token
    return tokens


def _repair_surrogates(text: str) -> str:
    """Lone surrogates, which a command line makes of bytes that are not UTF-8, become �."""
    if not isinstance(text, str):
        raise DataError(f"expected a text, got {text!r:.60}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
