"""Tables of a record, and what differs between two."""

import sys

import pytest
import torch

from clearhead import Decoder, ModelConfig, Record, watch
from clearhead.errors import RecordError


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
    assert list(frame.columns) == list(table) == ["call", "name", "sample", "head", "key", "received"]
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


def test_records_of_other_attentions_are_not_compared():
    torch.manual_seed(0)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    with torch.no_grad(), watch(model, layers=0) as part:
        model(torch.tensor([[1, 2, 3]]))
    with pytest.raises(RecordError, match=r"only one of them has decoder\.1\.self"):
        Record.compare(record_of(1), part)
