"""Picture files of every kind, written by Pillow or byte by byte, against the values that they were made of."""

import re
import struct
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead.errors import DataError, PackageError
from clearhead.images import read_picture

WIDTH, HEIGHT = 7, 5
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def draw_colours() -> np.ndarray:
    """Different values at every place and in every channel."""
    return (np.arange(HEIGHT * WIDTH * 3, dtype=np.uint8) * 2).reshape(HEIGHT, WIDTH, 3)


def as_tensor(array: np.ndarray, largest: float = 255) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32) / np.float32(largest)).permute(2, 0, 1)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def make_png(width: int, height: int, bits: int, colour: int, pixels: bytes, extra: bytes = b"") -> bytes:
    """A PNG byte by byte: what Pillow reads and does not write. `pixels` have a 0 before each row."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + png_chunk(b"IDAT", zlib.compress(pixels)) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_colours_are_read_exactly(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    Image.fromarray(draw_colours()).save(path, **({"lossless": True} if kind == "webp" else {}))
    picture = read_picture(path)
    assert picture.shape == (3, HEIGHT, WIDTH)
    assert picture.dtype == torch.float32
    assert torch.equal(picture, as_tensor(draw_colours()))
    assert torch.equal(read_picture(str(path)), picture)


def test_a_jpeg_is_read_within_its_losses(tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT), (200, 100, 50)).save(tmp_path / "a.jpg", quality=95)
    expected = torch.tensor([200, 100, 50])[:, None, None] / 255
    assert (read_picture(tmp_path / "a.jpg") - expected).abs().max() < 3 / 255


@pytest.mark.parametrize("kind", ["png", "jpg", "gif"])
def test_grey_has_three_equal_channels(tmp_path, kind):
    Image.new("L", (WIDTH, HEIGHT), 51).save(tmp_path / f"a.{kind}", **({"quality": 100} if kind == "jpg" else {}))
    assert torch.allclose(read_picture(tmp_path / f"a.{kind}"), torch.full((3, HEIGHT, WIDTH), 0.2))


def test_black_and_white_is_0_and_1(tmp_path):
    Image.fromarray(np.eye(HEIGHT, WIDTH, dtype=bool)).save(tmp_path / "a.png")
    assert torch.equal(read_picture(tmp_path / "a.png"), torch.eye(HEIGHT, WIDTH).expand(3, -1, -1))


def test_grey_of_16_bits_keeps_them_all(tmp_path):
    values = (np.arange(HEIGHT * WIDTH, dtype=np.uint16) * 1873).reshape(HEIGHT, WIDTH)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert torch.equal(read_picture(tmp_path / "a.png"), as_tensor(values[..., None], 65535).expand(3, -1, -1))


def test_grey_of_16_bits_has_a_transparent_value(tmp_path):
    rows = struct.pack(">xHH", 1000, 1001)
    (tmp_path / "a.png").write_bytes(make_png(2, 1, 16, 0, rows, png_chunk(b"tRNS", struct.pack(">H", 1001))))
    picture = read_picture(tmp_path / "a.png")
    assert torch.allclose(picture[:, 0, 0], torch.tensor(1000 / 65535))
    assert torch.equal(picture[:, 0, 1], torch.ones(3))


@pytest.mark.parametrize("transparent", [False, True])
def test_colours_of_16_bits_keep_the_upper_8(tmp_path, transparent):
    rows = struct.pack(">x6H", 0xFFFF, 0x8012, 0, 0x1234, 0x5678, 0x9ABC)
    extra = png_chunk(b"tRNS", struct.pack(">3H", 0x1234, 0x5678, 0x9ABC)) if transparent else b""
    (tmp_path / "a.png").write_bytes(make_png(2, 1, 16, 2, rows, extra))
    picture = read_picture(tmp_path / "a.png")
    assert torch.allclose(picture[:, 0, 0], torch.tensor([255, 128, 0]) / 255)
    expected = torch.ones(3) if transparent else torch.tensor([0x12, 0x56, 0x9A]) / 255
    assert torch.allclose(picture[:, 0, 1], expected)


@pytest.mark.parametrize("kind", ["png", "gif"])
def test_a_palette_becomes_its_colours(tmp_path, kind):
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([2, 0, 1])
    image.save(tmp_path / f"a.{kind}")
    assert torch.equal(read_picture(tmp_path / f"a.{kind}")[:, 0], torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]))


@pytest.mark.parametrize(("transparency", "alpha"), [(1, [1.0, 0.0]), (b"\x80\x33", [128 / 255, 0.2])])
def test_a_palette_has_transparent_entries(tmp_path, transparency, alpha):
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *GREEN])
    image.putdata([0, 1])
    image.save(tmp_path / "a.png", transparency=transparency)
    picture = read_picture(tmp_path / "a.png")
    expected = [[1, 1 - alpha[0], 1 - alpha[0]], [1 - alpha[1], 1, 1 - alpha[1]]]
    assert torch.allclose(picture[:, 0].T, torch.tensor(expected))


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_alpha_is_blended_with_white(tmp_path, kind):
    Image.new("RGBA", (WIDTH, HEIGHT), (255, 0, 102, 51)).save(
        tmp_path / f"a.{kind}", **({"lossless": True, "exact": True} if kind == "webp" else {})
    )
    assert torch.allclose(read_picture(tmp_path / f"a.{kind}")[:, 2, 3], torch.tensor([1.0, 0.8, 0.88]))


def test_grey_with_alpha_is_blended(tmp_path):
    Image.new("LA", (2, 3), (0, 51)).save(tmp_path / "a.png")
    assert torch.allclose(read_picture(tmp_path / "a.png"), torch.full((3, 3, 2), 0.8))


def test_a_transparent_colour_is_white(tmp_path):
    image = Image.new("RGB", (2, 1), RED)
    image.putpixel((1, 0), (1, 2, 3))
    image.save(tmp_path / "a.png", transparency=(1, 2, 3))
    assert torch.equal(read_picture(tmp_path / "a.png")[:, 0].T, torch.tensor([[1.0, 0, 0], [1, 1, 1]]))


def test_cmyk_becomes_red_green_and_blue(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    picture = read_picture(tmp_path / "a.jpg")
    assert (picture - torch.tensor([1.0, 0, 0])[:, None, None]).abs().max() < 3 / 255


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_of_an_animation_the_first_frame_is_read(tmp_path, kind):
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if kind == "webp" else {}
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:], **options)
    with Image.open(tmp_path / f"a.{kind}") as image:
        assert image.n_frames == 3
    assert torch.equal(read_picture(tmp_path / f"a.{kind}")[:, 0, 0], torch.tensor([1.0, 0, 0]))


# By EXIF's standard: where the stored row 0 and column 0 are in the scene.
STORED = {
    1: lambda scene: scene,  # top, left
    2: lambda scene: scene[:, ::-1],  # top, right
    3: lambda scene: scene[::-1, ::-1],  # bottom, right
    4: lambda scene: scene[::-1],  # bottom, left
    5: lambda scene: scene.swapaxes(0, 1),  # left, top
    6: lambda scene: scene.swapaxes(0, 1)[::-1],  # right, top
    7: lambda scene: scene[::-1, ::-1].swapaxes(0, 1),  # right, bottom
    8: lambda scene: scene.swapaxes(0, 1)[:, ::-1],  # left, bottom
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_pictures_are_turned_as_their_exif_says(tmp_path, orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(STORED[orientation](draw_colours()))
    options = {"lossless": True} if kind == "webp" else {}
    Image.fromarray(stored).save(tmp_path / f"a.{kind}", exif=exif, **options)
    assert torch.equal(read_picture(tmp_path / f"a.{kind}"), as_tensor(draw_colours()))


def test_orientation_6_is_a_phone_held_upright(tmp_path):
    """The camera's right is the scene's bottom: the standard's row 0 on the right side, column 0 on top."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.new("RGB", (32, 16), RED)
    stored.paste(BLUE, (16, 0, 32, 16))  # the right half
    stored.save(tmp_path / "a.jpg", exif=exif, quality=100, subsampling=0)
    picture = read_picture(tmp_path / "a.jpg")
    assert picture.shape == (3, 32, 16)
    assert picture[0, 8].min() > 0.9  # red on top
    assert picture[2, 24].min() > 0.9


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"]
)
def test_damaged_exif_is_ignored(tmp_path, exif):
    Image.new("RGB", (WIDTH, HEIGHT), RED).save(tmp_path / "a.jpg", exif=exif)
    assert read_picture(tmp_path / "a.jpg").shape == (3, HEIGHT, WIDTH)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_unknown_orientations_are_upright(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(draw_colours()).save(tmp_path / "a.png", exif=exif)
    assert torch.equal(read_picture(tmp_path / "a.png"), as_tensor(draw_colours()))


def test_a_transparent_colour_survives_the_rotation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (3, 2), RED).save(tmp_path / "a.png", transparency=RED, exif=exif)
    assert torch.equal(read_picture(tmp_path / "a.png"), torch.ones(3, 3, 2))


