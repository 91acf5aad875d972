"""Pictures and sounds of a record: their axes, the head to begin with, their figures, and files that a page sends."""

from __future__ import annotations

import base64
import io
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead import Record
from clearhead.errors import DataError, LensError, RecordError
from clearhead.explore import Scene, figures
from clearhead.explore.figures import figure_set
from clearhead.explore.figures.media_figures import blend_overlay
from clearhead.explore.head_summaries import measure_information
from clearhead.explore.live_model import LiveModel
from clearhead.explore.page_requests import MAX_BODY, MAX_FILE_BODY, PageRequests
from clearhead.explore.token_axis import Axis
from clearhead.predictor import Predictor
from clearhead.tasks.captioning.caption_processor import CaptionProcessor
from clearhead.tasks.captioning.captioning_task import TASK
from clearhead.tasks.media import PictureInput, SoundInput, media_from_json, media_to_json
from clearhead.text import Row
from clearhead.train.recipe import check_recipe
from tests.explore import media_records

HOSTILE = ["</script><b>", "\u202e", "\ud800", "x" * 5000, "$\\frac{", "", "\n", "人"]


def decode_picture(axis: Any) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(axis["picture"].partition(",")[2]))))


def test_the_patches_of_a_caption_are_the_source_axis_with_their_picture():
    record = media_records.captioned("folder/scene.png")
    scene = Scene(record).to_json()
    axis = scene["axes"]["source"]
    assert (axis["kind"], axis["grid"], axis["file"]) == ("image", [7, 9], "scene.png")
    assert axis["tokens"][:2] + axis["tokens"][-1:] == ["r0 c0", "r0 c1", "r6 c8"]
    pixels = decode_picture(axis)
    assert (pixels.shape, tuple(pixels[28, 20]), tuple(pixels[0, 0])) == ((56, 72, 3), (214, 52, 44), (236, 236, 236))
    assert scene["start"] == {"name": "decoder.1.cross", "head": 1}
    assert scene["takes"] == "text"


def test_the_moments_of_a_sound_carry_their_times_and_the_spikes_of_ctc():
    axis = Scene(media_records.transcribed()).to_json()["axes"]["source"]
    assert (axis["kind"], axis["grid"], axis["step"], axis["file"]) == ("audio", [1, 83], 0.04, "tones.wav")
    assert axis["seconds"] == pytest.approx(3.32)
    assert axis["tokens"][10] == "0.40 s"
    assert axis["spikes"][1] == [15, "t", 0.94]
    assert decode_picture(axis).shape == (40, 332)


def test_times_are_those_of_the_recording_in_a_part_of_it():
    sound = SoundInput(np.zeros((8, 5), np.float32), 0.08, 0.01, 0.04, [(1, "a", 0.9)], "x", start=61.85)
    axis = Axis.media(media_from_json(media_to_json(sound)), 2)
    assert (axis.tokens, axis.to_json()["start"]) == (["61.85 s", "61.89 s"], 61.85)


def test_large_pictures_and_long_sounds_are_shrunk_so_that_the_page_opens_at_once():
    random = np.random.default_rng(1)
    picture = PictureInput(random.integers(0, 255, (1200, 900, 3), dtype=np.uint8), 2, 2, "x")
    assert decode_picture(Axis.media(picture, 4).to_json()).shape == (400, 300, 3)
    sound = SoundInput(random.normal(size=(9001, 80)).astype(np.float32), 90, 0.01, 0.04, [], "x")
    assert decode_picture(Axis.media(sound, 2250).to_json()).shape == (80, 1801)
    assert Axis.media(picture, 3).kind == "text"  # fewer tokens than patches: they are no patches


@pytest.mark.parametrize(
    "damage",
    [
        {"data": "!"},
        {"data": ""},
        {"shape": [1, 2]},
        {"shape": "abc"},
        {"kind": "film"},
        {"position_seconds": 0.0},
        {"seconds": math.nan},
        {"spikes": [[1, "a"]]},
        {"name": None, "kind": 5},
    ],
)
def test_a_damaged_sound_leaves_the_rest_of_the_page(damage):
    record = media_records.transcribed()
    record.calls[0].about.media |= damage
    scene = Scene(record)
    assert scene.media is None
    assert scene.to_json()["axes"]["source"]["kind"] == "text"


