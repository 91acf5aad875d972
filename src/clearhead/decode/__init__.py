"""Decoding: `greedy`, `beam`, `sample` and `stream` turn a model into token sequences, through one `Writer`;
`ctc_greedy`, `ctc_beam_search` and `align_tokens` work on the log-probabilities of frames."""

from clearhead.decode.beam_search import beam
from clearhead.decode.ctc import AlignedToken, JointWriter, align_tokens, ctc_beam_search, ctc_greedy
from clearhead.decode.greedy_search import greedy
from clearhead.decode.sampling import distribution, sample, stream
from clearhead.decode.writer import Hypothesis, Writer

__all__ = [
    "AlignedToken",
    "Hypothesis",
    "JointWriter",
    "Writer",
    "align_tokens",
    "beam",
    "ctc_beam_search",
    "ctc_greedy",
    "distribution",
    "greedy",
    "sample",
    "stream",
]
