"""PackedExamples: documents as the rows of `PackedDocuments`, for the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch
from clearhead.text.packed_documents import PackedDocuments, PackedRows

if TYPE_CHECKING:
    from clearhead.text import Row


class PackedExamples(Examples[PackedRows]):
    """Examples of which each is a packed row; `rows` are the documents. All rows are equally long."""

    def __init__(self, packed: PackedDocuments, rows: Sequence[Row]) -> None:
        self.packed, self.rows, self.epoch = packed, rows, 0
        self.lengths = np.full((packed.rows, 1), packed.context, dtype=np.int64)
        self.counts = packed.counts

    def collate(self, batch: Batch) -> PackedRows:
        return self.packed.gather(torch.from_numpy(batch.examples))

    def draw_cuts(self, epoch: int) -> None:
        """Cuts long documents at the places of this epoch."""
        self.packed.draw_cuts(epoch)
        self.epoch, self.counts = epoch, self.packed.counts

    def to(self, device: torch.device) -> PackedExamples:
        self.packed.to(device)
        return self

    def fingerprint(self) -> str:
        return self.packed.fingerprint()

    def state(self) -> dict[str, Tensor]:
        return {"epoch": torch.tensor(self.epoch)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.draw_cuts(int(state["epoch"]))

    def where(self, example: int) -> str:
        return self.rows[self.packed.first_document(example)].where
