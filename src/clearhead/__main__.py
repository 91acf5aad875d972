"""The program: `clearhead`, `python -m clearhead`, and `torchrun … -m clearhead`."""

import os
import sys


def main() -> int:
    """Runs one command and returns the exit code, also where Ctrl-C comes before the command line is imported."""
    try:
        from clearhead.cli import main as run_command

        code = run_command()
    except KeyboardInterrupt:
        code = 130
        if os.environ.get("RANK", "0") == "0":
            print("clearhead: interrupted", file=sys.stderr, flush=True)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # PyTorch's groups of processes outlive destroy_process_group (DDP and FSDP hold on to them). Their threads may
        # ask for the interpreter while it is taken down, and then abort a process whose work is done.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
