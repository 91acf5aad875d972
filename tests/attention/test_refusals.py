"""What does not fit is refused in words that name the values and the remedy."""

import pytest
import torch
from torch import Tensor

from clearhead import Bias, Mask, attend, attention_weights
from clearhead.errors import BackendError, ClearheadError, DeviceError, DtypeError, MaskError, ShapeError

pytestmark = pytest.mark.unchecked


def q(batch: int = 2, heads: int = 6, queries: int = 5, d: int = 7, **options) -> Tensor:
    return torch.ones(batch, heads, queries, d, **options)


def k(batch: int = 2, kv_heads: int = 3, keys: int = 11, d: int = 7, **options) -> Tensor:
    return torch.ones(batch, kv_heads, keys, d, **options)


def refused(error: type[ClearheadError], *words: str):
    """Fails unless this error comes, with all of these words, in one line."""
    return pytest.raises(error, match="(?s)^(?!.*\n)" + "".join(f"(?=.*{_quoted(word)})" for word in words))


def _quoted(word: str) -> str:
    return "".join(f"\\{c}" if c in ".()[]|*+?{}^$" else c for c in word)


def test_refused_wants_every_word():
    with pytest.raises(AssertionError, match="Regex"), refused(ShapeError, "(2, 3)", "nowhere"):
        raise ShapeError("got (2, 3)")


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_tensor_without_four_axes(name):
    tensors = {"q": q(), "k": k(), "v": k()} | {name: torch.ones(2, 5, 42)}
    with refused(ShapeError, f"{name} must be (batch, heads, tokens, width", "(2, 5, 42)", "rearrange("):
        attend(**tensors)


def test_queries_and_keys_of_different_width():
    with refused(ShapeError, "width 7", "width 13", "project both", "k (2, 3, 11, 13)"):
        attend(q(), k(d=13), k())


def test_keys_without_their_values():
    with refused(ShapeError, "every key needs its value", "3 heads × 11 tokens", "3 × 17"):
        attend(q(), k(), k(keys=17))
    with refused(ShapeError, "every key needs its value", "3 heads × 11 tokens", "1 × 11"):
        attend(q(), k(), k(kv_heads=1))


def test_batches_that_differ():
    with refused(ShapeError, "same batch size, got 2, 3 and 2", "q (2, 6, 5, 7)", "k (3, 3, 11, 7)"):
        attend(q(), k(batch=3), k())


def test_query_heads_that_do_not_divide_by_key_heads():
    with refused(ShapeError, "6 query heads cannot share 4 key heads", "multiple of kv_heads", "k (2, 4, 11, 7)"):
        attend(q(), k(kv_heads=4), k(kv_heads=4))


def test_whole_numbers_as_queries():
    with refused(DtypeError, "q must be floating point", "torch.int64", ".float()"):
        attend(q(dtype=torch.long), k(), k())


def test_something_else_than_a_tensor_as_keys():
    with refused(DtypeError, "k must be a tensor", "list"):
        attend(q(), [1.0, 2.0], k())


def test_a_bare_boolean_as_mask():
    with refused(MaskError, "torch.bool tensor of shape (5, 11)", "Mask.visible(tensor)", "Mask.hidden(tensor)"):
        attend(q(), k(), k(), torch.ones(5, 11, dtype=torch.bool))
    with refused(MaskError, "Mask.visible(tensor)"):
        Mask.causal() & torch.ones(5, 5, dtype=torch.bool)


@pytest.mark.parametrize("value", [[True, False], "causal", True], ids=repr)
def test_something_else_as_mask(value):
    with refused(MaskError, "Mask.causal()", f"got {type(value).__name__}: {value!r}"):
        attend(q(), k(), k(), value)


def test_masks_joined_by_a_word_instead_of_a_sign():
    with refused(MaskError, "combine masks with & and |, not with and/or"):
        Mask.causal() and Mask.padding([3])


@pytest.mark.parametrize(
    ("lengths", "said"),
    [([3, -1], "[3, -1]"), ([2.5], "torch.float32"), ([True, False], "torch.bool"), ([[1, 2]], "shape (1, 2)")],
    ids=repr,
)
@pytest.mark.parametrize("kind", [Mask.padding, Mask.prefix])
def test_lengths_that_are_no_counts(kind, lengths, said):
    with refused(MaskError, "lengths must", said):
        kind(lengths)


def test_padding_on_neither_side():
    with refused(MaskError, "'left'", "'right'", "'top'"):
        Mask.padding([1], side="top")


def test_a_window_that_reaches_backwards():
    with refused(MaskError, "-2 keys to the left", "0 or more"):
        Mask.window(-2)


def test_numbers_in_place_of_a_boolean_mask():
    with refused(MaskError, "Mask.visible takes a boolean tensor", "torch.float32", "bias="):
        Mask.visible(torch.zeros(3))


def test_document_ids_that_are_no_numbers_of_documents():
    with refused(MaskError, "whole numbers", "torch.float32", "(3,)"):
        Mask.documents(torch.zeros(3))
    with refused(ShapeError, "5 queries", "3 tokens", "query_ids"):
        Mask.documents(torch.zeros(3, dtype=torch.long)).dense(5, 3)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (Mask.padding([3, 4, 5]), ["made for 3 samples", "has 2", "(2, 6, 5, 11)"]),
        (Mask.visible(torch.ones(4, 11, dtype=torch.bool)), ["made for 4 queries", "has 5"]),
        (Mask.visible(torch.ones(5, 3, dtype=torch.bool)), ["made for 3 keys", "has 11"]),
        (Mask.hidden(torch.ones(3, 1, 1, dtype=torch.bool)), ["made for 3 heads", "has 6"]),
        (Mask.causal() & Mask.documents(torch.zeros(7, dtype=torch.long)), ["made for 7 keys", "Mask.documents("]),
        (Mask.causal() | Mask.prefix([1, 2, 3]), ["made for 3 samples", "Mask.causal() | Mask.prefix([1, 2, 3])"]),
    ],
    ids=repr,
)
def test_a_mask_made_for_other_sizes(mask, words):
    with refused(ShapeError, *words):
        attend(q(), k(), k(), mask)


