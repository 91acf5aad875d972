"""Pre-training as its user meets it: texts in, a model folder out that fills masks and that other tasks start from."""

import json
import random
import re
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import Decoder, Encoder, EncoderDecoder
from clearhead.predictor import Predictor
from clearhead.tasks.language_model.language_processor import LanguageProcessor
from clearhead.tasks.language_model.language_task import TASK as LANGUAGE_MODEL
from clearhead.text import Row, Tokenizer
from clearhead.train import run_training
from clearhead.train.recipe import check_recipe, read_recipe

ANIMALS, FOODS = ["cat", "dog", "horse", "fish"], ["bread", "rice", "soup", "cheese"]

RECIPE = """
task = "pretraining"
objective = "masked"
seed = 5

[data]
train = "train.tsv"
dev = "dev.tsv"
longest = 20

[text]
vocabulary = 400
lowercase = true

[masking]
share = 0.3

[model]
shape = "tiny"
width = 24
heads = 3
feedforward = 37
layers = 2
dropout = 0.0

[train]
steps = 110
batch_tokens = 512
shapes = 3
warmup = 10
learning_rate = 0.02
log_every = 20
evaluate_every = 110
tensorboard = false
heads_every = 0
"""

CLASSIFY = """
task = "classification"
[data]
train = "labelled.tsv"
[train]
init_from = "run"
steps = 3
batch_tokens = 256
heads_every = 0
tensorboard = false
"""

TAG = """
task = "tagging"
[data]
train = "tagged.conll"
[text]
tokenizer = "character"
[train]
init_from = "run"
steps = 3
batch_tokens = 256
heads_every = 0
tensorboard = false
"""


