"""Transcripts by CTC alone, without the decoder: greedily, or by a beam search over prefixes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.decode import Hypothesis, ctc_beam_search, ctc_greedy
from clearhead.decode.ctc import CtcHypothesis
from clearhead.tasks.sequence_to_sequence.search import Search


def search_ctc(log_probs: Float[Tensor, "positions vocabulary"], search: Search, blank: int) -> list[Hypothesis]:
    """The best texts by CTC alone: greedily with one beam."""
    if search.beams == 1:
        found: list[CtcHypothesis] = ctc_greedy(log_probs[None], torch.tensor([len(log_probs)]), blank=blank)
    else:
        most = min(search.beams * 2, log_probs.shape[1] - 1)
        found = ctc_beam_search(log_probs, beams=max(search.beams, 2), best=search.best, blank=blank, candidates=most)
    return [Hypothesis(one.tokens, one.score / (len(one.tokens) + 1), one.score, True) for one in found]