def test_spikes_that_cannot_be_drawn_are_left_out():
    record = media_records.transcribed()
    record.calls[0].about.media["spikes"] = [[-1, "a", 0.5], [2, "b", math.nan], [3, "c", 7], [90, "d", 0.5]]
    assert Scene(record).to_json()["axes"]["source"]["spikes"] == [[3, "c", 1.0]]


def test_a_record_with_a_picture_is_saved_and_loaded(tmp_path):
    record = media_records.captioned()
    record.save(tmp_path / "caption.record")
    again = Scene(Record.load(tmp_path / "caption.record"))
    assert np.array_equal(again.media.pixels, Scene(record).media.pixels)


def test_information_is_zero_for_a_head_that_always_looks_alike_and_large_for_one_that_points():
    same, point = torch.full((5, 5), 0.2), torch.eye(5)
    sight = media_records.sight("decoder.0.cross", torch.stack([same, point]), cross=True)
    none, much = measure_information(sight, 0)
    assert none == pytest.approx(0, abs=1e-6)
    assert much == pytest.approx(math.log(5), abs=0.01)


def test_an_overlay_keeps_the_colours_of_patches_that_are_looked_at():
    media = PictureInput(np.full((4, 8, 3), (200, 40, 40), np.uint8), 1, 2, "x")
    blended = blend_overlay(media, np.array([0.0, 1.0, 0.0])[1:])  # the second patch has no weight
    grey = 0.299 * 200 + 0.701 * 40
    strength = (1.0 * 2 / 8) ** 0.6
    pale = [grey * 0.34 + part * 0.66 for part in (0xCD, 0xC9, 0xC0)]
    assert blended[0, 7].tolist() == [round(part) for part in pale]
    both = zip(pale, (200, 40, 40), strict=True)
    assert blended[0, 0].tolist() == [round(faded * (1 - strength) + full * strength) for faded, full in both]
    assert blend_overlay(media, np.array([1.0, 0.0, 0.0])).shape == (4, 8, 3)  # a token before the patches


def test_the_set_of_a_caption_has_overlays_and_that_of_a_sound_its_spectrogram(tmp_path):
    planned = {one.name: one for one in figure_set.list_record_figures(media_records.captioned())}
    assert next(iter(planned)) == "overlay-decoder.1.cross-1"
    drawn = planned["overlay-decoder.1.cross-1"].draw()
    assert [axes.get_title() for axes in drawn.axes[:4]] == ["", "a", "red", "circle"]
    assert "scene.png → a red circle" in drawn.get_suptitle()
    planned = {one.name: one for one in figure_set.list_record_figures(media_records.transcribed())}
    sound = planned["overlay-decoder.1.cross-1"].draw()
    assert [text.get_text() for text in sound.axes[1].texts][:5] == ["␣", "t", "o", "n", "e"]
    assert [text.get_text() for text in sound.axes[2].get_yticklabels()][-1] == "⟨/s⟩"
    weights = sound.axes[2].collections[0].get_array()
    expected = media_records.transcribed()["decoder.1.cross"].weights(0, 1)
    assert np.allclose(np.asarray(weights).reshape(expected.shape), expected, atol=1e-5)
    figures.save(sound, tmp_path / "sound.svg")


def test_heads_that_are_named_are_drawn_over_the_picture_too():
    names = [one.name for one in figure_set.list_record_figures(media_records.captioned(), ["decoder.0.cross:2"])]
    assert "overlay-decoder.0.cross-2" in names
    assert "head-decoder.0.cross-2" in names


