"""The JSON that a page gets about a record: every key, documented once; `Scene.to_json` makes it.

The weights themselves are not in it: the page asks the server for them, or finds them encoded in its own file
(`data`, see `page_file.py`). `None` stands for a number that is not known.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from clearhead.lens.record.call_metadata import MarkedPart, TokenChance


class AxisExtras(TypedDict, total=False):
    """Optional fields of `AxisJson`."""

    reads: str  # of tokens that a decoder writes: the axis of the tokens that it reads at these places
    unknown: bool  # the tokens are only positions
    grid: list[int]  # rows and columns of patches or frames
    picture: str  # a data: URL
    file: str  # the name of the picture or sound
    seconds: float  # of a sound: what the picture of its spectrogram covers
    step: float  # seconds from one token of a sound to the next
    start: float  # seconds in the recording at which the first token of a sound begins
    spikes: list[list[int | str | float]]  # of CTC: position, text, probability


class AxisJson(AxisExtras):
    """The tokens along one side of a map."""

    kind: str  # "text", "image" or "audio"
    tokens: list[str]  # as the tokenizer spells them
    shown: list[str]  # as they are displayed
    glued: list[bool]  # whether a token continues the word before it
    special: list[bool]  # start, end, padding


class HeadJson(TypedDict):
    """One head: its role, and means over all queries that see anything."""

    number: int
    role: str  # a key of ROLES, "alignment", "none of these", or "no numbers" if weights are NaN or infinite
    score: float | None  # in that role, from 0 to 1
    entropy: float | None  # nats
    most_entropy: float | None  # nats: of even weights on all keys that a query sees
    distance: float | None  # tokens
    sink: float | None  # weight on the first visible token
    peak: float | None  # largest weight
    whole: bool  # whether the weights of a row add up to 1: no sinks of the model take some
    effect: float | None  # how much the loss grows without this head
    exact: NotRequired[bool]  # whether every weight can be had


class AttentionJson(TypedDict):
    """One attention of the model."""

    name: str  # "decoder.0.cross"
    part: str  # "decoder"
    layer: int
    kind: str  # "self" or "cross"
    queries: str  # the name of an axis
    keys: str
    counts: list[int]  # queries, keys
    blocks: list[int]  # queries and keys in a pixel of the map that comes first
    pixel: list[int] | None  # in a pixel of the recorded map, which may be finer; None without one
    estimated: bool  # whether only every n-th query was measured
    first: list[int]  # the positions of the first query and key
    visible: list[list[list[int]]] | None  # how many keys each query sees, as runs [first, step, length], of each head
    seen_by: list[list[list[int]]] | None  # how many queries see each key; of one head where all heads agree
    heads: list[HeadJson]


class OutputJson(TypedDict):
    """What the model wrote."""

    text: str
    parts: list[MarkedPart]  # the text with its entities or labels marked; empty if it has none
    axis: str  # of the tokens that were written; empty if the model writes labels instead of tokens
    shift: int  # 0 if row i of the axis is the i-th token written, 1 if it is the token read before
    next: list[list[TokenChance] | None] | None  # at each place, the most probable tokens
    chances: list[float | None] | None  # the probability of each token written, by its place
    ranks: list[int | None] | None  # how many tokens are more probable than that
    prompt: int  # how many tokens of a language model's text are its prompt
    loss: float | None  # nats a token
    given: bool  # whether the user gave the text


class ChangeJson(TypedDict):
    """What the model answers without a head; see `AnswerChange`."""

    text: str | None
    loss: list[float | None]
    next: list[list[TokenChance] | None]
    sampled: bool


class StartJson(TypedDict):
    """The head that is shown first."""

    name: str
    head: int


class NoteJson(TypedDict, total=False):
    """A note: the key of a phrase in `page/words/`, and the values of its placeholders."""

    say: str  # the key of the phrase
    pixels: int
    chosen: int  # heads
    held: int  # views that the file contains
    views: int  # views that the record has


class BlockJson(TypedDict, total=False):
    """How the numbers of one block in a file are encoded; `page/data/tensor_decoding.js` decodes them."""

    id: str  # of the script element
    coding: str  # "base64" or "seven"
    shape: list[int]
    heads: list[int]  # the heads that it has, if not all
    type: str  # "float32"; missing for integers
    planes: int  # bytes of an integer, each in a plane of its own
    pack: str  # "nibbles": two integers to a byte, instead of planes
    rest: int  # number of integers that do not fit into a nibble
    odd: bool  # whether the integers after the last level stand for NaN, infinity and minus infinity
    levels: int  # the integer that stands for 1, or for the head's value in `scale`
    scale: list[float]  # of each head the value that `levels` stands for


class SceneJson(TypedDict):
    """Everything that a page shows of one view of a record, except the weights."""

    format: int
    title: str
    notes: list[str | NoteJson]
    live: bool  # whether a model can be asked for new texts and ablations
    takes: str  # what such a model reads: "text", "picture" or "sound"
    exact: bool  # whether every weight of every head can be had
    axes: dict[str, AxisJson]
    output: OutputJson | None
    attentions: list[AttentionJson]
    without: dict[str, dict[str, ChangeJson]] | None  # by attention and head: the answer without that head
    start: StartJson
    views: list[str]  # labels of all views of the record
    view: int  # which of them this is
    limits: NotRequired[list[int] | None]  # of a live model: characters and tokens of a new text
    continues: NotRequired[bool]  # whether a live model can go on from another token
    data: NotRequired[dict[str, dict[str, BlockJson]]]  # of a file: by attention and kind, such as "weights"
