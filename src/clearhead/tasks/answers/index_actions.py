"""`clearhead answers MODEL add|remove|list`: changes the index of a model folder without training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.formatting import format_count, parse_whole_number
from clearhead.storage import hold_lock
from clearhead.tasks.answers.answer_index import AnswerIndex, Entry, Vectors, replace_index
from clearhead.tasks.text_windows import LONGEST_TEXT

if TYPE_CHECKING:
    from clearhead.text import Row

ACTIONS = {
    "add": 'add "QUESTION" "ANSWER", or add FILE with both: makes an answer known, or another question for it.',
    "remove": "remove ID …: forgets answers with all of their questions.",
    "list": "list [ID …]: all answers, or all questions of some, with their ids.",
}
FILES = (".tsv", ".csv", ".jsonl")

Encode = Callable[[Sequence[str]], Vectors]
Read = Callable[[str], Iterable["Row"]]


def run_action(
    action: str,
    folder: Path,
    arguments: Sequence[str],
    encode: Encode,
    *,
    read: Read,
    towers: bool,
    as_json: bool,
) -> list[str]:
    """Runs an action on the index in a folder; returns the lines to print. With `towers` answers have vectors, too."""
    if action == "list":
        return _list_answers(_open_index(folder), [_parse_id(one) for one in arguments], as_json)
    if action == "add":
        pairs = _read_pairs(arguments, read)
        with hold_lock(folder):
            return _add_pairs(folder, pairs, encode, towers)
    if not arguments:
        raise ConfigError("remove needs the ids of answers; clearhead answers MODEL list shows them")
    with hold_lock(folder):
        index, ids = _open_index(folder), list(dict.fromkeys(_parse_id(one) for one in arguments))
        known = index.answers
        replace_index(folder, index.remove(ids))
        return [f"removed answer {number}: {known[number]}" for number in ids]


def carry_changes(folder: Path, index: AnswerIndex, encode: Encode) -> tuple[AnswerIndex, str | None]:
    """A newly trained index with what was added to and removed from the earlier one in a folder, and what that was.

    Both must come from the same training data: answers have the same ids.
    """
    try:
        earlier = _open_index(folder)
    except CheckpointError as error:
        return index, f"answers that were changed after training, if any, are lost: {error}"
    removed = [number for number in index.answers if number not in earlier.answers]
    added = [entry for entry in earlier.entries if entry.added]
    if not removed and not added:
        return index, None
    index = index.remove(removed)
    if added:
        index = index.extend(added, encode([entry.text for entry in added]))
    questions = format_count(sum(entry.question is not None for entry in added), "question")
    answers = format_count(len(removed), "answer")
    message = f"changes of the index are kept: {questions} added, {answers} removed"
    return replace(index, next_id=max(index.next_id, earlier.next_id)), message


def _open_index(folder: Path) -> AnswerIndex:
    index = AnswerIndex.load(folder)
    if index is None:
        raise CheckpointError(f"{folder} has no index of answers; train the model again")
    return index


def _add_pairs(folder: Path, pairs: Sequence[tuple[str, str]], encode: Encode, towers: bool) -> list[str]:
    index = _open_index(folder)
    known = {(entry.question, entry.answer) for entry in index.entries}
    fresh = [pair for pair in dict.fromkeys(pairs) if pair not in known]
    old = index.answers
    entries = [
        Entry(number, answer, question, added=True)
        for number, (question, answer) in zip(index.assign_ids(answer for _, answer in fresh), fresh, strict=True)
    ]
    new = {entry.id: entry.answer for entry in entries if entry.id not in old}
    if towers:
        entries += [Entry(number, answer, None, added=True) for number, answer in new.items()]
    if entries:
        replace_index(folder, index.extend(entries, encode([entry.text for entry in entries])))
    counts = Counter(entry.id for entry in entries if entry.question is not None)
    names = {entry.id: entry.answer for entry in entries}
    lines = [
        f"answer {number}{' (new)' if number in new else ''}: {format_count(count, 'question')} added: {names[number]}"
        for number, count in counts.items()
    ]
    repeated = len(pairs) - len(fresh)
    return lines + ([f"{format_count(repeated, 'question')} known already"] if repeated else [])


def _read_pairs(arguments: Sequence[str], read: Read) -> list[tuple[str, str]]:
    if len(arguments) == 1 and arguments[0].lower().removesuffix(".gz").endswith(FILES):
        rows = [(row.where, *row.values) for row in read(arguments[0])]
    elif len(arguments) == 2:
        rows = [("", *arguments)]
    else:
        raise ConfigError("add needs a question and its answer, or one file with both (.tsv, .csv or .jsonl)")
    pairs = []
    for where, question, answer in rows:
        if not question.strip() or not answer.strip():
            missing = "question" if not question.strip() else "answer"
            raise DataError(f"{where + ': ' if where else ''}the {missing} is empty; nothing was added")
        if (size := max(len(question), len(answer))) > LONGEST_TEXT:
            longer = "question" if size == len(question) else "answer"
            raise DataError(
                f"{where + ': ' if where else ''}the {longer} has {size:,} characters, more than {LONGEST_TEXT:,}; "
                "shorten it; nothing was added"
            )
        pairs.append((question.strip(), answer.strip()))
    return pairs


def _parse_id(text: str) -> int:
    number = parse_whole_number(text)
    if number is None:
        raise ConfigError(f"the id of an answer is a number, not {text!r:.60}; clearhead answers MODEL list shows all")
    return number


def _list_answers(index: AnswerIndex, ids: Sequence[int], as_json: bool) -> list[str]:
    """A line for each answer (id, number of questions, text); of chosen ones, a line for each question."""
    known = index.answers
    if missing := [number for number in ids if number not in known]:
        raise ConfigError(f"no answer has the id {missing[0]}; clearhead answers MODEL list shows all")
    questions: dict[int, list[str]] = {number: [] for number in sorted(ids or known)}
    for entry in index.entries:
        if entry.id in questions and entry.question is not None:
            questions[entry.id].append(entry.question)
    if as_json:
        return [
            json.dumps({"id": number, "text": known[number], "questions": some}, ensure_ascii=False)
            for number, some in questions.items()
        ]
    if ids:
        return [f"{number}\t{_one_line(text)}" for number, some in questions.items() for text in some]
    return [f"{number}\t{len(some)}\t{_one_line(known[number])}" for number, some in questions.items()]


def _one_line(text: str) -> str:
    return " ".join(text.split())
