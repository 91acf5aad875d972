"""Made-up pairs in which something is carried over as it is: numbers, dates, names, addresses, identifiers.

Each blank of `templates.tsv`, such as {date}, is filled alike on both sides, mostly with words of `fillers.toml`.
A 2 at the end of its name makes it another one of the same kind.
"""

from __future__ import annotations

import re
import tomllib
from calendar import month_name
from collections.abc import Callable
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
Pair = tuple[str, str]  # Chinese, English
WORDS = {
    kind: words.split() for kind, words in tomllib.loads((HERE / "fillers.toml").read_text(encoding="utf-8")).items()
}
NUMERALS = "〇一二三四五六七八九"


def same(text: str) -> Pair:
    return text, text


def number(random: Random) -> Pair:
    return same(str(random.randrange(2, 10 ** random.randint(1, 4) + 2)))


def small(random: Random) -> Pair:
    return same(str(random.randint(2, 99)))


def decimal(random: Random) -> Pair:
    return same(f"{random.randrange(1000)}.{random.randrange(1, 10 ** random.randint(1, 3))}")


def big(random: Random) -> Pair:
    """Chinese counts in ten thousands (万) and hundred millions (亿), English in thousands, millions and billions."""
    count = random.randint(1, 99)
    forms = [
        (f"{count}万", f"{count * 10_000:,}"),
        (f"{count}00万", f"{count} million"),
        (f"{count / 10:g}亿", f"{count * 10} million"),
        (f"{count}0亿", f"{count} billion"),
    ]
    return random.choice(forms)


def year(random: Random) -> Pair:
    value = str(random.randint(1850, 2035))
    return random.choice([f"{value}年", "".join(NUMERALS[int(digit)] for digit in value) + "年"]), value


def day(random: Random) -> Pair:
    month, date = random.randint(1, 12), random.randint(1, 28)
    return f"{month}月{date}{random.choice('日号')}", f"{month_name[month]} {date}"


def date(random: Random) -> Pair:
    chinese, english = day(random)
    value = random.randint(1850, 2035)
    return f"{value}年{chinese}", f"{english}, {value}"


def time(random: Random) -> Pair:
    minute = random.randrange(0, 60, 5)
    if random.random() < 0.3:
        return same(f"{random.randint(0, 23)}:{minute:02}")
    parts = [
        ("早上", range(5, 10), "AM"),
        ("上午", range(8, 12), "AM"),
        ("下午", range(1, 7), "PM"),
        ("晚上", range(7, 12), "PM"),
    ]
    part, hours, half = random.choice(parts)
    hour, minutes = random.choice(hours), {0: "", 30: "半"}.get(minute, f"{minute}分")
    return f"{part}{hour}点{minutes}", f"{hour}:{minute:02} {half}"


def price(random: Random) -> Pair:
    amount = random.choice([str(random.randint(2, 9999)), f"{random.randint(1, 99)}.{random.randint(1, 9)}"])
    forms = [
        (f"{amount}元", f"{amount} yuan"),
        (f"{amount}块", f"{amount} yuan"),
        (f"¥{amount}", f"¥{amount}"),
        (f"{amount}美元", f"${amount}"),
        (f"${amount}", f"${amount}"),
        (f"{amount}欧元", f"{amount} euros"),
        (f"{amount}日元", f"{amount} yen"),
        (f"{amount}英镑", f"£{amount}"),
    ]
    return random.choice(forms)


def percent(random: Random) -> Pair:
    value = random.choice([str(random.randint(1, 100)), f"{random.randint(0, 99)}.{random.randint(1, 9)}"])
    return random.choice([f"{value}%", f"百分之{value}"]), f"{value}%"


def length(random: Random) -> Pair:
    units = [("公里", "kilometers"), ("米", "meters"), ("英里", "miles"), ("厘米", "centimeters")]
    value, (chinese, english) = random.randint(2, 2000), random.choice(units)
    return f"{value}{chinese}", f"{value} {english}"


def name(random: Random) -> Pair:
    first = random.choice(WORDS["names"])
    return same(first if random.random() < 0.5 else f"{first} {random.choice(WORDS['families'])}")


def chinese(random: Random) -> Pair:
    surname, read = random.choice(WORDS["surnames"]).split(":")
    given = [character.split(":") for character in random.sample(WORDS["given"], random.choice([1, 2, 2]))]
    syllables = "".join(syllable for _, syllable in given)
    return surname + "".join(character for character, _ in given), f"{read} {syllables.capitalize()}"


def software(random: Random) -> Pair:
    return same(random.choice(WORDS["software"]))


def company(random: Random) -> Pair:
    return same(random.choice(WORDS["companies"]))


def site(random: Random) -> Pair:
    return same(random.choice(WORDS["sites"]))


def word(random: Random) -> Pair:
    return same(random.choice([*WORDS["software"], *WORDS["companies"], *WORDS["sites"], *WORDS["others"]]))


def version(random: Random) -> Pair:
    return same(".".join(str(random.randint(0, 20)) for _ in range(random.randint(1, 3))))


def email(random: Random) -> Pair:
    first, family = random.choice(WORDS["names"]).lower(), random.choice(WORDS["families"]).lower()
    user = random.choice([f"{first}.{family}", f"{first}{random.randint(1, 999)}", f"{first[0]}_{family}", family])
    return same(f"{user}@{random.choice(WORDS['places'])}.{random.choice(WORDS['endings'])}")


def url(random: Random) -> Pair:
    host = random.choice(["https://www.", "https://", "http://", "www."]) + random.choice(WORDS["places"])
    path = random.choice(["", "", "/" + random.choice(WORDS["paths"])])
    return same(f"{host}.{random.choice(WORDS['endings'])}{path}")


def code(random: Random) -> Pair:
    first, *rest = random.sample(WORDS["parts"], random.randint(2, 3))
    snake = "_".join([first, *rest])
    humps = "".join(part.capitalize() for part in rest)
    forms = [snake, f"{snake}()", snake.upper(), first + humps, first.capitalize() + humps, f"{first}.{rest[0]}"]
    return same(random.choice(forms))


def file(random: Random) -> Pair:
    parts = random.sample(WORDS["parts"], 2)
    return same(random.choice(["_", "-", "/"]).join(parts) + "." + random.choice(WORDS["suffixes"]))


def phone(random: Random) -> Pair:
    digits = str(random.randrange(10**7, 10**8))
    return same(random.choice([f"13{random.randint(0, 9)}{digits}", f"010-{digits}", f"{digits[:3]}-{digits[3:7]}"]))


def flight(random: Random) -> Pair:
    return same(f"{random.choice(['CA', 'MU', 'CZ', 'BA', 'LH', 'UA', 'G', 'D'])}{random.randint(100, 9999)}")


FILLERS: dict[str, Callable[[Random], Pair]] = {
    filler.__name__: filler
    for filler in (
        *(number, small, decimal, big, year, day, date, time, price, percent, length),
        *(name, chinese, software, company, site, word, version, email, url, code, file, phone, flight),
    )
}
BLANK = re.compile(r"\{(\w+)\}")


def filled(template: Pair, random: Random) -> Pair:
    """A template with something in its blanks, the same on both sides.

    >>> filled(("我叫{name}。", "My name is {name}."), Random(1))
    ('我叫Edward Walker。', 'My name is Edward Walker.')
    """
    sides = list(template)
    for blank in dict.fromkeys(BLANK.findall(template[0])):
        values = FILLERS[blank.rstrip("2")](random)
        sides = [side.replace(f"{{{blank}}}", value) for side, value in zip(sides, values, strict=True)]
    return sides[0], sides[1]
