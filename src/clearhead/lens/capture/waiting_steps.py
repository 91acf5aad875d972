"""WaitingSteps: decoding steps of one attention, collected so that they are measured together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.call import Call
from clearhead.attention.masks import Mask
from clearhead.lens.record.kept_inputs import Step, join_steps

MAX_STEPS = 64
Norms = Callable[[slice], Float[Tensor, "batch heads keys"]]  # of the values, for a slice of keys


class Part(NamedTuple):
    """A call to measure, with the position of its first query and what came with it."""

    call: Call
    first_query: int
    logsumexp: Float[Tensor, "batch heads queries"] | None = None
    norms: Norms | None = None


class _Query(NamedTuple):
    """What remains of a step until it is measured; its keys are a prefix of those of the last step."""

    q: Float[Tensor, "batch heads 1 d"]
    keys: int
    mask: Mask | None
    bias: Bias | None
    logsumexp: Float[Tensor, "batch heads 1"] | None


class WaitingSteps:
    """Steps of one query each, whose keys were appended to those of the step before, at position 0 of the document.

    Only the keys of the last step are held: no keys that a cache has let go.
    """

    def __init__(self) -> None:
        self.queries: list[_Query] = []
        self.last: Part | None = None
        self._version: int | None = None  # of the keys of the last step

    def __len__(self) -> int:
        return len(self.queries)

    def accepts(self, part: Part) -> bool:
        """Whether a step directly follows those that wait, and could be measured with them."""
        last, call = self.last, part.call
        if call.q.shape[2] != 1 or len(self) >= MAX_STEPS:
            return False
        if last is None:
            return True
        follows = call.k.shape[2] == last.call.k.shape[2] + 1 and len(call.q) == len(last.call.q)
        same = call.scale is last.call.scale or (not isinstance(call.scale, Tensor) and call.scale == last.call.scale)
        return follows and same and call.softcap == last.call.softcap and call.sinks is last.call.sinks

    def add(self, part: Part) -> None:
        call = part.call
        self.queries.append(_Query(call.q, call.k.shape[2], call.mask, call.bias, part.logsumexp))
        self.last, self._version = part, _get_version(call.k)

    def has_changed_keys(self) -> bool:
        """Whether somebody wrote to the keys of the last step, which inference tensors do not tell."""
        return self.last is not None and self._version != _get_version(self.last.call.k)

    def take(self) -> list[Part]:
        """The steps as one part, or, where no mask or bias fits all, as one part each; none is left."""
        queries, last = self.queries, self.last
        self.queries, self.last = [], None
        if last is None:
            return []
        end = last.first_query + 1
        steps = [
            Step(end - len(queries) + number, 0, 1, one.keys, one.mask, one.bias) for number, one in enumerate(queries)
        ]
        together = join_steps(steps, len(steps), last.call.k.shape[2], dense=False)
        if together is None:
            return [_cut_keys(last, step, one) for step, one in zip(steps, queries, strict=True)]
        known = [one.logsumexp for one in queries if one.logsumexp is not None]
        whole = last.call._replace(
            q=queries[0].q if len(queries) == 1 else torch.cat([one.q for one in queries], 2),
            mask=together[0],
            bias=together[1],
        )
        return [
            last._replace(
                call=whole,
                first_query=steps[0].first_query,
                logsumexp=torch.cat(known, 2) if len(known) == len(queries) else None,
            )
        ]


def _get_version(tensor: Tensor) -> int | None:
    """How often a tensor was written to in place."""
    return None if tensor.is_inference() else tensor._version


def _cut_keys(last: Part, step: Step, query: _Query) -> Part:
    """One step by itself, with its own keys out of those of the last."""
    call = last.call
    own = call._replace(
        q=query.q, k=call.k[:, :, : step.keys], v=call.v[:, :, : step.keys], mask=step.mask, bias=step.bias
    )
    return last._replace(call=own, first_query=step.first_query, logsumexp=query.logsumexp)
