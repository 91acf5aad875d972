"""Captions as their user meets them: a picture in, a text out, from files, folders and memory."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead
from clearhead import model_folder
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.images.scenes import make_pairs
from clearhead.model import PictureToText
from clearhead.predictor import Predictor
from clearhead.tasks import TASKS
from clearhead.tasks.captioning.caption_processor import CaptionProcessor
from clearhead.tasks.captioning.captioning_task import (
    TASK,
    CaptionAnswerer,
    find_nearest,
    score_captions,
    score_nearest,
)
from clearhead.tasks.media import PictureInput
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText
from clearhead.tasks.sequence_to_sequence.search import SearchOptions
from clearhead.text import Report
from clearhead.text.batches import Batch
from clearhead.text.corpora import Row
from clearhead.train import run_training
from clearhead.train.recipe import Recipe, check_recipe

SHAPE = {"shape": "tiny", "width": 32, "heads": 2, "feedforward": 64, "layers": 1, "dropout": 0.0}
PICTURE = {"height": 12, "width": 20, "patch": 4}  # 3 × 5 patches
QUICK = ["train.steps=40", "train.warmup=10", "train.evaluate_every=40", "train.heads_every=0", "train.log_every=20"]
QUICK += ["data.train=made:pairs.train:200", "data.dev=made:pairs.dev:20", "train.tensorboard=false"]


def rows_of(*texts: str) -> list[Row]:
    chance = np.random.default_rng(1)
    pictures = [chance.integers(0, 256, (7, 11, 3), np.uint8) for _ in texts]
    return [
        Row((picture, text), "rows", line) for line, (picture, text) in enumerate(zip(pictures, texts, strict=True), 1)
    ]


def recipe_of(**sections: object) -> Recipe:
    values = {"data": {"train": "x.tsv"}, "text": {"vocabulary": 320}, "model": SHAPE, "picture": PICTURE}
    return check_recipe({"task": "captioning", **values, **sections}, "test")


def untrained(**sections: object) -> Predictor:
    processor = CaptionProcessor.prepare(rows_of("a red cat", "a blue dog", "two birds"), recipe_of(**sections))
    torch.manual_seed(5)
    return Predictor(processor.build().eval(), TASK, processor, name="toy")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return untrained()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped recipe, shortened."""
    return run_training("caption-tiny", overrides=QUICK, out=tmp_path_factory.mktemp("runs") / "run", device="cpu")


def save_picture(path: Path, picture: np.ndarray | None = None) -> Path:
    made = np.random.default_rng(7).integers(0, 256, (9, 13, 3), np.uint8) if picture is None else picture
    Image.fromarray(made).save(path)
    return path


# the shipped recipe


