"""CTC: the best path and the best texts of a sound, the frames of known tokens (forced alignment), joint decoding.

A path has one label for each frame. It spells the tokens that are left after equal neighbours are merged and blanks are
removed (Graves et al., 2006). Joint decoding adds the scores of an attention decoder, token by token (Watanabe et al.
2017): `(1 − weight) · log P_attention + weight · log P_ctc`. While a text is being written, P_ctc is that of all texts
that begin like it: the CTC prefix score. A search with a `JointWriter` needs no other change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.writer import Hypothesis, Writer
from clearhead.errors import DecodeError
from clearhead.model import SpeechModel

LEAST = -1e4  # stands for a log-probability of −inf: sums and differences of it stay finite


class AlignedToken(NamedTuple):
    """A token and its frames: from `begin` up to, without, `end`."""

    token: int
    begin: int
    end: int


def collapse_path(path: Sequence[int], blank: int = 0) -> list[int]:
    """The tokens that a path spells: equal neighbours merged, blanks removed.

    >>> collapse_path([0, 3, 3, 0, 3, 5])
    [3, 3, 5]
    """
    return [label for label, _ in groupby(path) if label != blank]


def ctc_greedy(log_probs: Float[Tensor, "frames vocabulary"], *, blank: int = 0) -> Hypothesis:
    """The tokens of the most probable path of one sound, with the log-probability of that path.

    >>> ctc_greedy(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]]).log()).tokens
    [1, 1]
    """
    best, labels = log_probs.double().max(-1)
    total = float(best.sum())
    if math.isnan(total):
        raise DecodeError("log-probabilities are NaN")
    tokens = collapse_path(labels.tolist(), blank)
    return Hypothesis(tokens, total / (len(tokens) + 1), total, True)


def ctc_beam_search(
    log_probs: Float[Tensor, "frames vocabulary"], *, beams: int, best: int = 1, blank: int = 0
) -> list[Hypothesis]:
    """The `best` most probable texts of one sound, best first, of a search that keeps `beams` prefixes at each frame.

    A prefix counts with all kept paths that spell it, and only the `2 · beams` most probable tokens of a frame extend
    it. With enough beams the sums are exact.

    >>> frames = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()  # the best path is blank, blank
    >>> round(math.exp(ctc_beam_search(frames, beams=2)[0].log_probability), 2), ctc_greedy(frames).tokens
    (0.64, [])
    """
    frames = log_probs.detach().cpu().double()
    if frames.isnan().any():
        raise DecodeError("log-probabilities are NaN")
    tokens = frames.index_fill(1, torch.tensor(blank), -math.inf).topk(min(2 * beams, frames.shape[1] - 1)).indices
    # The log-probability of each prefix's paths that end with a blank, and of those that end with its last token.
    prefixes: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    for frame, candidates in zip(frames.tolist(), tokens.tolist(), strict=True):
        grown = {
            prefix: (_add_logs(*ends) + frame[blank], ends[1] + frame[prefix[-1]] if prefix else -math.inf)
            for prefix, ends in prefixes.items()
        }
        for prefix, ends in prefixes.items():
            for token in candidates:
                before = ends[0] if prefix[-1:] == (token,) else _add_logs(*ends)  # after itself only behind a blank
                after_blank, after_token = grown.get((*prefix, token), (-math.inf, -math.inf))
                grown[*prefix, token] = (after_blank, _add_logs(after_token, before + frame[token]))
        ranked = sorted(grown.items(), key=lambda pair: -_add_logs(*pair[1]))[:beams]
        prefixes = {prefix: ends for prefix, ends in ranked if max(ends) > -math.inf}
    totals = [(list(prefix), _add_logs(*ends)) for prefix, ends in prefixes.items()]
    return [Hypothesis(text, total / (len(text) + 1), total, True) for text, total in totals[:best]]


def _add_logs(one: float, other: float) -> float:
    """log(exp(one) + exp(other))"""
    most = max(one, other)
    return most if most == -math.inf else most + math.log1p(math.exp(min(one, other) - most))


def align_tokens(
    log_probs: Float[Tensor, "frames vocabulary"], tokens: Sequence[int], *, blank: int = 0
) -> list[AlignedToken]:
    """Where each of `tokens` stands in the most probable path of all that spell them.

    Frames between two tokens belong to neither: they are blanks. Of equally probable paths, that which goes on to the
    next token earliest is taken.

    >>> frames = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.7, 0.3]]).log()
    >>> align_tokens(frames, [1])
    [AlignedToken(token=1, begin=1, end=3)]
    """
    frames, vocabulary = log_probs.shape
    wrong = [token for token in (blank, *tokens) if not 0 <= token < vocabulary] + [t for t in tokens if t == blank]
    if wrong:
        raise DecodeError(
            f"label {wrong[0]} cannot be aligned; tokens lie below {vocabulary} and are not the blank {blank}"
        )
    repeats = sum(token == following for token, following in pairwise(tokens))
    if frames < len(tokens) + repeats:
        raise DecodeError(
            f"{len(tokens)} tokens, {repeats} of them like the one before, need {len(tokens) + repeats} frames; "
            f"there are {frames}"
        )
    if not tokens:
        return []
    states = torch.full((2 * len(tokens) + 1,), blank)
    states[1::2] = torch.tensor(list(tokens))
    emissions = log_probs.detach().cpu().double()[:, states]
    if emissions.isnan().any():
        raise DecodeError("log-probabilities are NaN")
    path = _best_path(emissions, states, blank)
    frames_of_tokens = [(path == 2 * number + 1).nonzero()[:, 0].tolist() for number in range(len(tokens))]
    return [AlignedToken(token, of[0], of[-1] + 1) for token, of in zip(tokens, frames_of_tokens, strict=True)]


def _best_path(
    emissions: Float[Tensor, "frames states"], states: Int[Tensor, " states"], blank: int
) -> Int[Tensor, " frames"]:
    """The state of each frame in the most probable path (Viterbi).

    States are a blank before, between and after the tokens. A path stays, goes to the next state, or skips a blank
    between two different tokens.
    """
    frames, count = emissions.shape
    may_skip = torch.zeros(count, dtype=torch.bool)
    may_skip[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
    score = torch.full((count,), -torch.inf, dtype=torch.float64)
    score[:2] = emissions[0, :2]
    moves = torch.zeros(frames, count, dtype=torch.long)
    for frame in range(1, frames):
        step = torch.nn.functional.pad(score[:-1], (1, 0), value=-torch.inf)
        skip = torch.nn.functional.pad(score[:-2], (2, 0), value=-torch.inf).masked_fill(~may_skip, -torch.inf)
        # Of equal ways in, staying comes first: argmax alone does not say which it takes.
        best = torch.maximum(score, torch.maximum(step, skip))
        moves[frame] = torch.where(score == best, 0, torch.where(step == best, 1, 2))
        score = best + emissions[frame]
    state = count - 1 if score[-1] > score[-2] else count - 2
    if score[state] == -torch.inf:
        raise DecodeError("the sequence has probability zero, so no alignment is better than another")
    path = torch.zeros(frames, dtype=torch.long)
    for frame in range(frames - 1, -1, -1):
        path[frame] = state
        state -= int(moves[frame, state])
    return path


class CtcPrefixes:
    """The CTC probabilities of prefixes, equally many for each sound, which grow by a token at a time.

    `token[s, t]` is the log-probability that the first t frames spell prefix s and end with its last token, `blank[s,
    t]` that they end with a blank; t runs from 0, where nothing has been read. A row of `log_probs` is a sound; after
    its length only blanks follow, so that all sounds end together.

    >>> frames = torch.tensor([[[0.6, 0.4], [0.5, 0.5]]]).log()
    >>> prefixes = CtcPrefixes(frames, torch.tensor([2]), blank=0, end=0)
    >>> prefixes.next_scores().exp()  # that the text ends here (blank, blank), or goes on with token 1
    tensor([[0.3000, 0.7000]], dtype=torch.float64)
    """

    def __init__(
        self,
        log_probs: Float[Tensor, "rows frames vocabulary"],
        lengths: Int[Tensor, " rows"],
        *,
        blank: int,
        end: int,
    ) -> None:
        self.blank_label, self.end = blank, end
        inside = torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None]
        frames = log_probs.double().clamp(min=LEAST).masked_fill(~inside[..., None], LEAST)
        frames[..., blank] = frames[..., blank].masked_fill(~inside, 0.0)
        self.frames = frames
        self.row = torch.arange(len(frames), device=frames.device)  # of each prefix
        self.last = torch.full_like(self.row, blank)
        first = frames.new_zeros(len(frames), 1)
        self.blank = torch.cat([first, frames[..., blank].cumsum(1)], dim=1)
        self.token = torch.full_like(self.blank, LEAST * (frames.shape[1] + 1))
        self.total = first[:, 0]  # log-probability of all texts that begin with the prefix

    def next_scores(self) -> Float[Tensor, "prefixes vocabulary"]:
        """The log-probability of every next token, given the prefix; in the column `end` that the text ends here.

        A token's is the sum over the frames at which it can come first: one product of matrices for all tokens.
        """
        both = torch.logaddexp(self.blank, self.token)
        frames = self.frames.exp()
        scores = _log_matmul(both[:, :-1].unflatten(0, (len(frames), -1)), frames).flatten(0, 1)
        # The last token comes again only after a blank.
        column = frames[self.row, :, self.last][..., None]
        again = _log_matmul(self.blank[:, None, :-1], column)[:, 0]
        scores.scatter_(1, self.last[:, None], again)
        scores[:, self.blank_label] = -torch.inf
        scores[:, self.end] = both[:, -1]
        return scores - self.total[:, None]

    def append(self, tokens: Int[Tensor, " prefixes"]) -> None:
        """Makes every prefix longer by its token. After the end token a prefix means nothing any more."""
        both = torch.logaddexp(self.blank, self.token)
        same = (tokens == self.last)[:, None]
        before = torch.where(same, self.blank, both)[:, :-1]
        emitted = self.frames[self.row, :, tokens]
        nothing = torch.full_like(self.total[:, None], LEAST * (self.frames.shape[1] + 1))
        token = torch.cat([nothing, _accumulate(before, emitted)], dim=1)
        pauses = self.frames[self.row, :, self.blank_label]
        blank = torch.cat([nothing, _accumulate(token[:, :-1], pauses)], dim=1)
        self.total = torch.logsumexp(before + emitted, dim=1)
        self.token, self.blank, self.last = token, blank, tokens

    def select(self, prefixes: Int[Tensor, " prefixes"], kept_rows: Int[Tensor, " rows"] | None) -> None:
        """Keeps these prefixes, those of each sound together; with `kept_rows`, only these sounds, in this order."""
        row = self.row[prefixes]
        if kept_rows is not None:
            new_row = torch.full((len(self.frames),), -1, device=row.device)
            new_row[kept_rows] = torch.arange(len(kept_rows), device=row.device)
            self.frames, row = self.frames[kept_rows], new_row[row]
        self.row, self.last, self.total = row, self.last[prefixes], self.total[prefixes]
        self.token, self.blank = self.token[prefixes], self.blank[prefixes]


class JointWriter(Writer):
    """A Writer of a SpeechModel whose scores are those of its decoder and of CTC, mixed with `weight` for CTC.

    What `begin` and `advance` give are parts of a sum of log-probabilities, not logits: they are not normalised.
    """

    def __init__(
        self,
        model: SpeechModel,
        context: Float[Tensor, "rows positions width"],
        lengths: Int[Tensor, " rows"],
        *,
        weight: float,  # from 0, the decoder alone, to 1, CTC alone
        blank: int,
        end: int,
    ) -> None:
        super().__init__(model, [[]] * len(context), context=context, context_lengths=lengths)
        self.normalised = weight > 0
        self.weight, self.blank, self.end = weight, blank, end
        self._log_probs = model.ctc_log_probs(context) if weight else None
        self._position_lengths = lengths

    def begin(self, start: int | None) -> Float[Tensor, "rows vocabulary"]:
        logits = super().begin(start)
        if self._log_probs is None:
            return logits
        self._prefixes = CtcPrefixes(self._log_probs, self._position_lengths, blank=self.blank, end=self.end)
        return self._mix(logits)

    def advance(self, tokens: Int[Tensor, " samples"]) -> Float[Tensor, "samples vocabulary"]:
        logits = super().advance(tokens)
        if self._log_probs is None:
            return logits
        self._prefixes.append(tokens)
        return self._mix(logits)

    def select_beams(self, parents: Int[Tensor, "rows beams"], kept_rows: Int[Tensor, " rows"] | None = None) -> None:
        super().select_beams(parents, kept_rows)
        if self._log_probs is not None:
            self._prefixes.select(parents.flatten(), kept_rows)

    def _mix(self, logits: Tensor) -> Tensor:
        ctc = self._prefixes.next_scores()
        mixed = (1 - self.weight) * logits.double().log_softmax(-1) + self.weight * ctc
        return mixed.nan_to_num(nan=-torch.inf).to(logits.dtype)


def _accumulate(
    before: Float[Tensor, "prefixes frames"], emitted: Float[Tensor, "prefixes frames"]
) -> Float[Tensor, "prefixes frames"]:
    """Solves x[t] = (x[t − 1] + before[t]) · emitted[t] in logarithms, for all frames at once."""
    sums = emitted.cumsum(1)
    return (before - (sums - emitted)).logcumsumexp(1) + sums


def _log_matmul(
    logs: Float[Tensor, "*rows prefixes frames"], factors: Float[Tensor, "*rows frames columns"]
) -> Float[Tensor, "*rows prefixes columns"]:
    """log(exp(logs) @ factors), scaled so that nothing overflows."""
    largest = logs.amax(-1, keepdim=True)
    return ((logs - largest).exp() @ factors).log() + largest
