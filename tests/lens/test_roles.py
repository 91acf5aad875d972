"""Roles of heads: on heads built by hand, against plain loops over all weights, and on the shipped translator."""

import math
from collections.abc import Iterator

import pytest
import torch
import transformers
from torch import Tensor

from clearhead import Decoder, EncoderDecoder, Mask, ModelConfig
from clearhead.errors import LensError
from clearhead.lens import watch
from clearhead.lens.analysis.norms import coverage
from clearhead.lens.analysis.role_measurement import head_roles
from clearhead.lens.analysis.roles import CAVEAT, NONE, ROLES, HeadRoles
from clearhead.lens.attention_names import find_attentions
from tests.lens.handmade_heads import COMMA, WORDS, Built
from tests.lens.huggingface_zoo import made, tokens

CAUSAL = ["previous", "itself", "first", "delimiter", "broad", "local", "duplicate"]


def text(batch: int = 3, length: int = 97) -> Tensor:
    drawn = torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(0))
    drawn[:, 1::13] = COMMA
    return drawn


@pytest.fixture(scope="module")
def causal() -> HeadRoles:
    return head_roles(Built(CAUSAL, ["induction", "broad"]), text(), delimiters=[COMMA], vocabulary=WORDS)


def test_hand_built_heads_are_called_what_they_were_built_for(causal):
    assert [one.role for one in causal] == [*CAUSAL, "induction", "broad"]
    assert [(one.name, one.head) for one in causal][6:] == [("layers.0", 6), ("layers.1", 0), ("layers.1", 1)]
    for one in causal:
        assert one.score == one.scores[one.role] == pytest.approx(1.0, abs=0.02), one


def test_every_score_is_a_share(causal):
    for one in causal:
        assert set(one.scores) == set(ROLES)
        assert all(0 <= score <= 1 + 1e-6 for score in one.scores.values())


def test_a_previous_token_head_is_local_and_nothing_else(causal):
    scores = causal["layers.0", 0].scores
    assert scores["local"] == pytest.approx(1.0, abs=1e-3)
    for other in ("itself", "next", "first", "broad", "induction", "duplicate"):
        assert scores[other] < 0.05, other
    assert scores["delimiter"] == pytest.approx(8 / 97, abs=0.02), "as many as there are"


def test_without_a_previous_token_head_below_there_is_no_induction():
    roles = head_roles(Built(["itself"], ["induction"]), text(), vocabulary=WORDS)
    assert roles["layers.1", 0].role != "induction"
    assert roles["layers.1", 0].scores["induction"] < 0.1


def test_next_token_heads_are_found_without_a_causal_mask():
    both_ways = head_roles(Built(["next", "previous", "duplicate"], causal=False), text(), vocabulary=WORDS)
    assert [one.role for one in both_ways] == ["next", "previous", "duplicate"]
    one_way = head_roles(Built(["next"]), text(), vocabulary=WORDS)
    assert one_way["layers.0", 0].scores["next"] == 0.0


PAD, END, NEAR = 0, 2, 1


def pairs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    source, target = (torch.randint(2, 41, (3, n), generator=generator) for n in (13, 17))
    source[0, 7:], source[2, 11:], target[1, 9:] = PAD, PAD, PAD
    return source, target


