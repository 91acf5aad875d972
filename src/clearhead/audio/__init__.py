"""Sound: files, resampling, log-mel spectrograms, augmentation, and long recordings cut at silence."""

from clearhead.audio.log_mel import LogMelSettings, compute_log_mel
from clearhead.audio.resampling import resample
from clearhead.audio.silence import SoundPiece, split_at_silence
from clearhead.audio.sound_augmentation import SpecAugment, mask_spectrogram, perturb_speed
from clearhead.audio.sound_files import read_sound, write_sound

__all__ = [
    "LogMelSettings",
    "SoundPiece",
    "SpecAugment",
    "compute_log_mel",
    "mask_spectrogram",
    "perturb_speed",
    "read_sound",
    "resample",
    "split_at_silence",
    "write_sound",
]
