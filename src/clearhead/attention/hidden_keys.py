"""HiddenKeys: the positions of a text that no query sees while `clearhead.hide` is entered."""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.attention.masks import Mask, as_mask
from clearhead.errors import LensError


class HiddenKeys:
    """Positions of a text that no query sees: those from its start in a tensor, the others as numbers and slices.

    Negative numbers and edges count from the end of the text in its first pass: tokens that a cache adds later do not
    move them. A slice without end goes on as the text grows.

    >>> hidden = HiddenKeys("tokens", torch.tensor([1]), (-2, slice(6, None)))
    >>> hidden.find(torch.arange(8), end=5).int()
    tensor([0, 1, 0, 1, 0, 0, 1, 1], dtype=torch.int32)
    """

    def __init__(self, text: str, positions: Int[Tensor, " positions"], others: tuple[int | slice, ...] = ()) -> None:
        self.text, self.positions, self.others = text, positions, others
        self.reached = 0  # the most keys that any pass had; compiled ones do not count

    def find(self, places: Int[Tensor, " keys"], end: int) -> Bool[Tensor, " keys"]:
        """Which of the keys at these places are hidden, in a text that had `end` tokens in its first pass."""
        hidden = torch.isin(places, self.positions)
        for position in self.others:
            if isinstance(position, int):
                if end + position < 0:
                    raise LensError(f"there is no token {position} of {self.text!r}, which has {end}")
                position = slice(end + position, end + position + 1)
            edges = (position.start or 0, position.stop)
            start, stop = (edge if edge is None or edge >= 0 else max(0, end + edge) for edge in edges)
            hides = (places >= start) & ((places - start) % (position.step or 1) == 0)
            hidden = hidden | (hides if stop is None else hides & (places < stop))
        return hidden


def hide_keys(mask: Mask | None, hidden: tuple[HiddenKeys, ...], keys: int, end: int) -> Mask:
    """The mask without these keys; `end` is how many tokens the text had in its first pass.

    >>> print(hide_keys(Mask.causal(), (HiddenKeys("tokens", torch.tensor([9]), (-2,)),), keys=3, end=3))
    ■··
    ■··
    ■·■
    """
    places = torch.arange(keys, device=hidden[0].positions.device)
    if not torch.compiler.is_compiling():
        for text in hidden:
            text.reached = max(text.reached, keys)
    visible = ~reduce(torch.logical_or, [text.find(places, end) for text in hidden])
    rest = Mask.visible(visible.view(1, 1, 1, -1))
    return rest if mask is None else as_mask(mask) & rest
