"""`clearhead answers MODEL add|remove|list`: changes the index of a model folder without training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import format_count, parse_whole_number
from clearhead.storage import hold_lock
from clearhead.tasks.answers.answer_index import Entry, open_index, replace_index
from clearhead.tasks.answers.answer_processor import AnswerProcessor
from clearhead.tasks.answers.question_answerer import QuestionAnswerer
from clearhead.tasks.task import Action
from clearhead.tasks.text_windows import LONGEST_TEXT

FILES = (".tsv", ".csv", ".jsonl")


def add_pairs(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    """Makes questions with their answers known; of pairs new answers also by their own text."""
    pairs, processor = read_pairs(arguments), answerer.processor
    with hold_lock(folder):
        index = open_index(folder)
        present = {(entry.question, entry.answer) for entry in index.entries}
        fresh = [pair for pair in dict.fromkeys(pairs) if pair not in present]
        ids = index.assign_ids([answer for _, answer in fresh])
        entries = [Entry(number, answer, question, True) for number, (question, answer) in zip(ids, fresh, strict=True)]
        names = {entry.id: entry.answer for entry in entries}
        counts = Counter(ids)
        if processor.kind == "pairs":
            entries += [
                Entry(number, text, None, True) for number, text in names.items() if number not in index.answers
            ]
        if entries:
            vectors = processor.encode_entries(answerer.model, [entry.text for entry in entries]).numpy()
            replace_index(folder, index.extend(entries, vectors))
    lines = [
        f"answer {number}{'' if number in index.answers else ' (new)'}: "
        f"{format_count(count, 'question')} added: {names[number]}"
        for number, count in counts.items()
    ]
    repeated = len(pairs) - len(fresh)
    return lines + ([f"{format_count(repeated, 'question')} known already"] if repeated else [])


def remove_answers(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    if not arguments:
        raise ConfigError("remove needs the ids of answers; clearhead answers MODEL list shows them")
    with hold_lock(folder):
        index, ids = open_index(folder), list(dict.fromkeys(map(_parse_id, arguments)))
        replace_index(folder, index.remove(ids))
    return [f"removed answer {number}: {index.answers[number]}" for number in ids]


def list_answers(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    """A line for each answer (id, number of questions, text); of the ids in `arguments`, a line for each question."""
    index, ids = open_index(folder), list(map(_parse_id, arguments))
    index.refuse_unknown(ids)
    questions: dict[int, list[str]] = {number: [] for number in sorted(ids or index.answers)}
    for entry in index.entries:
        if entry.id in questions and entry.question is not None:
            questions[entry.id].append(entry.question)
    if as_json:
        return [
            json.dumps({"id": number, "text": index.answers[number], "questions": asked}, ensure_ascii=False)
            for number, asked in questions.items()
        ]
    if ids:
        return [f"{number}\t{_one_line(text)}" for number, asked in questions.items() for text in asked]
    return [f"{number}\t{len(asked)}\t{_one_line(index.answers[number])}" for number, asked in questions.items()]


ACTIONS = {
    "add": Action(
        'add "QUESTION" "ANSWER", or add FILE with both: makes an answer known, or another question for it.', add_pairs
    ),
    "remove": Action("remove ID …: forgets answers with all of their questions.", remove_answers),
    "list": Action("list [ID …]: all answers, or all questions of some, with their ids.", list_answers),
}


def read_pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The questions and answers that `add` was given, each with some text that is not too long."""
    if len(arguments) == 1 and arguments[0].lower().removesuffix(".gz").endswith(FILES):
        rows = [(f"{row.where}: ", *row.values) for row in AnswerProcessor.read(arguments[0])]
    elif len(arguments) == 2:
        rows = [("", *arguments)]
    else:
        raise ConfigError("add needs a question and its answer, or one file with both (.tsv, .csv or .jsonl)")
    for where, question, answer in rows:
        for name, text in (("question", question), ("answer", answer)):
            if not text.strip():
                raise DataError(f"{where}the {name} is empty; nothing was added")
            if len(text) > LONGEST_TEXT:
                problem = f"the {name} has {len(text):,} characters, more than {LONGEST_TEXT:,}"
                raise DataError(f"{where}{problem}; shorten it; nothing was added")
    return [(question.strip(), answer.strip()) for _, question, answer in rows]


def _parse_id(text: str) -> int:
    number = parse_whole_number(text)
    if number is None:
        raise ConfigError(f"the id of an answer is a number, not {text!r:.60}; clearhead answers MODEL list shows all")
    return number


def _one_line(text: str) -> str:
    return " ".join(text.split())
