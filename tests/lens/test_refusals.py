"""The lens refuses invalid arguments, with errors that name the values and the remedy."""

import pytest
import torch

from clearhead import Decoder, ModelConfig, MultiHeadAttention
from clearhead.errors import BackendError, DeviceError, DtypeError, LensError, MaskError, RecordError, ShapeError
from clearhead.lens import Record, Sight, ablate, expected_bytes, head_roles, measure, rollout, watch
from tests.attention.test_refusals import k, q, refused
from tests.lens.huggingface_zoo import made

pytestmark = pytest.mark.unchecked


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"pixels": -1}, ["pixels", "at least 0", "-1"]),
        ({"pixels": 2.5}, ["pixels", "whole number", "2.5"]),
        ({"top": -3}, ["top", "at least 0", "-3"]),
        ({"top": None}, ["top", "whole number", "None"]),
        ({"top": True}, ["top", "whole number", "True"]),
        ({"top": 10**12}, ["top", "at most 1,048,576", "1000000000000"]),
        ({"offset": 1.5}, ["offset", "whole number", "1.5"]),
        ({"softcap": float("inf")}, ["softcap", "positive", "inf"]),
        ({"every": 0}, ["every", "at least 1", "0"]),
        ({"every": 1 / 16}, ["every", "whole number", "0.0625"]),
    ],
)
def test_numbers_that_make_no_sense(asked, words):
    with refused(ShapeError, *words):
        measure(q(), k(), **asked)


def test_a_logsumexp_of_other_queries():
    with refused(ShapeError, "logsumexp must be (2, 6, 5)", "(2, 6, 7)"):
        measure(q(), k(), logsumexp=torch.zeros(2, 6, 7))


def test_a_logsumexp_that_lies_elsewhere():
    with refused(DeviceError, "logsumexp is on meta", "q on cpu", ".to(q.device)"):
        measure(q(), k(), logsumexp=torch.zeros(2, 6, 5, device="meta"))


def test_a_way_that_does_not_exist():
    with refused(BackendError, "'flash'", "auto, defined, single, tiled, compiled, triton"):
        measure(q(), k(), backend="flash")


def test_a_way_that_cannot():
    with refused(BackendError, "'triton' cannot", "'tiled'"):
        measure(q().double(), k().double(), backend="triton")


def test_what_attention_refuses_is_refused_here_too():
    with refused(ShapeError, "6 query heads cannot share 4 key heads"):
        measure(q(), k(kv_heads=4))
    with refused(MaskError, "does not say whether True shows or hides"):
        measure(q(), k(), torch.ones(5, 11, dtype=torch.bool))
    with refused(DtypeError, "must have one dtype"):
        measure(q(), k().double())
    with refused(DtypeError, "q, k and v must have at least 16 bits", "torch.float8_e4m3fn", ".bfloat16()"):
        measure(q().to(torch.float8_e4m3fn), k().to(torch.float8_e4m3fn))


def test_heads_without_features():
    with refused(ShapeError, "width 0", "(2, 6, 5, 0)"):
        measure(q()[..., :0], k()[..., :0])


def test_tensors_without_numbers():
    with refused(DeviceError, "meta"):
        measure(q().to("meta"), k().to("meta"))


IDS = torch.tensor([[1, 2, 3]])


