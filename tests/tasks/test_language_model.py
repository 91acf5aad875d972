"""Language models as their user meets them: a file of text in, a continued prompt and a perplexity out."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

import clearhead
from clearhead.cli import main
from clearhead.errors import ConfigError, DataError
from clearhead.tasks.language_model.language_processor import LanguageOptions, LanguageProcessor
from clearhead.tasks.language_model.language_task import TASK, LanguageAnswerer, LanguageObjective
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from clearhead.train import run_training
from clearhead.train.recipe import check_recipe

LINES = ["the cat sat on the mat.", "the dog ran to the door.", "a cat ran.", "秋日登高望远山。", "a dog sat on a cat."]
RECIPE = """
task = "language-model"
seed = 3

[data]
train = "train.txt"
dev = 0.2
documents = "lines"
longest = 31

[text]
tokenizer = "character"
vocabulary = 400

[model]
width = 24
heads = 3
kv_heads = 3
layers = 2
feedforward = 37
dropout = 0.1

[train]
steps = 40
batch_tokens = 256
learning_rate = 0.02
warmup = 5
schedule = "cosine"
log_every = 10
evaluate_every = 20
tensorboard = false
heads_every = 0
"""


def write_recipe(folder, recipe=RECIPE, lines=None):
    (folder / "train.txt").write_text("\n".join(lines or [LINES[n % 5] for n in range(60)]) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(recipe)
    return str(folder / "recipe.toml")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    run_training(write_recipe(folder), out=folder / "run", device="cpu")
    return folder / "run"


@pytest.fixture(scope="module")
def predictor(run):
    return clearhead.load(run)


def make_parts(texts=tuple(LINES), **model):
    """A processor and its untrained model in float64, with a context of 13."""
    values = {"width": 20, "heads": 5, "kv_heads": 5, "layers": 2, "feedforward": 17, "dropout": 0.0, **model}
    recipe = check_recipe(
        {
            "task": "language-model",
            "data": {"train": "a.txt", "longest": 13},
            "text": {"tokenizer": "character", "vocabulary": 400},
            "model": values,
        },
        "test",
    )
    rows = [Row((text,), "a.txt", line) for line, text in enumerate(texts, 1)]
    processor = LanguageProcessor.prepare(rows, recipe)
    torch.manual_seed(5)
    return processor, processor.build().double().eval(), rows, recipe


def loss_alone(model, tokens):
    """The summed loss of a document by itself, by the definition."""
    read, wanted = torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:])
    return float(F.cross_entropy(model.logits(model(read))[0], wanted, reduction="sum").detach())


# Packed rows


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"positions": "learned", "max_length": 13},
        {"positions": "sinusoidal"},
        {"positions": "alibi"},
        {"positions": "relative"},
        {"positions": "none", "window": 4},
    ],
    ids=lambda model: model.get("positions", "rotary"),
)
def test_packed_rows_give_each_document_the_loss_that_it_has_alone(model):
    texts = ["ab", "abc", "hello you", "x", "the cat sat on it", "秋日登高", "no"]
    processor, network, rows, recipe = make_parts(texts, **model)
    examples = processor.examples(rows, Report())
    assert examples.packed.packed
    total = 0.0
    for row in rows:
        document = [processor.tokenizer.start, *processor.tokenizer.encode(row.values[0]), processor.tokenizer.end]
        pieces = [document[begin : begin + 14] for begin in range(0, len(document) - 1, 13)]
        total += sum(loss_alone(network, piece) for piece in pieces)
    batch = examples.collate(Batch(torch.arange(len(examples)).numpy(), (13,)))
    assert len(set(batch.documents[0].tolist())) > 1 or len(set(batch.documents[1].tolist())) > 1
    loss = LanguageObjective(processor, recipe).loss
    assert float(loss(network, batch).detach()) == pytest.approx(total, rel=1e-12)
    assert examples.counts.sum() == sum(len(text) + 1 for text in texts)


def test_no_token_sees_another_document():
    processor, network, rows, _ = make_parts(["abcd", "efgh", "ijklmn"])
    examples = processor.examples(rows, Report())
    batch = examples.collate(Batch(torch.arange(len(examples)).numpy(), (13,)))
    vectors = network.vocabulary(batch.tokens).detach().requires_grad_()
    mask = clearhead.Mask.documents(batch.documents)
    hidden = network(vectors=vectors, mask=mask, positions=batch.positions)
    for row in range(len(examples)):
        for place in range(batch.tokens.shape[1]):
            (gradient,) = torch.autograd.grad(hidden[row, place].sum(), vectors, retain_graph=True)
            felt = gradient.abs().sum(-1) > 0
            own = batch.documents[row] == batch.documents[row, place]
            assert not felt[row][~own].any()
            assert not felt[row][place + 1 :].any()
            assert felt[row][: place + 1][own[: place + 1]].all()
            assert not felt[[other for other in range(len(examples)) if other != row]].any()


def test_one_long_document_needs_no_mask_of_documents():
    processor, network, rows, recipe = make_parts(["".join(LINES) * 20])
    examples = processor.examples(rows, Report(), recipe)
    batch = examples.collate(Batch(torch.arange(7).numpy(), (13,)))
    assert batch.documents.shape == (7, 0)
    assert math.isfinite(float(LanguageObjective(processor, recipe).loss(network, batch).detach()))
    assert not processor.stored.prompt_start, "few rows begin a document, so a prompt is not read as its beginning"
    assert make_parts()[0].stored.prompt_start


def test_examples_move_their_cuts_and_say_where_they_come_from():
    processor, network, rows, recipe = make_parts(["".join(LINES) * 20, "", "short"])
    report = Report()
    examples = processor.examples(rows, report, recipe)
    assert "dropped 1 empty" in str(report)
    assert "1 longer than the context of 13 tokens" in str(report)
    LanguageObjective(processor, recipe).refresh(network, examples, 4)
    state, counts = examples.state(), examples.counts.copy()
    other = processor.examples(rows, Report(), recipe)
    other.restore({name: tensor.clone() for name, tensor in state.items()})
    assert (other.counts == counts).all()
    assert examples.where(0) == "a.txt:1"
    with pytest.raises(DataError, match="no document is left to use"):
        processor.examples([Row((" \n",), "a.txt", 1)], Report())


# Scores


@pytest.mark.parametrize("stride", [1, 5, 13])
def test_a_sliding_window_equals_the_plain_computation(stride):
    processor, network, rows, _ = make_parts(["".join(LINES), "ab", "the cat sat on"])
    options = TASK.read_options("evaluate", {"stride": stride})
    found = LanguageAnswerer(processor, network).evaluate(rows, options)
    total = count = 0
    for row in rows:
        tokens = [processor.tokenizer.start, *processor.tokenizer.encode(row.values[0]), processor.tokenizer.end]
        for place in range(1, len(tokens)):  # each token alone, from what it may see
            begin = 0 if place <= 13 else -(-(place - 13) // stride) * stride
            logits = network.logits(network(torch.tensor([tokens[begin:place]])))[0, -1]
            total -= float(logits.log_softmax(-1)[tokens[place]].detach())
            count += 1
    size = sum(len(row.values[0].encode()) for row in rows)
    assert sum(one.nats for one in found.predictions) == pytest.approx(total, rel=1e-11)
    assert found.scores == {
        "loss": round(total / count, 4),
        "perplexity": round(math.exp(total / count), 4),
        "bits_per_byte": round(total / math.log(2) / size, 4),
    }


def test_bits_per_byte_by_hand():
    """A model that gives all of n tokens the same probability needs log2 n bits a token; 秋 has three bytes."""
    processor, network, _, _ = make_parts()
    with torch.no_grad():
        network.vocabulary.words.weight.zero_()
    scores = LanguageAnswerer(processor, network).evaluate([Row(("秋a",), "b.txt", 1)], LanguageOptions()).scores
    size = processor.config.vocabulary
    assert scores["perplexity"] == pytest.approx(size, rel=1e-3)
    assert scores["bits_per_byte"] == round(3 * math.log2(size) / 4, 4), "two characters and the end, four bytes"


def test_a_stride_beyond_the_context_and_empty_data_are_refused(predictor):
    with pytest.raises(ConfigError, match="stride = 99 would leave tokens out: the context has 31"):
        predictor.evaluate([("a cat",)], stride=99)
    with pytest.raises(DataError, match="no row is left to score"):
        predictor.evaluate([("",)])
    assert predictor.evaluate([("a cat",), ("",)])["note"] == "kept 1 of 2; dropped 1 empty (example:2)"


# Training


def test_a_run_learns_and_its_folder_is_whole(run, predictor):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    scores = json.loads((run / "model" / "metrics.json").read_text())
    assert scores["dev"]["loss"] < 2.5
    assert set(scores["dev"]) == {"loss", "perplexity", "bits_per_byte"}
    assert "language-model" in (run / "model" / "README.md").read_text()
    assert predictor.evaluate(run.parent / "train.txt")["loss"] == pytest.approx(scores["dev"]["loss"], abs=0.5)


def test_the_last_part_of_a_single_document_is_dev(tmp_path):
    recipe = write_recipe(tmp_path, RECIPE.replace('documents = "lines"\n', ""))
    sets = ["train.steps=2", "train.evaluate_every=2", "train.log_every=1"]
    run_training(recipe, overrides=sets, out=tmp_path / "run", device="cpu")
    dev = json.loads((tmp_path / "run" / "model" / "metrics.json").read_text())["dev"]
    text = (tmp_path / "train.txt").read_text()
    first = int(len(text) * 0.8)
    assert clearhead.load(tmp_path / "run").evaluate([(text[first:],)]) == dev


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    """Interrupted within the second epoch, whose cuts are others than the first one's."""
    recipe = write_recipe(tmp_path, RECIPE.replace('"lines"', '"file"'))
    common = ["train.evaluate_every=8", "train.log_every=2", "train.steps=8", "data.longest=11"]
    run_training(recipe, overrides=common, out=tmp_path / "whole", device="cpu")
    with pytest.raises(Exception, match="interrupted"):
        interrupt_at(recipe, common, tmp_path / "parts", step=6)
    run_training(recipe, overrides=common, out=tmp_path / "parts", device="cpu", resume=True)
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


