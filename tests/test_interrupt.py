"""Ctrl-C while the program starts: one line, exit code 130, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STARTS = {  # as the installed script does it, and as python -m clearhead does
    "script": "from clearhead.__main__ import main; sys.exit(main())",
    "module": "import runpy; runpy.run_module('clearhead', run_name='__main__')",
}
INTERRUPTED = """
import os, signal, sys

class Interrupter:
    '''Sends this process a Ctrl-C when a module is about to be imported.'''

    def find_spec(self, name, *_):
        if name == sys.argv[-1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
module = sys.argv.pop()
sys.argv = ["clearhead", "predict", "zh-en", "人工智能", "--device", "cpu", module]
"""


@pytest.mark.parametrize(
    ("start", "module"),
    [
        ("script", "clearhead.cli"),
        ("module", "numpy"),  # PyTorch imports it in C++, where a KeyboardInterrupt is swallowed
        ("script", "clearhead.predictor"),
    ],
)
def test_an_interruption_while_something_is_imported_is_one_line(start: str, module: str) -> None:
    code = INTERRUPTED + STARTS[start]
    done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "clearhead: interrupted\n")


def test_tests_that_are_started_in_the_background_of_a_shell_can_be_interrupted() -> None:
    code = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    command, environment = 'trap \'\' INT; exec "$0" -c "$1"', {**os.environ, "CLEARHEAD_CHECK_SHAPES": "0"}
    shell = ["sh", "-c", command, sys.executable, code]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=Path(__file__).parents[1], env=environment)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
