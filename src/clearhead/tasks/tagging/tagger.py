"""Tagger: an encoder with a score for each tag of each word, and the learned steps of a CRF if wanted."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import Mask
from clearhead.model import ModelConfig, TokenClassifier
from clearhead.tasks.tagging.linear_chain import Steps
from clearhead.tasks.tagging.word_case import CASES

STEP_SCALE = 10.0  # learned steps are multiplied by this, so that they learn at a higher rate than large matrices


class Tagger(TokenClassifier):
    """A TokenClassifier that scores words by their first pieces.

    With `crf` it learns scores of steps from tag to tag; with `cases` vectors for how a word is capitalised, which are
    added to the embeddings of its pieces. Both start at zero.
    """

    def __init__(self, config: ModelConfig, *, crf: bool = False, cases: bool = False) -> None:
        super().__init__(config)
        labels = config.labels
        assert labels is not None
        self.first_tag = nn.Parameter(torch.zeros(labels)) if crf else None
        self.next_tag = nn.Parameter(torch.zeros(labels, labels)) if crf else None
        self.last_tag = nn.Parameter(torch.zeros(labels)) if crf else None
        self.cases = nn.Embedding(len(CASES), config.width) if cases else None
        if self.cases is not None:
            nn.init.zeros_(self.cases.weight)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"] | None = None,
        *,
        vectors: Float[Tensor, "batch tokens width"] | None = None,
        segments: Int[Tensor, "batch tokens"] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        cases: Int[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """As of an Encoder; `cases` are those of the words that tokens belong to."""
        if self.cases is not None and cases is not None:
            vectors, tokens = self._embed(tokens, vectors) + self.cases(cases), None
        return super().forward(tokens, vectors=vectors, segments=segments, positions=positions, mask=mask)

    def word_scores(
        self,
        tokens: Int[Tensor, "batch tokens"],
        lengths: Int[Tensor, " batch"],
        cases: Int[Tensor, "batch tokens"],
        words: Int[Tensor, "batch words"],
    ) -> Float[Tensor, "batch words labels"]:
        """Scores of the tags of each word, given by the place of its first piece among the tokens."""
        hidden = self(tokens, mask=Mask.padding(lengths, queries=True), cases=cases)
        return self.label_scores(hidden.gather(1, words[:, :, None].expand(-1, -1, hidden.shape[2])))

    def steps(self) -> Steps | None:
        """The learned scores of steps, in float32; None without a CRF."""
        if self.first_tag is None or self.next_tag is None or self.last_tag is None:
            return None
        parts = (self.first_tag, self.next_tag, self.last_tag)
        return Steps(*(STEP_SCALE * part.float() for part in parts))
