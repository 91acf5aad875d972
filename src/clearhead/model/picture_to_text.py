"""PictureToText: an encoder-decoder whose encoder takes pictures as patches."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model.config import ModelConfig
from clearhead.model.patches import PatchEmbedding
from clearhead.model.transformer import EncoderDecoder


class PictureToText(EncoderDecoder):
    """Encoder-decoder Transformer for captions: the decoder attends to the encoded patches of a picture.

    >>> import torch
    >>> config = ModelConfig.named("tiny", vocabulary=11, patches={"size": 4, "rows": 2, "columns": 3})
    >>> model = PictureToText(config)
    >>> model(torch.rand(5, 3, 8, 12), torch.tensor([[4, 7]] * 5)).shape
    torch.Size([5, 2, 128])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.patches = PatchEmbedding(config)

    def forward(  # type: ignore[override]  # a picture is no row of tokens
        self,
        pictures: Float[Tensor, "batch channels height width"],
        target: Int[Tensor, "batch target"],
        target_mask: Mask | None = None,
    ) -> Float[Tensor, "batch target model_width"]:
        """Hidden states of the target, from pictures that are normalised as in training."""
        return self.decode(target, self.encode_pictures(pictures), mask=target_mask)

    def encode_pictures(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch patches model_width"]:
        """The encoder's hidden state of each patch, row by row."""
        return self.encode(vectors=self.patches(pictures))