def test_masks_that_do_not_combine():
    with refused(ShapeError, "masks for 2 and 3 batch do not combine"):
        Mask.padding([1, 2]) & Mask.prefix([1, 2, 3])


def test_an_unknown_backend():
    with refused(BackendError, "'flash'", "auto, reference, sdpa, flex, tiled"):
        attend(q(), k(), k(), backend="flash")


def test_a_backend_that_cannot_says_why_and_who_can():
    with refused(BackendError, "'sdpa' cannot", "caps scores", "'auto' would take 'tiled'"):
        attend(q(), k(), k(), softcap=30.0, backend="sdpa")
    with refused(BackendError, "'flex' cannot", "no dropout"):
        attend(q(), k(), k(), dropout=0.5, backend="flex")
    with refused(BackendError, "'flex' cannot", "no backward pass on the CPU", "'auto' would take 'sdpa'"):
        attend(q(requires_grad=True), k(), k(), backend="flex")
    with refused(BackendError, "'flex' cannot", "logsumexp on the CPU", "'auto' would take 'sdpa'"):
        attend(q(), k(), k(), sinks=torch.ones(6), backend="flex")
    with refused(BackendError, "'flex' cannot", "float64"):
        attend(q().double(), k().double(), k().double(), backend="flex")


def test_mixed_dtypes_outside_autocast():
    with refused(DtypeError, "q torch.float32", "k torch.bfloat16", ".to(q.dtype)", "torch.autocast"):
        attend(q(), k(dtype=torch.bfloat16), k())


def test_mixed_devices():
    with refused(DeviceError, "q on cpu, k on meta", ".to(q.device)"):
        attend(q(), k(device="meta"), k())


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("mask", Mask.padding([1, 2]).to("meta")),
        ("mask", Mask.prefix(2) & Mask.padding([1, 2]).to("meta")),
        ("bias", Bias.alibi(torch.ones(6, device="meta"))),
        ("bias", torch.ones(5, 11, device="meta")),
        ("scale", torch.ones(6, device="meta")),
        ("sinks", torch.ones(6, device="meta")),
    ],
    ids=["mask", "half a mask", "alibi", "bias", "scale", "sinks"],
)
def test_an_option_on_another_device(name, option):
    with refused(DeviceError, f"the {name} is on meta, q on cpu", f"{name}.to('cpu')"):
        attend(q(), k(), k(), **{name: option})


def test_a_scale_for_other_heads():
    with refused(ShapeError, "one for each of 6 heads", "(3,)"):
        attend(q(), k(), k(), scale=torch.ones(3))


def test_sinks_for_other_heads():
    with refused(ShapeError, "one number per head", "(6,)", "got (3,)"):
        attention_weights(q(), k(), sinks=torch.ones(3))
    with refused(ShapeError, "one number per head", "(6,)", "got float"):
        attention_weights(q(), k(), sinks=0.5)


def test_a_bias_that_does_not_broadcast():
    with refused(ShapeError, "(1, 1, 5, 7)", "(2, 6, 5, 11)"):
        attend(q(), k(), k(), bias=torch.zeros(5, 7))
    with refused(ShapeError, "at most 4 axes", "(1, 1, 1, 1, 1)"):
        attend(q(), k(), k(), bias=torch.zeros(1, 1, 1, 1, 1))
    with refused(ShapeError, "for 3 heads", "has 6"):
        attend(q(), k(), k(), bias=Bias.alibi(3))


def test_a_mask_in_the_place_of_a_bias():
    with refused(DtypeError, "got torch.bool", "mask=", "Mask.visible"):
        attend(q(), k(), k(), bias=torch.ones(5, 11, dtype=torch.bool))
    with refused(DtypeError, "or a Bias", "got list"):
        attend(q(), k(), k(), bias=[1.0])


def test_a_relative_table_with_the_wrong_number_of_rows():
    with refused(ShapeError, "from -4 to 4", "9 rows", "(8, 6)"):
        Bias.relative(torch.zeros(8, 6), 4)
    with refused(ShapeError, "table must be shaped (buckets, heads)", "(9,)"):
        Bias.relative(torch.zeros(9), 4)


@pytest.mark.parametrize("softcap", [0.0, -1.0])
def test_a_cap_that_is_not_positive(softcap):
    with refused(ShapeError, "softcap must be a positive number", str(softcap), "None"):
        attend(q(), k(), k(), softcap=softcap)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_a_dropout_that_is_no_probability(dropout):
    with refused(ShapeError, "at least 0 and less than 1", str(dropout)):
        attend(q(), k(), k(), dropout=dropout)


def test_every_refusal_is_also_the_error_one_would_expect():
    for error, builtin in [(ShapeError, ValueError), (DtypeError, TypeError), (MaskError, TypeError)]:
        assert issubclass(error, builtin)
        assert issubclass(error, ClearheadError)
