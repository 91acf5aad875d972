"""Head monitor: measures all attention heads on a few examples during training, cheap enough to leave on.

Three things go wrong with heads: their entropy collapses (all weight on one word, and training becomes unstable, Zhai
2023), they attend only to the first word (a sink, Xiao 2023), or they add nothing to the output (Michel 2019). In a
decoder without an encoder it also measures which heads attend to the previous token and which have become induction
heads (Olsson 2022); head_plots.py draws all of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.attention import MultiHeadAttention, Seen
from clearhead.attention.call import check_call
from clearhead.lens import measure
from clearhead.lens.analysis.repeated_tokens import MIN_VISIBLE, PASSAGE, draw_repeated_tokens, score_repeated_tokens
from clearhead.lens.attention_names import find_attentions
from clearhead.lens.capture.output_projection import make_value_norms
from clearhead.lens.measures.visible_keys import count_visible_keys
from clearhead.model import Decoder, Model
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch
from clearhead.text.packed_documents import PackedRows
from clearhead.train.processes import Processes

EXAMPLES = 8  # in the batch that heads are measured on
EVERY, SHARE = 100, 0.02  # steps between measurements, unless they took more than this share of the time
COLLAPSED, SUNK, DEAD = 0.02, 0.95, 0.01  # below, above and below which a head is called so
FAINT = 0.001  # dead, too, is what adds less, however little the other heads of its layer add


Observer = Callable[[Seen], None]


class HeadState(NamedTuple):
    """The measures of one attention, one number per head."""

    entropy: list[float]  # as a share of the maximum: 1 is uniform attention, 0 attention to one key
    sink: list[float]  # the mass on the first visible key
    strength: list[float]  # Σ w·‖v W_O‖, what it can add to the output, against the mean of its layer's heads
    added: list[float]  # the same for one query, against √width: the length of a vector that a norm lets out
    # Only of a decoder alone, on repeated random tokens:
    previous: list[float] | None = None  # weight on the token before
    induction: list[float] | None = None  # weight on the token that followed the same token before

    def measured(self) -> dict[str, list[float]]:
        """The measures by name, without those that were not taken."""
        return {name: values for name, values in self._asdict().items() if values is not None}

    def count_problems(self) -> dict[str, int]:
        """How many heads have collapsed, attend only to the first key (sunk), or add nothing (dead)."""
        return {
            "collapsed": sum(value < COLLAPSED for value in self.entropy),
            "sunk": sum(value > SUNK for value in self.sink),
            "dead": sum(
                share < DEAD or length < FAINT for share, length in zip(self.strength, self.added, strict=True)
            ),
        }


def choose_equal_lengths(lengths: NDArray[np.int64], count: int = EXAMPLES) -> Batch:
    """A batch of examples of equal lengths, so that it has no padding; close to the mean length, if there are enough.

    >>> choose_equal_lengths(np.array([[3, 4], [9, 7], [3, 4], [8, 8]]), 2)
    Batch(examples=array([0, 2]), sizes=(3, 4))
    """
    kinds, which, often = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
    enough = np.minimum(often, count)
    unusual = np.abs(kinds.sum(1) - lengths.sum(1).mean())
    best = np.lexsort((unusual, -enough))[0]
    examples = np.flatnonzero(which.reshape(-1) == best)[:count]
    return Batch(examples, tuple(int(size) for size in kinds[best]))


@torch.no_grad()
def measure_heads(model: Model, forward: Callable[[], Any]) -> dict[str, HeadState]:
    """Measures every head in one forward pass over a batch without padding."""
    attentions, states = find_attentions(model), dict[str, HeadState]()
    with ExitStack() as stack:
        for name, attention in attentions.items():
            stack.callback(setattr, attention, "observer", attention.observer)
            attention.observer = partial(_observe, states, name, attention, attention.observer)
        # Eager: the layers are compiled for training, without observers.
        with torch.compiler.set_stance("force_eager"):
            forward()
    return {name: states[name] for name in attentions}


def _observe(
    states: dict[str, HeadState], name: str, attention: MultiHeadAttention, before: Observer | None, seen: Seen
) -> None:
    """Adds the state of one attention; an observer from `before` still gets the call."""
    if before is not None:
        before(seen)
    q, k, v, mask, *_ = seen
    options: Any = {"scale": seen.scale, "bias": seen.bias, "softcap": seen.softcap, "sinks": seen.sinks}
    measures = measure(q, k, mask, **options, pixels=0, top=0, logsumexp=seen.logsumexp)
    assert measures.received is not None
    norms = make_value_norms(attention.to_out, q.shape[1], name)(v)
    call = check_call(q, k, v, mask, **options)
    visible = count_visible_keys(call, range(q.shape[2])).cpu().expand(len(q), -1, -1)
    most = visible.double().clamp(min=1).log().sum((0, 2)).clamp(min=1e-9)
    entropy = measures.entropy.cpu().double().sum((0, 2)) / most
    strength = (measures.received.cpu() * norms.cpu()).double().sum((0, 2))
    relative = strength / strength.mean().clamp(min=1e-30)
    queries = max(1, q.shape[0] * q.shape[2])
    added = strength / queries / math.sqrt(attention.to_out.weight.shape[0])
    sink = measures.first.cpu().double().mean((0, 2))
    states[name] = HeadState(entropy.tolist(), sink.tolist(), relative.tolist(), added.tolist())


class HeadMonitor:
    """Measures all heads on one fixed batch; by default as often as a small share of the training time allows.

    The heads of a decoder without an encoder are also measured on repeated random tokens, drawn with `seed`.
    """

    def __init__(self, examples: Examples[Any], every: int | None, processes: Processes, seed: int = 0) -> None:
        self.every, self.processes, self.seed = every, processes, seed
        self.probe: Tensor | None = None  # repeated random tokens, from the first measurement on
        self.batch = examples.collate(choose_equal_lengths(examples.lengths))
        self.started, self.durations = time.monotonic(), list[float]()

    def is_due(self, step: int) -> bool:
        """Whether to measure after this step; without `every`, only while measurements are cheap."""
        if step % (self.every or EVERY):
            return False
        counted = self.durations[1:]  # the first one includes compilation
        expensive = sum(counted + counted[-1:]) > SHARE * (time.monotonic() - self.started)
        return self.every is not None or not self.processes.agree(float(expensive))

    def measure(self, model: Model, forward: Callable[[Any], Any]) -> dict[str, HeadState]:
        """Measures the heads while `forward` runs the model on the batch."""
        started = time.monotonic()
        model.eval()
        heads = measure_heads(model, lambda: forward(self.batch))
        if isinstance(model, Decoder) and isinstance(self.batch, PackedRows):
            heads = self._add_roles(model, heads, self.batch.tokens)
        model.train()
        self.durations.append(time.monotonic() - started)
        return heads

    def _add_roles(self, model: Model, heads: dict[str, HeadState], tokens: Tensor) -> dict[str, HeadState]:
        """The states with `previous` and `induction`, measured on the probe."""
        if self.probe is None:
            # Only tokens of the data: one that no text needs, such as a rare byte, has learned nothing.
            numbers = tokens.unique().tolist()
            size = min(PASSAGE, len(numbers), tokens.shape[1] // 2)
            if size < MIN_VISIBLE:
                return heads
            chance = torch.Generator().manual_seed(self.seed)
            self.probe = draw_repeated_tokens(numbers, size, chance=chance).to(tokens.device)
        with torch.compiler.set_stance("force_eager"):
            scores = score_repeated_tokens(model, self.probe)
        roles = ("previous", "induction")
        return {name: state._replace(**{role: scores[name][role] for role in roles}) for name, state in heads.items()}
