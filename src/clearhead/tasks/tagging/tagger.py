"""Tagger: an encoder with a score for each tag of each word and optional CRF transitions, run over many sentences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.attention import Mask
from clearhead.decode.prepacked_linear import decoding_view
from clearhead.model import ModelConfig, TokenClassifier
from clearhead.tasks.losses import check_finite
from clearhead.tasks.tagging.linear_chain import Steps
from clearhead.tasks.tagging.sentence_windows import CASES, WindowTokens
from clearhead.tasks.text_windows import mask_padding, padded_batches
from clearhead.text.batches import pad_sequences

STEP_SCALE = 10.0  # learned steps are multiplied by this, so that they learn at a higher rate than large matrices
BATCH_TOKENS = 1024  # pads included: what a CPU's cache holds is computed fastest


class _Convolution(nn.Module):
    """One residual layer: every token is mixed with the token before and the token after it.

    It changes nothing at first, so that it can also stand before trained layers.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.mix = nn.Conv1d(config.width, config.width, 3, padding="same")
        self.dropout = nn.Dropout(config.dropout)
        nn.init.zeros_(self.mix.weight)
        if self.mix.bias is not None:
            nn.init.zeros_(self.mix.bias)

    def forward(
        self, vectors: Float[Tensor, "batch tokens width"], real: Bool[Tensor, "batch tokens 1"] | None = None
    ) -> Float[Tensor, "batch tokens width"]:
        """`real` tells tokens from padding, which counts as nothing, like what is beyond the ends."""
        inner = self.norm(vectors) if real is None else self.norm(vectors).masked_fill(~real, 0.0)
        mixed: Tensor = self.dropout(nn.functional.gelu(self.mix(inner.transpose(1, 2)).transpose(1, 2)))
        return vectors + mixed


class Tagger(TokenClassifier):
    """A TokenClassifier that scores words by their first pieces.

    With `crf` it learns scores of steps from tag to tag. With `cases` a vector for how the word is capitalised is
    added to the embeddings of its pieces; it starts at zero. `convolutions` is how many layers of convolution over
    three neighbouring pieces come before the first layer of attention.
    """

    def __init__(self, config: ModelConfig, *, crf: bool = False, cases: bool = False, convolutions: int = 0) -> None:
        super().__init__(config)
        labels = config.label_count
        self.first_tag = nn.Parameter(torch.zeros(labels)) if crf else None
        self.next_tag = nn.Parameter(torch.zeros(labels, labels)) if crf else None
        self.last_tag = nn.Parameter(torch.zeros(labels)) if crf else None
        self.cases = nn.Embedding(len(CASES), config.width) if cases else None
        if self.cases is not None:
            nn.init.zeros_(self.cases.weight)
        self.convolutions = nn.ModuleList(_Convolution(config) for _ in range(convolutions))

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"] | None = None,
        *,
        vectors: Float[Tensor, "batch tokens width"] | None = None,
        segments: Int[Tensor, "batch tokens"] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        cases: Int[Tensor, "batch tokens"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        places: Int[Tensor, "batch chosen"] | None = None,
    ) -> Float[Tensor, "batch _ width"]:
        """Hidden states like Encoder's. `cases`: letter-case class of each token's word. `lengths`: tokens per text."""
        if self.cases is not None or self.convolutions:
            vectors, tokens = self._embed_words(self._embed(tokens, vectors), cases, lengths), None
        return super().forward(
            tokens, vectors=vectors, segments=segments, positions=positions, mask=mask, places=places
        )

    def _embed_words(self, vectors: Tensor, cases: Tensor | None, lengths: Tensor | None) -> Tensor:
        """Embeddings of tokens with the letter case added and the neighbours mixed in."""
        if self.cases is not None and cases is not None:
            vectors = vectors + self.cases(cases)
        if self.convolutions:
            vectors, real = self.dropout(vectors), None
            if lengths is not None:
                real = (torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None])[..., None]
            for convolution in self.convolutions:
                vectors = convolution(vectors, real)
        return vectors

    def encode(
        self,
        tokens: Int[Tensor, "batch tokens"],
        lengths: Int[Tensor, " batch"],
        cases: Int[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens width"]:
        hidden: Tensor = self(tokens, mask=Mask.padding(lengths, queries=True), cases=cases, lengths=lengths)
        return hidden

    def word_scores(
        self, hidden: Float[Tensor, "batch tokens width"], words: Int[Tensor, "batch words"]
    ) -> Float[Tensor, "batch words labels"]:
        """Scores of the tags of each word, given by the position of its first piece among the tokens."""
        return self.label_scores(hidden.gather(1, words[:, :, None].expand(-1, -1, hidden.shape[2])))

    def steps(self) -> Steps | None:
        """The learned scores of steps, in float32; None without a CRF."""
        if self.first_tag is None or self.next_tag is None or self.last_tag is None:
            return None
        parts = (self.first_tag, self.next_tag, self.last_tag)
        return Steps(*(STEP_SCALE * part.float() for part in parts))


def score_words(model: Tagger, texts: Sequence[Sequence[WindowTokens]], *, pad: int, most: int) -> list[Tensor]:
    """Scores (words, tags) of each text, put together from its windows, on the CPU.

    A batch has at most `most` windows, and no more than BATCH_TOKENS tokens, pads included.
    """
    windows = [window for text in texts for window in text if window.words]
    weight = model.vocabulary.words.weight
    device = weight.device
    if not weight.requires_grad:  # in training they would have to be packed again after every step
        model = decoding_view(model)
    scores_of: list[Tensor] = [torch.empty(0)] * len(windows)
    batches = padded_batches([window.tokens for window in windows], pad, device, tokens=BATCH_TOKENS, most=most)
    for numbers, tokens, lengths in batches:
        cases, _ = pad_sequences([windows[number].cases for number in numbers], 0, device)
        words, _ = pad_sequences([windows[number].words for number in numbers], 0, device)
        mask = mask_padding(tokens, lengths)
        hidden = model(tokens, mask=mask, cases=cases, lengths=None if mask is None else lengths, places=words)
        scores = model.label_scores(hidden).float().cpu()
        check_finite(scores)
        for number, row in zip(numbers, scores, strict=True):
            scores_of[number] = row[: len(windows[number].words)]
    parts = iter(scores_of)
    none = torch.empty(0, model.config.label_count)
    return [torch.cat([none, *(next(parts) for window in text if window.words)]) for text in texts]
