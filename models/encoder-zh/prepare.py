"""Makes the texts that the shipped encoder-zh is trained on, from folders of Chinese texts.

    python models/encoder-zh/prepare.py DATA models/encoder-zh/data

DATA holds zh-text, zh-en, fewclue, ner and lm, as benchmarks/README.md describes them. Written are documents with one
sentence or paragraph in each line, and an empty line after each document: train.txt, dev.txt (every 400th document)
and pairs.txt (Chinese sentences that translate the same English one, two lines each). Lines with few Chinese
characters are left out, and so are dev parts, but for the few texts that are among the unlabelled ones, too. The same
files give the same texts.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from clearhead.tasks.segmentation import HAN

CHINESE_SHARE = 0.5  # of a line's characters: with fewer it is left out
FEWEST_CHARACTERS = 4  # of a line
DEV_EVERY = 400  # documents
REPEATED = 3  # times that short texts of other kinds than documentation are read
POEMS_EVERY = 8  # poems: they are in a language of their own
Document = list[str]


def keep_chinese(lines: Iterable[str]) -> Document:
    """The lines that are mostly Chinese, without white space around them."""
    stripped = (" ".join(line.split()) for line in lines)
    return [line for line in stripped if len(HAN.findall(line)) >= max(FEWEST_CHARACTERS, CHINESE_SHARE * len(line))]


def read_documents(path: Path) -> Iterator[Document]:
    """Documents of a text file, parted by empty lines."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for blank, lines in groupby(file, key=lambda line: not line.strip()):
            if not blank:
                yield keep_chinese(lines)


def read_objects(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def read_columns(path: Path, column: int) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if len(row) > column:
                yield row[column]


def read_unlabelled(path: Path) -> Iterator[Document]:
    """Each text as a document; of a pair both texts, each by itself, for they may have different meanings."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            for text in line.split("\t"):
                yield keep_chinese([text])


def read_abstracts(folder: Path) -> Iterator[Document]:
    """The abstracts of all training parts that are in no dev part."""
    held = {value["content"] for path in folder.glob("dev_*.json") for value in read_objects(path)}
    texts = (value["content"] for path in sorted(folder.glob("train_*.json")) for value in read_objects(path))
    return (keep_chinese([text]) for text in dict.fromkeys(texts) if text not in held)


def read_resumes(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8") as file:
        for blank, lines in groupby(file, key=lambda line: not line.strip()):
            if not blank:
                yield keep_chinese(["".join(line.split()[0] for line in lines)])


def group_translations(path: Path) -> Iterator[Document]:
    """Chinese sentences that translate the same English sentence."""
    sentences = defaultdict[str, dict[str, None]](dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            sentences[row[1].strip().lower()][row[0].strip()] = None
    return (list(group) for group in sentences.values() if len(group) > 1)


def collect(data: Path) -> Iterator[Document]:
    """All documents, in a fixed order."""
    for path in sorted((data / "zh-text").glob("*.txt.xz")):
        yield from read_documents(path)
    yield keep_chinese(read_columns(data / "zh-en/python-docs.tsv", 0))
    for _ in range(REPEATED):
        for name in ("eprstmt", "tnews", "bustm"):
            yield from read_unlabelled(data / "fewclue" / name / "unlabeled.txt.xz")
        yield from read_abstracts(data / "fewclue/csldcp")
        yield from read_resumes(data / "ner/resume-zh/train.char.bmes")
    for text in read_columns(data / "zh-en/tatoeba.train.tsv", 0):
        yield keep_chinese([text])
    with (data / "zh-en/3am.train.zh").open(encoding="utf-8") as captions:
        for text in captions:
            yield keep_chinese([text])
    for number, text in enumerate(read_columns(data / "lm/chinese-poetry.tsv", 2)):
        if number % POEMS_EVERY == 0:
            yield keep_chinese([text])


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    count = characters = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write("\n".join([*document, "", ""]))
            count, characters = count + 1, characters + sum(map(len, document))
    print(f"{path}: {count:,} documents, {characters:,} characters")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("folder", type=Path)
    given = arguments.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    documents = [document for document in collect(given.data) if document]
    held = {tuple(document) for document in documents[::DEV_EVERY]}
    write_documents(given.folder / "train.txt", (text for text in documents if tuple(text) not in held))
    write_documents(given.folder / "dev.txt", (list(text) for text in sorted(held)))
    write_documents(given.folder / "pairs.txt", group_translations(given.data / "zh-en/tatoeba.train.tsv"))


if __name__ == "__main__":
    main()