def test_the_tiny_recipe_learns_and_leaves_samples_to_try(run_folder, capsys):
    losses = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in losses if "loss" in line]
    assert losses[-1] < losses[0] / 2
    samples = sorted(path.name for path in (run_folder / "samples").iterdir())
    assert samples == sorted(f"{number}.{kind}" for number in range(1, 9) for kind in ("png", "txt"))
    first = next(make_pairs("dev", 1))
    assert np.array_equal(np.asarray(Image.open(run_folder / "samples" / "1.png")), first.pixels)
    assert (run_folder / "samples" / "1.txt").read_text() == f"{first.text}\n"
    paths = [str(run_folder / "samples" / f"{number}.png") for number in (1, 2)]
    assert main(["predict", str(run_folder), *paths, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["input"] for line in lines] == paths
    assert all(line["output"].startswith("a ") for line in lines)


def test_samples_can_be_scored_with_the_baseline(run_folder, capsys):
    assert main(["evaluate", str(run_folder), str(run_folder / "samples"), "--json", "--baseline"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {"bleu", "chrf", "exact"} <= scores.keys()
    assert scores["baseline"]["name"] == "nearest neighbour by pixels"


def test_generated_data_can_be_scored(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "made:pairs.test:3", "--json"]) == 0
    assert "chrf" in json.loads(capsys.readouterr().out)


def test_a_look_at_a_picture_is_a_page_with_it(run_folder, tmp_path):
    page = tmp_path / "page.html"
    assert main(["look", str(run_folder), str(run_folder / "samples" / "1.png"), "--out", str(page)]) == 0
    assert page.stat().st_size > 10_000


# inputs


def test_a_file_a_pil_image_and_an_array_give_the_same_caption(predictor, tmp_path):
    pixels = np.random.default_rng(3).integers(0, 256, (9, 13, 3), np.uint8)
    path = save_picture(tmp_path / "a.png", pixels)
    answers = [predictor.predict(given).text for given in (path, str(path), pixels, Image.fromarray(pixels))]
    assert len(set(answers)) == 1
    assert [one.text for one in predictor.predict([path, pixels])] == answers[:2]


def test_a_pil_image_is_taken_like_its_file(predictor, tmp_path):
    """Blended with white, turned as its EXIF says, with 16 bits of grey."""
    chance, exif = np.random.default_rng(4), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(chance.integers(0, 256, (9, 13, 4), np.uint8)).save(tmp_path / "alpha.png")
    Image.fromarray(chance.integers(0, 256, (9, 13, 3), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    Image.fromarray(chance.integers(0, 65536, (9, 13), np.uint16)).save(tmp_path / "grey.png")
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            inputs = predictor.processor.inputs
            assert torch.equal(inputs.load_value(image), inputs.load_file(path)), path.name


def test_a_pil_image_that_cannot_be_decoded_is_refused(predictor, tmp_path):
    whole = save_picture(tmp_path / "a.png").read_bytes()
    with Image.open(io.BytesIO(whole[: len(whole) // 2])) as image, pytest.raises(DataError, match="incomplete PNG"):
        predictor.predict(image)
    with pytest.raises(DataError, match="has the mode La, which Pillow does not convert"):
        predictor.predict(Image.new("La", (3, 4)))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (np.zeros((3, 4), np.uint8), r"got uint8 \(3, 4\)"),
        (np.zeros((3, 4, 3)), r"got float64 \(3, 4, 3\)"),
        (np.zeros((0, 4, 3), np.uint8), "at least one pixel"),
        (7, "a path, a PIL image or an array"),
    ],
)
def test_what_is_no_picture_is_refused(predictor, wrong, problem):
    with pytest.raises(DataError, match=problem):
        predictor.predict([wrong])


def broken_files(folder: Path) -> dict[str, str]:
    """Files that are no pictures, with what is said of them."""
    (folder / "text.png").write_text("This is text.\n")
    (folder / "empty.png").touch()
    whole = save_picture(folder / "whole.png").read_bytes()
    (folder / "half.png").write_bytes(whole[: len(whole) // 2])
    (folder / "folder.png").mkdir()
    huge = bytearray(whole)
    huge[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    huge[29:33] = zlib.crc32(bytes(huge[12:29])).to_bytes(4, "big")
    (folder / "huge.png").write_bytes(bytes(huge))
    return {
        "text.png": "is no readable PNG, JPEG, WebP or GIF file",
        "empty.png": "is empty",
        "half.png": "damaged or incomplete",
        "folder.png": "is a folder",
        "huge.png": "far more than 64,000,000 pixels",
        "gone.png": "there is no such file",
        "https://example.org/cat.png": "not from an address",
    }


def test_every_unreadable_file_is_one_clear_line(run_folder, tmp_path, capsys):
    for name, problem in broken_files(tmp_path).items():
        path = name if name.startswith("https") else str(tmp_path / name)
        assert main(["predict", str(run_folder), path]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert problem in err
        assert len(err.splitlines()) == 1
        assert main(["look", str(run_folder), path, "--out", str(tmp_path / "page.html")]) == 2
        assert problem in capsys.readouterr().err
        assert not (tmp_path / "page.html").exists()


def test_messages_say_picture_and_stay_on_one_line(run_folder, tmp_path, capsys, monkeypatch):
    assert main(["predict", str(run_folder), str(tmp_path / "two\nlines.png")]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "two\\nlines.png: there is no such file" in shown
    answer = GeneratedText("a cat", ["the caption looped"], 0.0, [])
    monkeypatch.setattr(CaptionAnswerer, "predict", lambda *_, **__: [answer])
    assert main(["predict", str(run_folder), str(save_picture(tmp_path / "a.png"))]) == 0
    assert capsys.readouterr().err == "clearhead: picture 1: the caption looped\n"


def test_unreadable_pictures_are_dropped_from_training_and_counted(tmp_path):
    names = [name for name in broken_files(tmp_path) if not name.startswith("https")]
    lines = ["whole.png\ta whole picture"] * 3 + [f"{name}\tbroken" for name in names] + ["whole.png\t "]
    table = tmp_path / "train.tsv"
    table.write_text("\n".join(lines) + "\n")
    sets = [f"data.train={table}", "data.dev=made:pairs.dev:3", "train.steps=2", "train.tensorboard=false"]
    run = run_training("caption-tiny", overrides=[*QUICK, *sets], out=tmp_path / "run", device="cpu")
    said = (run / "report.txt").read_text()
    assert "kept 3 of 10" in said
    assert "5 with an unreadable picture file (train.tsv:4, :5, :6, …)" in said
    assert "1 with a missing picture file (train.tsv:9)" in said
    assert "1 without a text (train.tsv:10)" in said


def test_a_run_without_any_picture_is_refused_and_leaves_nothing(tmp_path, capsys):
    table = tmp_path / "train.tsv"
    table.write_text("gone.png\ta cat\nlost.png\ta dog\n")
    assert main(["train", "caption-tiny", "--set", f"data.train={table}", "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "no row is left to use" in err
    assert "2 with a missing picture file (train.tsv:1, :2)" in err
    assert "gone.png: there is no such file" in err
    assert not (tmp_path / "run").exists()


def test_evaluation_leaves_unreadable_pictures_out_with_a_note(predictor, tmp_path):
    save_picture(tmp_path / "a.png")
    table = tmp_path / "rows.tsv"
    table.write_text("a.png\ta cat\ngone.png\ta dog\n")
    scores = predictor.evaluate(table)
    assert "kept 1 of 2; dropped 1 with a missing picture file (rows.tsv:2)" in scores["note"]
    table.write_text("gone.png\ta dog\n")
    with pytest.raises(DataError, match="no row is left to score"):
        predictor.evaluate(table)


def test_examples_may_be_given_in_memory(predictor):
    pixels = np.zeros((5, 5, 3), np.uint8)
    assert "exact" in predictor.evaluate([(pixels, "a cat")])
    with pytest.raises(DataError, match=r"must be 2 values \(a picture or its path, and a text\)"):
        predictor.evaluate([(pixels, 7)])


# data


def test_augmentation_changes_training_batches_only_and_follows_the_seed(predictor):
    processor, rows = predictor.processor, rows_of("a red cat", "a blue dog")
    recipe = recipe_of()
    training, plain = processor.examples(rows, Report(), recipe), processor.examples(rows, Report())
    batch = Batch(np.arange(2), (15, 8))

    def collate(examples, seed):
        torch.manual_seed(seed)
        return examples.collate(batch)

    one, same, other = collate(training, 1), collate(training, 1), collate(training, 2)
    assert torch.equal(one.pictures, same.pictures)
    assert not torch.equal(one.pictures, other.pictures)
    assert torch.equal(one.target, collate(plain, 1).target)
    assert torch.equal(one.labels, collate(plain, 1).labels)
    assert torch.equal(collate(plain, 1).pictures, collate(plain, 2).pictures)
    assert torch.equal(one.target[:, 0], torch.full((2,), processor.target.start))


def test_captions_that_are_too_long_are_dropped(predictor):
    report = Report()
    recipe = recipe_of(data={"train": "x", "longest": 3})
    with pytest.raises(DataError, match="no picture is left to use"):
        predictor.processor.examples(rows_of("a red cat and a blue dog and two birds"), report, recipe)
    assert "longer than 3 tokens" in str(report)


def test_a_recipe_with_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="height = 12 is no multiple of patch = 5"):
        recipe_of(picture={"height": 12, "width": 20, "patch": 5})
    with pytest.raises(ConfigError, match=r"model\.patch_size: set picture\.patch"):
        recipe_of(model={**SHAPE, "patch_size": 4})
    with pytest.raises(ConfigError, match="patch_size must be a power of two, got 3"):
        recipe_of(picture={"height": 12, "width": 21, "patch": 3}, model={**SHAPE, "patch_convolutions": 1})


# the model


@pytest.mark.parametrize("convolutions", [0, 1, 2])
def test_decoding_step_by_step_scores_as_one_forward_pass(convolutions):
    predictor = untrained(model={**SHAPE, "patch_convolutions": convolutions})
    picture = rows_of("x")[0].values[0]
    [trace] = predictor.tracer.traces(picture, answer="a red cat", options=SearchOptions())
    whole = predictor.tracer.run(trace)
    request = predictor.answerer.begin(SearchOptions())
    writer = request.make_writer(request.split(picture))
    steps = [writer.begin(predictor.processor.target.start)]
    steps += [writer.advance(torch.tensor([token])) for token in trace.reads["target"][1:]]
    assert torch.allclose(whole, torch.cat(steps), atol=1e-5)


def test_a_trace_has_the_picture_and_names_its_patches(predictor):
    picture = rows_of("x")[0].values[0]
    record = predictor.look(picture, answer="a red cat")
    call = record.calls[0]
    assert call.about.media["kind"] == "picture"
    assert (call.about.media["rows"], call.about.media["columns"]) == (3, 5)
    labels = call.labels["source"]
    assert (labels[0], labels[7], labels[14]) == ("r0 c0", "r1 c2", "r2 c4")
    assert record["decoder.0.cross"].weights(batch=0, head=1).shape == (len(call.ids["target"][0]), 15)
    [trace] = predictor.tracer.traces(picture, answer="a", options=SearchOptions())
    inputs = predictor.processor.inputs
    assert isinstance(trace.media, PictureInput)
    assert torch.equal(inputs.load_input(trace.media).content, inputs.load_input(picture).content)
    with pytest.raises(ConfigError, match="cannot be repeated without its picture"):
        predictor.tracer.run(trace._replace(media=None))


def test_a_model_folder_knows_how_pictures_are_prepared(predictor, tmp_path):
    folder = tmp_path / "model"
    processor = predictor.processor
    model_folder.write(folder, task=TASK, processor=processor, model=predictor.model, metrics={}, card="")
    again = clearhead.load(folder, device="cpu")
    assert isinstance(again.model, PictureToText)
    assert again.processor.preprocessing == processor.preprocessing
    picture = rows_of("x")[0].values[0]
    assert again.predict(picture) == predictor.predict(picture)
    with pytest.raises(CheckpointError, match=r"settings of .* are damaged: beem: 'beem' is not known"):
        CaptionProcessor.load(folder, processor.config, {"beem": 5})


def test_the_longest_caption_is_that_of_the_training_data_unless_the_recipe_sets_it():
    rows, plain = rows_of("a red cat", "a blue dog", "two birds"), recipe_of()
    prepared = CaptionProcessor.prepare(rows, plain)
    longest = max(map(len, prepared.target.encode_all([row.values[1] for row in rows])))
    before = prepared.stored
    prepared.configure(plain)
    assert prepared.stored == before
    assert prepared.stored.longest == longest
    prepared.configure(recipe_of(decode={"longest": 2, "beam": 3}))
    assert (prepared.stored.longest, prepared.stored.beam) == (2, 3)
    prepared.configure(plain)
    assert (prepared.stored.longest, prepared.stored.beam) == (2, 5)


def test_scores_count_exact_captions():
    scores = score_captions(["a cat", " a dog ", "birds"], ["a cat", "a dog", "a bird"])
    assert scores["exact"] == 66.67
    assert score_captions(["一只猫"], ["一只猫"])["bleu_signature"].split("tok:")[1].startswith("zh")


def test_the_nearest_neighbour_is_the_one_with_the_smallest_distance():
    chance = torch.Generator().manual_seed(3)
    known, asked = (torch.randn(count, 5, generator=chance) for count in (31, 17))
    assert torch.equal(find_nearest(known, asked), torch.cdist(asked, known).argmin(1))


def test_the_baseline_answers_with_the_caption_of_the_same_picture(predictor):
    rows = rows_of("a red cat", "a blue dog", "two birds")
    assert score_nearest(predictor.processor, rows, rows).scores["exact"] == 100


@pytest.mark.parametrize("same_task", [True, False])
def test_captions_start_from_trained_weights(tmp_path, same_task, run_folder):
    if same_task:
        start = run_folder
    else:
        rows = [Row(("a red square left of a blue circle", "a square"), "rows", line) for line in range(3)]
        values = {"data": {"train": "x.tsv"}, "text": {"vocabulary": 320}, "model": SHAPE}
        other = TASKS["translation"]
        processor = other.processor.prepare(rows, check_recipe({"task": "translation", **values}, "test"))
        start = tmp_path / "start"
        model_folder.write(start, task=other, processor=processor, model=processor.build(), metrics={}, card="")
    sets = [*QUICK, "train.steps=2", f"train.init_from={start}", "model={ dropout = 0.0 }"]
    run = run_training("caption-tiny", overrides=sets, out=tmp_path / "run", device="cpu")
    content = json.loads((run / "start.json").read_text())
    assert any(name.startswith("encoder.layers.0") for name in content["taken"])
    assert any(name.startswith("decoder.layers.0.cross_") for name in content["taken"])
    assert any(name.startswith("patches.") for name in content["taken" if same_task else "new"])
