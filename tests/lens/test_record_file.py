"""Records on disk: written whole or not at all, read as they were, or refused with one clear error."""

import json
import os
import struct
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save_file

from clearhead import Bias, KeyValueCache, Mask, Record, watch
from clearhead.attention import Seen
from clearhead.errors import RecordError
from clearhead.lens.capture.collector import Collector
from clearhead.lens.capture.watch_settings import MeasureDetail, WatchSettings
from clearhead.lens.measures.visible_keys import count_visible_keys
from clearhead.lens.record.call_metadata import AnswerChange, CallMetadata
from clearhead.lens.record.record_file import HEADER, append_checksum
from tests.lens.seen_calls import built, tokens
from tests.lens.test_record import BIASES, MASKS
from tests.lens.tolerances import TENSORS


def assert_same(one, other):
    """Every tensor and every number of two records."""
    assert one.names == other.names
    assert len(one.calls) == len(other.calls)
    for mine, theirs in zip(one.calls, other.calls, strict=True):
        assert mine.names == theirs.names
        assert mine.labels == theirs.labels
        assert mine.about == theirs.about
        assert mine.ids.keys() == theirs.ids.keys()
        assert all(torch.equal(mine.ids[kind], theirs.ids[kind]) for kind in mine.ids)
        for name in mine:
            assert_same_sight(mine[name], theirs[name])


