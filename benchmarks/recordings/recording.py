"""Jobs that fill a recording, each in a process of one thread, and the commands `record` and `compare`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from recordings.commands import PACKAGE
from recordings.comparison import Exemption, make_report

Items = Iterator[tuple[str, Any]]  # the name and the value of each item
FILE = "recorded.json"
# The lens's loop for CPUs gives other last digits in the process that compiles it than when it comes from the cache.
COMPILE_LOOP = "import clearhead, torch; x = torch.zeros(1, 1, 2, 8); clearhead.measure(x, x, backend='compiled')"
VERSIONS = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "matplotlib", "scikit-learn", "sacrebleu")


class Job(NamedTuple):
    """A function from the recording's folder, and arguments, to items."""

    name: str
    function: Callable[..., Items]
    arguments: tuple[Any, ...] = ()
    stage: int = 1  # jobs of a stage begin when all of the stages before it are done; stage 0 is always run


class Recorder(NamedTuple):
    """What one script records, and what it lets the code that compares read from an old recording."""

    title: str
    jobs: Sequence[Job]
    readings: Sequence[Job]  # get the old recording's folder before their arguments, and give parts of items again


def main(recorder: Recorder, description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="record what the code computes, into a new folder")
    record.add_argument("folder", type=Path)
    compare = commands.add_parser("compare", help="compare two recordings; exit code 1 if they differ")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    exempt = {"nargs": 2, "action": "append", "default": [], "metavar": ("PATTERN", "REASON")}
    compare.add_argument("--except", dest="exemptions", help="places that may differ, with the reason", **exempt)
    for one in (record, compare):
        one.add_argument("--only", default="*", metavar="PATTERN", help="only the jobs of these names, such as tagging")
        one.add_argument("--processes", type=int, default=2, help="how many run at a time (2)")
    given = parser.parse_args()
    if given.command == "record":
        return _record(recorder, given.folder.resolve(), given.only, given.processes)
    exemptions = [Exemption(*pair) for pair in given.exemptions]
    return _compare(recorder, given.before.resolve(), given.after.resolve(), exemptions, given.only, given.processes)


def _record(recorder: Recorder, folder: Path, only: str, processes: int) -> int:
    folder.mkdir(parents=True)
    jobs = [job for job in recorder.jobs if fnmatchcase(job.name, only) or job.stage == 0]
    results, failed = run_jobs(jobs, folder, processes)
    content = {"about": describe_environment(), "jobs": results, "failed": failed}
    (folder / FILE).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"wrote {folder / FILE}")
    return _report_failures(failed)


def _report_failures(failed: Sequence[str]) -> int:
    """The exit code, after a line if jobs failed."""
    if failed:
        print(f"these jobs FAILED, and only what they recorded before can be compared: {', '.join(failed)}")
    return 1 if failed else 0


def run_jobs(jobs: Sequence[Job], folder: Path, processes: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The items of each job, and the names of the jobs that failed."""
    results: dict[str, dict[str, Any]] = {}
    failed = list[str]()
    subprocess.run([sys.executable, "-c", COMPILE_LOOP], capture_output=True)  # fails where there is no numba
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        for stage in sorted({job.stage for job in jobs}):
            waiting = {pool.submit(_run_job, job, folder): job.name for job in jobs if job.stage == stage}
            for done in as_completed(waiting):
                name = waiting[done]
                results[name], time_taken, error = done.result()
                print(f"{name}: {time_taken}{error and ', FAILED'}", error, sep="\n" if error else "", flush=True)
                failed += [name] if error else []
    return {job.name: results[job.name] for job in jobs}, failed


def _run_job(job: Job, folder: Path) -> tuple[dict[str, Any], str, str]:
    """The items of a job, those before its error included; how long it took; the traceback of the error."""
    items: dict[str, Any] = {}
    error, begin = "", os.times()
    try:
        for name, value in job.function(folder, *job.arguments):
            items[name] = value
    except Exception as problem:
        items[f"{job.name}: failed"] = f"{type(problem).__name__}: {problem}"
        error = traceback.format_exc()
    passed = [after - before for after, before in zip(os.times(), begin, strict=True)]
    return items, f"{passed[4]:.0f} s, {sum(passed[:4]):.0f} s of computing", error


def describe_environment() -> dict[str, str]:
    """What numbers may depend on beside the code, and which code it was."""
    asked = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    known = {"commit": commit or "unknown", "date": str(date.today()), "processor": _find_processor()}
    return known | {"Python": platform.python_version()} | {name: version(name) for name in VERSIONS}


def _find_processor() -> str:
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _compare(
    recorder: Recorder, before: Path, after: Path, exemptions: Sequence[Exemption], only: str, processes: int
) -> int:
    old, new = (json.loads((folder / FILE).read_text(encoding="utf-8")) for folder in (before, after))
    pairs = {}
    for job in dict.fromkeys([*old["jobs"], *new["jobs"]]):
        if fnmatchcase(job, only):
            was, now = old["jobs"].get(job, {}), new["jobs"].get(job, {})
            names = dict.fromkeys([*was, *now])
            pairs |= {name: (was.get(name, "not recorded"), now.get(name, "not recorded")) for name in names}
    read_again, failed = _read_old_files(recorder, before, after, only, processes)
    known = {name: item for items in old["jobs"].values() for name, item in items.items()}
    for place, again in read_again.items():
        name, _, part = place.partition("/")
        pairs[f"{place}, from old files"] = (known[name][part] if part else known[name], again)
    about = [f"- {key}: {_describe_change(old['about'], new['about'], key)}" for key in new["about"]]
    lines, count = make_report(recorder.title, about, pairs, exemptions)
    text = "\n".join(lines)
    print(text)
    (after / "comparison.md").write_text(text, encoding="utf-8")
    changed = [key for key in new["about"] if key not in ("commit", "date") and old["about"][key] != new["about"][key]]
    if changed:
        print(f"another {', '.join(changed)} may be the reason: record both on one machine with one installation")
    print(f"{count} differences; wrote {after / 'comparison.md'}")
    return _report_failures([*old["failed"], *new["failed"], *failed]) or min(count, 1)


def _read_old_files(
    recorder: Recorder, before: Path, after: Path, only: str, processes: int
) -> tuple[dict[str, Any], list[str]]:
    """What this code makes of the files of an old recording: items, or parts of them such as "tag: predict/default"."""
    scratch = after / "readings"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    jobs = [job for job in recorder.readings if fnmatchcase(job.name, only)]
    results, failed = run_jobs([job._replace(arguments=(before, *job.arguments)) for job in jobs], scratch, processes)
    return {name: item for items in results.values() for name, item in items.items()}, failed


def _describe_change(old: dict[str, str], new: dict[str, str], key: str) -> str:
    return new[key] if old[key] == new[key] and key != "commit" else f"{old[key]}, then {new[key]}"
