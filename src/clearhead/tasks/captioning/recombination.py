"""Recombination: new captions out of known ones, by words that stand in the same place of other captions.

From "man cook", "woman cook" and "man pilot" follows that "man" and "woman" are exchanged, and so "woman pilot".
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

Words = tuple[str, ...]
EXCHANGED = 2  # captions in which two words are exchanged, if none of the similar captions has the other word
INSERTED = 3  # captions to which a word is added, for it to be added elsewhere


class Recombination:
    """Which words are exchanged, added and left out in some captions.

    >>> exchange = Recombination(["man cook", "woman cook", "man pilot", "man chef", "woman chef"])
    >>> exchange.find_new(["man pilot"])
    ['woman pilot']
    """

    def __init__(self, captions: Iterable[str]) -> None:
        self.known = frozenset(captions)
        fillers = defaultdict[tuple[Words, Words], set[str]](set)  # of a caption with a gap
        for caption in sorted(self.known):
            words = split_words(caption)
            for place in range(len(words)):
                fillers[words[:place], words[place + 1 :]].add(words[place])
            for place in range(len(words) + 1):
                fillers[words[:place], words[place:]].add("")
        counts = Counter[tuple[str, str]]()
        for (before, after), words_there in fillers.items():
            if before or after:
                counts.update(itertools.permutations(sorted(words_there), 2))
        self.others = defaultdict[str, list[tuple[str, int]]](list)
        for (word, other), count in counts.items():
            self.others[word].append((other, count))

    def find_new(self, similar: Sequence[str]) -> list[str]:
        """Captions that differ from a similar one in one word and are not known, those of the first one first.

        The word is exchanged for one that is exchanged for it elsewhere, or for any word of the similar captions.
        """
        near = list(dict.fromkeys(word for caption in similar for word in split_words(caption)))
        added = [word for word, count in self.others[""] if count >= INSERTED]
        found = dict[str, None]()
        for words in map(split_words, similar):
            for place, word in enumerate(words):
                fitting = [other for other, count in self.others[word] if count >= EXCHANGED or other in near]
                for other in [*fitting, *(one for one in near if one not in words)]:
                    found[join_words((*words[:place], *filter(None, [other]), *words[place + 1 :]))] = None
            for place in range(len(words) + 1):
                for word in added:
                    found[join_words((*words[:place], word, *words[place:]))] = None
        return [caption for caption in found if caption and caption not in self.known]


def split_words(caption: str) -> Words:
    """Words and signs.

    >>> split_words("family: man, boy")
    ('family', ':', 'man', ',', 'boy')
    """
    return tuple(re.findall(r"[\w’'.-]+|[^\w\s]", caption))


def join_words(words: Words) -> str:
    """The caption of words and signs, with spaces before words.

    >>> join_words(("family", ":", "man", ",", "boy"))
    'family: man, boy'
    """
    return re.sub(r" ([:,!?)])", r"\1", " ".join(words))