def small() -> Decoder:
    return Decoder(ModelConfig.named("tiny", vocabulary=11, heads=4)).eval()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"layers": 1.5}, ["name, pattern or number", "1.5"]),
        ({"layers": True}, ["name, pattern or number", "True"]),
        ({"layers": [0, None]}, ["name, pattern or number", "None"]),
        ({"layers": 7}, ["'7'", "decoder.0.self"]),
        ({"heads": slice(0, 2)}, ["heads", "[0, 2]", "slice(0, 2, None)"]),
        ({"heads": 1.0}, ["heads", "[0, 2]", "1.0"]),
        ({"heads": [True]}, ["heads 0 to 3", "True"]),
        ({"heads": torch.tensor([True, False])}, ["heads 0 to 3", "True"]),
        ({"pixels": 2.5}, ["pixels", "whole number", "2.5"]),
        ({"top": 10**12}, ["top", "at most 1,048,576", "1000000000000"]),
        ({"probes": {"before": 5}}, ["probes", "functions", "5"]),
        ({"probes": [1]}, ["probes", "functions", "[1]"]),
    ],
)
def test_a_watch_that_makes_no_sense(asked, words):
    with refused(LensError, *words), watch(small(), **asked):
        raise AssertionError("it was let in")


@pytest.mark.parametrize("asked", [{"tokens": -1}, {"tokens": 1.5}, {"tokens": 5, "batch": -2}])
def test_a_memory_of_no_size(asked):
    with refused(LensError, "whole number of at least 0"):
        expected_bytes(small(), **asked)


def test_what_holds_a_model_is_not_the_model():
    class Holder:
        model = small()

    with refused(LensError, "a Holder is no model itself", "its .model"), watch(Holder()):
        raise AssertionError("it was let in")


@pytest.fixture(scope="module")
def seen() -> Sight:
    model = small()
    with watch(model, keep="qk") as record:
        model(torch.tensor([[1, 2, 3]]))
    return record["decoder.0.self"]


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ({"queries": [0, 1.5]}, ["queries", "a slice of positions", "1.5"]),
        ({"queries": -4}, ["queries at positions 0 to 2", "-4"]),
        ({"keys": 1.0}, ["keys", "a slice of positions", "1.0"]),
        ({"keys": "all"}, ["keys", "a slice of positions", "'all'"]),
        ({"keys": 3}, ["keys at positions 0 to 2", "3"]),
        ({"batch": True}, ["1 sample, numbered from 0", "True"]),
        ({"batch": 0.0}, ["1 sample, numbered from 0", "0.0"]),
        ({"head": True}, ["heads [0, 1, 2, 3]", "True"]),
        ({"head": 1.0}, ["heads [0, 1, 2, 3]", "1.0"]),
        ({"head": -1}, ["heads [0, 1, 2, 3]", "-1"]),
        ({"head": "all"}, ["heads [0, 1, 2, 3]", "'all'"]),
        ({"head": []}, ["one or more of the heads [0, 1, 2, 3]"]),
    ],
)
def test_windows_that_make_no_sense(seen, window, words):
    with refused(RecordError, *words):
        seen.weights(**{"batch": 0, "head": 0, **window})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.1.self_attn", ["'model.layers.1.self_attn'", "did you mean 'decoder.1.self'?"]),
        ("decoder.layers.0.self_attention", ["did you mean 'decoder.0.self'?"]),
        (1, ["called 1", "did you mean 'decoder.1.self'?"]),
        (7, ["called 7", "there are decoder.0.self, decoder.1.self"]),
        (("decoder.0.self", 2), ["record['decoder.0.self']", "sight.entropy[:, sight.place_of(2)]"]),
        ((1, 2), ["(1, 2)", "did you mean 'decoder.1.self'?", "sight.place_of(2)"]),
        (None, ["called None", "there are decoder.0.self"]),
    ],
)
def test_a_record_says_how_an_attention_is_called(seen, name, words):
    for place in (Record(calls=[seen.forward]), seen.forward):
        with refused(RecordError, *words):
            place[name]


@pytest.mark.parametrize("query", [True, 1.0, None, "1"])
def test_a_query_that_is_no_position(seen, query):
    with refused(RecordError, "'decoder.0.self' is chosen by its position", repr(query)):
        seen.top(0, 0, query)


