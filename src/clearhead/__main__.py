"""python -m clearhead, and torchrun … -m clearhead."""

import sys

from clearhead.cli import main

if __name__ == "__main__":
    sys.exit(main())
