"""Writer: a model in the middle of writing, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import KeyValueCache, Mask
from clearhead.decode.prepacked_linear import decoding_view
from clearhead.errors import DecodeError, ShapeError
from clearhead.model import Decoder, EncoderDecoder
from clearhead.model.inference_view import refresh


class Writer:
    """A model that writes one row for each input: what it looks at, and the cache of what it wrote.

    `begin` gives the scores of the first token, `advance` those of the next one, `follow` turns rows into beams
    and lets rows go that are done. To begin again starts afresh, so a writer can serve several searches.

    The model runs without dropout and gradients, through a view of its own that `begin` makes: the model itself is
    never changed, and several threads may write with it. Whoever watches or ablates the model does so from before
    `begin` on.

    >>> from clearhead import EncoderDecoder, ModelConfig
    >>> model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11))
    >>> writer = Writer.translating(model, torch.tensor([[3, 4, 5], [6, 7, 0]]), [3, 2])
    >>> writer.begin(start=1).shape, writer.advance(torch.tensor([3, 6])).shape
    (torch.Size([2, 11]), torch.Size([2, 11]))
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompts: Sequence[Sequence[int]],
        *,
        source: Tensor | None = None,
        context: Tensor | None = None,
        context_lengths: Tensor | None = None,
    ) -> None:
        self.model, self.inputs, self.rows = model, len(prompts), len(prompts)
        self.device = model.vocabulary.words.weight.device
        self._prompts = [list(prompt) for prompt in prompts]
        self._source, self._context = source, context
        self._all_lengths = None if context_lengths is None else context_lengths.to(self.device)
        read = source if context is None else context
        self._context_tokens = 0 if read is None else read.shape[1]

    @classmethod
    def translating(
        cls,
        model: EncoderDecoder,
        source: Int[Tensor, "rows source"] | Float[Tensor, "rows source width"],
        lengths: Sequence[int] | Int[Tensor, " rows"],
    ) -> Writer:
        """For each row of tokens (or vectors), of which the first `lengths` are real, one row is written."""
        lengths = _checked(lengths, source, "source")
        return cls(model, [[]] * len(source), source=source, context_lengths=lengths)

    @classmethod
    def continuing(
        cls,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        context: Float[Tensor, "rows context_tokens context_width"] | None = None,
        context_lengths: Sequence[int] | Int[Tensor, " rows"] | None = None,
    ) -> Writer:
        """Each prompt is read, and then written on; they may differ in length.

        A decoder that looks at a `context` gets one of each row, all of it real unless `context_lengths` says less.
        """
        if context is None:
            return cls(model, prompts)
        if len(context) != len(prompts):
            raise ShapeError(f"{len(prompts)} prompts, but {len(context)} samples of context")
        every = [context.shape[1]] * len(context)
        lengths = _checked(every if context_lengths is None else context_lengths, context, "context")
        return cls(model, prompts, context=context, context_lengths=lengths)

    @property
    def vocabulary(self) -> int:
        return self.model.config.vocabulary

    def check_room(self, max_length: int, start: int | None) -> None:
        """Refuses more tokens than a model with learned positions has places for."""
        config = self.model.config
        longest = max(map(len, self._prompts), default=0) + (start is not None) + max_length - 1
        if config.positions == "learned" and longest > config.max_length:
            raise DecodeError(
                f"max_length={max_length} would need {longest} positions, but this model learned {config.max_length}; "
                f"write at most {config.max_length - longest + max_length} tokens"
            )

    def begin(self, start: int | None) -> Float[Tensor, "rows vocabulary"]:
        """The scores of each row's first token, after its `start` and its prompt."""
        prompts = [[*([] if start is None else [start]), *prompt] for prompt in self._prompts]
        if [] in prompts:
            row = prompts.index([])
            raise DecodeError(
                f"row {row} has nothing to begin with; pass start=, the token that comes before all others"
            )
        self.rows, self.beams, self._cache = len(prompts), 1, KeyValueCache()
        self._written, self._longest = 0, max(map(len, prompts), default=1)
        self._view = decoding_view(self.model)
        lengths = [len(prompt) for prompt in prompts]
        self._padded = min(lengths, default=1) < self._longest
        self._look_at(torch.tensor(lengths, dtype=torch.long, device=self.device), self._all_lengths)
        padded = [[0] * (self._longest - len(prompt)) + prompt for prompt in prompts]
        tokens = torch.tensor(padded, dtype=torch.long, device=self.device).view(self.rows, self._longest)
        with torch.inference_mode():
            if self._context is None and self._source is not None:
                self._context = self._encoded(self._source.to(self.device))
            return self._scores(tokens)

    def advance(self, tokens: Int[Tensor, " samples"]) -> Float[Tensor, "samples vocabulary"]:
        """The scores of the token after these, of which each row has one, or one for each of its beams."""
        self._written += 1
        refresh(self._view)
        with torch.inference_mode():
            return self._scores(tokens[:, None])

    def follow(self, parents: Int[Tensor, "rows beams"], staying: Int[Tensor, " rows"] | None = None) -> None:
        """Each row goes on with these samples of the last step as its beams; `staying` are the rows that go on.

        What a row looks at is shared by its beams, not copied for each of them.
        """
        self.rows, self.beams = parents.shape
        with torch.inference_mode():
            self._cache.branch(parents.flatten(), self.beams, staying)
        if staying is not None:
            of_context = None if self._context_lengths is None else self._context_lengths[staying]
            self._look_at(self._lengths[staying], of_context)

    def _look_at(self, lengths: Tensor, context_lengths: Tensor | None) -> None:
        """How much of its prompt and of its context each row looks at."""
        self._lengths, self._context_lengths, self._context_mask = lengths, context_lengths, None
        if context_lengths is not None and not bool((context_lengths == self._context_tokens).all()):
            with torch.inference_mode(False):  # of an inference tensor a mask cannot remember what it worked out
                self._context_mask = Mask.padding(context_lengths.clone())

    def _encoded(self, source: Tensor) -> Tensor:
        assert isinstance(self._view, EncoderDecoder)
        if source.is_floating_point():
            return self._view.encode(vectors=source, mask=self._context_mask)
        return self._view.encode(source, self._context_mask)

    def _scores(self, tokens: Tensor) -> Tensor:
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
        logits = self._view.logits(hidden[:, -1])
        return logits if logits.dtype == torch.float64 else logits.float()


def staying(over: Sequence[bool]) -> list[int] | None:
    """Which rows go on; None while too few are over for moving the others together to pay off.

    >>> staying([True, False, False]), staying([False] * 20 + [True])
    ([1, 2], None)
    """
    if 16 * sum(over) < len(over):
        return None
    return [row for row, done in enumerate(over) if not done]


def _checked(lengths: Sequence[int] | Tensor, rows: Tensor, name: str) -> Tensor:
    lengths = torch.as_tensor(lengths, dtype=torch.long)
    if len(lengths) != len(rows) or rows.ndim not in (2, 3):
        shape = tuple(rows.shape)
        raise ShapeError(f"{len(lengths)} lengths for a {name} of shape {shape}; give one for each row")
    if len(rows) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= rows.shape[1]:
        raise ShapeError(f"lengths go from {lengths.min()} to {lengths.max()}, but the {name} is {rows.shape[1]} long")
    return lengths
