"""Chinese text: recognised by its characters; traditional ones become simplified, with OpenCC, variants usual forms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from clearhead.errors import ConfigError, import_extra

SCRIPTS = {"simplified": "t2s"}  # OpenCC's name for the conversion
# Radicals, compatibility ideographs and enclosed words: OpenCC does not know ⾺, whose NFKC is 馬, which becomes 马.
COMPATIBILITY = re.compile("[\u2e80-\u2fdf\u3200-\u33ff\uf900-\ufaff\U0002f800-\U0002fa1f]+")
HAN, KANA = r"\u3400-\u9fff\uf900-\ufaff", r"\u3040-\u30ff"
SAMPLE_TEXTS = 2000  # from which the script is judged
CHINESE_SHARE = 0.2  # of all characters, above which texts are Chinese or Japanese
KANA_SHARE = 0.1  # of Chinese characters and kana, above which texts are Japanese

# Variants of characters that OpenCC leaves as they are, each before its usual form; from poems of Tang and Song.
PAIRS = (
    "疎疏劒剑剱剑鴈雁猨猿荅答慙惭簷檐鬬斗櫂棹徧遍斾旆嬾懒堦阶媿愧蘂蕊褭袅臯皋皐皋廻回囬回珮佩煖暖秪只秖只覩睹"
    "髪发暎映桮杯詶酬姪侄飜翻檝楫呌叫歛敛隣邻竝并倂并顇悴顦憔逈迥巵卮妬妒罇樽僊仙牋笺羇羁棃梨邨村栢柏鼇鳌鏁锁"
    "髣仿髴佛壻婿毬球隄堤燄焰趂趁缾瓶碁棋嚬颦讐仇緜绵珪圭鵶鸦醆盏牕窗窓窗窻窗鸎莺毘毗粧妆牓榜麤粗麄粗藂丛筯箸"
    "衞卫懽欢慇殷懃勤悮误飡餐徴征勅敕濬浚蔕蒂穉稚汚污彊强帬裙搆构虵蛇嵒岩嵓岩欵款峩峨怱匆悤匆椀碗盌碗畧略輙辄"
    "効效輭软轝舆磵涧礀涧筭算胷胸槃盘蕚萼諠喧襃褒颕颖揜掩袴裤犂犁瓌瑰塲场蜺霓怳恍椶棕羃幂鉏锄厓崖廐厩隟隙旛幡"
    "秔粳遯遁俛俯祐佑拏拿撚捻瑯琅镕熔鷰燕恡吝嗁啼呪咒碪砧燋焦勗勖甎砖塼砖匳奁頳赪蠭蜂睠眷穽阱蹏蹄羗羌畊耕蜨蝶"
    "澁涩覰觑淛浙鎗枪駮驳燿耀柟楠鳯凤陁陀翺翱噉啖謌歌櫺棂瑠琉臙胭裀茵袵衽菓果狥徇湼涅箒帚鼈鳖氊毡敍叙愬诉唫吟"
    "甞尝隠隐"
)
VARIANTS = str.maketrans(PAIRS[::2], PAIRS[1::2])


def is_mostly_chinese(texts: Iterable[str]) -> bool:
    """Whether texts have few spaces to split at: over a fifth of their characters is Chinese or Japanese.

    >>> is_mostly_chinese(["房间很大 OK"]), is_mostly_chinese(["the word 你 is Chinese"])
    (True, False)
    """
    sample = "".join(text for text in islice(texts, SAMPLE_TEXTS) if isinstance(text, str))
    return len(re.findall(f"[{HAN}{KANA}]", sample)) > CHINESE_SHARE * len(sample)


def name_script(texts: Iterable[str]) -> str:
    """The script of texts: "Chinese", "Latin letters" or "another script".

    >>> [name_script([text]) for text in ("我爱你", "日本語です", "I love you", "Я люблю тебя")]
    ['Chinese', 'another script', 'Latin letters', 'another script']
    """
    sample = "".join(islice(texts, SAMPLE_TEXTS))
    if is_mostly_chinese([sample]):
        kana = len(re.findall(f"[{KANA}]", sample)) / len(re.findall(f"[{HAN}{KANA}]", sample))
        return "Chinese" if kana <= KANA_SHARE else "another script"
    letters = [character for character in sample if character.isalpha()]
    latin = sum(character < "\u0250" for character in letters)
    return "Latin letters" if 2 * latin > len(letters) else "another script"


class Converter(NamedTuple):
    convert: Callable[[str], str]
    version: str  # of OpenCC: its tables change


def replace_variants(text: str) -> str:
    """The text with the usual form of each character, one for one.

    >>> replace_variants("鴈字劒光")
    '雁字剑光'
    """
    return text.translate(VARIANTS)


def load_converter(script: str, *, variants: bool = False) -> Converter:
    """The function that converts a text to `script`, and the version of OpenCC; punctuation stays as it is.

    With `variants`, rare variants of characters become their usual forms.

    >>> load_converter("simplified").convert("漢語，⾺。")
    '汉语，马。'
    """
    if script not in SCRIPTS:
        raise ConfigError(
            f"unknown script {script!r}; choose {' or '.join(map(repr, SCRIPTS))}, or None to keep text as it is"
        )
    opencc = import_extra("opencc", f"script={script!r}", "train")
    convert: Callable[[str], str] = opencc.OpenCC(SCRIPTS[script]).convert

    def convert_text(text: str) -> str:
        if text.isascii():
            return text
        text = convert(COMPATIBILITY.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text))
        return replace_variants(text) if variants else text

    return Converter(convert_text, str(opencc.__version__))
