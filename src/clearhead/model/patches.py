"""Patch embeddings, pictures as sequences of vectors (Dosovitskiy 2021), and PictureToText, a model that takes them."""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import Mask
from clearhead.errors import ConfigError, ShapeError
from clearhead.model.config import ModelConfig, Patches
from clearhead.model.transformer import EncoderDecoder

CHANNELS = 3  # red, green, blue
GROUP = 8  # features of a group norm's group


class ConvolutionStem(nn.Module):
    """Convolutions that halve a picture until a pixel of the result stands for a patch (Xiao 2021).

    Each halving is a 3 × 3 convolution of stride 2 that doubles the features, up to the model's width, followed by
    residual ones where `patches.convolutions` is more than 1. Group norms keep pictures of a batch independent.
    """

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__()
        halvings = patches.size.bit_length() - 1
        sizes = [max(GROUP, (width >> left) // GROUP * GROUP) for left in reversed(range(halvings))]
        self.features = sizes[-1] if sizes else CHANNELS
        blocks, channels = list[nn.Module](), CHANNELS
        for size in sizes:
            blocks.append(ConvolutionBlock(channels, size, stride=2))
            blocks += [ConvolutionBlock(size, size) for _ in range(patches.convolutions - 1)]
            channels = size
        self.blocks = nn.Sequential(*blocks)

    def reset_parameters(self) -> None:
        """He initialisation for the convolutions; residual ones begin as nothing (the scale of their norm is 0)."""
        for block in self.blocks:
            assert isinstance(block, ConvolutionBlock)
            nn.init.kaiming_normal_(block.convolution.weight, nonlinearity="relu")
            nn.init.constant_(block.norm.weight, 0.0 if block.residual else 1.0)
            nn.init.zeros_(block.norm.bias)

    def forward(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch features rows columns"]:
        features: Tensor = self.blocks(pictures)
        return features


class ConvolutionBlock(nn.Module):
    """A 3 × 3 convolution with group norm and ReLU; added to its input if both have the same size."""

    def __init__(self, channels: int, features: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = stride == 1 and channels == features
        self.convolution = nn.Conv2d(channels, features, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(max(1, features // GROUP), features)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features rows columns"]:
        made: Tensor = self.norm(self.convolution(x))
        return F.relu(x + made) if self.residual else F.relu(made)


class PatchEmbedding(nn.Module):
    """One vector for each square patch of a picture, row by row from the top left: what `Encoder(vectors=…)` takes.

    With `positions="learned"` in the config's `patches` a vector of the patch's row and one of its column are added
    here; with `"rotary"` the encoder rotates queries and keys by both (`AxialRotary`). With `convolutions` the patches
    are what convolutions make of the picture: they see a little of their neighbours.

    >>> import torch
    >>> from clearhead.model import Encoder
    >>> config = ModelConfig.named("tiny", vocabulary=11, patches=Patches(size=4, rows=2, columns=3))
    >>> patches, encoder = PatchEmbedding(config), Encoder(config)
    >>> vectors = patches(torch.rand(5, 3, 8, 12))
    >>> vectors.shape, encoder(vectors=vectors).shape
    (torch.Size([5, 6, 128]), torch.Size([5, 6, 128]))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        patches = config.patches
        if patches is None:
            raise ConfigError("a PatchEmbedding needs patches in its ModelConfig")
        self.size, self.rows, self.columns = patches.size, patches.rows, patches.columns
        self.scaled = config.scale_embeddings
        self.convolutions = ConvolutionStem(patches, config.width) if patches.convolutions else None
        features = CHANNELS * self.size**2 if self.convolutions is None else self.convolutions.features
        self.projection = nn.Linear(features, config.width)
        learned = patches.positions == "learned"
        self.row_positions = nn.Embedding(self.rows, config.width) if learned else None
        self.column_positions = nn.Embedding(self.columns, config.width) if learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform for the projection; positions normal, of variance one together where words are (else 0.02)."""
        if self.convolutions is not None:
            self.convolutions.reset_parameters()
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)
        for table in (self.row_positions, self.column_positions):
            if table is not None:
                nn.init.normal_(table.weight, std=0.5**0.5 if self.scaled else 0.02)

    def forward(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch patches model_width"]:
        wanted = (CHANNELS, self.rows * self.size, self.columns * self.size)
        if pictures.ndim != 4 or pictures.shape[1:] != wanted:
            raise ShapeError(
                f"pictures must be (batch, {', '.join(map(str, wanted))}), got {tuple(pictures.shape)}; "
                "Preprocessing brings them to one size"
            )
        if self.convolutions is None:
            pixels = rearrange(pictures, "b c (r p) (k q) -> b (r k) (c p q)", p=self.size, q=self.size)
        else:
            pixels = rearrange(self.convolutions(pictures), "b c r k -> b (r k) c")
        vectors: Tensor = self.projection(pixels)
        if self.row_positions is None or self.column_positions is None:
            return vectors
        positions = self.row_positions.weight[:, None] + self.column_positions.weight[None]
        return vectors + positions.flatten(0, 1)


class PictureToText(EncoderDecoder):
    """Encoder-decoder Transformer for captions: the decoder attends to the encoded patches of a picture."""

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
