"""Repeated random tokens, on heads built by hand and against plain sums over all weights."""

import pytest
import torch

from clearhead import Decoder, ModelConfig
from clearhead.errors import LensError
from clearhead.lens import watch
from clearhead.lens.analysis.roles import draw_repeated_tokens, score_repeated_tokens
from tests.lens.handmade_heads import WORDS, Built


def repeated(numbers: int, size: int, seed: int = 0) -> torch.Tensor:
    return draw_repeated_tokens(range(numbers), size, chance=torch.Generator().manual_seed(seed))


def test_hand_built_heads_score_in_their_role_alone():
    scores = score_repeated_tokens(Built(["previous", "duplicate"], ["induction", "broad"]), repeated(WORDS, 23))
    found = {
        (role, name, head) for name, one in scores.items() for role in one for head in (0, 1) if one[role][head] > 0.9
    }
    assert found == {("previous", "layers.0", 0), ("duplicate", "layers.0", 1), ("induction", "layers.1", 0)}


def test_scores_are_sums_over_the_weights():
    torch.manual_seed(3)
    model = Decoder(ModelConfig.named("tiny", vocabulary=31, width=24, heads=3, layers=2, dropout=0.0)).eval()
    size, tokens = 7, repeated(31, 7)
    scores = score_repeated_tokens(model, tokens)
    with watch(model, keep="qk") as record, torch.no_grad():
        model(tokens)
    for name, found in scores.items():
        for head in range(3):
            weights = [record[name].weights(batch=row, head=head).double() for row in range(len(tokens))]
            sums = {role: [] for role in found}
            for one in weights:
                sums["previous"] += [one[place, place - 1] for place in range(4, 2 * size)]
                sums["induction"] += [one[place, place - size + 1] for place in range(size, 2 * size)]
                sums["duplicate"] += [one[place, place - size] for place in range(size, 2 * size)]
            for role, values in sums.items():
                assert found[role][head] == pytest.approx(float(torch.stack(values).mean()), abs=1e-6), (name, role)


def test_tokens_that_are_not_repeated_are_refused():
    with pytest.raises(LensError, match=r"a block of at least 5 that comes twice; got \(1, 12\)"):
        score_repeated_tokens(Built(["previous"]), torch.arange(12)[None])