def mean(values: Iterator[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def by_loops(
    weights: Tensor, sees: Tensor, of_queries: Tensor, of_keys: Tensor, cross: bool, pad: int
) -> dict[str, float | None]:
    """The scores of one head on a text, from (batch, queries, keys), as the formulas of ROLES have them."""
    samples, queries, _ = weights.shape
    count = sees.sum(-1)
    rows = [(b, i) for b in range(samples) for i in range(queries) if of_queries[b, i] != pad and count[b, i] >= 5]
    found = {
        "first": mean(float(weights[b, i, int(sees[b, i].int().argmax())]) for b, i in rows),
        "broad": mean(float(torch.special.entr(weights[b, i]).sum()) / math.log(count[b, i]) for b, i in rows),
        "delimiter": float(weights.sum(1)[of_keys == END].sum() / weights.sum()),
    }
    if not cross:
        for role, step in (("previous", -1), ("itself", 0), ("next", 1)):
            found[role] = mean(
                float(weights[b, i, i + step]) for b, i in rows if 0 <= i + step < int((of_keys[b] != pad).sum())
            )
        wide = [(b, i) for b, i in rows if count[b, i] >= 4 * (2 * NEAR + 1)]
        found["local"] = mean(float(weights[b, i, max(0, i - NEAR) : i + NEAR + 1].sum()) for b, i in wide)
    return found


@pytest.mark.parametrize("padded", [True, False])
def test_scores_are_what_plain_loops_over_all_weights_give(padded):
    torch.manual_seed(6)
    size = {"width": 24, "heads": 3, "layers": 2, "feedforward": 37}
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=41, **size)).double().eval()
    source, target = pairs()
    masks = [Mask.padding((one != PAD).sum(1)) for one in (source, target)] if padded else [None, None]
    roles = head_roles(model, (source, target), pad=PAD if padded else None, delimiters=[END], near=NEAR)
    seen = {}
    for name, attention in find_attentions(model).items():
        attention.observer = lambda given, name=name: seen.update({name: given})
    with torch.no_grad():
        model(source, target, *masks)
    assert {one.name for one in roles} == set(seen)
    for one in roles:
        given, cross = seen[one.name], one.name.endswith("cross")
        of_queries = source if one.name.startswith("encoder") else target
        of_keys = source if cross else of_queries
        weights = given.weights()[:, one.head]
        sees = torch.ones_like(weights).bool()
        if given.mask is not None:
            sees = given.mask.dense(*weights.shape[1:]).expand(3, 1, *weights.shape[1:])[:, 0]
        if padded:  # they look at the source all the same
            weights = weights * (of_queries != PAD)[..., None]
        for role, score in by_loops(weights, sees, of_queries, of_keys, cross, PAD if padded else -1).items():
            assert one.scores[role] == pytest.approx(score, abs=1e-9), (one.name, one.head, role)
        assert ("induction" in one.scores) is not cross


def test_repeated_tokens_are_the_same_for_the_same_seed_and_leave_out_what_is_special():
    drawn = []

    def run(given: Tensor) -> None:
        drawn.append(given)
        model(given)

    model = Built(["broad"])
    for seed in (1, 1, 2):
        head_roles(model, text(), run=run, delimiters=[COMMA], pad=5, vocabulary=WORDS, seed=seed)
    repeated = drawn[1::2]
    assert torch.equal(repeated[0], repeated[1])
    assert not torch.equal(repeated[0], repeated[2])
    first, second = repeated[0].chunk(2, dim=1)
    assert torch.equal(first, second)
    assert all(len(set(row)) == first.shape[1] for row in first.tolist()), "no token comes twice in a passage"
    assert not {COMMA, 5} & set(first.flatten().tolist())
    assert repeated[0].shape[1] <= text().shape[1], "where the text has room, so have they"


def test_without_tokens_only_places_are_measured():
    model = Built(["previous", "first"])
    roles = head_roles(model, run=lambda: model(text()), delimiters=[COMMA])
    assert [one.role for one in roles] == ["previous", "first"]
    assert set(roles["layers.0", 0].scores) == {"previous", "itself", "next", "first", "local", "broad"}
    assert "Induction and duplicates were not measured" in str(roles)
    assert "Delimiters were not measured" in str(roles)
    with pytest.raises(LensError, match="'induction' was measured of no head"):
        roles.best("induction")


def test_several_runs_are_counted_together():
    model, texts = Built(["local", "delimiter"]), text()
    whole = head_roles(model, run=lambda: model(texts))
    apart = head_roles(model, run=lambda: [model(texts[:1]), model(texts[1:])])
    for one, other in zip(whole, apart, strict=True):
        assert one.scores == pytest.approx(other.scores)


def test_a_sample_of_queries_gives_nearly_the_same_scores(causal):
    some = head_roles(Built(CAUSAL, ["induction", "broad"]), text(), delimiters=[COMMA], vocabulary=WORDS, rows=1 / 4)
    assert [one.role for one in some] == [one.role for one in causal]
    assert some["layers.0", 5].scores["local"] == pytest.approx(causal["layers.0", 5].scores["local"], abs=0.05)


def test_layers_can_be_chosen():
    roles = head_roles(Built(["previous"], ["induction"]), text(), vocabulary=WORDS, layers="layers.1")
    assert [(one.name, one.role) for one in roles] == [("layers.1", "induction")]


