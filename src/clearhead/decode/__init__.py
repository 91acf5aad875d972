"""TOKENS FROM A MODEL: greedy, beam, sampling, one function each, over a Writer that hides the kind of model."""

from clearhead.decode.following import greedy
from clearhead.decode.hypotheses import Hypothesis
from clearhead.decode.sampling import distribution, sample
from clearhead.decode.searching import beam
from clearhead.decode.streaming import stream
from clearhead.decode.writer import Writer

__all__ = ["Hypothesis", "Writer", "beam", "distribution", "greedy", "sample", "stream"]
