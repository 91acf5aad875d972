"""SpeechModel: an encoder-decoder that takes spectrograms, with CTC scores for every position of its encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import Mask
from clearhead.attention.dropout import Dropout
from clearhead.errors import ConfigError, ShapeError
from clearhead.model.config import ModelConfig
from clearhead.model.layers import at_least_float, linear
from clearhead.model.transformer import EncoderDecoder

EXPANSION = 2  # how many times wider a convolution block is inside


def count_positions(frames: int, stride: int) -> int:
    """How many positions the encoder has for a sound of this number of frames: every started stride counts.

    >>> count_positions(9, 4), count_positions(0, 4)
    (3, 0)
    """
    return -(-frames // stride)


class ConvolutionBlock(nn.Module):
    """A residual block along time: depthwise convolution, norm, and two projections (as ConvNeXt, Liu et al. 2022)."""

    def __init__(self, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, EXPANSION * width)
        self.down = nn.Linear(EXPANSION * width, width)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch positions width"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch positions width"]:
        local = self.depthwise(clear_padding(x, lengths).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm(local)))))
        return out


class SoundFrontEnd(nn.Module):
    """Spectrograms to vectors, one for every `sound.stride` frames: what `Encoder(vectors=…)` takes.

    Two or more 3 × 3 convolutions with stride 2 over time and bands, a projection to the model's width, and
    `sound.blocks` residual blocks along time. What a sound gives does not depend on its padding.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sound = config.sound
        if sound is None:
            raise ConfigError("a SoundFrontEnd needs sound in its ModelConfig")
        halvings = sound.stride.bit_length() - 1
        self.bands, channels, height = sound.bands, sound.channels, sound.bands
        self.strides = [2 if number < halvings else 1 for number in range(max(2, halvings))]
        layers = []
        for number, stride in enumerate(self.strides):
            layers.append(nn.Conv2d(channels if number else 1, channels, 3, stride=(stride, 2), padding=1))
            height = -(-height // 2)
        self.convolutions = nn.ModuleList(layers)
        self.projection = nn.Linear(channels * height, config.width)
        blocks = (ConvolutionBlock(config.width, sound.kernel, config.dropout) for _ in range(sound.blocks))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)
        for module in self.modules():
            if isinstance(module, (nn.Conv1d, nn.Conv2d)):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self, spectrograms: Float[Tensor, "batch frames mels"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch positions width"], Int[Tensor, " batch"]]:
        """The vectors, and how many of them belong to each sound; `lengths` are in frames."""
        if spectrograms.ndim != 3 or spectrograms.shape[2] != self.bands:
            raise ShapeError(f"spectrograms must be (batch, frames, {self.bands}), got {tuple(spectrograms.shape)}")
        x = clear_padding(spectrograms, lengths)[:, None]
        for layer, stride in zip(self.convolutions, self.strides, strict=True):
            lengths = -(-lengths // stride)
            x = F.gelu(layer(x))
            inside = torch.arange(x.shape[2], device=x.device) < lengths[:, None]
            x = x.masked_fill(~inside[:, None, :, None], 0.0)
        vectors: Tensor = self.projection(rearrange(x, "b c t m -> b t (c m)"))
        for block in self.blocks:
            vectors = block(vectors, lengths)
        return self.norm(vectors), lengths


class SpeechModel(EncoderDecoder):
    """An encoder of sound with two outputs: CTC scores for every position, and a decoder with cross-attention.

    CTC's labels are the tokens of the vocabulary; its blank is the padding token, which no text has.

    >>> model = SpeechModel(ModelConfig.named("tiny", vocabulary=11, sound={"bands": 40})).eval()
    >>> sound, lengths = torch.randn(2, 17, 40), torch.tensor([17, 8])
    >>> context, positions = model.encode_sound(sound, lengths)
    >>> model.ctc_log_probs(context).shape, positions
    (torch.Size([2, 5, 11]), tensor([5, 2]))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.front_end = SoundFrontEnd(config)
        self.to_ctc = linear(config.width, config.vocabulary)

    def encode_sound(
        self, spectrograms: Float[Tensor, "batch frames mels"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch positions width"], Int[Tensor, " batch"]]:
        """The encoder's hidden states of a padded batch, and how many positions each sound has."""
        vectors, lengths = self.front_end(spectrograms, lengths)
        return self.encode(vectors=vectors, mask=Mask.padding(lengths)), lengths

    def ctc_log_probs(
        self, context: Float[Tensor, "batch positions width"]
    ) -> Float[Tensor, "batch positions vocabulary"]:
        """The log-probability of every label at every position, in float32 at least."""
        scores: Tensor = self.to_ctc(context)
        return at_least_float(scores).log_softmax(-1)


def clear_padding(
    x: Float[Tensor, "batch positions width"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch positions width"]:
    """The vectors with those after the first `lengths` set to zero."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return x.masked_fill(~inside[..., None], 0.0)
