"""Sound files: all widths, rates and channels, and one clear line about what cannot be read."""

import math
import sys

import numpy as np
import pytest
import soundfile
import torch

from clearhead.audio import read_sound, sound_files
from clearhead.errors import DataError, PackageError

# The largest error of a sample in each width: one step (8-bit μ-law and A-law are coarser the louder it is).
STEPS = {"PCM_U8": 2**-7, "PCM_S8": 2**-7, "PCM_16": 2**-15, "PCM_24": 2**-23, "PCM_32": 2**-23, "FLOAT": 2**-23,
         "DOUBLE": 2**-23, "ULAW": 2**-5, "ALAW": 2**-5}  # fmt: skip
WIDTHS = [("wav", name) for name in STEPS if name != "PCM_S8"] + [
    ("flac", f"PCM_{bits}") for bits in ("S8", "16", "24")
]
RATES = [8000, 11025, 16000, 22050, 32000, 44100, 48000]


def sine(rate: int, seconds: float = 0.5, frequency: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)


def write(path, samples, rate=16000, **more):
    soundfile.write(path, samples, rate, **more)
    return path


@pytest.mark.parametrize(("ending", "subtype"), WIDTHS)
def test_every_width_is_read(tmp_path, ending, subtype):
    path = write(tmp_path / f"a.{ending}", sine(16000), subtype=subtype)
    sound = read_sound(path, 16000)
    assert sound.dtype == torch.float32
    assert float((sound - torch.from_numpy(sine(16000))).abs().max()) <= 1.01 * STEPS[subtype]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_every_rate_becomes_the_rate_of_the_model(tmp_path, rate, ending):
    sound = read_sound(write(tmp_path / f"a.{ending}", sine(rate), rate), 16000)
    assert len(sound) == 8000
    truth = torch.from_numpy(sine(16000))
    # 16-bit steps, the filter's 1e-5, and a margin at the ends, where the sine starts from nothing.
    assert float((sound - truth)[300:-300].abs().max()) <= 2 * 2**-15 + 3e-5


def test_stereo_becomes_the_mean_of_the_channels(tmp_path):
    left, right = sine(16000), sine(16000, frequency=1000)
    sound = read_sound(write(tmp_path / "a.wav", np.stack([left, right], 1), subtype="FLOAT"), 16000)
    assert float((sound - torch.from_numpy((left + right) / 2)).abs().max()) <= 2**-23


@pytest.mark.parametrize("kind", ["WAVEX", "RF64", "W64"])
def test_relatives_of_wav_are_read(tmp_path, kind):
    path = write(tmp_path / "a.wav", sine(8000), 8000, format=kind, subtype="PCM_16")
    assert len(read_sound(path, 8000)) == 4000


@pytest.mark.parametrize("rate", [8000, 44100])
def test_blocks_are_the_whole_sound(tmp_path, monkeypatch, rate):
    path = write(tmp_path / "a.flac", sine(rate, 2.9), rate)
    whole = read_sound(path, 16000)
    monkeypatch.setattr(sound_files, "BLOCK_SECONDS", 1)
    assert float((read_sound(path, 16000) - whole).abs().max()) <= 1e-6


