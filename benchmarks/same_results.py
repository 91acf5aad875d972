"""Whether a change of the code changed any result: records what clearhead computes, and compares two recordings.

    python benchmarks/same_results.py record before      # at the old commit
    python benchmarks/same_results.py record after       # at the new one
    python benchmarks/same_results.py compare before after --except '*/notes/*' 'the words of notes were changed'

A recording holds, exactly:

- training, a few steps of every tiny recipe and of runs with other settings (several labels, pairs, spans, other
  objectives, weights of other models, adapters): losses, heads, every file of the run's folder and every tensor of its
  model and newest checkpoint, whether an interruption changed anything, and more steps after a resume;
- answers of these models and of the shipped ones, with scores: beams, sampling, several answers, streams, evaluations;
- looks: every measure of every attention, the record's file, the data in a page, and the figures; what the page's
  server answers, also without heads and words, and how the model goes on from another token;
- help texts, and the message for each of many mistakes.

`compare` also lets the code that runs it read the first recording: its models answer, its records are loaded, its runs
are given more steps. It prints each difference with its place and both values, and its exit code is 1 if there is one
that no --except names.

All jobs use one thread each. Only public names and the command line are used, so one script serves both commits:
PYTHONPATH chooses the checkout. What differs from run to run is left out by name: LEFT_OUT_FILES and LEFT_OUT_KEYS in
recordings/values.py, LEFT_OUT_LINES and REPLACED in recordings/commands.py.
"""

from __future__ import annotations

import sys

from recordings.recording import Recorder, main
from recordings.result_jobs import JOBS, READINGS

if __name__ == "__main__":
    sys.exit(main(Recorder("Same results before and after", JOBS, READINGS), __doc__))
