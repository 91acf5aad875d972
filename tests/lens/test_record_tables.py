"""Tables of a record, and what differs between two."""

import sys

import numpy
import pytest
import torch

from clearhead import Decoder, ModelConfig, Record, watch
from clearhead.errors import RecordError
from clearhead.lens.record.record_tables import HeadChange


def record_of(seed: int, *, keep: str = "none") -> Record:
    torch.manual_seed(0)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    with torch.no_grad(), watch(model, keep=keep) as record:
        for length in (5, 7):
            drawn = torch.Generator().manual_seed(seed + length)
            model(torch.randint(11, (2, length), generator=drawn))
    return record


def test_rows_are_heads_queries_or_keys():
    record = record_of(1)
    table = record.to_numpy("query")
    assert {len(column) for column in table.values()} == {2 * 4 * 2 * (5 + 7)}
    for row in (0, 17, 100, 191):
        place = {name: table[name][row] for name in ("call", "name", "sample", "head", "query")}
        sight = record.calls[place["call"]][place["name"]]
        assert table["entropy"][row] == sight.entropy[place["sample"], place["head"], place["query"]].item()
        assert table["peak_key"][row] == sight.peak_key[place["sample"], place["head"], place["query"]].item()
    keys = record.to_numpy("key")
    assert keys["received"].sum() == pytest.approx(2 * 4 * 2 * (5 + 7))
    heads = record.to_numpy()
    assert list(heads["name"]) == ["decoder.0.self"] * 4 + ["decoder.1.self"] * 4
    assert heads["distance"][5] == record.statistics()["decoder.1.self"].distance.mean[1].item()


def test_a_table_of_pandas_has_the_same_columns(monkeypatch):
    record = record_of(1)
    frame, table = record.to_pandas(level="key"), record.to_numpy(level="key")
    assert list(frame.columns) == list(table) == ["call", "name", "sample", "head", "key", "received", "received_mean"]
    assert frame.groupby("head").received.sum().loc[1] == pytest.approx(table["received"][table["head"] == 1].sum())
    assert frame.name[0] == "decoder.0.self"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RecordError, match="pip install pandas"):
        record.to_pandas()


def test_levels_that_do_not_exist_or_were_not_kept_are_refused():
    with pytest.raises(RecordError, match=r"no level 'heads'.*'head'"):
        record_of(1).to_numpy("heads")
    record = record_of(1, keep="statistics")
    assert len(record.to_numpy()["head"]) == 8
    with pytest.raises(RecordError, match="kept no query"):
        record.to_numpy("query")


def test_what_changed_most_comes_first():
    one, other = record_of(1), record_of(2)
    changes = Record.compare(one, other)
    assert len(changes) == 2 * 4 * 4
    sizes = [change.size for change in changes]
    assert sizes == sorted(sizes, reverse=True)
    first = changes[0]
    means = [getattr(record.statistics()[first.name], first.measure).mean[first.head].item() for record in (one, other)]
    assert (first.before, first.after) == tuple(means)
    assert all(change.size == 0 for change in Record.compare(one, one))


def test_a_small_change_is_shown_with_the_digits_in_which_it_is_one():
    change = HeadChange("decoder.0.self", 3, "peak", 0.965123, 0.965187, 0.000064, 4.0)
    assert str(change) == "decoder.0.self head 3: peak 0.9651 → 0.9652, by 4 standard deviations"
    assert "entropy nan → nan" in str(change._replace(measure="entropy", before=float("nan"), after=float("nan")))
    assert "peak 1 → 1," in str(change._replace(before=1.0, after=1.0))


def test_records_of_other_attentions_are_not_compared():
    torch.manual_seed(0)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    with torch.no_grad(), watch(model, layers=0) as part:
        model(torch.tensor([[1, 2, 3]]))
    with pytest.raises(RecordError, match=r"only one of them has decoder\.1\.self"):
        Record.compare(record_of(1), part)


def test_spans_and_probes_are_columns_of_queries_and_texts_of_keys():
    torch.manual_seed(0)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    probes = {"before": lambda positions: positions - 1}
    with watch(model, spans={"passage": slice(1, 4)}, itself=True, probes=probes, layers=1) as record:
        model(torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]))
    sight = record["decoder.1.self"]
    table = record.to_numpy("query")
    for column, tensor in {
        "mass passage": sight.mass["passage"],
        "itself": sight.itself,
        "probe before": sight.probes["before"],
    }.items():
        assert table[column].tolist() == tensor.flatten().tolist()
    keys = record.to_numpy("key")
    assert keys["received_mean"].tolist() == sight.received_mean.flatten().tolist()
    assert "text" not in keys
    keys = record.label(lambda number: f"token {number}").to_numpy("key")
    for row in (0, 7, 21, 39):
        assert keys["text"][row] == sight.text(int(keys["sample"][row]), int(keys["key"][row]))
    assert keys["text"][39] == "token 1"


def test_what_only_some_records_have_is_not_a_number_elsewhere():
    torch.manual_seed(0)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    with watch(model, spans={"passage": slice(1, 4)}, layers=0) as one:
        model(torch.tensor([[1, 2, 3]]))
    with watch(model, layers=0) as other:
        model(torch.tensor([[4, 5]]))
    one.label(str)
    merged = Record.merge([one, other])
    table = merged.to_numpy("query")
    assert numpy.isnan(table["mass passage"]).tolist() == [False] * 12 + [True] * 8
    assert merged.to_numpy("key")["text"].tolist() == ["1", "2", "3"] * 4 + [None] * 8


def test_what_is_no_record_is_not_compared():
    with pytest.raises(RecordError, match=r"takes two records.*merge"):
        Record.compare([record_of(1)], record_of(2))
