"""Sound: files, resampling, log-mel spectrograms, augmentation, batches, and long recordings cut at silence."""

from clearhead.audio.log_mel import LogMelSettings, compute_log_mel
from clearhead.audio.resampling import resample
from clearhead.audio.silence import SoundPiece, SplitSettings, split_at_silence, split_stream
from clearhead.audio.sound_augmentation import SpecAugment, mask_spectrogram, perturb_speed
from clearhead.audio.sound_batches import RaggedSounds
from clearhead.audio.sound_files import SoundHeader, read_header, read_sound, stream_sound, write_sound

__all__ = [
    "LogMelSettings",
    "RaggedSounds",
    "SoundHeader",
    "SoundPiece",
    "SpecAugment",
    "SplitSettings",
    "compute_log_mel",
    "mask_spectrogram",
    "perturb_speed",
    "read_header",
    "read_sound",
    "resample",
    "split_at_silence",
    "split_stream",
    "stream_sound",
    "write_sound",
]