def interrupt_at(recipe, overrides, out, step):
    """Runs until this step, which is then saved, as on Ctrl-C."""
    from clearhead.train.loop import Trainer

    original = Trainer._after_step

    def interrupted(self, number):
        self.interrupted = number == step
        original(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_after_step", interrupted)
        run_training(recipe, overrides=overrides, out=out, device="cpu")


def test_lm_tiny_is_a_valid_recipe_of_the_shipped_corpus(tmp_path):
    sets = ["train.steps=3", "train.evaluate_every=3", "train.log_every=1", "train.heads_every=0", "data.dev=0.002"]
    run_training("lm-tiny", overrides=sets, out=tmp_path / "run", device="cpu")
    assert len(clearhead.load(tmp_path / "run").predict("ROMEO:", longest=5).text) == 5


# The command line


def test_the_commands_of_the_readme(run, capsys, tmp_path):
    assert main(["predict", str(run), "the ", "--seed", "2", "--longest", "9", "--stop", "@", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"input", "output", "finish", "notes"}
    assert main(["predict", str(run), "the ", "--seed", "2", "--longest", "9", "--stream"]) == 0
    assert capsys.readouterr().out == answer["output"] + "\n"
    assert main(["evaluate", str(run), str(run.parent / "train.txt"), "--stride", "3", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"loss", "perplexity", "bits_per_byte"}
    assert main(["figures", str(run), "the cat", "--out", str(tmp_path / "figures")]) == 0
    assert list((tmp_path / "figures").glob("*.png"))
    assert main(["look", str(run), "the cat", "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_terminal_sees_the_text_grow_with_its_line_breaks(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    seen = []
    monkeypatch.setattr("clearhead.cli.print_output", lambda text, end="\n": seen.append(text + end))
    assert main(["predict", str(run), "the ", "--longest", "12", "--temperature", "0"]) == 0
    whole = clearhead.load(run).predict("the ", longest=12, temperature=0.0).text
    assert "".join(seen) == whole + "\n"
    assert len(seen) > 2


def test_look_shows_the_prompt_and_what_predict_writes_after_it(predictor):
    record = predictor.look("the cat", seed=2, temperature=1.0)
    about = record.calls[0].about
    room = predictor.processor.stored.context - len(predictor.processor.encode_prompt("the cat"))
    written = predictor.predict("the cat", seed=2, temperature=1.0, longest=room)
    assert about.text == written.text != ""
    assert len(about.next) == len(record["decoder.0.self"].entropy[0, 0]) > 8
    shown = predictor.processor.tokenizer.decode(record.calls[0].ids["tokens"][0].tolist())
    assert shown == "the cat" + written.text
    assert about.writes[-1] == ("</s>" if written.finish == "end" else "")
    assert not about.given
    assert not about.notes
    assert len(predictor.look("the", longest=4).calls[0].about.text) <= 4


def test_look_shows_a_given_continuation_or_none(predictor):
    about = predictor.look("the", answer=" cat").calls[0].about
    assert about.given
    assert about.text == " cat"
    alone = predictor.look("the cat", answer="")
    assert alone.calls[0].about.text == ""
    assert len(alone.calls[0].ids["tokens"][0]) == len(predictor.processor.encode_prompt("the cat"))


def test_look_writes_nothing_after_a_prompt_that_fills_the_context(predictor):
    cut = predictor.look("the cat " * 9).calls[0].about
    assert cut.notes == [
        "the prompt fills the context, so nothing is written after it; --longest 20 writes 20 tokens",
        "the text has 73 tokens; the model reads the last 31 of them",
    ]
    assert predictor.look("the cat " * 9, longest=3).calls[0].about.text
    with pytest.raises(DataError, match="nothing to look at"):
        predictor.look("")
