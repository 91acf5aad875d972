"""A model whose weights are NaN: every task refuses its answers and scores, which would be no JSON."""

import json

import pytest
import torch

from clearhead.errors import DecodeError
from clearhead.predictor import Predictor
from clearhead.text import Row
from clearhead.train.recipe import check_recipe

TEXTS = [f"the {animal} {verb}" for animal in ("cat", "dog", "cow") for verb in ("runs", "sleeps", "eats", "sees us")]
LABELS = [text.split()[1] for text in TEXTS]
ENTITIES = [json.dumps([{"start": 4, "end": 7, "label": "ANIMAL"}])] * len(TEXTS)
COLUMNS = {
    "classification": (TEXTS, LABELS),
    "answers": (TEXTS, LABELS),
    "tagging": (TEXTS, ENTITIES),
    "translation": (TEXTS, TEXTS),
    "summarisation": (TEXTS, LABELS),
    "language-model": (TEXTS,),
    "pretraining": (TEXTS,),
}
CASES = [(task, {}) for task in COLUMNS]
CASES += [("answers", {"answers": {"kind": "pairs"}}), ("classification", {"data": {"multi_label": True}})]
CASES += [("pretraining", {"objective": objective}) for objective in ("next", "denoise")]
MODEL = {"shape": "tiny", "width": 20, "heads": 5, "layers": 1, "feedforward": 20}


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def broken(request):
    """An untrained model of each task, with NaN for weights, and rows to score."""
    name, changes = request.param
    rows = [Row(values, "train.tsv", line) for line, values in enumerate(zip(*COLUMNS[name], strict=True), 1)]
    data = {"train": "x.tsv", **changes.get("data", {})}
    objective = {"objective": "masked"} if name == "pretraining" else {}
    values = {"task": name, "text": {"vocabulary": 300}, "model": MODEL, **objective, **changes, "data": data}
    recipe = check_recipe(values, "test")
    processor = recipe.kind.processor.prepare(rows, recipe)
    processor.configure(recipe)
    model = processor.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    return Predictor(model, recipe.kind, processor, name="toy"), rows


def test_no_answer_is_given(broken):
    predictor, _ = broken
    with pytest.raises(DecodeError, match="NaN or infinite; check its weights and its input"):
        predictor.predict("the <mask> sees us")


def test_nothing_is_scored(broken):
    predictor, rows = broken
    with pytest.raises(DecodeError, match="NaN or infinite; check its weights and its input"):
        predictor.evaluate(rows)
