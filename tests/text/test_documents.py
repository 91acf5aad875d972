"""Documents as they are read from files, and packed into rows."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.errors import ConfigError, DataError
from clearhead.text import Row, Tokenizer
from clearhead.text.documents import read_documents, split_document
from clearhead.text.packed_documents import UNCOUNTED, PackedDocuments, fit_best

TEXT = "Moon\r\nbright\n\n \nRiver  long\n\n\n秋日登高\n"


def texts(path, *arguments):
    return [(row.values[0], row.line) for row in read_documents(path, *arguments)]


def test_a_text_file_is_one_document_or_one_a_line_or_one_a_paragraph(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "a.TXT.gz"
    plain.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    packed.write_bytes(gzip.compress(TEXT.encode()))
    for path in (plain, packed):
        assert texts(path) == [(TEXT.replace("\r\n", "\n"), 1)]
        assert texts(path, "lines") == [("Moon", 1), ("bright", 2), ("River  long", 5), ("秋日登高", 8)]
        assert texts(path, "paragraphs") == [("Moon\nbright", 1), ("River  long", 5), ("秋日登高", 8)]


def test_tables_have_their_documents_in_the_column_text(tmp_path):
    (tmp_path / "a.tsv").write_text("one two\nthree\n")
    (tmp_path / "a.csv").write_text('id,text\n1,"two\nlines"\n')
    (tmp_path / "a.jsonl").write_text('{"text": "a\\nb"}\n')
    assert texts(tmp_path / "a.tsv") == [("one two", 1), ("three", 2)]
    assert texts(tmp_path / "a.csv", "lines") == [("two\nlines", 2)]
    assert texts(tmp_path / "a.jsonl") == [("a\nb", 1)]
    (tmp_path / "b.tsv").write_text("1\tone\n")
    assert texts(tmp_path / "b.tsv", "file", ["-", "text"]) == [("one", 1)]


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("schön".encode("latin-1"))
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        texts(tmp_path / "empty.txt")
    with pytest.raises(DataError, match=r"latin\.txt:1: not UTF-8"):
        texts(tmp_path / "latin.txt")
    with pytest.raises(DataError, match="no file"):
        texts(tmp_path / "none.txt")
    with pytest.raises(ConfigError, match="'line' is not known; did you mean 'lines'"):
        texts(tmp_path / "latin.txt", "line")


def test_a_document_is_split_by_characters_as_nanogpt_does():
    text = "".join(chr(ord("a") + number % 26) for number in range(1_115))
    first, last = split_document(Row((text,), "a.txt", 1), 0.1)
    assert first.values[0] == text[: int(1_115 * 0.9)]
    assert first.values[0] + last.values[0] == text
    with pytest.raises(DataError, match="a document of 1 characters cannot be split"):
        split_document(Row(("a",), "a.txt", 1), 0.1)
    with pytest.raises(DataError, match=r"a document of 10 characters .* one part would be blank; give more text"):
        split_document(Row(("012345678\n",), "a.txt", 1), 0.1)


@given(st.text(max_size=40), st.sampled_from(["bpe", "character", "unigram"]))
@settings(max_examples=30)
def test_an_exact_tokenizer_gives_every_text_back(text, kind):
    tokenizer = exact_tokenizer(kind)
    repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normal(text) == repaired


TOKENIZERS: dict[str, Tokenizer] = {}


def exact_tokenizer(kind):
    if kind not in TOKENIZERS:
        some = ["def f(x):\n    return x\n\n", " To be, or not to be\n" * 3, "秋日登高\n\0"]
        TOKENIZERS[kind] = Tokenizer.train(some, kind=kind, vocabulary=330, exact=True)
    return TOKENIZERS[kind]


def test_an_exact_tokenizer_is_the_same_after_saving(tmp_path):
    tokenizer = exact_tokenizer("bpe")
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.decode(again.encode("  a\n\n b ")) == "  a\n\n b "
    assert again.encode("  To be\n") == tokenizer.encode("  To be\n")


# Packing


def make_documents(lengths, seed=0):
    """Documents of these lengths, every token of which says where it stands."""
    chance = np.random.default_rng(seed)
    return [[1, *chance.integers(3, 90, size=length - 1).tolist(), 2] for length in lengths]


def predicted(packed):
    """How often each place of the flat tokens is predicted, and the rows."""
    batch = packed.gather(torch.arange(packed.rows))
    counts = np.zeros(len(packed.flat), dtype=int)
    lengths, sources = packed._lengths.numpy(), packed._sources.numpy()
    for source, length in zip(sources, lengths, strict=True):
        counts[source + 1 : source + length + 1] += 1
    return counts, batch


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 23),
    st.none() | st.integers(0, 5),
    st.integers(0, 3),
)
@settings(max_examples=150)
def test_every_token_is_predicted_once_in_the_order_of_its_document(lengths, context, seed, epoch):
    documents = make_documents(lengths)
    packed = PackedDocuments(documents, context, seed=seed)
    rows = packed.rows
    packed.draw_cuts(epoch)
    counts, batch = predicted(packed)
    starts = np.cumsum([0, *map(len, documents[:-1])])
    wanted = np.ones(len(packed.flat), dtype=int)
    wanted[[*starts, len(wanted) - 1]] = 0  # starts are not predicted, and the last element belongs to nobody
    assert (counts == wanted).all()
    assert batch.tokens.shape == (rows, packed.context)
    assert (batch.labels != UNCOUNTED).sum(1).tolist() == packed.counts.tolist()
    # Within a piece the label of a place is the token of the next one.
    if packed.packed:
        same = (batch.documents[:, 1:] == batch.documents[:, :-1]) & (batch.labels[:, 1:] != UNCOUNTED)
        assert (batch.positions[batch.labels != UNCOUNTED] < packed.context).all()
    else:
        same = batch.labels[:, 1:] != UNCOUNTED
    assert (batch.tokens[:, 1:][same] == batch.labels[:, :-1][same]).all()


def test_short_documents_stay_whole_and_pads_are_few():
    chance = np.random.default_rng(3)
    packed = PackedDocuments(make_documents(chance.integers(5, 90, size=2000)), 257, seed=1)
    assert packed.packed
    assert packed._lengths.numpy().tolist() != [257] * len(packed._lengths)
    assert len(packed._lengths) == 2000
    assert packed.counts.sum() / (packed.rows * packed.context) > 0.995


def test_a_few_long_documents_have_plain_rows_and_new_cuts_in_every_epoch():
    packed = PackedDocuments(make_documents([40_001, 30_011]), 64, seed=1)
    assert not packed.packed
    assert packed.counts.sum() / (packed.rows * packed.context) > 0.99
    firsts = set()
    for epoch in range(20):
        packed.draw_cuts(epoch)
        batch = packed.gather(torch.arange(2))
        assert batch.documents.shape == batch.positions.shape == (2, 0)
        firsts.add(int(packed.counts[0]))
    assert len(firsts) > 10
    packed.draw_cuts(7)
    again = PackedDocuments(make_documents([40_001, 30_011]), 64, seed=1)
    again.draw_cuts(7)
    assert torch.equal(packed.gather(torch.arange(99)).tokens, again.gather(torch.arange(99)).tokens)


def test_the_fingerprint_is_of_tokens_seed_and_context():
    prints = {
        PackedDocuments(make_documents(lengths), context, seed=seed).fingerprint()
        for lengths, context, seed in (([9, 5], 7, 1), ([9, 5], 7, 2), ([9, 5], 8, 1), ([9, 6], 7, 1))
    }
    assert len(prints) == 4


def test_a_document_without_a_prediction_is_refused():
    with pytest.raises(DataError, match="a token to predict"):
        PackedDocuments([[1, 2], [1]], 5)
    with pytest.raises(DataError, match="a token to predict"):
        PackedDocuments([], 5)


@given(st.lists(st.integers(1, 13), min_size=1, max_size=40))
def test_best_fit_overlaps_nothing_and_leaves_no_two_rows_that_would_fit_into_one(lengths):
    rows, columns = fit_best(np.array(lengths), 13)
    used = np.zeros((rows.max() + 1, 13), dtype=int)
    for length, row, column in zip(lengths, rows, columns, strict=True):
        used[row, column : column + length] += 1
    assert used.max() == 1
    assert used.any(1).all()
    assert (used.sum(1) <= 13 / 2).sum() <= 1


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "b.txt").write_text("two\n\nthree\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    (tmp_path / "more" / "c.TXT").write_text("四\n", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert [row.values[0] for row in read_documents(tmp_path)] == ["one\n", "two\n\nthree\n", "四\n"]
    assert [row.values[0] for row in read_documents(tmp_path, "paragraphs")] == ["one", "two", "three", "四"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no \.txt file"):
        read_documents(tmp_path / "empty")


def test_pythons_library_is_a_corpus() -> None:
    rows = {Path(row.file).name: row.values[0] for row in read_documents("made:python-library")}
    assert "def dedent" in rows["textwrap.py"]
    assert len(rows) > 200
    assert "conftest.py" not in rows, "installed packages are left out"