def test_a_head_is_called_by_its_most_special_role_if_it_reaches_the_threshold():
    scores = {"induction": 0.45, "previous": 0.9, "itself": 0.05, "local": 0.97, "broad": 0.2}
    assert HeadRoles([("a", 0, scores)])["a", 0][2:4] == ("induction", 0.45)
    assert HeadRoles([("a", 0, scores | {"induction": 0.35})])["a", 0].role == "previous"
    assert HeadRoles([("a", 0, scores | {"induction": 0.35, "previous": 0.3})])["a", 0].role == "local"
    nothing = HeadRoles([("a", 0, {"induction": 0.35, "local": 0.55})])["a", 0]
    assert (nothing.role, nothing.score) == (NONE, 0.55)


def test_it_prints_as_a_table_with_a_caveat(causal):
    lines = str(causal).splitlines()
    assert lines[0].split() == ["attention", "head", "role", "score", *ROLES]
    assert lines[1].split()[:4] == ["layers.0", "0", "previous", "100"]
    assert lines[-1] == CAVEAT
    assert len({len(line) for line in lines[:10]}) == 1, "columns stand below each other"
    assert repr(causal).startswith("HeadRoles(9 heads: 1 induction, 1 duplicate, 1 previous")
    assert all(role in causal.legend() and one.paper in causal.legend() for role, one in ROLES.items())


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda roles: roles.of("prev"), "no role is called 'prev'; there are induction, duplicate"),
        (lambda roles: roles["layers.3", 0], "did you mean 'layers"),
        (lambda roles: roles["layers.1", True], "heads 0, 1 were measured, not True"),
        (lambda roles: roles["layers.1", 5], "heads 0, 1 were measured, not 5"),
        (lambda roles: roles.best("sink"), "no role is called 'sink'; it is 'first' here"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(causal, ask, words):
    with pytest.raises(LensError, match=words):
        ask(causal)


@pytest.mark.unchecked
def test_a_head_is_looked_up_by_the_name_of_its_attention_and_its_number():
    roles = HeadRoles([("decoder.0.self", 0, {}), ("decoder.1.self", 0, {})])
    with pytest.raises(LensError, match=r"such as roles\['decoder.0.self', 0\], got 'decoder.1.self'"):
        roles["decoder.1.self"]
    with pytest.raises(LensError, match=r"called 1; did you mean 'decoder.1.self'\?"):
        roles[1, 0]
    with pytest.raises(LensError, match=r"heads 0 were measured, not \[0\]"):
        roles["decoder.1.self", [0]]


def test_a_vocabulary_for_each_text_is_needed_or_one_for_all():
    with pytest.raises(LensError, match="a tuple has one for each of the 1 texts"):
        head_roles(Built(["broad"]), text(), vocabulary=(WORDS, WORDS))
    with pytest.raises(LensError, match="near must be a whole number of at least 1, got 0"):
        head_roles(Built(["broad"]), text(), near=0)


def test_without_inputs_or_run_the_error_names_both():
    with pytest.raises(LensError, match="inputs"):
        head_roles(Built(["broad"]))


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_hugging_face_models_have_roles_too(family):
    model = made(family)
    inputs = (tokens(19), tokens(17)) if family == "t5" else (tokens(19),)
    roles = head_roles(model, inputs, delimiters=[5])
    crossing = {one.name for one in roles if one.name.endswith("cross")}
    assert {one.name for one in roles if "induction" not in one.scores} == crossing
    with watch(model) as record:
        model(**dict(zip(("input_ids", "decoder_input_ids"), inputs, strict=False)))
    received = record[roles.heads[-1].name].received[:, -1]
    share = float(received[tokens(19) == 5].sum() / received.sum())
    assert roles.heads[-1].scores["delimiter"] == pytest.approx(share)


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_what_a_tokenizer_gives_is_read_without_its_padding(family):
    model, ids, target = made(family), tokens(19), tokens(17)
    real = torch.ones_like(ids)
    real[0, 13:], real[1, :6] = 0, 0  # on either side
    given = {"input_ids": ids, "attention_mask": real}
    padded: tuple[Tensor, ...] = (ids.masked_fill(real == 0, 0),)
    if family == "t5":
        given, padded = given | {"decoder_input_ids": target}, (*padded, target)
    found = head_roles(model, transformers.BatchEncoding(given), delimiters=[5], layers=0)
    want = head_roles(model, padded, pad=0, delimiters=[5], layers=0)
    for one, other in zip(found, want, strict=True):
        for role in one.scores.keys() - {"induction", "duplicate"}:  # on random tokens, of which `pad` is none
            assert one.scores[role] == other.scores[role], role
    whole = head_roles(model, given | {"attention_mask": torch.ones_like(ids)}, delimiters=[5], layers=0)
    assert [one.scores for one in whole] != [one.scores for one in found]
    by_run = head_roles(model, given, run=lambda *ids: _run(model, *ids), layers=0)
    assert "first" in by_run.heads[0].scores


def test_a_model_that_reads_something_else_is_named():
    class Eyes(torch.nn.Module):
        config = None

        def forward(self, pixel_values: Tensor) -> Tensor:
            return pixel_values

    with pytest.raises(LensError, match="T5ForConditionalGeneration reads a source and a target"):
        head_roles(made("t5"), tokens(19))
    with pytest.raises(LensError, match="BertModel reads one text, got 2"):
        head_roles(made("bert"), (tokens(19), tokens(17)))
    with pytest.raises(LensError, match="Eyes reads no token ids; pass run="):
        head_roles(Eyes(), tokens(19))


def _run(model, *ids: Tensor) -> None:
    model(**dict(zip(("input_ids", "decoder_input_ids"), ids, strict=False)))


@pytest.mark.parametrize("score", ["first", "previous"])
def test_all_heads_of_a_score_are_found_whatever_role_they_get(score):
    scores = {"previous": 0.9, "first": 0.45}
    roles = HeadRoles([("a", 0, scores), ("a", 1, {"first": 0.8}), ("a", 2, {"first": math.nan, "previous": 0.1})])
    assert [one.head for one in roles.of("first")] == [1]
    found = {"first": [(1, "first", 0.8), (0, "first", 0.45)], "previous": [(0, "previous", 0.9)]}
    assert [(one.head, one.role, one.score) for one in roles.of(score, min_score=0.4)] == found[score]
    assert len(roles.of("first", min_score=0.0)) == 2
    with pytest.raises(LensError, match="min_score must be a number from 0 to 1, as scores are, got 40"):
        roles.of("first", min_score=40.0)
    with pytest.raises(LensError, match="'induction' was measured of no head"):
        roles.of("induction", min_score=0.4)


def test_coverage_is_one_when_every_source_token_received_a_weight_of_one():
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11, width=12, heads=2, layers=1)).eval()
    source, target = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 7))
    with torch.no_grad():
        model.decoder.layers[0].cross_attention.to_q.weight.zero_()
        with watch(model) as record:
            model(source, target, Mask.padding([5, 4]))
    sight = record["decoder.0.cross"]
    torch.testing.assert_close(sight.received[1, 0], torch.tensor([7 / 4, 7 / 4, 7 / 4, 7 / 4, 0.0]))
    torch.testing.assert_close(coverage(sight), torch.ones(2, 2))
    with watch(model) as record:
        model(source, target[:, :2])
    torch.testing.assert_close(coverage(record["decoder.0.cross"]), torch.full((2, 2), 2 / 5))


def test_a_model_whose_numbers_are_none_has_no_scores():
    model = Decoder(ModelConfig.named("tiny", vocabulary=31)).eval()
    torch.nn.init.constant_(model.vocabulary.words.weight, math.nan)
    roles = head_roles(model, torch.arange(1, 30)[None])
    for head in roles:
        assert head.role == NONE
        assert all(math.isnan(head.scores[role]) for role in ("induction", "duplicate", "previous", "first", "broad"))


def test_the_best_head_of_a_role_comes_with_its_score_in_this_role():
    roles = HeadRoles(
        [("decoder.0.self", 1, {"previous": 0.93, "induction": 0.2}), ("decoder.0.self", 2, {"induction": 0.1})]
    )
    best = roles.best("induction")
    assert (best.head, best.role, best.score) == (1, "induction", 0.2)
    for number in (1, torch.tensor(1)):
        assert (roles["decoder.0.self", number].role, roles["decoder.0.self", number].score) == ("previous", 0.93)