def texts(count: int, seed: int) -> list[str]:
    """Sentences in which the first word says which kind of word comes last."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        begin, words = [("we feed the", ANIMALS), ("you cook some", FOODS)][number % 2]
        made.append(f"{begin} {chance.choice(words)}. Good {chance.choice(['day', 'night'])}!")
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    for name, count, seed in (("train", 200, 1), ("dev", 20, 2)):
        (folder / f"{name}.tsv").write_text("".join(f"{text}\n" for text in texts(count, seed)), encoding="utf-8")
    labels = [f"{text}\t{'food' if 'cook' in text else 'animal'}\n" for text in texts(40, 3)]
    (folder / "labelled.tsv").write_text("".join(labels), encoding="utf-8")
    tagged = "".join(f"the O\n{word} B-{kind}\n\n" for word, kind in (("cat", "ANIMAL"), ("rice", "FOOD")) * 9)
    (folder / "tagged.conll").write_text(tagged, encoding="utf-8")
    for name, recipe in (("toy", RECIPE), ("classify", CLASSIFY), ("tag", TAG)):
        (folder / f"{name}.toml").write_text(recipe, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def model(run: Path) -> Predictor:
    return clearhead.load(run, device="cpu")


@pytest.fixture(scope="module")
def denoiser(folder: Path) -> Predictor:
    changes = ["objective=denoise", "train.steps=60", "masking.share=0.2", "masking.span=1.5"]
    return clearhead.load(
        run_training(str(folder / "toy.toml"), out=folder / "denoise", device="cpu", overrides=changes), device="cpu"
    )


# masked


def test_it_has_learned_which_words_fit(model):
    filled = model.predict("We feed the <mask>. Good day!")
    assert filled.text.split()[3] in {f"{word}." for word in ANIMALS}
    assert filled.text.startswith("We feed the ")  # the rest of the text stays as it was written
    assert "cook" in model.predict("you <mask> some rice.").text


def test_candidates_of_each_mask_come_with_probabilities(model):
    one = model.predict("we feed the <mask>.", best=4)
    assert {candidate.text for candidate in one.candidates[0][:2]} <= {f" {word}" for word in ANIMALS}
    assert next(text for text, _ in one.ranking()) == one.text
    assert len(one.ranking()) == 4
    scores = [score for _, score in one.ranking()]
    assert scores == sorted(scores, reverse=True)
    two = model.predict("we <mask> the <mask>.").to_json()
    assert len(two["masks"]) == 2
    assert "<mask>" not in two["output"]


def test_a_text_without_a_mask_is_returned_as_it_is(model):
    plain = model.predict("We feed the cat.")
    assert plain.text == "We feed the cat."
    assert list(plain.notes) == ["the text has no <mask> to fill"]
    assert model.predict("").text == ""


def test_evaluate_gives_loss_and_perplexity(model, folder):
    scores = model.evaluate(str(folder / "dev.tsv"))
    assert set(scores) == {"loss", "perplexity"}
    assert scores["perplexity"] == pytest.approx(2.718281828 ** scores["loss"], rel=1e-3, abs=0.01)
    assert scores == model.evaluate(str(folder / "dev.tsv"))  # the same words are masked each time
    assert scores["loss"] < 1.5  # ln 340 = 5.8 without learning
    stored = json.loads((folder / "run" / "model" / "metrics.json").read_text())
    assert stored["dev"]["loss"] == scores["loss"]


def test_look_shows_masks(model):
    record = model.look("we feed the <mask>.")
    call = record.calls[0]
    assert call.about.notes[0].startswith("<mask> is ")


def test_a_run_resumes_exactly(folder, run, tmp_path):
    """The masks of an epoch follow from the seed and its number: a resumed run draws the same ones."""
    small = ["model.layers=1", "train.evaluate_every=1000"]
    first = [*small, "train.steps=13"]  # within an epoch
    out = run_training(str(folder / "toy.toml"), out=tmp_path / "half", device="cpu", overrides=first)
    shorter = [*small, "train.steps=20"]
    run_training(str(folder / "toy.toml"), out=out, device="cpu", overrides=shorter, resume=True)
    whole = run_training(str(folder / "toy.toml"), out=tmp_path / "whole", device="cpu", overrides=shorter)
    resumed, straight = (clearhead.load(path, device="cpu").model.state_dict() for path in (out, whole))
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    last = [(path / "metrics.jsonl").read_text().splitlines()[-1] for path in (out, whole)]
    assert last[0] == last[1]


# denoising


def test_a_denoiser_restores_a_text(denoiser):
    assert isinstance(denoiser.model, EncoderDecoder)
    restored = denoiser.predict("we feed <mask> cat. Good <mask>!")
    assert re.fullmatch(r"we feed the (cat|dog|horse|fish)\. good (day|night)!", restored.text)
    assert set(denoiser.evaluate([("we feed the cat. Good day!",)])) == {"loss", "perplexity"}


# the next token


def test_the_next_token_is_learned_as_by_a_language_model(folder):
    changes = ["objective=next", "train.steps=6", "train.batch_tokens=256", "decode.longest=5", "model.layers=1"]
    out = run_training(str(folder / "toy.toml"), out=folder / "next", device="cpu", overrides=changes)
    decoder = clearhead.load(out, device="cpu")
    assert isinstance(decoder.model, Decoder)
    assert isinstance(decoder.processor, LanguageProcessor)
    assert decoder.task.name == "pretraining"
    assert decoder.predict("we feed") == decoder.predict("we feed")  # sampled with the same seed
    assert {"loss", "perplexity"} <= set(decoder.evaluate(str(folder / "dev.tsv")))


# what comes after


@pytest.mark.parametrize("recipe", ["classify", "tag"])
def test_other_tasks_take_all_weights_of_the_encoder_and_the_tokenizer(folder, run, model, recipe):
    fresh = run_training(
        str(folder / f"{recipe}.toml"), out=folder / recipe, device="cpu", overrides=["train.learning_rate=1e-30"]
    )
    tuned = clearhead.load(fresh, device="cpu")
    before, after = model.model.state_dict(), tuned.model.state_dict()
    shared = [name for name in before if name.startswith("encoder.") or name == "vocabulary.words.weight"]
    assert len(shared) == len(before) - 5  # all but the head over the vocabulary
    assert all(torch.equal(before[name], after[name]) for name in shared)
    assert tuned.processor.tokenizer.engine.to_str() == model.processor.tokenizer.engine.to_str()
    assert tuned.processor.tokenizer.mask == model.processor.tokenizer.mask == model.processor.tokenizer.size - 1


def test_pre_training_goes_on_from_pre_trained_weights(folder, run, model):
    out = run_training(
        str(folder / "toy.toml"),
        out=folder / "again",
        device="cpu",
        overrides=["train.init_from=run", "model={}", "train.learning_rate=1e-30", "train.steps=2"],
    )
    again = clearhead.load(out, device="cpu").model.state_dict()
    before = model.model.state_dict()
    assert before.keys() == again.keys()
    assert all(torch.equal(before[name], again[name]) for name in before)


def test_the_denoiser_gives_its_encoder_to_a_classifier_and_both_to_a_translator(folder, denoiser):
    overrides = ["train.init_from=denoise", "train.learning_rate=1e-30"]
    classifier = clearhead.load(
        run_training(str(folder / "classify.toml"), out=folder / "c2", device="cpu", overrides=overrides), device="cpu"
    )
    before, after = denoiser.model.state_dict(), classifier.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("encoder."))


# settings


def test_masking_shares_are_checked():
    values = {"task": "pretraining", "data": {"train": "a.tsv"}}
    assert check_recipe(values, "test").model_dump()["objective"] == "masked"
    with pytest.raises(ConfigError, match="together at most 1"):
        check_recipe({**values, "masking": {"random": 0.6, "kept": 0.5}}, "test")
    with pytest.raises(ConfigError, match="objective: should be 'masked', 'denoise' or 'next'"):
        check_recipe({**values, "objective": "mask"}, "test")


def test_a_damaged_folder_is_refused(model, tmp_path):
    processor = model.processor
    processor.save(tmp_path)
    kind = type(processor)
    assert isinstance(kind.load(tmp_path, processor.config, processor.settings).build(), Encoder)
    for wrong, message in (
        ({"longest": None}, "longest: should be a valid integer"),
        ({"masking": {"share": 3.0}}, r"masking\.share"),
    ):
        with pytest.raises((CheckpointError, ConfigError), match=message):
            kind.load(tmp_path, processor.config, {**processor.settings, **wrong})
    with pytest.raises(ConfigError, match="'maskd' is not known; did you mean 'masked'"):
        clearhead.tasks.TASKS["pretraining"].select("maskd")


@pytest.mark.parametrize(
    ("recipe", "fine"), [("pretrain-sst2", "classify-sst2-scratch"), ("pretrain-zh", "tag-resume-zh")]
)
def test_recipes_that_belong_together_have_the_same_tokenizer(recipe, fine):
    one, other = (read_recipe(name)[0].model_dump()["text"] for name in (recipe, fine))
    assert {key: one[key] for key in ("tokenizer", "script", "lowercase")} == {
        key: other[key] for key in ("tokenizer", "script", "lowercase")
    }


def test_a_tokenizer_with_a_mask_is_written_and_read(tmp_path):
    for kind in ("bpe", "unigram", "character"):
        tokenizer = Tokenizer.train(["low <mask> lower 我爱你"] * 4, kind=kind, vocabulary=300, mask=True)
        assert tokenizer.mask == tokenizer.size - 1
        assert tokenizer.pieces([tokenizer.mask]) == ["<mask>"]
        assert tokenizer.mask not in tokenizer.encode("<mask> low<mask>")
        assert tokenizer.decode(tokenizer.encode("low <mask>")) == "low <mask>"
        tokenizer.save(tmp_path)
        assert Tokenizer.load(tmp_path).mask == tokenizer.mask
        plain = Tokenizer.train(["low <mask> lower 我爱你"] * 4, kind=kind, vocabulary=300)
        assert plain.mask is None
    settings = json.loads((tmp_path / "tokenizer.settings.json").read_text())
    (tmp_path / "tokenizer.settings.json").write_text(json.dumps({**settings, "mask": "<hole>"}))
    with pytest.raises(CheckpointError, match="is not the tokenizer that"):
        Tokenizer.load(tmp_path)


def test_a_plain_text_is_scored_by_a_model_of_a_table(tmp_path):
    """The columns of the training files are not those of a .txt, unless they are given."""
    processor = LanguageProcessor.prepare([Row(("we feed the cat",), "a", 1)], make_language_recipe())
    predictor = Predictor(processor.build(), LANGUAGE_MODEL, processor, name="toy", columns=["-", "text"])
    (tmp_path / "plain.txt").write_text("we feed the cat\n", encoding="utf-8")
    (tmp_path / "table.tsv").write_text("1\twe feed the cat\n", encoding="utf-8")
    assert [row.values for row in predictor.read_rows(tmp_path / "plain.txt")] == [("we feed the cat\n",)]
    assert [row.values for row in predictor.read_rows(tmp_path / "table.tsv")] == [("we feed the cat",)]
    (tmp_path / "fields.txt").write_text("1 we feed\n", encoding="utf-8")
    given = predictor.read_rows(tmp_path / "fields.txt", columns=["-", "text"])
    assert [row.values for row in given] == [("we feed",)]


def make_language_recipe():
    """A recipe of a small language model."""
    model = {"shape": "tiny", "width": 12, "heads": 2, "layers": 1}
    values = {"task": "language-model", "data": {"train": "a.tsv"}, "text": {"vocabulary": 300}, "model": model}
    return check_recipe(values, "mine.toml")


def test_an_option_of_another_objective_is_refused_by_the_name_of_this_one(run, capsys):
    assert main(["predict", str(run), "we <mask> the cat.", "--temperature", "1"]) == 2
    assert 'pretraining with objective = "masked" has no option --temperature' in capsys.readouterr().err
