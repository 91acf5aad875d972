"""Log-mel frames of padded batches of sound, with noise and SpecAugment in training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.audio import LogMelSettings, compute_log_mel, mask_spectrogram
from clearhead.tasks.transcription.transcription_settings import Augmentation

PADDING_LOUDNESS = 0.1


def compute_frames(
    sound: Float[Tensor, "batch samples"],
    lengths: Int[Tensor, " batch"],
    settings: LogMelSettings,
    augmentation: Augmentation | None = None,
) -> tuple[Float[Tensor, "batch frames mels"], Int[Tensor, " batch"]]:
    """The log-mel frames of a padded batch, and how many each sound has; an `augmentation` adds noise and masks."""
    device = sound.device
    with torch.autocast(device.type, enabled=False):
        if augmentation is not None and augmentation.noise:
            level = sound.square().sum(1, keepdim=True) / lengths[:, None]
            share = torch.rand(len(sound), 1, device=device) * augmentation.noise
            sound = sound + torch.randn_like(sound) * level.sqrt() * share
        frames, counts = compute_log_mel(sound, lengths, settings)
        if augmentation is not None:
            frames = mask_spectrogram(frames, counts, augmentation, _default_generator(device))
    return frames, counts


def pad_with_noise(sound: Float[Tensor, " samples"], seconds: float, rate: int) -> Float[Tensor, " padded"]:
    """The sound with noise of a tenth of its loudness, which also lasts so many seconds before and after it."""
    size = round(seconds * rate)
    if not size:
        return sound
    padded = F.pad(sound, (size, size))
    noise = torch.randn(len(padded), generator=torch.Generator().manual_seed(0))
    return padded + noise * sound.square().mean().sqrt() * PADDING_LOUDNESS


def _default_generator(device: torch.device) -> torch.Generator:
    """The random generator of a device that the trainer seeds at every step."""
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
