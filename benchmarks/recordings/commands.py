"""The command line as a user has it: `python -m clearhead …` in a process of one thread."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import clearhead

PACKAGE = Path(clearhead.__file__).parent
# What differs from one run of a command to the next, or from one machine to another.
LEFT_OUT_LINES = {
    r"^step [\d,]+ of [\d,]+ · ": "speed; whether a line is printed depends on the clock; losses are in metrics.jsonl",
    r"^scoring [\d,]+ .*: about ": "an estimate of a duration",
}
REPLACED = {
    r"\([\d.]+ [kMG]?B\)": "(SIZE)",  # of a page with its scripts, of a file with a date
}


def run_command(*arguments: str, folder: Path, text: str | None = None) -> dict[str, Any]:
    """The exit code and the lines that a command printed; with --json, what they say."""
    command = [sys.executable, "-m", "clearhead", *arguments]
    done = subprocess.run(command, cwd=folder, input=(text or "").encode(), capture_output=True)
    printed, said = (_split_lines(stream, folder) for stream in (done.stdout, done.stderr))
    said = [line for line in said if not any(re.search(pattern, line) for pattern in LEFT_OUT_LINES)]
    answers = [json.loads(line) for line in printed] if "--json" in arguments and not done.returncode else printed
    return {"exit code": done.returncode, "stdout": answers, "stderr": said}


def _split_lines(stream: bytes, folder: Path) -> list[str]:
    """The lines of a stream. Other characters that end a line somewhere are part of the answers."""
    lines = stream.decode("utf-8").split("\n")
    return [clean(line, folder) for line in (lines if lines[-1] else lines[:-1])]


def run_or_fail(*arguments: str, folder: Path) -> dict[str, Any]:
    """The same for a command that later ones build on."""
    result = run_command(*arguments, folder=folder)
    if result["exit code"]:
        raise RuntimeError("\n".join([f"clearhead {' '.join(arguments)}", *result["stderr"]]))
    return result


def clean(line: str, folder: Path) -> str:
    """A line without paths of this machine and sizes of files with dates."""
    line = line.replace(str(folder), "FOLDER").replace(str(PACKAGE), "PACKAGE")
    for pattern, replacement in REPLACED.items():
        line = re.sub(pattern, replacement, line)
    return line
