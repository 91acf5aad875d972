"""Writer: prompts, context and key-value cache of a model that decodes; Hypothesis: a sequence that it has decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import KeyValueCache, Mask
from clearhead.decode.prepacked_linear import decoding_view
from clearhead.errors import DecodeError, ShapeError
from clearhead.model import Decoder, EncoderDecoder, PointerGenerator
from clearhead.model.inference_view import refresh
from clearhead.model.layers import at_least_float
from clearhead.model.pointer_generator import list_recent


class Hypothesis(NamedTuple):
    """A decoded sequence, and how probable the model finds it.

    `tokens` are without the start and the end. `score` is `log_probability / length**length_penalty`, where the
    length counts the end too. `finished` is False for a sequence that was cut off at `max_length`.
    """

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool

    @classmethod
    def of(cls, written: list[int], log_probability: float, end: int, length_penalty: float = 1.0) -> Hypothesis:
        """From all decoded tokens, with the end token if there is one.

        >>> Hypothesis.of([7, 8, 2], -6.0, end=2)
        Hypothesis(tokens=[7, 8], score=-2.0, log_probability=-6.0, finished=True)
        """
        finished = written[-1] == end
        score = log_probability / len(written) ** length_penalty
        return cls(written[:-1] if finished else written, score, log_probability, finished)


class CopySource(NamedTuple):
    """What a PointerGenerator copies from, for each row, and the last tokens of each beam, the newest first."""

    context: Float[Tensor, "rows source width"]
    source: Int[Tensor, "rows source"]
    recent: Int[Tensor, "samples recent"]

    def append(self, tokens: Int[Tensor, " samples"]) -> CopySource:
        return self._replace(recent=torch.cat([tokens[:, None], self.recent[:, :-1]], dim=1))

    def select(self, samples: Int[Tensor, " samples"], kept_rows: Int[Tensor, " rows"] | None) -> CopySource:
        """With these samples, and of the rows only those that are kept."""
        rows = slice(None) if kept_rows is None else kept_rows
        return CopySource(self.context[rows], self.source[rows], self.recent[samples])


class Writer:
    """The decoding state of a model: one row for each input, with its context and key-value cache.

    `begin` gives the logits of the first token, `advance` those of the next one; `select_beams` turns rows into
    beams and removes finished rows. `begin` also resets, so one writer can serve several searches.

    The model runs without dropout and gradients, through an inference view that `begin` makes: the model itself is
    never changed, and several threads may decode with it. To watch or ablate the model, start before `begin`.

    >>> from clearhead import EncoderDecoder, ModelConfig
    >>> model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11))
    >>> writer = Writer.translating(model, torch.tensor([[3, 4, 5], [6, 7, 0]]), [3, 2])
    >>> writer.begin(start=1).shape, writer.advance(torch.tensor([3, 6])).shape
    (torch.Size([2, 11]), torch.Size([2, 11]))
    """

    normalised = False  # whether scores are log-probabilities, or parts of their sum, and not logits

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompts: Sequence[Sequence[int]],
        *,
        source: Int[Tensor, "rows source"] | Float[Tensor, "rows source width"] | None = None,
        context: Float[Tensor, "rows context width"] | None = None,
        context_lengths: Int[Tensor, " rows"] | None = None,
    ) -> None:
        self.model, self.inputs, self.rows = model, len(prompts), len(prompts)
        self.device = model.vocabulary.words.weight.device
        self._prompts = [list(prompt) for prompt in prompts]
        self._source, self._context = source, context
        self._all_lengths = None if context_lengths is None else context_lengths.to(self.device)
        read = source if context is None else context
        self._context_tokens = 0 if read is None else read.shape[1]
        self._copied: CopySource | None = None

    @classmethod
    def translating(
        cls,
        model: EncoderDecoder,
        source: Int[Tensor, "rows source"] | Float[Tensor, "rows source width"],
        lengths: Sequence[int] | Int[Tensor, " rows"],
    ) -> Writer:
        """Decodes one row for each source row of tokens (or vectors), whose first `lengths` are not padding."""
        lengths = _check_lengths(lengths, source)
        return cls(model, [[]] * len(source), source=source, context_lengths=lengths)

    @classmethod
    def continuing(cls, model: Decoder, prompts: Sequence[Sequence[int]]) -> Writer:
        """Continues each prompt; they may differ in length."""
        return cls(model, prompts)

    @property
    def vocabulary(self) -> int:
        return self.model.config.vocabulary

    def normaliser(self, logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows"]:
        """What is taken from logits to make them log-probabilities."""
        return torch.zeros_like(logits[..., 0]) if self.normalised else logits.logsumexp(-1)

    def check_positions(self, max_length: int, start: int | None) -> None:
        """Raises DecodeError if a model with learned positions has too few of them for `max_length` tokens."""
        config = self.model.config
        longest = max(map(len, self._prompts), default=0) + (start is not None) + max_length - 1
        if config.positions == "learned" and longest > config.max_length:
            raise DecodeError(
                f"max_length={max_length} would need {longest} positions, but this model learned {config.max_length}; "
                f"write at most {config.max_length - longest + max_length} tokens"
            )

    def begin(self, start: int | None) -> Float[Tensor, "rows vocabulary"]:
        """The logits of each row's first token, after `start` and its prompt."""
        prompts = [[*([] if start is None else [start]), *prompt] for prompt in self._prompts]
        if [] in prompts:
            row = prompts.index([])
            raise DecodeError(f"row {row} has an empty prompt; pass start=, the id of the start token")
        self.rows, self.beams, self._cache = len(prompts), 1, KeyValueCache()
        self._written, self._longest = 0, max(map(len, prompts), default=1)
        self._view = decoding_view(self.model)
        lengths = [len(prompt) for prompt in prompts]
        self._padded = min(lengths, default=1) < self._longest
        self._set_lengths(torch.tensor(lengths, dtype=torch.long, device=self.device), self._all_lengths)
        padded = [[0] * (self._longest - len(prompt)) + prompt for prompt in prompts]
        tokens = torch.tensor(padded, dtype=torch.long, device=self.device).view(self.rows, self._longest)
        with torch.inference_mode():
            if self._context is None and self._source is not None:
                self._context = self._encode(self._source.to(self.device))
            self._copied = self._begin_copying(tokens)
            return self._compute_logits(tokens)

    def advance(self, tokens: Int[Tensor, " samples"]) -> Float[Tensor, "samples vocabulary"]:
        """The logits of the token after these; `tokens` has one for each row, or one for each beam of each row."""
        self._written += 1
        if self._copied is not None:
            self._copied = self._copied.append(tokens)
        refresh(self._view)
        with torch.inference_mode():
            return self._compute_logits(tokens[:, None])

    def select_beams(self, parents: Int[Tensor, "rows beams"], kept_rows: Int[Tensor, " rows"] | None = None) -> None:
        """Makes these samples of the last step the beams of each row; rows that are not in `kept_rows` are removed.

        The context of a row is shared by its beams, not copied for each of them.
        """
        self.rows, self.beams = parents.shape
        with torch.inference_mode():
            self._cache.branch(parents.flatten(), self.beams, kept_rows)
        if kept_rows is not None:
            of_context = None if self._context_lengths is None else self._context_lengths[kept_rows]
            self._set_lengths(self._lengths[kept_rows], of_context)
        if self._copied is not None:
            self._copied = self._copied.select(parents.flatten(), kept_rows)

    def _set_lengths(self, lengths: Tensor, context_lengths: Tensor | None) -> None:
        """Sets the lengths of each row's prompt and context, and the mask that hides the padding of the context."""
        self._lengths, self._context_lengths, self._context_mask = lengths, context_lengths, None
        if context_lengths is not None and not bool((context_lengths == self._context_tokens).all()):
            with torch.inference_mode(False):  # a mask cannot cache anything for an inference tensor
                self._context_mask = Mask.padding(context_lengths.clone())

    def _begin_copying(self, tokens: Tensor) -> CopySource | None:
        """What a PointerGenerator copies from; None for other models."""
        if not isinstance(self._view, PointerGenerator):
            return None
        if self._context is None or self._source is None or self._source.is_floating_point():
            raise DecodeError("a PointerGenerator copies tokens of its source; pass source tokens, not vectors")
        return CopySource(self._context, self._source.to(self.device), list_recent(tokens)[:, -1])

    def _encode(self, source: Tensor) -> Tensor:
        assert isinstance(self._view, EncoderDecoder)
        if source.is_floating_point():
            return self._view.encode(vectors=source, mask=self._context_mask)
        return self._view.encode(source, self._context_mask)

    def _compute_logits(self, tokens: Tensor) -> Tensor:
        mask = positions = None
        if self._padded:
            lengths = self._lengths.repeat_interleave(self.beams)
            mask = Mask.padding(lengths + self._written, side="left")
            if self._view.decoder.positions is not None:
                places = torch.arange(-tokens.shape[1], 0, device=self.device) + self._written
                positions = (lengths[:, None] + places).clamp(min=0)
        context_mask, cache = self._context_mask, self._cache
        if isinstance(self._view, EncoderDecoder):
            assert self._context is not None
            hidden = self._view.decode(tokens, self._context, mask, context_mask, positions=positions, cache=cache)
        else:
            hidden = self._view(
                tokens, positions=positions, mask=mask, context=self._context, context_mask=context_mask, cache=cache
            )
        if self._copied is not None:
            assert isinstance(self._view, PointerGenerator)
            state = hidden[:, -1], self._copied.recent
            last, recent = (part.unflatten(0, (self.rows, self.beams)) for part in state)
            context, source = self._copied.context, self._copied.source
            logits = self._view.mix_scores(last, context, source, recent, context_mask).flatten(0, 1)
        else:
            logits = self._view.logits(hidden[:, -1])
        return at_least_float(logits)


def select_active(finished: Sequence[bool]) -> list[int] | None:
    """The rows that are not finished; None while fewer than 1 in 16 are, since removing them would not pay off.

    >>> select_active([True, False, False]), select_active([False] * 20 + [True])
    ([1, 2], None)
    """
    if 16 * sum(finished) < len(finished):
        return None
    return [row for row, done in enumerate(finished) if not done]


def _check_lengths(lengths: Sequence[int] | Tensor, source: Tensor) -> Tensor:
    lengths = torch.as_tensor(lengths, dtype=torch.long)
    if len(lengths) != len(source) or source.ndim not in (2, 3):
        shape = tuple(source.shape)
        raise ShapeError(f"{len(lengths)} lengths for a source of shape {shape}; give one for each row")
    if len(source) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= source.shape[1]:
        least, most = lengths.min(), lengths.max()
        raise ShapeError(f"lengths go from {least} to {most}, but the source is {source.shape[1]} long")
    return lengths