def test_no_word_breaks_a_figure_of_a_picture_or_sound(tmp_path):
    for record, draw in (
        (media_records.captioned("\u202e</script>$x$"), figures.word_overlays),
        (media_records.transcribed(), figures.sound_alignment),
    ):
        about = record.calls[0].about
        about.writes = [*HOSTILE, *about.writes[len(HOSTILE) :]]
        if "spikes" in about.media:
            about.media["spikes"] = [[9 * place, text, 0.5] for place, text in enumerate(HOSTILE)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figures.save(draw(record["decoder.1.cross"], title="x"), tmp_path / f"{draw.__name__}.svg")


def test_figures_of_a_picture_need_one():
    sound = media_records.transcribed()["decoder.1.cross"]
    with pytest.raises(RecordError, match="contains no picture"):
        figures.word_overlays(sound)
    with pytest.raises(RecordError, match="contains no sound"):
        figures.sound_alignment(media_records.captioned()["decoder.1.cross"])
    with pytest.raises(RecordError, match="belongs to no recorded call"):
        figures.word_overlays(replace(sound, forward=None))


# A model behind the page


@pytest.fixture(scope="module")
def captioner() -> LiveModel:
    recipe = {
        "task": "captioning",
        "data": {"train": "made:pairs.train"},
        "text": {"vocabulary": 300},
        "picture": {"height": 24, "width": 40, "patch": 8},
        "model": {"shape": "tiny", "width": 24, "heads": 3, "layers": 1, "feedforward": 32},
        "decode": {"longest": 7},
    }
    texts = ["a red circle", "a blue square left of a red circle"]
    rows = [Row((np.zeros((8, 8, 3), np.uint8), text), "made", line) for line, text in enumerate(texts, 1)]
    processor = CaptionProcessor.prepare(rows, check_recipe(recipe, "test"))
    torch.manual_seed(4)
    return LiveModel.from_predictor(Predictor(processor.build().eval(), TASK, processor, name="tiny"))


def png(width: int = 20, height: int = 12) -> bytes:
    found = io.BytesIO()
    Image.fromarray(np.random.default_rng(2).integers(0, 255, (height, width, 3), dtype=np.uint8)).save(found, "PNG")
    return found.getvalue()


def test_a_picture_that_a_page_sends_is_looked_at(captioner):
    record = captioner.look_at_file("../../etc/</script>.png", png())
    scene = Scene(record, takes=captioner.input_kind).to_json()
    assert (scene["takes"], scene["axes"]["source"]["grid"]) == ("picture", [3, 5])
    assert scene["axes"]["source"]["file"] == "script>.png"
    assert scene["attentions"][-1]["counts"][1] == 15
    assert record["decoder.0.cross"].text(0, 7) == "r1 c2"


def test_a_file_that_is_no_picture_is_refused_by_its_own_name(captioner):
    with pytest.raises(DataError) as refused:
        captioner.look_at_file("letter.png", b"Dear all,")
    assert str(refused.value).startswith("letter.png")
    assert "tmp" not in str(refused.value)


def test_a_request_can_send_a_file_but_not_name_one(captioner, tmp_path):
    path = tmp_path / "1.png"
    path.write_bytes(png())
    requests = PageRequests(captioner.look_at_file("a.png", png()), live=captioner)
    try:
        for content in ({"text": str(path)}, {"name": str(path)}, {"name": str(path), "data": 5}):
            with pytest.raises(LensError, match="this model takes a picture"):
                requests.post("look", content)
        with pytest.raises(LensError, match="not base64"):
            requests.post("look", {"name": "b.png", "data": "?"})
        answer = requests.post("look", {"name": "b.png", "data": base64.b64encode(png(30, 30)).decode()})
        assert b'"b.png"' in answer.body
        assert requests.max_body == MAX_FILE_BODY > MAX_BODY
    finally:
        requests.close()


def test_heads_are_switched_off_over_the_same_picture(captioner):
    record = captioner.look_at_file("a.png", png())
    same = captioner.answer_without(record, 0, {})
    assert same.loss[0] == pytest.approx(same.loss[1], abs=1e-5)
    off = captioner.answer_without(record, 0, {"decoder.0.cross": [0, 1, 2]})
    assert off.loss[0] != pytest.approx(off.loss[1], abs=1e-7)
    assert captioner.measure_effects(record) is not None