def test_the_content_decides_not_the_name(tmp_path):
    Image.fromarray(draw_colours()).save(tmp_path / "a.jpg", format="PNG")
    assert torch.equal(read_picture(tmp_path / "a.jpg"), as_tensor(draw_colours()))


def refuse(path: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        read_picture(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


@pytest.mark.parametrize(
    ("side", "words"),
    [(30_000, "far more than 64,000,000 pixels"), (12_000, "12,000 × 12,000 pixels, at most 64,000,000 are read")],
)
def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path, side, words):
    path = tmp_path / "bomb.png"
    path.write_bytes(make_png(side, side, 8, 2, bytes(1000)))  # damaged, too: decoding would say so
    assert f"has {words}; make the picture smaller" in refuse(path)


def test_a_gif_and_a_webp_that_claim_a_large_canvas_are_refused(tmp_path):
    gif = tmp_path / "a.gif"
    Image.new("P", (1, 1)).save(gif)
    content = bytearray(gif.read_bytes())
    content[6:10] = struct.pack("<HH", 65535, 65535)
    gif.write_bytes(content)
    assert "has far more than 64,000,000 pixels" in refuse(gif)
    webp = tmp_path / "a.webp"
    frames = [Image.new("RGB", (1, 1), colour) for colour in (RED, BLUE)]
    frames[0].save(webp, save_all=True, append_images=frames[1:])
    content = bytearray(webp.read_bytes())
    assert content[12:16] == b"VP8X"
    content[24:30] = (16000 - 1).to_bytes(3, "little") * 2
    webp.write_bytes(content)
    assert "has far more than 64,000,000 pixels" in refuse(webp)


def test_the_limit_can_be_chosen(tmp_path):
    Image.fromarray(draw_colours()).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png", most_pixels=35).shape == (3, 5, 7)
    assert "has 7 × 5 pixels, at most 34 are read" in refuse(tmp_path / "a.png", most_pixels=34)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, world\n",
        b"II*\0\x08\0\0\0\0\0",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"GIF89a",
        b"RIFF\x20\0\0\0WEBPVP8L",
    ],
)
def test_files_that_are_no_pictures_are_refused(tmp_path, content):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    assert "is no readable PNG, JPEG, WebP or GIF file: it is damaged or incomplete" in refuse(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "a.png", tmp_path, tmp_path / ("a" * 300)):
        assert re.search(r"is no readable PNG, JPEG, WebP or GIF file: (No such|Is a|File name)", refuse(path))
    with pytest.raises(DataError, match="is no readable"):
        read_picture("a\0.png")


