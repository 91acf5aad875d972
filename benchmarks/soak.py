"""The property tests with many more examples, each time others; the output is kept."""

from __future__ import annotations

import datetime
import subprocess
import sys

from measuring import RESULTS, hardware

COMMAND = [
    "-m",
    "pytest",
    "-m",
    "not unchecked",
    "tests/attention",
    "--hypothesis-profile=soak",
    "-p",
    "no:cacheprovider",
]


def main() -> int:
    path = RESULTS / f"soak_{datetime.date.today()}.txt"
    with path.open("w", encoding="utf-8") as kept:
        kept.write(f"hardware: {hardware()}\ncommand: python {' '.join(COMMAND)}\n\n")
        kept.flush()
        process = subprocess.Popen(
            [sys.executable, *COMMAND], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            kept.write(line)
    print(f"kept as {path}")
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
