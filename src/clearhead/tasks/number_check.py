"""Number check: which numbers of a text its translation has lost."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

Value = Fraction | int

SMALL = 12  # whole numbers up to this are words in any language: drei, both, a dozen, December
SCALES = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
COMMAS = str.maketrans("，、；", "   ")  # NFKC would make marks between two numbers part of them
AMOUNT = r"\d+(?:[.,]\d+)*"
SCALED = re.compile(rf"(?:{AMOUNT}[{''.join(SCALES)}]+)+|{AMOUNT}\s*(?:{'|'.join(POWERS)})\b", re.IGNORECASE)
SCALED_PART = re.compile(rf"({AMOUNT})\s*([^\d\s]+)")
SPACED = r"(?<![\d.,:])\d{1,3}(?: \d{3})+(?!\d)"  # 1 000 000
NUMBER = re.compile(rf"{SCALED.pattern}|{SPACED}|\d+(?:[.,:]\d+)*", re.IGNORECASE)
THOUSANDS = re.compile(rf"\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|{SPACED}")
GROUPS = re.compile(r"\d+(?:[.,:\-'’\s]\d+)*")  # in whatever way a language parts its digits
DENSE = re.compile(r"\d{1,3}(?:\.\d{3})+|\d{1,3}(?:['’]\d{3})+")  # 1.000.000, 1'000'000
LONGEST = 40  # digits of what can be meant as a quantity; more are compared as they are
NAMED, SHOWN = 5, 20  # numbers that a list names, and marks of each
HALVED = Fraction(1, 2)
HALF, CLOCK = re.compile("half|半"), re.compile(r"o'clock|\bp\.?m\b")

UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ORDINALS = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
WORDS = {word: value for words in (UNITS, ORDINALS) for value, word in enumerate(words.split())}
WORDS |= {f"{word}th": value for value, word in enumerate(UNITS.split()) if value > SMALL}
WORDS |= {word[:-1] + end: 10 * ten for ten, word in enumerate(TENS.split(), 2) for end in ("y", "ieth", "ies")}
HAN = {digit: value for value, digits in enumerate(["〇零", "一", "二两兩", *"三四五六七八九"]) for digit in digits}
HAN_POWERS = {"十": 10, "百": 100, "千": 1000, **SCALES}
HAN_NUMBER = re.compile(f"[{''.join([*HAN, *HAN_POWERS])}]{{1,{LONGEST}}}")


def find_lost_numbers(text: str, translation: str) -> list[str]:
    """The numbers of a text that stand in its translation neither in digits nor in English or Chinese words.

    Whole numbers up to twelve are never missed, since every language has words for them; dates, times, thousands and
    millions may be written in any usual way.

    >>> find_lost_numbers("2024年12月31日23:59，1,000,000人", "On December 31, 2024, 1,00,000 people")
    ['23:59', '1,000,000']
    >>> find_lost_numbers("1000人，25岁，150万，23:59", "1,000 people, twenty-five years old, 1.5 million, 11:59 p.m.")
    []
    """
    text, translation = (unicodedata.normalize("NFKC", one.translate(COMMAS)) for one in (text, translation))
    wanted = dict.fromkeys(NUMBER.findall(text))
    missing = [number for number in wanted if not _contains_number(number, translation)]
    if not missing:
        return []
    there, lower = _find_values(translation), translation.lower()
    return [number for number in missing if len(number) > LONGEST or not _is_written_out(number, lower, there)]


def list_numbers(numbers: Sequence[str]) -> str:
    """The first few numbers as text, each cut after twenty characters.

    >>> list_numbers(["23:59", "31415926535897932384626433"])
    '23:59, 31415926535897932384…'
    """
    named = [number if len(number) <= SHOWN else f"{number[:SHOWN]}…" for number in numbers[:NAMED]]
    return ", ".join(named) + (f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else "")


def _contains_number(number: str, translation: str) -> bool:
    """Whether the translation contains the number in digits, not as part of a longer one."""
    return re.search(rf"(?<!\d)(?<!\d[.,:]){re.escape(number)}(?![.,:]?\d)", translation) is not None


def _is_written_out(number: str, translation: str, there: set[Value]) -> bool:
    if ":" in number:
        return _is_time_written(number, translation, there)
    return any(
        all(_contains_value(value, translation, there) for value in reading) for reading in _list_readings(number)
    )


def _is_time_written(number: str, translation: str, there: set[Value]) -> bool:
    """Whether a time such as 18:30 is there, on a clock of 24 or 12 hours, or its two numbers apart."""
    hour, *rest = (int(part) for part in re.split(r"[.,:]", number))
    if (rest[0] in (15, 45) and "quarter" in translation) or (rest[0] == 30 and HALF.search(translation)):
        return True
    begun = _contains_value(hour, translation, there) or (12 < hour <= 24 and hour - 12 in there)
    return begun and all(_contains_value(part, translation, there) for part in rest)


def _contains_value(value: Value, translation: str, there: set[Value]) -> bool:
    if value in there or (value <= SMALL and value == int(value)):
        return True
    if HALF.search(translation) and (value % 1 == HALVED or 2 * value in there):
        return True
    if 12 < value <= 24 and value - 12 in there and CLOCK.search(translation):
        return True
    if 12 < value < 100:
        return any(1000 <= year < 3000 and year % 100 == value for year in there)  # 98年, 1998
    return 1000 <= value < 3000 and value % 10 == 0 and value % 100 in there  # the 1990s, the nineties


def _list_readings(number: str) -> list[list[Value]]:
    """The possible meanings of a number, each a list of values that must all be in the translation."""
    if SCALED.fullmatch(number):
        return [[_parse_scaled(number)]]
    if THOUSANDS.fullmatch(number):
        return [[_parse_integer(number)]]
    parts: list[Value] = [int(part) for part in re.split(r"[.,]", number)]
    if len(parts) == 1:
        return [parts]
    decimal: list[list[Value]] = [[Fraction(number.replace(",", "."))]] if len(parts) == 2 else []
    if DENSE.fullmatch(number):
        return [*decimal, [int(number.replace(".", ""))]]
    return decimal if decimal and "." in number else [*decimal, parts]  # parts of a date, a version, a list


def _parse_integer(number: str) -> Fraction:
    return Fraction(re.sub("[, ]", "", number))


def _parse_scaled(number: str) -> Fraction:
    """The value of digits with a scale, such as 1亿5000万 or 1.5 million."""
    total = Fraction(0)
    for amount, scale in SCALED_PART.findall(number):
        value = _parse_integer(amount) if THOUSANDS.fullmatch(amount) else Fraction(amount.replace(",", "."))
        for one in [scale.lower()] if scale.lower() in POWERS else scale:
            value *= POWERS.get(one) or SCALES[one]
        total += value
    return total


def _find_values(text: str) -> set[Value]:
    """All values that a text contains, in digits or words."""
    there: set[Value] = {_parse_scaled(number) for number in SCALED.findall(text) if len(number) <= LONGEST}
    for group in filter(lambda group: len(group) <= LONGEST, GROUPS.findall(text)):
        parts = re.split(r"\D", group)
        if THOUSANDS.fullmatch(group):
            there.add(_parse_integer(group))
            if " " in group:
                there.update(map(int, parts))
            continue
        if len(parts) == 2 and group[len(parts[0])] in ".,":
            there.add(Fraction(".".join(parts)))
        there.add(int("".join(parts)))
        if not DENSE.fullmatch(group) and not (len(parts) == 2 and "." in group):
            there.update(map(int, parts))
    there |= _find_english(text)
    there |= {_parse_chinese(number) for number in HAN_NUMBER.findall(text)}
    return there


def _find_english(text: str) -> set[Value]:
    """The values of English number words, such as two hundred and fifty thousand."""
    there: set[Value] = set()
    total = current = 0
    counting = False
    for word in [*re.findall(r"[a-z]+|[^a-z\s-]", text.lower()), ""]:
        singular = word.removesuffix("s") if word not in WORDS else word
        if word in WORDS:
            pair = WORDS[word] >= 10 and 10 <= current < 100  # nineteen ninety-seven
            current, counting = current * (100 if pair else 1) + WORDS[word], True
        elif singular in ("hundred", "hundredth"):
            current, counting = (current or 1) * 100, True
        elif singular.removesuffix("th") in POWERS:
            total += (current or 1) * POWERS[singular.removesuffix("th")]
            current, counting = 0, True
        elif counting and word != "and":
            there.add(total + current)
            total, current, counting = 0, 0, False
    return there


def _parse_chinese(number: str) -> int:
    if all(digit in HAN for digit in number):
        return int("".join(str(HAN[digit]) for digit in number))
    total = section = digit = 0
    largest = 0
    for mark in number:
        power = HAN_POWERS.get(mark, 0)
        if not power:
            digit = HAN[mark]
        elif power < 10**4:
            section, digit = section + (digit or 1) * power, 0
        elif power > largest:  # 二万亿
            total, section, digit, largest = (total + section + digit or 1) * power, 0, 0, power
        else:
            total, section, digit = total + (section + digit) * power, 0, 0
    return total + section + digit
