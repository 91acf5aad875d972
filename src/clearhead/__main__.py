"""python -m clearhead, and torchrun … -m clearhead."""

import os
import sys

from clearhead.cli import main

if __name__ == "__main__":
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # PyTorch's groups of processes outlive destroy_process_group (DDP and FSDP hold on to them). Their threads may
        # ask for the interpreter while it is taken down, and then abort a process whose work is done.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)
