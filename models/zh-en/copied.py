"""Made-up pairs in which something is carried over as it is: numbers, dates, names, addresses, identifiers.

Each blank of `templates.tsv`, such as {date}, is filled alike on both sides, mostly with words of `fillers.toml`.
A 2 at the end of its name makes it another one of the same kind.
"""

from __future__ import annotations

import re
import tomllib
from calendar import day_name, mdays, month_name
from collections.abc import Callable
from datetime import date as calendar_date
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
Pair = tuple[str, str]  # Chinese, English
WORDS = {
    kind: words.split() if isinstance(words, str) else words
    for kind, words in tomllib.loads((HERE / "fillers.toml").read_text(encoding="utf-8")).items()
}
NUMERALS = "〇一二三四五六七八九"
WEEKDAYS = "一二三四五六日"
DAYS = calendar_date(1950, 1, 1).toordinal(), calendar_date(2035, 12, 31).toordinal()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def same(text: str) -> Pair:
    return text, text


def number(random: Random) -> Pair:
    return same(str(random.randrange(2, 10 ** random.randint(1, 4) + 2)))


def small(random: Random) -> Pair:
    return same(str(random.randint(2, 99)))


def digits(random: Random) -> Pair:
    """Up to thirty of them, such as a number of an account; in half of these equal ones are made to stand together."""
    places = random.choice([random.randint(1, 12), random.randint(1, 12), random.randint(1, 30)])
    kinds = random.sample("0123456789", random.choice([1, 2, 3, 10, 10, 10, 10, 10]))
    runs = (random.choice(kinds) * random.choice([1, 1, 1, 2, 2, 3, 4]) for _ in range(places))
    return same("".join(runs)[:places] if random.random() < 0.3 else "".join(random.choices(kinds, k=places)))


def grouped(random: Random) -> Pair:
    """Thousands set apart, as in 1,000,000; in half of them noughts at the end."""
    places = random.randint(4, 13)
    value = random.randrange(10 ** (places - 1), 10**places)
    rounded = value // 10 ** (places - random.randint(1, 3))
    return same(f"{random.choice([value, rounded * 10 ** (places - len(str(rounded)))]):,}")


def decimal(random: Random) -> Pair:
    return same(f"{random.randrange(1000)}.{random.randrange(1, 10 ** random.randint(1, 3))}")


def figure(random: Random) -> Pair:
    """What else is written with digits: signs, fractions, scores, sums, cards."""
    one, other = random.randint(1, 999), random.randint(1, 99)
    forms = [
        *(f"-{one}", f"+{other}", f"-{other}.{one}", f"0.{one:05}", f"{other}.{one}%", f"-{other}%", f"{one}.00"),
        *(f"{other}/{one}", f"{other}:{one % 10}", f"{other}-{other + one}", f"{other}×{one}", f"{one}°C", f"#{one}"),
        *(f"{other}+{one}={other + one}", f"{one}*{other}", f"${one}.{other:02}", f"€{one}", f"¥{one},000.{other:02}"),
        " ".join(f"{random.randrange(10**4):04}" for _ in range(4)),
        ".".join(str(random.randrange(256)) for _ in range(4)),
    ]
    return same(random.choice(forms))


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
    month = random.randint(1, 12)
    date = random.randint(1, mdays[month])
    return f"{month}月{date}{random.choice('日号')}", f"{month_name[month]} {date}"


def date(random: Random) -> Pair:
    chinese, english = day(random)
    value = random.randint(1850, 2035)
    return f"{value}年{chinese}", f"{english}, {value}"


def month(random: Random) -> Pair:
    value, of = random.randint(1, 12), random.randint(1850, 2035)
    return f"{of}年{value}月", f"{month_name[value]} {of}"


def weekday(random: Random) -> Pair:
    """A date with its day of the week."""
    when = calendar_date.fromordinal(random.randint(*DAYS))
    named = random.choice(["星期", "周"]) + WEEKDAYS[when.weekday()]
    english = f"{day_name[when.weekday()]}, {month_name[when.month]} {when.day}"
    if random.random() < 0.5:
        return f"{when.month}月{when.day}日{named}", english
    return f"{when.year}年{when.month}月{when.day}日{named}", f"{english}, {when.year}"


def clock(random: Random) -> Pair:
    hour, minute = random.randrange(24), random.randrange(60)
    return same(random.choice([f"{hour}:{minute:02}", f"{hour:02}:{minute:02}"]) + random.choice(["", "", "", ":00"]))


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


def moment(random: Random) -> Pair:
    """A date with a time: 2021年3月5日9:07, March 5, 2021, 9:07."""
    chinese, english = random.choice([date, date, date, day, weekday])(random)
    hour, minute = random.randrange(24), random.randrange(60)
    spelled = f"{hour}{random.choice('时点')}{minute}分", f"{hour}:{minute:02}"
    at, read = random.choice([clock(random), clock(random), time(random), spelled])
    return chinese + random.choice(["", "", " "]) + at, f"{english}, {read}"