def assert_same_sight(one, other):
    for name in [*TENSORS, "queries", "visible", "seen_by"]:
        if getattr(one, name) is None:
            assert getattr(other, name) is None, name
            continue
        assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in ("name", "cross", "heads", "blocks", "inputs", "sharing", "spans", "span_names"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.probes.keys() == other.probes.keys()
    assert all(torch.equal(one.probes[name], other.probes[name]) for name in one.probes)
    assert (one.norms is None) == (other.norms is None)
    assert one.norms is None or torch.equal(one.norms, other.norms)
    assert (one.kept is None) == (other.kept is None)
    if one.kept is not None:
        for sample in range(len(one.inputs)):
            for head in one.heads:
                assert torch.equal(one.weights(sample, head), other.weights(sample, head))
        assert torch.equal(
            count_visible_keys(one.attention(), range(1)), count_visible_keys(other.attention(), range(1))
        )


@pytest.fixture(scope="module")
def record():
    """Several calls of a translator: one with everything kept, one that grew, one of some heads."""
    model = built("EncoderDecoder", "relative")
    probes = {"before": lambda queries: queries - 1}
    with watch(model, keep="qk", norms=True, probes=probes, top=3, pixels=4) as first, torch.no_grad():
        model(tokens(2, 7), tokens(2, 5), Mask.padding([7, 3]))
    with watch(model, keep="qk", heads=[4, 1]) as second, torch.no_grad():
        context, cache = model.encode(tokens(2, 5)), KeyValueCache()
        for part in tokens(2, 7).split([3, 2, 2], 1):
            model.decode(part, context, cache=cache)
        cache.reorder([1, 0, 0])
    with watch(model, layers="decoder.1.self", rows=1 / 2) as third, torch.no_grad():
        model(tokens(1, 3), tokens(1, 5))
    found = Record.merge([first, second, third]).label(lambda number: f'<{number}> 字 \ud83d " </script>\0')
    without = {"encoder.0.self": {"3": AnswerChange("a", "b", [0.5, None], [None, [("c", 0.25)]])}}
    found.calls[0].about = CallMetadata(model="zh-en", chances=[0.25, None], parts=[("", "x", None)], without=without)
    return found


def test_what_is_saved_is_what_is_loaded(record, tmp_path):
    record.save(tmp_path / "run.record")
    again = Record.load(str(tmp_path / "run.record"))
    assert_same(record, again)
    assert again.expected_bytes == record.expected_bytes > 0
    assert again.calls[0]["decoder.1.cross"].top(1, 2, 3)[0].text.endswith('字 \ud83d " </script>\0')
    again.save(tmp_path / "again.record")
    assert_same(record, Record.load(tmp_path / "again.record"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.record", "run.record"]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_every_mask_and_bias_comes_back(mask, bias, tmp_path):
    record = record_once(MASKS[mask], BIASES[bias])
    record.save(tmp_path / "run.record")
    assert_same(record, Record.load(tmp_path / "run.record"))


def test_a_bias_with_buckets_of_its_own_is_not_saved(tmp_path):
    bias = Bias.relative(torch.linspace(-1, 1, 30).view(5, 6), lambda distance: distance.abs().clamp(max=4))
    with pytest.raises(RecordError, match="only built-in masks, biases and bucket functions"):
        record_once(None, bias).save(tmp_path / "run.record")


def record_once(mask, bias):
    torch.manual_seed(2)
    q, k = torch.randn(2, 6, 13, 5), torch.randn(2, 3, 19, 5)
    options = {"scale": torch.linspace(0.5, 2, 6), "softcap": 3.0, "sinks": torch.linspace(-1, 1, 6)}
    record = Record(["encoder.0.self"])
    with Collector(WatchSettings(("encoder.0.self",), None, MeasureDetail(keep="qk")), record) as collector:
        collector.record_attention("encoder.0.self", Seen(q, k, k, mask, bias=bias, **options))
    return record


def test_an_empty_record_is_a_record(tmp_path):
    Record().save(tmp_path / "nothing")
    assert Record.load(tmp_path / "nothing").names == []


def test_saving_over_a_record_that_is_loaded_leaves_it_whole(record, tmp_path):
    path = tmp_path / "run.record"
    record.save(path)
    again = Record.load(path)
    Record().save(path)
    assert_same(record, again)


def test_a_record_replaces_a_record_and_no_other_file(record, tmp_path):
    (tmp_path / "empty").touch()
    record.save(tmp_path / "empty")
    assert_same(record, Record.load(tmp_path / "empty"))
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "notes.txt").write_text("x")
    for name in ("model.safetensors", "notes.txt"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(RecordError, match=f"{name} exists and is no record; name another file, or remove it first"):
            record.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_what_cannot_be_written_leaves_what_was_there(record, tmp_path):
    path = tmp_path / "run.record"
    Record().save(path)
    before = path.read_bytes()
    unsayable = Record.merge([record])
    unsayable.settings = {"layers": object()}
    with pytest.raises(RecordError, match="JSON"):
        unsayable.save(path)
    assert path.read_bytes() == before
    with pytest.raises(RecordError, match="cannot be written"):
        record.save(tmp_path / "no folder" / "run.record")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecordError, match="cannot be written"):
        record.save(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run.record"]


@pytest.fixture(scope="module")
def saved(record, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.record"
    Record(record.watched, record.calls[:1]).save(path)
    return path.read_bytes()


@given(st.data())
def test_a_truncated_or_damaged_file_is_refused_or_read_but_nothing_else(saved, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "run.record"
    end = data.draw(st.integers(0, len(saved)))
    spoiled = bytearray(saved[:end])
    for place in data.draw(st.lists(st.integers(0, max(0, min(end, 4000) - 1)), max_size=3)) if end else []:
        spoiled[place] = data.draw(st.integers(0, 255))
    path.write_bytes(spoiled)
    try:
        loaded = Record.load(path)
    except RecordError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert isinstance(repr(loaded), str)


def test_files_that_are_no_records_are_refused_by_name(saved, tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    (tmp_path / "text").write_text("no record at all " * 50)
    (tmp_path / "nothing").touch()
    (tmp_path / "huge").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    (tmp_path / "half").write_bytes(saved[: len(saved) // 2])
    for name, words in {
        "model.safetensors": "Record.save did not write it",
        "text": "cannot be read as a record",
        "nothing": "cannot be read as a record",
        "huge": "cannot be read as a record",
        "half": "cannot be read as a record",
        "absent": "there is no such file",
        ".": "cannot be read",
    }.items():
        with pytest.raises(RecordError, match=words):
            Record.load(tmp_path / name)


def taken_apart(saved: bytes) -> tuple[dict, bytes]:
    (size,) = struct.unpack("<Q", saved[:8])
    outer = json.loads(saved[8 : 8 + size])
    return outer, saved[8 + size :]


def put_together(outer: dict, data: bytes) -> bytes:
    header = json.dumps(outer).encode()
    return struct.pack("<Q", len(header)) + header + data


def changed(saved: bytes, *path, value) -> bytes:
    """The same file with one value of its JSON header changed."""
    outer, data = taken_apart(saved)
    header = json.loads(outer["__metadata__"][HEADER])
    header.pop("header_checksum")
    inner = header
    for step in path[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    outer["__metadata__"][HEADER] = append_checksum(json.dumps(header))
    return put_together(outer, data)


SIGHT = ("calls", 0, "sights", 0)
KEPT = (*SIGHT, "kept")
LIES = [
    (("format",), 2),
    (("format",), ...),
    (("names",), [1]),
    (("calls",), {}),
    (("calls", 0), None),
    (("calls", 0, "ids"), {"source": 10**9}),
    (("calls", 0, "ids"), {"source": True}),
    (("calls", 0, "ids"), {"source": 2}),  # the logsumexp
    (("calls", 0, "labels"), {"source": [["1", "a"]]}),
    (("calls", 0, "labels"), {"source": [[1, 2]]}),
    (("calls", 0, "about"), []),
    (("calls", 0, "about"), {"text": 5}),
    (("calls", 0, "about"), {"texts": "a"}),
    (("calls", 0, "about"), {"next": [[["a"]]]}),
    (("calls", 0, "about"), {"without": {"encoder.0.self": {"0": {"text": []}}}}),
    (("checksums",), ...),
    (("settings",), None),
    ((*SIGHT, "unknown"), 1),
    ((*SIGHT, "tokens"), 10**6),
    ((*SIGHT, "spans"), [["a", 0, 1]]),
    ((*SIGHT, "name"), ...),
    ((*SIGHT, "name"), "encoder.1.self"),
    ((*SIGHT, "heads"), [0]),
    ((*SIGHT, "heads"), [0, 1, 2, 3, 4, -1]),
    ((*SIGHT, "heads"), "012345"),
    ((*SIGHT, "inputs"), [0, 1, 2]),
    ((*SIGHT, "blocks"), [1, 10**400]),
    ((*SIGHT, "tensors", "entropy"), ...),
    ((*SIGHT, "tensors", "entropy"), "0"),
    ((*SIGHT, "tensors", "entropy"), 5),  # the peak_key
    ((*SIGHT, "tensors", "peak_key"), 0),
    ((*SIGHT, "tensors", "map"), 0),
    ((*SIGHT, "probes"), {"before": 8}),
    ((*KEPT, "q"), 0),
    ((*KEPT, "k"), None),
    ((*KEPT, "lengths"), 0),
    ((*KEPT, "scale"), "big"),
    ((*KEPT, "scales"), 0),
    ((*KEPT, "softcap"), -1.0),
    ((*KEPT, "sinks"), 0),
    ((*KEPT, "whole_rows"), 1),
    ((*KEPT, "parts"), []),
    ((*KEPT, "parts", 0, "queries"), 3),
    ((*KEPT, "parts", 0, "keys"), 10**30),
    ((*KEPT, "parts", 0, "first_key"), -1),
    ((*KEPT, "parts", 0, "mask"), {"kind": "magic"}),
    ((*KEPT, "parts", 0, "mask"), {"kind": "band", "left": 10**30, "right": 0, "offset": None}),
    ((*KEPT, "parts", 0, "mask"), {"kind": "padding", "lengths": 0, "side": "right", "queries": True}),
    ((*KEPT, "parts", 0, "mask", "side"), "above"),
    ((*KEPT, "parts", 0, "mask"), {"kind": "both", "masks": []}),
    ((*KEPT, "parts", 0, "mask"), {"kind": "visible", "tensor": 0}),
    ((*KEPT, "parts", 0, "bias"), {"kind": "dense", "tensor": 0}),
    ((*KEPT, "parts", 0, "bias", "buckets"), {"name": "os.system", "furthest": 3}),
    ((*KEPT, "parts", 0, "bias", "buckets", "count"), 10**6),
    ((*KEPT, "parts", 0, "bias", "buckets", "furthest"), 0),
    ((*KEPT, "parts", 0, "bias", "table"), 0),
]


@pytest.mark.parametrize("place", [0.001, 0.25, 0.5, 0.75, 0.999])
def test_a_byte_of_a_tensor_that_changed_is_noticed(saved, tmp_path, place):
    outer, data = taken_apart(saved)
    at = int(place * len(data))
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    (tmp_path / "damaged.record").write_bytes(put_together(outer, damaged))
    with pytest.raises(RecordError, match="is damaged: the checksum differs"):
        Record.load(tmp_path / "damaged.record")


def test_a_digit_of_the_header_that_changed_is_noticed(saved, tmp_path):
    outer, data = taken_apart(saved)
    header = outer["__metadata__"][HEADER]
    at = header.index('"expected_bytes": ') + len('"expected_bytes": ')
    outer["__metadata__"][HEADER] = header[:at] + str((int(header[at]) + 1) % 10) + header[at + 1 :]
    (tmp_path / "damaged.record").write_bytes(put_together(outer, data))
    with pytest.raises(RecordError, match="its header is damaged"):
        Record.load(tmp_path / "damaged.record")


@pytest.mark.unchecked  # a whole number is no float
def test_a_whole_number_as_softcap_comes_back(tmp_path):
    record, q = Record(["one"]), torch.randn(1, 2, 5, 4)
    with Collector(WatchSettings(("one",), None, MeasureDetail(keep="qk")), record) as collector:
        collector.record_attention("one", Seen(q, q, q, None, 1.0, None, 3, None))
    record.save(tmp_path / "capped.record")
    loaded = Record.load(tmp_path / "capped.record")
    assert torch.equal(loaded["one"].weights(0, 1), record["one"].weights(0, 1))


@pytest.mark.parametrize(("place", "value"), LIES)
def test_a_header_that_lies_is_refused(saved, tmp_path, place, value):
    path = tmp_path / "run.record"
    path.write_bytes(changed(saved, *place, value=value))
    with pytest.raises(RecordError, match=r"run\.record"):
        Record.load(path)


def test_the_lies_are_what_makes_them_refused(saved, tmp_path):
    path = tmp_path / "run.record"
    path.write_bytes(changed(saved, "settings", value={}))
    assert Record.load(path).names


def test_deep_and_endless_json_is_refused(saved, tmp_path):
    outer, data = taken_apart(saved)
    for text in (
        "[" * 100_000,
        '{"format": 1, "calls": ' + "[" * 5000 + "]" * 5000 + "}",
        "9" * 10_000,
        "NaN",
        "null",
        "",
    ):
        outer["__metadata__"][HEADER] = text
        (tmp_path / "run.record").write_bytes(put_together(outer, data))
        with pytest.raises(RecordError):
            Record.load(tmp_path / "run.record")


def nested(depth):
    return (
        {"kind": "band", "left": None, "right": 0, "offset": None}
        if depth == 0
        else {"kind": "both", "masks": [nested(depth - 1)] * 2}
    )


def test_masks_within_masks_have_an_end(saved, tmp_path):
    (tmp_path / "run.record").write_bytes(changed(saved, *KEPT, "parts", 0, "mask", value=nested(12)))
    with pytest.raises(RecordError):
        Record.load(tmp_path / "run.record")


def test_tensors_of_other_types_and_sizes_are_refused(saved, tmp_path):
    outer, data = taken_apart(saved)
    for name in [name for name in outer if name != "__metadata__"][:12]:
        for change in ({"dtype": "U8"}, {"shape": [2**40]}, {"data_offsets": [0, 2**60]}, {"dtype": "NOPE"}):
            spoiled = {**outer, name: {**outer[name], **change}}
            (tmp_path / "run.record").write_bytes(put_together(spoiled, data))
            with pytest.raises(RecordError):
                Record.load(tmp_path / "run.record")


@given(texts=st.lists(st.text(st.characters(codec=None)), min_size=1, max_size=5))
@settings(max_examples=20)
def test_tokens_may_be_any_text(texts, tmp_path_factory):
    model = built("Encoder", layers=1)
    with watch(model) as record:
        model(torch.tensor([[3, 4, 5]]))
    record.label(lambda number: texts[number % len(texts)])
    path = Path(tmp_path_factory.mktemp("texts")) / "run.record"
    record.save(path)
    assert Record.load(path).calls[0].labels == record.calls[0].labels


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="root may read anything")
def test_a_file_without_read_permission_is_refused(tmp_path):
    (tmp_path / "run.record").touch(mode=0)
    with pytest.raises(RecordError, match="cannot be read"):
        Record.load(tmp_path / "run.record")