def test_numbers_may_be_those_of_tensors(seen):
    model, tokens = small(), torch.tensor([[1, 2, 3]])
    assert torch.equal(seen.weights(0, torch.tensor(1), torch.tensor(2)), seen.weights(0, 1, 2))
    assert torch.equal(seen.weights(0, torch.tensor([1, 3]), seen.queries[1:]), seen.weights(0, [1, 3], [1, 2]))
    assert seen.top(0, torch.tensor(1), torch.tensor(2)) == seen.top(0, 1, 2)
    with watch(model, heads=torch.tensor([3, 1]), layers=[torch.tensor(1)]) as record:
        model(tokens)
    assert record.names == ["decoder.1.self"]
    assert record["decoder.1.self"].heads == (3, 1)
    with ablate(model, {"decoder.1.self": torch.tensor([3, 1])}):
        found = model(tokens)
    with ablate(model, {"decoder.1.self": [1, 3]}):
        assert torch.equal(found, model(tokens))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("a text", ["token ids", "'a text'"]),
        ([1, 2, 3], ["token ids", "[1, 2, 3]"]),
        (torch.tensor([1, 2, 3]), ["(batch, tokens)", "(3,)"]),
        (torch.ones(1, 3), ["(batch, tokens)", "torch.float32"]),
        (torch.ones(1, 0, dtype=torch.long), ["there are no tokens", "(1, 0)"]),
        ((IDS, IDS), ["Decoder reads one text, got 2"]),
        ({"input_ids": [[1, 2, 3]]}, ["return_tensors='pt'", "[[1, 2, 3]]"]),
        ({"pixel_values": IDS}, ["needs input_ids, got pixel_values"]),
        ({"input_ids": IDS, "labels": IDS}, ["not 'labels'", "leave it out"]),
        ({"input_ids": IDS, "token_type_ids": IDS}, ["not 'token_type_ids'"]),
        ({"input_ids": IDS, "attention_mask": IDS[:, :2]}, ["(1, 3)", "got (1, 2)"]),
        ({"input_ids": IDS, "attention_mask": 0 * IDS}, ["no tokens", "besides padding"]),
    ],
)
def test_roles_in_something_else_than_tokens(inputs, words):
    with refused(LensError, *words):
        head_roles(small(), inputs)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"delimiters": 5}, ["delimiters", "[13]", "5"]),
        ({"delimiters": "."}, ["delimiters", "[13]", "'.'"]),
        ({"pad": "0"}, ["pad", "token id", "'0'"]),
        ({"near": 1.5}, ["near", "whole number", "1.5"]),
        ({"seed": "a"}, ["seed", "whole number", "'a'"]),
        ({"run": 3}, ["run must be a function", "3"]),
        ({"vocabulary": "a"}, ["vocabulary", "'a'"]),
    ],
)
def test_options_of_roles_that_make_no_sense(asked, words):
    with refused(LensError, *words):
        head_roles(small(), torch.randint(11, (1, 19)), **asked)


def test_a_token_that_is_no_number(seen):
    with refused(LensError, "tokens 0 to 2", "1.0"):
        rollout(seen.forward, 1.0)


@pytest.mark.parametrize("given", [None, 3, [1], [Record(), None], ["run.record"]])
def test_a_merger_of_something_else(given):
    with refused(RecordError, "a list of records"):
        Record.merge(given)


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_file_without_a_name(seen, path):
    with refused(RecordError, "is a folder", "'run.record'"):
        Record(calls=[seen.forward]).save(path)
    with refused(RecordError, "cannot be read"):
        Record.load(path)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_model_inside_vmap_is_refused_by_name():
    attention, text = MultiHeadAttention(6, 2), torch.randn(5, 2, 3, 6)
    with refused(LensError, "'attention' runs inside torch.vmap", "a batch instead"), watch(attention):
        torch.vmap(attention)(text)
    model = made("bert")
    with refused(LensError, "'encoder.0.self' runs inside torch.vmap"), watch(model), torch.no_grad():
        torch.vmap(lambda some: model(some)[0])(torch.randint(3, 29, (4, 2, 5)))
