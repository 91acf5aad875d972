"""Decoding: `greedy`, `beam`, `sample` and `stream` turn a model into token sequences, through one `Writer`."""

from clearhead.decode.beam_search import beam
from clearhead.decode.greedy_search import greedy
from clearhead.decode.hypotheses import Hypothesis
from clearhead.decode.sampling import distribution, sample
from clearhead.decode.streaming import stream
from clearhead.decode.writer import Writer

__all__ = ["Hypothesis", "Writer", "beam", "distribution", "greedy", "sample", "stream"]