def broken_files(folder):
    """Name, what is in it (bytes, or samples), and what is said about it."""
    good = write(folder / "good.wav", sine(16000)).read_bytes()
    flac = write(folder / "good.flac", sine(16000)).read_bytes()
    quiet, one = np.zeros(1000), sine(16000)
    return {
        "empty.wav": (b"", "is not a readable WAV or FLAC file"),
        "text.wav": (b"this is a text and no sound\n" * 9, "is not a readable WAV or FLAC file"),
        "text.flac": (b"this is a text and no sound\n" * 9, "is not a readable WAV or FLAC file"),
        "header.wav": (good[:20], "is not a readable WAV or FLAC file|no samples"),
        "cut.wav": (good[: len(good) // 2], "is cut off: 7978 of the 16000 bytes"),
        "cut.flac": (flac[: len(flac) // 2], "is damaged|is cut off"),
        "nothing.wav": (np.zeros(0), "a header and no samples"),
        "zeros.wav": (quiet, "no sound in it: all samples are the same"),
        "constant.wav": (quiet + 0.25, "no sound in it: all samples are the same"),
        "opposite.wav": (np.stack([one, -one], 1), "the channels cancel each other"),
        "nan.wav": (np.where(np.arange(8000) == 71, math.nan, one), "NaN or infinite"),
        "infinite.wav": (np.where(np.arange(8000) == 71, math.inf, one), "NaN or infinite"),
        "huge.wav": (one * 1e30, "a sample of 5e[+]29"),
        "click.wav": (sine(16000, 0.01), "0.01 s are shorter than one window of 0.025 s"),
    }


NAMES = [
    "empty.wav",
    "text.wav",
    "text.flac",
    "header.wav",
    "cut.wav",
    "cut.flac",
    "nothing.wav",
    "zeros.wav",
    "constant.wav",
    "opposite.wav",
    "nan.wav",
    "infinite.wav",
    "huge.wav",
    "click.wav",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_file_is_one_clear_line(tmp_path, name):
    content, said = broken_files(tmp_path)[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write(path, content, subtype="FLOAT" if name[:3] in ("nan", "inf", "hug") else "PCM_16")
    with pytest.raises(DataError, match=said) as caught:
        read_sound(path, 16000, shortest=0.025)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path / "none.wav", tmp_path, "a\0.wav"):
        with pytest.raises(DataError, match="is not a readable WAV or FLAC file"):
            read_sound(path, 16000)


def test_another_kind_of_sound_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="has the format AIFF; convert it"):
        read_sound(write(tmp_path / "a.aiff", sine(16000)), 16000)


def test_a_rate_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match="has 7 samples a second"):
        read_sound(write(tmp_path / "a.wav", sine(16000), 7), 16000)


def test_ten_hours_are_refused_by_the_header_alone(tmp_path, monkeypatch):
    path = tmp_path / "long.wav"
    with soundfile.SoundFile(path, "w", 1000, 1, subtype="PCM_U8") as file:
        for _ in range(10):
            file.write(np.zeros(3_600_000, dtype=np.int16))
    monkeypatch.setattr(sound_files, "_decode", lambda *_: pytest.fail("nothing should be decoded"))
    with pytest.raises(DataError, match=r"long\.wav is longer than the limit of 7200 s \(36000 s\)"):
        read_sound(path, 16000)


def test_a_duration_beside_its_limit_is_not_rounded_to_it():
    with pytest.raises(DataError, match=r"the limit of 7200 s \(7200\.25 s\)"):
        sound_files._check_duration("long.wav", 7200.25, 0.025, 7200.0)
    with pytest.raises(DataError, match=r"0\.02499 s are shorter than one window of 0\.025 s"):
        sound_files._check_duration("click.wav", 0.02499, 0.025, 7200.0)


def test_a_limit_holds_where_the_header_does_not_know(tmp_path, monkeypatch):
    path = write(tmp_path / "a.wav", sine(8000, 3.0), 8000)
    monkeypatch.setattr(sound_files, "UNKNOWN_FRAMES", 100)
    monkeypatch.setattr(sound_files, "BLOCK_SECONDS", 1)
    assert len(read_sound(path, 8000)) == 24000
    with pytest.raises(DataError, match=r"limit of 1.5 s"):
        read_sound(path, 8000, longest=1.5)


def test_a_size_that_a_pipe_wrote_is_no_cut(tmp_path):
    path = write(tmp_path / "a.wav", sine(8000), 8000)
    data = bytearray(path.read_bytes())
    place = data.index(b"data") + 4
    data[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(read_sound(path, 8000)) == 4000


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(PackageError, match=r"pip install 'clearhead\[audio\]'"):
        read_sound(tmp_path / "a.wav", 16000)