def stamp(random: Random) -> Pair:
    """Dates as machines write them: 2021-03-05 09:07:00."""
    when = calendar_date.fromordinal(random.randint(*DAYS))
    at = f"{random.randrange(24):02}:{random.randrange(60):02}"
    forms = [f"{when}", f"{when}", f"{when:%Y.%m.%d}", f"{when.year}/{when.month}/{when.day}", f"{when:%m/%d/%Y}"]
    ends = ["", "", f" {at}", f" {at}:{random.randrange(60):02}"]
    return same(random.choice([*(form + random.choice(ends) for form in forms), f"{when}T{at}:00Z"]))


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
    numbers = ".".join(str(random.randint(0, 20)) for _ in range(random.randint(1, 3)))
    return same(random.choice(["", "", "v"]) + numbers + random.choice(["", "", "", "rc1", "-beta", "b2"]))


def letters(random: Random) -> Pair:
    """A word that nobody knows; half of them can be spoken."""
    if random.random() < 0.5:
        return same("".join(random.choices(LETTERS, k=random.randint(2, 9))))
    syllables = (random.choice("bcdfghjklmnprstvwxyz") + random.choice("aeiou") for _ in range(random.randint(1, 4)))
    return same("".join(syllables) + random.choice(["", "n", "r", "s"]))


def user(random: Random) -> str:
    first, family = random.choice(WORDS["names"]).lower(), random.choice(WORDS["families"]).lower()
    unknown = letters(random)[0]
    forms = [f"{first}.{family}", f"{first}{random.randint(1, 999)}", f"{first[0]}_{family}", family]
    forms += [unknown, unknown, f"{unknown}{random.randint(1, 9999)}", f"{first}-{unknown}", digits(random)[0][:11]]
    return random.choice(forms)


def host(random: Random) -> str:
    place = random.choice([random.choice(WORDS["places"]), letters(random)[0]])
    return f"{place}.{random.choice(WORDS['endings'])}"


def handle(random: Random) -> Pair:
    return same("@" + user(random).replace(".", "_"))


def email(random: Random) -> Pair:
    return same(f"{user(random)}@{random.choice([random.choice(WORDS['providers']), host(random)])}")


def url(random: Random) -> Pair:
    begin = random.choice(["https://www.", "https://", "https://", "http://", "www.", ""])
    path = random.choice(["", "/", f"/{random.choice(WORDS['paths'])}", f"/{random.choice(WORDS['paths'])}"])
    return same(f"{begin}{host(random)}{path}{letters(random)[0] if path.endswith(('=', '/')) else ''}")


def code(random: Random) -> Pair:
    first, *rest = random.sample(WORDS["parts"], random.randint(2, 3))
    snake = "_".join([first, *rest])
    humps = "".join(part.capitalize() for part in rest)
    forms = [snake, f"{snake}()", snake.upper(), first + humps, first.capitalize() + humps, f"{first}.{rest[0]}"]
    return same(random.choice(forms))


def file(random: Random) -> Pair:
    parts = [*random.sample(WORDS["parts"], 2), letters(random)[0], str(random.randint(1, 2030))]
    named = random.choice(["_", "-", "/"]).join(random.sample(parts, random.randint(1, 2)))
    before = random.choice(["", "", "", "./", "~/", "/home/", "src/"])
    return same(f"{before}{named}.{random.choice(WORDS['suffixes'])}")


def phone(random: Random) -> Pair:
    eight = str(random.randrange(10**7, 10**8))
    forms = [
        f"13{random.randint(0, 9)}{eight}",
        f"010-{eight}",
        f"{eight[:3]}-{eight[3:7]}",
        f"400-{eight[:3]}-{eight[4:]}",
    ]
    return same(random.choice([*forms, f"+86 15{random.randint(0, 9)} {eight[:4]} {eight[4:]}"]))


def emoji(random: Random) -> Pair:
    return same(random.choice(WORDS["emojis"]))


def laugh(random: Random) -> Pair:
    times = random.randint(2, 12)
    return times * "哈", (times * "ha").capitalize()


def flight(random: Random) -> Pair:
    return same(f"{random.choice(['CA', 'MU', 'CZ', 'BA', 'LH', 'UA', 'G', 'D'])}{random.randint(100, 9999)}")


FILLERS: dict[str, Callable[[Random], Pair]] = {
    filler.__name__: filler
    for filler in (
        *(number, small, digits, grouped, decimal, figure, big, price, percent, length),
        *(year, month, day, weekday, date, clock, time, moment, stamp),
        *(name, chinese, software, company, site, word, version, letters, handle, email, url, code, file, phone),
        *(flight, emoji, laugh),
    )
}
ALONE = {  # as many of these once more, with nothing around them: what is copied is learned best by itself
    900: "digits",
    370: "letters email url",
    250: "grouped figure moment",
    150: "stamp file",
    60: "decimal percent phone weekday clock version handle code",
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
