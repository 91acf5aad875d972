"""Continuation: prompts are continued token by token, beyond the model's context, until an end, a stop or a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.decode import Writer
from clearhead.decode.sampling import SamplingOptions, draw_tokens
from clearhead.model import Decoder
from clearhead.model.small_passes import lock_steps, pass_lock
from clearhead.tasks.answerer import Prediction
from clearhead.tasks.language_model.language_processor import LanguageDecode
from clearhead.tasks.losses import check_finite
from clearhead.text import Tokenizer

TAIL = 8  # tokens of the prompt that are decoded together with the first that are written: spaces depend on them
BROKEN = "\ufffd"  # stands for bytes that are no character, or not yet a whole one


@dataclass(frozen=True)
class Continuation(Prediction):
    """The text that continues a prompt; `finish` says why it ends: "end", "stop" (a stop text) or "length"."""

    finish: str = "length"

    def to_json(self) -> dict[str, Any]:
        return {"output": self.text, "finish": self.finish, "notes": list(self.notes)}


class Writing(NamedTuple):
    """What all texts of one request have in common."""

    tokenizer: Tokenizer
    context: int  # tokens that the model reads at once
    decode: LanguageDecode
    seed: int = 0
    stops: Sequence[str] = ()


class WrittenText:
    """One prompt and what has been written after it so far.

    `number` is its place among the inputs. It decides the random numbers together with the seed, so that a text comes
    out the same in any batch.
    """

    def __init__(self, prompt: Sequence[int], writing: Writing, number: int) -> None:
        self.writing, self.tokens, self.prompt = writing, list(prompt), len(prompt)
        self.finish: str | None = None
        self.text = self.stable = ""  # all of the continuation, and the part that further tokens cannot change
        self._before = writing.tokenizer.decode(self.tokens[-TAIL:])
        seed = np.random.SeedSequence([writing.seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1)
        self._generator = torch.Generator().manual_seed(int(seed))

    def draw(self) -> Tensor:
        """The random number in [0, 1) that chooses the next token."""
        return torch.rand((), generator=self._generator, dtype=torch.float64)

    @property
    def written(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def window(self) -> int:
        """The first token that the model reads for the next one."""
        return window_begin(len(self.tokens), self.writing.context)

    def append(self, token: int) -> None:
        """Adds a token; sets `finish` if the text ends with it."""
        if token == self.writing.tokenizer.end:
            self.finish = "end"
        else:
            self.tokens.append(token)
            if self.written >= self.writing.decode.longest:
                self.finish = "length"

    def update_text(self) -> None:
        """Decodes what has been written; a stop text in it ends the text before it."""
        tail = self.tokens[max(0, self.prompt - TAIL) :]
        self.text = self.writing.tokenizer.decode(tail)[len(self._before) :]
        begins = [self.text.find(stop) for stop in self.writing.stops if stop in self.text]
        if begins:
            self.text, self.finish = self.text[: min(begins)], "stop"
        self.stable = self.text
        if self.finish is None:
            self.stable = hold_back(self.text.rstrip(BROKEN), self.writing.stops)

    def forbidden(self) -> list[int]:
        """Tokens that would repeat a run of `no_repeat_ngram` tokens."""
        size = self.writing.decode.no_repeat_ngram
        tail = self.tokens[len(self.tokens) - size + 1 :]
        if not 0 < size <= len(self.tokens):
            return []
        runs = (self.tokens[begin : begin + size] for begin in range(len(self.tokens) - size + 1))
        return [run[-1] for run in runs if run[:-1] == tail]


def window_begin(tokens: int, context: int) -> int:
    """Where the model begins to read a text of this number of tokens: it moves on by half a context at a time.

    >>> [window_begin(tokens, context=8) for tokens in (8, 9, 12, 13)]
    [0, 4, 4, 8]
    """
    half = max(1, context // 2)
    return max(0, -(-(tokens - context) // half) * half)


def hold_back(text: str, stops: Sequence[str]) -> str:
    """The text without an end that may become one of the stop texts.

    >>> hold_back("To be\\n", ["\\n\\n"])
    'To be'
    """
    longest = max((len(stop) for stop in stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops if len(stop) > size):
            return text[:-size]
    return text


def write_texts(model: Decoder, texts: Sequence[WrittenText], *, stream: bool = False) -> Iterator[None]:
    """Writes all texts to their ends, one token at each step; `stream` keeps their `text` up to date.

    The model reads at most a context. A longer text is read from a later token on, as the rows of long documents were
    in training, and the keys and values are computed anew from there.
    """
    return lock_steps(_write_steps(model, texts, stream), pass_lock(model, len(texts)))


def _write_steps(model: Decoder, texts: Sequence[WrittenText], stream: bool) -> Iterator[None]:
    active = list(texts)
    while active:
        windows = [text.window for text in active]
        writer = Writer.continuing(model, [text.tokens[text.window :] for text in active])
        logits = writer.begin(None)
        while True:
            tokens = _choose_tokens(logits, active)
            for text, token in zip(active, tokens.tolist(), strict=True):
                text.append(token)
                if stream or text.writing.stops or text.finish:
                    text.update_text()
            yield
            unfinished = [row for row, text in enumerate(active) if text.finish is None]
            active, windows = [active[row] for row in unfinished], [windows[row] for row in unfinished]
            if not active or windows != [text.window for text in active]:
                break
            if len(active) < len(tokens):
                rows = torch.tensor(unfinished, device=tokens.device)
                writer.select_beams(rows[:, None], rows)
                tokens = tokens[rows]
            logits = writer.advance(tokens)


@torch.inference_mode()
def _choose_tokens(logits: Tensor, texts: Sequence[WrittenText]) -> Tensor:
    writing = texts[0].writing
    decode, tokenizer = writing.decode, writing.tokenizer
    check_finite(logits)
    for row, text in zip(logits, texts, strict=True):
        if decode.repetition_penalty != 1:
            _penalise(row, text.tokens, decode.repetition_penalty)
        if banned := text.forbidden():
            row[banned] = -torch.inf
    never = [token for token in (tokenizer.pad, tokenizer.start) if token != tokenizer.end]
    logits[:, [*never, *range(tokenizer.size, logits.shape[1])]] = -torch.inf
    if decode.temperature == 0:
        return logits.argmax(-1)
    chances = torch.stack([text.draw() for text in texts]).to(logits.device)
    options = SamplingOptions(decode.temperature, decode.top_k, decode.top_p, decode.min_p)
    return draw_tokens(logits, chances, options)


def _penalise(logits: Tensor, tokens: Sequence[int], penalty: float) -> None:
    """Divides positive scores of tokens that came before by the penalty, and multiplies negative ones (Keskar 2019)."""
    came = torch.tensor(sorted(set(tokens)), device=logits.device)
    scores = logits[came]
    logits[came] = torch.where(scores > 0, scores / penalty, scores * penalty)
