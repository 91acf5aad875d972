"""Sound files: WAV and FLAC of any rate, width and number of channels, as mono tensors at the rate of a model."""

from __future__ import annotations

import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.audio.resampling import resample_blocks
from clearhead.errors import DataError, PackageError, import_extra

FORMATS = ("WAV", "WAVEX", "RF64", "W64", "FLAC")
RATES = range(1000, 768_001)
LONGEST_SECONDS = 2 * 3600.0  # of a file that is read
BLOCK_SECONDS = 30
LARGEST_SAMPLE = 1e6  # float files have values near -1 to 1, some those of 16-bit integers; squares must not overflow
CANCELLED = 1e-6  # of the channels' variance: opposite channels leave less than this, the rounding of 16 bits included
CONSTANT = 1e-12  # of the mean square: a smaller variance is rounding
UNKNOWN_BYTES = 0x7FFF_0000  # programs that write to a pipe put a size like this into a WAV file
UNKNOWN_FRAMES = 1 << 62  # libsndfile's count for a FLAC file that does not say


def _read_header(path: str | Path) -> Any:
    """What a WAV or FLAC file says about itself; a DataError for anything else."""
    soundfile = _import_soundfile()
    try:
        info = soundfile.info(str(path), verbose=True)
    except soundfile.SoundFileError as error:
        raise DataError(f"{path} is not a readable WAV or FLAC file ({_plain(error)})") from error
    if info.format not in FORMATS:
        raise DataError(f"{path} has the format {info.format}; convert it to WAV or FLAC")
    if info.samplerate not in RATES:
        raise DataError(
            f"{path} has {info.samplerate} samples a second; between {RATES[0]} and {RATES[-1]} can be resampled"
        )
    if info.frames == 0:
        raise DataError(f"{path} has a header and no samples")
    _refuse_cut_file(path, info.extra_info)
    return info


def read_sound(
    path: str | Path, rate: int, *, shortest: float = 0.0, longest: float = LONGEST_SECONDS
) -> Float[Tensor, " samples"]:
    """The sound of a file: float32, the mean of its channels, at `rate` samples a second.

    A file longer than `longest` seconds is refused by its header, before anything is decoded. One shorter than
    `shortest`, or without any sound in it, is refused too.
    """
    header = _read_header(path)
    if header.frames < UNKNOWN_FRAMES:
        _check_duration(path, header.frames / header.samplerate, shortest, longest)
    blocks = _decode(path, header, shortest, longest)  # all channels at the file's own rate are never in memory at once
    return torch.cat(list(resample_blocks(blocks, header.samplerate, rate)))


def write_sound(path: str | Path, sound: Float[Tensor, " samples"], rate: int) -> None:
    """Writes mono sound as a WAV file of 16 bits; sound louder than 1 is scaled down, not clipped."""
    peak = max(1.0, float(sound.abs().max()) if len(sound) else 0.0)
    samples = (sound / peak * 32767).round().short().cpu().numpy()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


def check_samples(name: str | Path, samples: Float[Tensor, "*shape"], seconds: float = 0.0) -> None:
    """Raises DataError for samples that are NaN, infinite or much too large; the first one comes after `seconds`."""
    if not samples.isfinite().all():
        raise DataError(f"{name} has samples that are NaN or infinite, {seconds:.0f} s from its start or later")
    largest = float(samples.abs().max())
    if largest > LARGEST_SAMPLE:
        raise DataError(f"{name} has a sample of {largest:.3g}; values of floats are expected near -1 to 1")


def _decode(path: str | Path, header: Any, shortest: float, longest: float) -> Iterator[Tensor]:
    """Blocks of mono samples at the file's own rate, checked."""
    soundfile, rate, decoded = _import_soundfile(), header.samplerate, 0
    # Sums of the samples and of their squares, of all channels and of their mean: for the variances.
    sums = torch.zeros(4, dtype=torch.float64)
    try:
        with soundfile.SoundFile(str(path)) as file:
            while len(block := file.read(BLOCK_SECONDS * rate, dtype="float32", always_2d=True)):
                samples = torch.from_numpy(block)
                check_samples(path, samples, decoded / rate)
                mono = samples.mean(1)
                both = (samples.double(), mono.double())
                sums += torch.stack([value for x in both for value in (x.sum(), x.square().sum())])
                decoded += len(samples)
                if decoded > longest * rate:
                    _check_duration(path, decoded / rate, shortest, longest)
                yield mono
    except soundfile.SoundFileError as error:
        raise DataError(f"{path} is damaged: {decoded / rate:.1f} s of it can be read, then {_plain(error)}") from error
    if header.frames < UNKNOWN_FRAMES and decoded < header.frames:
        raise DataError(f"{path} is cut off: {decoded} of the {header.frames} samples of its header are there")
    _check_duration(path, decoded / rate, shortest, longest)
    counts = torch.tensor([decoded * header.channels, decoded])
    channels, mean = (sums[1::2] / counts - (sums[::2] / counts).square()).tolist()
    if channels <= CONSTANT * float(sums[1] / decoded):
        raise DataError(f"{path} has no sound in it: all samples are the same")
    if mean < CANCELLED * channels:
        raise DataError(f"{path} has no sound in its mean: the channels cancel each other; store one of them alone")


def _check_duration(path: str | Path, seconds: float, shortest: float, longest: float) -> None:
    if seconds > longest:
        raise DataError(f"{path} is longer than the limit of {longest:g} s ({seconds:.7g} s); cut it into parts")
    if seconds < shortest:
        raise DataError(f"{path} has no sound in it: {seconds:.4g} s are shorter than one window of {shortest:g} s")


def _refuse_cut_file(path: str | Path, log: str) -> None:
    """Refuses a WAV file with fewer samples than its header says, which libsndfile only mentions in its log."""
    for said, there in re.findall(r"^data : (\d+) \(should be (\d+)\)", log, re.MULTILINE):
        if int(there) < int(said) < UNKNOWN_BYTES:
            raise DataError(f"{path} is cut off: {there} of the {said} bytes of sound in its header are there")


def _plain(error: Exception) -> str:
    """libsndfile's reason without the path, which our message has already."""
    return str(getattr(error, "error_string", error)).removeprefix("Error : ").rstrip(".")


def _import_soundfile() -> Any:
    try:
        return import_extra("soundfile", "reading sound", "audio")
    except OSError as error:  # the package is there, and its shared library is not
        raise PackageError(f"soundfile cannot load libsndfile: {error}") from error
