"""KeptInputs: the q, k, masks and biases of one attention, from which its weights can be computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.biases import Dense as DenseBias
from clearhead.attention.call import Call
from clearhead.attention.mask_kinds import Band, Both, Padding
from clearhead.attention.mask_kinds import Dense as DenseMask
from clearhead.attention.masks import Mask

MaskAndBias = tuple[Mask | None, Bias | None]


class Step(NamedTuple):
    """The queries and keys of one step, by document position, with their mask and bias."""

    first_query: int
    first_key: int
    queries: int
    keys: int
    mask: Mask | None
    bias: Bias | None
    present: Bool[Tensor, " samples"] | None = None  # which samples had not finished; None: all

    @property
    def rows(self) -> range:
        return range(self.first_query, self.first_query + self.queries)

    @property
    def shift(self) -> int:
        """The position of the first query relative to the first key."""
        return self.first_query - self.first_key


@dataclass(frozen=True)
class KeptInputs:
    """The inputs of an attention, on the CPU. Row 0 of q is the query at `first_query`, key 0 stands at position 0.

    An attention that grew has one part for each step, unless all of them follow one rule.
    """

    q: Float[Tensor, "batch heads queries d"]
    k: Float[Tensor, "batch kv_heads keys d"]
    scale: float | Float[Tensor, "#heads 1 1"]
    softcap: float | None
    sinks: Float[Tensor, " heads"] | None
    parts: tuple[Step, ...]
    lengths: Int[Tensor, " batch"]  # how many queries each sample has: fewer, where it was done before the others
    logsumexp: Float[Tensor, "batch heads queries"] | None = None  # None where only some queries were measured

    @property
    def first_query(self) -> int:
        return self.parts[0].first_query if self.parts else 0

    def call(self) -> Call:
        """All steps as one Call."""
        mask, bias = join_steps(self.parts, self.q.shape[2], self.k.shape[2])
        return Call(self.q, self.k, self.k, mask, self.scale, bias, self.softcap, self.sinks, 0.0)


@overload
def join_steps(parts: Sequence[Step], queries: int, keys: int) -> MaskAndBias: ...
@overload
def join_steps(parts: Sequence[Step], queries: int, keys: int, *, dense: Literal[False]) -> MaskAndBias | None: ...
def join_steps(parts: Sequence[Step], queries: int, keys: int, *, dense: bool = True) -> MaskAndBias | None:
    """One mask and one bias for all queries and keys; dense ones, or None, where no structured mask fits all steps."""
    if len(parts) == 1 and parts[0].first_key == 0 and parts[0].keys == keys:
        return parts[0].mask, parts[0].bias
    mask, bias = _find_common_mask(parts, queries, keys), _find_common_bias(parts)
    if not dense:
        return None if mask is False or bias is False else (mask, bias)
    if mask is False:
        everything = torch.ones(1, 1, 1, 1).bool()
        seen = (everything if part.mask is None else part.mask.dense(part.queries, part.keys) for part in parts)
        mask = DenseMask(_stack_steps(parts, seen, keys))
    if bias is False:
        nothing = torch.zeros(1, 1, 1, 1)
        numbers = (nothing if part.bias is None else part.bias.dense(part.queries, part.keys) for part in parts)
        bias = DenseBias(_stack_steps(parts, numbers, keys))
    return mask, bias


def _find_common_mask(parts: Sequence[Step], queries: int, keys: int) -> Mask | Literal[False] | None:
    """The structured mask that holds for all steps, or False."""
    rules = [_to_document_positions(part) for part in parts]
    if any(rule is None or rules[0] is None or len(rule) != len(rules[0]) for rule in rules):
        return False
    first, kinds = parts[0].first_query, []
    for same in zip(*(rule or [] for rule in rules), strict=True):
        rule = _find_common_rule(same, [part.present for part in parts])
        if rule is None:
            return False
        kinds.append(_extend_rule(rule, first, keys))
    hiding = any(isinstance(kind, Padding) and kind.hide_queries for kind in kinds)
    if (hiding and keys != first + queries) or not all(_hides_absent_keys(part, kinds, keys) for part in parts):
        return False
    return None if not kinds else kinds[0] if len(kinds) == 1 else Both(tuple(kinds))


def _to_document_positions(part: Step) -> list[Mask] | None:
    """The masks of a step in document positions; None if one has no such form."""
    rules: list[Mask] = []
    end = part.first_key + part.keys
    for mask in () if part.mask is None else part.mask.parts():
        if isinstance(mask, Band) and mask.start(part.queries, part.keys) == part.shift:
            rules.append(Band(mask.left, mask.right, 0))
        elif isinstance(mask, Padding) and not (mask.hide_queries and part.keys - part.queries != part.shift):
            # Of padding on the left, for now: how many pads there are.
            lengths = end - mask.lengths if mask.side == "left" else mask.lengths + part.first_key
            rules.append(Padding(lengths, mask.side, mask.hide_queries))
        else:
            return None
    if not rules and part.queries == 1 and part.shift == part.keys - 1:
        return [Band(None, 0, 0)]  # one query that sees all there is: the last one of a causal mask
    return rules


def _find_common_rule(rules: Sequence[Mask], present: Sequence[Tensor | None]) -> Mask | None:
    """The mask that these have in common, or None; finished samples are ignored."""
    first, numbers, is_known = rules[0], None, None  # is_known: whether a step so far had this sample
    for rule, there in zip(rules, present, strict=True):
        if _rule_key(rule) != _rule_key(first):
            return None
        for tensor in rule.tensors():
            there = torch.ones_like(tensor, dtype=torch.bool) if there is None else there
            new, there = torch.broadcast_tensors(tensor, there)
            if numbers is None or is_known is None:
                numbers, is_known = new, there
            elif not bool(((numbers == new) | ~is_known | ~there).all()):
                return None
            else:
                numbers, is_known = torch.where(there, new, numbers), is_known | there
    return first if numbers is None else first.map(lambda _: numbers)


def _rule_key(rule: Mask) -> dict[str, object]:
    """The kind of a mask and all its fields except tensors."""
    return {name: value for name, value in (rule.state() or {}).items() if not isinstance(value, Tensor)}


def _extend_rule(rule: Mask, first: int, keys: int) -> Mask:
    if isinstance(rule, Band):
        return Band(rule.left, rule.right, first)
    if isinstance(rule, Padding) and rule.side == "left":
        return Padding(keys - rule.lengths, "left", rule.hide_queries)
    return rule


def _hides_absent_keys(part: Step, rules: Sequence[Mask], keys: int) -> bool:
    """Whether the common masks hide all keys that did not exist at this step."""
    bands = [rule for rule in rules if isinstance(rule, Band)]
    last, end = part.first_query + part.queries - 1, part.first_key + part.keys
    above = end == keys or any(band.right is not None and last + band.right < end for band in bands)
    below = part.first_key == 0 or any(
        band.left is not None and part.first_query - band.left >= part.first_key for band in bands
    )
    return above and below


def _find_common_bias(parts: Sequence[Step]) -> Bias | Literal[False] | None:
    """The bias that all steps share, or False."""
    first = parts[0].bias
    if first is None:
        return None if all(part.bias is None for part in parts) else False
    if not all(_is_same_bias(part, first) for part in parts):
        return False
    whole = first.replace(first.parameter)
    whole.offset = parts[0].first_query
    return whole


def _is_same_bias(part: Step, first: Bias) -> bool:
    """Whether the bias of a step is this one, a rule that depends on the distance between document positions."""
    bias = part.bias
    if bias is None or type(bias) is not type(first) or isinstance(bias, DenseBias):
        return False
    start = part.keys - part.queries if bias.offset is None else bias.offset
    same = start == part.shift and getattr(bias, "buckets", None) is getattr(first, "buckets", None)
    return same and torch.equal(bias.parameter, first.parameter)


def _stack_steps(parts: Sequence[Step], squares: Iterable[Tensor], keys: int) -> Tensor:
    """The squares of all steps, with 0 or False for keys that did not exist at a step."""
    padded = []
    for part, square in zip(parts, squares, strict=True):
        square = square.expand(*square.shape[:2], part.queries, part.keys)
        padded.append(torch.nn.functional.pad(square, (part.first_key, keys - part.first_key - part.keys)))
    batch, heads = (max(square.shape[axis] for square in padded) for axis in (0, 1))
    return torch.cat([square.expand(batch, heads, -1, -1) for square in padded], 2)
