"""Which numbers a translation has lost: all that are missing, and none that is there in another usual form."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import shipped
from clearhead.tasks.number_check import find_lost_numbers

marks = st.text(st.sampled_from("0123456789.,:- 年万亿一二十百千两点半ab"), max_size=24)


@pytest.mark.parametrize(
    ("text", "translation", "lost"),
    [
        ("2024年12月31日23:59", "December 31, 2024", ["23:59"]),
        ("1,000,000人", "1,00,000 people", ["1,000,000"]),
        ("圆周率是3.14", "Pi is 3.41", ["3.14"]),
        ("2000年", "the year 20000", ["2000"]),
        ("１９９８年有365天，365天！", "A year has its days.", ["1998", "365"]),
        ("150万人", "150 people", ["150万"]),
        ("他25岁，她37岁", "He is 25 and she is 36.", ["37"]),
        ("345", "12,345", ["345"]),
        ("14", "3.14", ["14"]),
        ("Python 3.13.2", "Python 3.14", ["3.13.2"]),
        ("8:40", "8:20", ["8:40"]),
        ("9" * 5000, "9" * 4999, ["9" * 5000]),
    ],
)
def test_what_is_missing_is_named(text, translation, lost):
    assert find_lost_numbers(text, translation) == lost


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("1000", "1,000"),
        ("1,000,000", "1000000"),
        ("1,000,000", "1.000.000"),
        ("1,000,000", "1 000 000"),
        ("100 000", "100,000"),
        ("1,000,000", "a million"),
        ("3.5", "3,5"),
        ("3个", "three"),
        ("3个", "drei"),
        ("12月31日", "December 31st"),
        ("第21名", "the twenty-first"),
        ("20000", "twenty thousand"),
        ("250,000", "two hundred and fifty thousand"),
        ("1997年", "nineteen ninety-seven"),
        ("1990年代", "the nineties"),
        ("98年", "in 1998"),
        ("150万", "1.5 million"),
        ("1亿5000万", "150 million"),
        ("50万", "half a million"),
        ("1.5小时", "an hour and a half"),
        ("23:59", "11:59 p.m."),
        ("23:59", "23h59"),
        ("18点", "6 o'clock"),
        ("8:30", "half past eight"),
        ("9:45", "a quarter to ten"),
        ("8:00", "eight o'clock"),
        ("2024-12-31", "31.12.2024"),
        ("13800138000", "138-0013-8000"),
        ("15%", "fifteen percent"),
        ("25 books", "二十五本书"),
        ("1.5 million", "150万"),
        ("in 2024", "二〇二四年"),
        ("250,000,000", "两亿五千万"),
        ("2 trillion", "两万亿"),
        ("8:30", "八点半"),
        ("没有数字", "no numbers"),
        ("", ""),
    ],
)
def test_what_is_there_in_another_form_is_not(text, translation):
    assert find_lost_numbers(text, translation) == []


@given(marks, marks)
def test_any_texts_can_be_compared_and_nothing_is_lost_in_a_copy(text, other):
    lost = find_lost_numbers(text, other)
    assert all(any(mark.isdigit() for mark in number) for number in lost)
    assert find_lost_numbers(text, text) == []


def test_what_people_translated_is_left_alone():
    table = shipped.corpus("tatoeba-zh-en.train")
    assert table is not None
    with gzip.open(table, "rt", encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split("\t")[:2] for line in file]
    pairs = [(chinese, english) for chinese, english in pairs if any(mark.isdigit() for mark in chinese)]
    assert len(pairs) > 400
    lost = [chinese for chinese, english in pairs if find_lost_numbers(chinese, english)]
    assert len(lost) <= 3, "960万 as 96,000,000, 30年代 left out, 911 as September 11th"
