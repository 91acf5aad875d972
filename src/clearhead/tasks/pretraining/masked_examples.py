"""Documents cut into windows of tokens with hidden words, which are drawn anew for each epoch, on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.pretraining.pretraining_settings import Masking
from clearhead.tasks.processor import BatchT, RedrawnExamples
from clearhead.tasks.segmentation import SEAMS
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch, Ragged
from clearhead.text.pieces import encode_words

INSIDE, BEGINS, SPECIAL = 0, 1, 2  # roles of tokens: inside a word, its first, or start or end of the text
SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "...", "…")
FEWEST_CHARACTERS = (8, 8, 30, 90)  # of a part that is compared with its neighbours; which it is varies with the text
EMPTY = "without a text"
BYTES_END = 259  # the first number of our own vocabularies that is neither special nor a byte


class TextWindow(NamedTuple):
    """Tokens of a document that are read together, the role of each, and the row that they come from."""

    tokens: list[int]
    roles: list[int]
    row: int


def cut_windows(starts: NDArray[np.bool_], longest: int) -> list[tuple[int, int]]:
    """Begin and end of windows of at most `longest` tokens and about equal length, cut where words begin.

    A word of more tokens than a window is cut wherever the window ends.

    >>> cut_windows(np.array([True, True, False, True, True]), 4)
    [(0, 3), (3, 5)]
    """
    total = len(starts)
    size = -(-total // max(1, -(-total // longest)))
    windows, begin = [], 0
    while begin < total:
        end = min(begin + size, total)
        cut = next((edge for edge in range(end, begin, -1) if edge == total or starts[edge]), end)
        windows.append((begin, cut))
        begin = cut
    return windows


def make_text_windows(
    rows: Iterable[Row], tokenizer: Tokenizer, longest: int, report: Report, *, sentences: bool = False
) -> tuple[list[TextWindow], list[Row]]:
    """The windows of all documents, and the rows that were used; the report says which were empty or cut.

    With `sentences` no window has tokens of two sentences, but for very short ones.
    """
    rows = list(rows)
    windows: list[TextWindow] = []
    used: list[Row] = []
    parts = [list_sentences(row.values[0]) if sentences else [row.values[0]] for row in rows]
    encoded = iter(encode_words(tokenizer, list(chain(*parts))))
    for row, texts in zip(rows, parts, strict=True):
        words = [text for text in islice(encoded, len(texts)) if len(text.tokens)]
        if not report.admit(row, None if words else EMPTY):
            continue
        for text in words:
            places = cut_windows(text.starts, longest)
            if len(places) > 1:
                report.remark(f"longer than {longest} tokens (read in parts)")
            for begin, end in places:
                roles = text.starts[begin:end].astype(np.int64)
                roles[0] = BEGINS  # also of a word that was cut
                windows.append(TextWindow(text.tokens[begin:end].tolist(), roles.tolist(), len(used)))
        used.append(row)
    report.refuse_empty("text")
    return windows, used


def list_sentences(text: str) -> list[str]:
    """The parts of a text that are compared with their neighbours: sentences, in some texts several together.

    Line breaks end sentences, too. A text of one sentence is cut at the clause that ends nearest to its middle.

    >>> list_sentences("好。我们今天去看电影。\\n你来吗？我在门口等你吧。")
    ['好。我们今天去看电影。', '你来吗？我在门口等你吧。']
    >>> list_sentences("老家拆迁，父母把钱都给了哥嫂")
    ['老家拆迁，', '父母把钱都给了哥嫂']
    """
    fewest = FEWEST_CHARACTERS[len(text) % len(FEWEST_CHARACTERS)]
    parts, gathered = list[str](), ""
    for piece in chain.from_iterable(SEAMS[0].split(line) for line in text.splitlines()):
        gathered += piece
        if len(gathered.strip()) >= fewest:
            parts.append(gathered)
            gathered = ""
    if gathered.strip() or not parts:
        parts.append(gathered)
    if len(parts) > 1:
        return parts
    ends = [seam.end() for seam in SEAMS[1].finditer(parts[0])]
    middle = min(ends, key=lambda end: abs(2 * end - len(parts[0])), default=0)
    return [part for part in (parts[0][:middle], parts[0][middle:]) if part]


def find_neighbours(origins: Sequence[int]) -> NDArray[np.int64]:
    """For each window the next one of its document, or the one before the last; a single one is its own neighbour.

    >>> find_neighbours([0, 0, 0, 1]).tolist()
    [1, 2, 1, 3]
    """
    documents, places = np.array(origins), np.arange(len(origins))
    has_next, has_previous = np.zeros(len(places), bool), np.zeros(len(places), bool)
    has_next[:-1] = has_previous[1:] = documents[1:] == documents[:-1]
    return np.where(has_next, places + 1, places - (has_previous & ~has_next))


def find_sentences(windows: Sequence[TextWindow], tokenizer: Tokenizer) -> list[list[int]]:
    """For each token of each window 1 if it begins a sentence, else 0.

    A sentence ends with a piece that is an end mark; a digit after it, as in 3.14, belongs to the same sentence.
    """
    pieces = [(tokenizer.engine.id_to_token(number) or "").strip() for number in range(tokenizer.size)]
    ends = {number for number, piece in enumerate(pieces) if piece in SENTENCE_ENDS}
    digits = {number for number, piece in enumerate(pieces) if piece.isdigit() or piece in SENTENCE_ENDS}
    flags = []
    for tokens, roles, _ in windows:
        steps = zip(tokens, tokens[1:], roles[1:], strict=False)
        flags.append(
            [1, *(int(last in ends and token not in digits and role == BEGINS) for last, token, role in steps)]
        )
    return flags


class MaskedTexts(NamedTuple):
    """A batch: tokens, some of them masked; the places of those to predict, and what they were (−100: no place)."""

    tokens: Tensor
    lengths: Tensor
    places: Tensor
    labels: Tensor


def make_generator(device: torch.device, *numbers: int) -> torch.Generator:
    """A random generator on a device, seeded by these numbers together."""
    state = np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)
    return torch.Generator(device=device).manual_seed(int(state[0] >> np.uint64(1)))


def count_masked(lengths: Int[Tensor, " rows"], share: float) -> Int[Tensor, " rows"]:
    """How many tokens of texts of these lengths are masked at most: the share, rounded, and at least one.

    >>> count_masked(torch.tensor([2, 10, 100]), 0.15)
    tensor([ 1,  2, 15])
    """
    return (lengths * share).round().long().clamp(min=1)


def choose_words(
    roles: Int[Tensor, " tokens"],
    rows: Int[Tensor, " tokens"],
    limits: Int[Tensor, " rows"],
    generator: torch.Generator,
) -> Bool[Tensor, " tokens"]:
    """Chooses random whole words of each row, as many as have at most `limits[row]` tokens together.

    `roles` says which tokens begin a word; `rows`, which ascends, says which row a token is of. A row with a single
    long word has all of it chosen, whatever the limit; a row without words has nothing chosen.
    """
    words = (roles != INSIDE).cumsum(0) - 1  # of each token
    firsts = (roles != INSIDE).nonzero()[:, 0]
    sizes = torch.zeros_like(firsts).index_add_(0, words, torch.ones_like(words))
    ordinary = (roles[firsts] == BEGINS).nonzero()[:, 0]  # without start and end
    row, size = rows[firsts[ordinary]], sizes[ordinary]
    keys = torch.rand(len(ordinary), generator=generator, device=roles.device, dtype=torch.float64)
    order = (row + keys).argsort()  # by rows, in random order within each
    row, size = row[order], size[order]
    total = size.cumsum(0)
    begins = torch.ones_like(row, dtype=torch.bool)
    begins[1:] = row[1:] != row[:-1]
    before = (total - size)[begins]  # tokens in all rows before each row
    within = total - before[begins.cumsum(0) - 1] if len(row) else total
    taken = torch.zeros(len(firsts), dtype=torch.bool, device=roles.device)
    taken[ordinary[order]] = (within <= limits[row]) | begins
    return taken[words]


class WindowExamples(RedrawnExamples[BatchT]):
    """Base class: windows of documents, of which a subclass hides words, with the end after each."""

    begins = 0  # 1: with the start before each, too

    def __init__(
        self,
        windows: Sequence[TextWindow],
        rows: list[Row],
        tokenizer: Tokenizer,
        masking: Masking,
        seed: int,
    ) -> None:
        begin = [tokenizer.start][: self.begins]
        self.texts = Ragged([[*begin, *window.tokens, tokenizer.end] for window in windows])
        self.roles = Ragged([[*(SPECIAL for _ in begin), *window.roles, SPECIAL] for window in windows])
        self.rows, self.origins = rows, [window.row for window in windows]
        self.pad, self.masking, self.seed = tokenizer.pad, masking, seed
        self.mask = tokenizer.pad if tokenizer.mask is None else tokenizer.mask

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {self.roles.fingerprint()}"


class MaskedExamples(WindowExamples[MaskedTexts]):
    """Windows of documents; `draw` masks random words of all of them."""

    on_device: ClassVar[tuple[str, ...]] = ("texts", "roles", "inputs", "is_masked", "masked")

    begins = 1

    def __init__(
        self, windows: Sequence[TextWindow], rows: list[Row], tokenizer: Tokenizer, masking: Masking, seed: int
    ) -> None:
        super().__init__(windows, rows, tokenizer, masking, seed)
        ours = "special" not in tokenizer.settings  # then no special token and no byte replaces a word
        last = tokenizer.size - (ours and tokenizer.mask is not None)
        self.replacements = (BYTES_END if ours and last > BYTES_END else 0, last)
        self.lengths = self.texts.lengths.numpy()[:, None]
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Masks words of all texts; which depends on the seed and the epoch alone.

        A chosen token becomes the mask token, a random one, or stays as it is, as the shares in `[masking]` say.
        """
        masking, lengths, tokens = self.masking, self.texts.lengths, self.texts.flat[:-1]
        generator = make_generator(tokens.device, self.seed, epoch)
        row = torch.arange(len(lengths), device=tokens.device).repeat_interleave(lengths)
        limits = count_masked(lengths - 2, masking.share)
        masked = choose_words(self.roles.flat[:-1], row, limits, generator)
        chance = torch.rand(len(tokens), generator=generator, device=tokens.device)
        others = torch.randint(*self.replacements, tokens.shape, generator=generator, device=tokens.device)
        hidden = torch.where(chance < masking.random, others.to(tokens.dtype), tokens)
        hidden = hidden.masked_fill(chance >= masking.random + masking.kept, self.mask)
        self.inputs = Ragged.from_flat(torch.where(masked, hidden, tokens), lengths)
        self.is_masked = Ragged.from_flat(masked.to(torch.int8), lengths)
        count = torch.zeros_like(lengths).index_add_(0, row, masked.long())
        self.masked, self.epoch = count.minimum(limits), epoch
        self.counts = self.masked.cpu().numpy()

    def log_frequencies(self, vocabulary: int) -> Float[Tensor, " vocabulary"]:
        """The logarithm of how often each token comes in the texts, less its mean; one that never comes counts ½."""
        counts = torch.bincount(self.texts.flat[:-1].long(), minlength=vocabulary).double().clamp(min=0.5)
        logs = counts.log()
        return (logs - logs.mean()).float()

    def collate(self, batch: Batch) -> MaskedTexts:
        device, size = self.texts.flat.device, batch.sizes[0]
        rows = torch.from_numpy(batch.examples).to(device, non_blocking=True)
        texts, lengths = self.texts.pad(rows, size, self.pad)
        tokens, _ = self.inputs.pad(rows, size, self.pad)
        is_masked, _ = self.is_masked.pad(rows, size, 0)
        most = int(count_masked(torch.tensor([size - 2]), self.masking.share))  # one for each size: few shapes
        places = is_masked.sort(dim=1, descending=True, stable=True).indices[:, :most]
        counted = torch.arange(most, device=device) < self.masked[rows][:, None]
        return MaskedTexts(tokens, lengths, places, texts.gather(1, places).masked_fill(~counted, UNCOUNTED))


