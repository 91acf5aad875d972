"""Ctrl-C while the program starts: one line, exit code 130, no traceback."""

import subprocess
import sys

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
        ("module", "typer"),
        ("script", "torch"),
        ("module", "numpy"),  # PyTorch imports it in C++, where a KeyboardInterrupt is swallowed
        ("script", "clearhead.predictor"),
    ],
)
def test_an_interruption_while_something_is_imported_is_one_line(start: str, module: str) -> None:
    code = INTERRUPTED + STARTS[start]
    done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "clearhead: interrupted\n")
