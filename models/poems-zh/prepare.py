"""Makes the files that the shipped model poems-zh is trained on, from a table of Tang and Song poems.

    python models/poems-zh/prepare.py chinese-poetry.tsv models/poems-zh/data

The table has title, author and poem, separated by tabs. Written are train.jsonl, dev.jsonl and heldout.jsonl with one
document "title\\npoem" in each line, in simplified characters. Kept are regular poems: all lines of five characters, or
all of seven, an even number of lines, no gaps or notes in the text. Poems of more than eight lines are cut into pieces
of eight and four, so that every document has four or eight lines. heldout.jsonl has the poems of 100 titles: no poem of
such a title is in train.jsonl, nor any that shares ten consecutive characters with one of them. The same table gives
the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from clearhead.text.chinese import load_converter

SIZES, LENGTHS = (8, 4), (5, 7)  # lines of a document, characters of a line
HELD_OUT, DEV_SHARE = 100, 0.02
SHARED = 10  # characters in a row that a poem to train on may not share with one that is held out
RARE = 8  # poems with a character that occurs less often are left out, so that the vocabulary covers all poems
LONGEST_TITLE = 20
NAMELESS = {"句", "失题", "缺题", "阙题", "无题", "失调名", ""}
TUNES = {"浣溪沙", "玉楼春", "生查子", "木兰花", "瑞鹧鸪", "减字浣溪沙", "木兰花令"}  # they name a melody, no subject
NUMERALS = "一二三四五六七八九十百"
HAN = re.compile(r"[\u4e00-\u9fff]+")
STOPS = re.compile("[，。？！；]")
NUMBER = re.compile(rf"(其|第)?[{NUMERALS}]+")
COUNT = re.compile(rf"(其[{NUMERALS}]+|(并序|并引|[{NUMERALS}]+(首|章|篇|绝句|绝|咏|韵|题|言)))+$")


class Poem(NamedTuple):
    """A regular poem; its lines have no punctuation."""

    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The title, a line break, and the lines with ， and 。 in turn.

        >>> Poem("春晓", ("春眠不觉晓", "处处闻啼鸟")).text
        '春晓\\n春眠不觉晓，处处闻啼鸟。'
        """
        return f"{self.title}\n" + "".join(line + "，。"[place % 2] for place, line in enumerate(self.lines))


def clean_title(title: str) -> str:
    """The title without notes, categories, numbers of a series and counts; "" if nothing is left that names a subject.

    >>> [clean_title(one) for one in ("帝京篇十首 一", "相和歌辞 长门怨二首 二", "辋川集二十首 金屑泉", "句")]
    ['帝京篇', '长门怨', '金屑泉', '']
    """
    title = re.sub(r"（.*?）|〈.*?〉|\(.*?\)|\[.*?\]|《|》|「|」|“|”", "", title)
    parts = [part for part in re.split(r"[\s　・·，。、：—-]+", title) if part and not NUMBER.fullmatch(part)]
    title = COUNT.sub("", parts[-1]) if parts else ""
    known = HAN.fullmatch(title) and title not in NAMELESS | TUNES and len(title) <= LONGEST_TITLE
    return title if known else ""


def split_lines(poem: str) -> tuple[str, ...]:
    """The lines of a regular poem without punctuation; none if it is not regular.

    >>> split_lines("春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少？")
    ('春眠不觉晓', '处处闻啼鸟', '夜来风雨声', '花落知多少')
    >>> split_lines("车辚辚，马萧萧，行人弓箭各在腰。")
    ()
    """
    lines = tuple(line for line in STOPS.split(poem) if line)
    sizes = {len(line) for line in lines}
    regular = len(sizes) == 1 and sizes <= set(LENGTHS) and len(lines) % 2 == 0 and all(map(HAN.fullmatch, lines))
    return lines if regular else ()


def read_poems(table: Path) -> Iterator[Poem]:
    """All regular poems of the table, in simplified characters."""
    convert = load_converter("simplified").convert
    for row in table.read_text(encoding="utf-8").split("\n"):
        fields = row.split("\t")  # a few titles have a note in a field of its own
        if len(fields) < 3:
            continue
        lines = split_lines(convert(fields[-1]))
        if title := clean_title(convert(fields[0])):
            yield from cut_pieces(Poem(title, lines))


def cut_pieces(poem: Poem) -> Iterator[Poem]:
    """The poem in pieces of eight lines, then four; two lines that are left over are dropped.

    >>> [len(piece.lines) for piece in cut_pieces(Poem("古意", ("床前明月光",) * 14))]
    [8, 4]
    """
    rest = poem.lines
    for size in SIZES:
        while len(rest) >= size:
            yield Poem(poem.title, rest[:size])
            rest = rest[size:]


def drop_repeated(poems: Iterable[Poem]) -> Iterator[Poem]:
    """The poems without those that have half of their lines, or more, from poems before."""
    seen = set[str]()
    for poem in poems:
        if 2 * sum(line in seen for line in poem.lines) < len(poem.lines):
            yield poem
        seen.update(poem.lines)


def drop_rare(poems: list[Poem]) -> list[Poem]:
    """The poems in which no character is rare; titles may have rare ones."""
    often = Counter(character for poem in poems for character in "".join(poem.lines))
    return [poem for poem in poems if all(often[character] >= RARE for character in "".join(poem.lines))]


def hash_title(title: str) -> float:
    """A number from 0 to 1 that depends on the title alone."""
    return int.from_bytes(hashlib.sha256(title.encode()).digest()[:6], "big") / 2**48


def list_runs(poem: Poem) -> set[str]:
    """All sequences of ten consecutive characters of a poem, without punctuation."""
    text = "".join(poem.lines)
    return {text[start : start + SHARED] for start in range(len(text) - SHARED + 1)}


def divide(poems: list[Poem]) -> dict[str, list[Poem]]:
    """The poems of train, dev and heldout; those that share a run of characters with a held-out one are in none."""
    order = sorted({poem.title for poem in poems}, key=hash_title)
    held = set([title for title in order if 2 <= len(title) <= 8][:HELD_OUT])
    dev = set(order[-round(DEV_SHARE * len(order)) :]) - held
    parts: dict[str, list[Poem]] = {"heldout": [poem for poem in poems if poem.title in held], "dev": [], "train": []}
    for part in ("dev", "train"):
        known = {run for other in parts.values() for poem in other for run in list_runs(poem)}
        chosen = (poem for poem in poems if poem.title not in held and (poem.title in dev) == (part == "dev"))
        parts[part] = [poem for poem in chosen if not known & list_runs(poem)]
    return parts


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("table", type=Path)
    arguments.add_argument("folder", type=Path)
    given = arguments.parse_args()
    poems = drop_rare(list(drop_repeated(read_poems(given.table))))
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, part in divide(poems).items():
        lines = [json.dumps({"text": poem.text}, ensure_ascii=False) + "\n" for poem in part]
        (given.folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        forms = Counter((len(poem.lines), len(poem.lines[0])) for poem in part)
        shown = ", ".join(f"{count} of {lines} × {size}" for (lines, size), count in forms.most_common())
        print(f"{given.folder / name}.jsonl: {len(part)} poems, {len({poem.title for poem in part})} titles; {shown}")
    print(f"{len({character for poem in poems for character in ''.join(poem.lines)})} characters in the poems")


if __name__ == "__main__":
    main()
