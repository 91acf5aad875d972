"""Whether a change of the code changed any number of the lens: records what it measures, and compares two recordings.

    python benchmarks/same_lens.py record before       # at the old commit
    python benchmarks/same_lens.py record after        # at the new one
    python benchmarks/same_lens.py compare before after

A recording holds, by digest and with some of their values:

- all measures, exact windows, statistics and tables of nine Hugging Face families: padded on either side, all options
  of `watch`, generation greedy, with beams and sampled; ablation, hidden tokens, effects of heads, roles and rollout;
- the same of our own models of many shapes, with caches, beams and samples, and their outputs;
- single attentions with every mask and option, by `measure` and by `attend`;
- a record's file, its tables and the data in its page.

`compare` also loads the record of the first recording. Both commands, and what `--except` and `--only` do, are those of
same_results.py. Looks at trained models of all tasks are recorded there.
"""

from __future__ import annotations

import sys

from recordings.lens_jobs import JOBS, READINGS
from recordings.recording import Recorder, main

if __name__ == "__main__":
    sys.exit(main(Recorder("Same numbers of the lens before and after", JOBS, READINGS), __doc__))