class NeighbouringTexts(NamedTuple):
    """A batch of masked sentences as in MaskedTexts, the sentence beside each, whole, and the numbers of both."""

    tokens: Tensor
    lengths: Tensor
    places: Tensor
    labels: Tensor
    other_tokens: Tensor
    other_lengths: Tensor
    numbers: Tensor
    other_numbers: Tensor


class NeighbouringExamples(MaskedExamples):
    """Masked sentences, each with the one beside it in its document, or with itself where there is none."""

    on_device = (*MaskedExamples.on_device, "others")

    def __init__(
        self, windows: Sequence[TextWindow], rows: list[Row], tokenizer: Tokenizer, masking: Masking, seed: int
    ) -> None:
        super().__init__(windows, rows, tokenizer, masking, seed)
        neighbours = find_neighbours(self.origins or [])
        self.others = torch.from_numpy(neighbours)
        self.lengths = np.hstack([self.lengths, self.lengths[neighbours]])

    def collate(self, batch: Batch) -> NeighbouringTexts:  # type: ignore[override]  # a larger batch
        rows = torch.from_numpy(batch.examples).to(self.others.device, non_blocking=True)
        others = self.others[rows]
        return NeighbouringTexts(
            *super().collate(batch), *self.texts.pad(others, batch.sizes[1], self.pad), rows, others
        )