def write_kinds(folder: Path) -> list[Path]:
    noise = np.random.default_rng(1).integers(0, 255, (23, 29, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    paths = [folder / f"a.{kind}" for kind in ("png", "jpg", "webp", "gif")]
    for path in paths:
        Image.fromarray(noise).save(path, **({} if path.suffix == ".gif" else {"exif": exif}))
    return paths


def test_truncated_files_are_refused(tmp_path):
    for path in write_kinds(tmp_path):
        whole = path.read_bytes()
        for share in (0.02, 0.3, 0.6, 0.9):
            path.write_bytes(whole[: int(len(whole) * share)])
            assert "damaged or incomplete" in refuse(path), (path.suffix, share)


def test_damaged_files_give_a_picture_or_a_data_error_and_no_warning(tmp_path):
    random = np.random.default_rng(2)
    messages = []
    for path in write_kinds(tmp_path):
        whole = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        for trial in range(60):
            damaged = whole.copy()
            reach = len(whole) if trial % 2 else min(200, len(whole))  # headers half of the time
            damaged[random.integers(0, reach, 3)] = random.integers(0, 255, 3)
            path.write_bytes(damaged.tobytes())
            try:
                picture = read_picture(path, most_pixels=1_000_000)
            except DataError as error:
                messages.append(str(error))
            else:
                assert picture.shape[0] == 3
                assert 0 <= picture.min() <= picture.max() <= 1
    assert len(messages) > 30
    assert all(message.startswith(str(tmp_path / "a.")) for message in messages)


def test_the_filters_of_warnings_are_left_as_they_were(tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT), RED).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    before = list(warnings.filters)
    read_picture(tmp_path / "a.jpg")
    assert list(warnings.filters) == before


def test_without_pillow_the_error_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"content")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PackageError, match=r"the package Pillow, .*; pip install 'clearhead\[images\]'"):
        read_picture(tmp_path / "a.png")
