"""Give each text the one spelling of its language that is compared: the scoring form. The rules of `normalize` follow.

    İstanbul, IŞIK → istanbul, ışık   (Turkish)      كتـــاب ١٠ → كتاب 10   (Arabic)      cœur → coeur   (French)

Only spellings of the same letters become equal: Unicode's compatibility forms, the digits of all scripts, invisible
characters, the shapes of an apostrophe; and for some languages what SPELLINGS has, such as a second alphabet whose
letters say which ones they are in the first. Tags such as {BREATH} are removed. Marks stay wherever they are vowels: in
Hindi, Thai, Burmese, Yiddish.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache, partial, reduce

import regex

_SAME_IN_ALL = str.maketrans({
    **dict.fromkeys("‘’‛`´＇ʹʻʼꞌ′", "'"),
    "٫": ".", "٬": ",",  # decimal and thousands separators of Arabic digits
    "ـ": None,           # tatweel, which only makes a word longer
    # 2½ is 2 1/2, not 21/2, which the compatibility form alone makes of it.
    **{char: f" {unicodedata.normalize('NFKC', char)}" for char in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉"},
})  # fmt: skip
_TAG = regex.compile(r"\{[^{}]*\}")
_INVISIBLE = regex.compile(r"[\p{Cf}\p{Default_Ignorable_Code_Point}]")
"""Soft hyphens, joiners, spaces without width, marks of direction, variation selectors."""
_DIGIT = regex.compile(r"[\p{Nd}--0-9]", regex.VERSION1)

_ARABIC_MARKS = {
    r"[\u0610-\u061a\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]": ""
}
"""Vowel marks and signs of recitation. Hamza and madda (U+0653 to U+0655) are not among them: they make letters."""
_OLD_TONES = "òa óa ỏa õa ọa òe óe ỏe õe ọe ùy úy ủy ũy ụy"
_NEW_TONES = "oà oá oả oã oạ oè oé oẻ oẽ oẹ uỳ uý uỷ uỹ uỵ"
"""The two places of a tone mark in a Vietnamese syllable: hòa is hoà."""
_SERBIAN = "аa бb вv гg дd ђđ еe жž зz иi јj кk лl љlj мm нn њnj оo пp рr сs тt ћć уu фf хh цc чč џdž шš"
_AZERBAIJANI = (
    "аa бb вv гq ғğ дd еe әə жj зz иi ыı јy кk ҝg лl мm нn оo өö пp рr сs тt уu үü фf хx һh чç ҹc шş эe юyu яya йy цs"
)
_UZBEK = (
    "аa бb вv гg дd еe ёyo жj зz иi йy кk лl мm нn оo пp рr сs тt уu фf хx цs чch шsh ъ' эe юyu яya ўo' қq ғg' ҳh ь"
)
"""Letters of Cyrillic, each before its letters in the Latin alphabet of the language."""


def _latin(letters: str, capital_i: str = "I") -> dict[str, str]:
    """Return the pairs of the small and the capital letters."""
    pairs = {pair[0]: pair[1:] for pair in letters.split()}
    capitals = {"i": capital_i, "ı": "I"}
    return pairs | {old.upper(): capitals.get(new, new.capitalize()) for old, new in pairs.items()}


SPELLINGS: dict[str, dict[str, str]] = {
    "ar": {**_ARABIC_MARKS, "ی": "ي", "ک": "ك"},  # letters of Persian keyboards
    "az": _latin(_AZERBAIJANI, capital_i="İ"),
    "bs cnr sh sr": _latin(_SERBIAN),
    "as bn": {"ত\u09cd\u200d": "ৎ"},
    "ckb": {"[يى]": "ی", "ك": "ک"},  # letters of Arabic keyboards
    "fa": {"ه\u0654": "ۀ"},
    "fa ur": {**_ARABIC_MARKS, "[يى]": "ی", "ك": "ک"},
    "fr": {"œ": "oe", "Œ": "OE", "æ": "ae", "Æ": "AE"},
    "he": {r"[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]": ""},
    "lo": {r"\u0ecd([\u0ec8-\u0ecb])": "\\1\u0ecd"},  # a tone mark after AM, as in Thai
    "ml": {
        "ണ\u0d4d\u200d": "ൺ", "ന\u0d4d\u200d": "ൻ", "ര\u0d4d\u200d": "ർ",
        "ല\u0d4d\u200d": "ൽ", "ള\u0d4d\u200d": "ൾ", "ക\u0d4d\u200d": "ൿ",
    },
    "kok mr ne": {"र\u094d\u200d": "ऱ\u094d"},  # eyelash RA
    "ro": {"ş": "ș", "Ş": "Ș", "ţ": "ț", "Ţ": "Ț"},  # cedilla, and comma below
    "ps sd": _ARABIC_MARKS,
    "ru": {"ё": "е", "Ё": "Е"},
    "th": {"เเ": "แ", r"\u0e4d([\u0e48-\u0e4b])": "\\1\u0e4d"},  # two signs E for AE; a tone mark after AM
    "ur": {"ه": "ہ"},
    # The Latin alphabet has ye at the begin of a word and after a vowel, and ts for ц after a vowel.
    "uz": {r"\bе|(?<=[аеёиоуэюяў])е": "ye", r"\bЕ|(?<=[аеёиоуэюяўАЕЁИОУЭЮЯЎ])Е": "Ye", "(?<=[аеёиоуэюяў])ц": "ts",
           **_latin(_UZBEK)},
    "vi": {f"(?i){old}": new for old, new in zip(_OLD_TONES.split(), _NEW_TONES.split(), strict=True)},
}  # fmt: skip
"""Spellings that are the same by language: a pattern, and what replaces it after NFKC. The keys are primary subtags."""
SIMPLIFIED = {"zh wuu nan hak": "tw2s", "yue": "hk2s"}
"""OpenCC's conversions of traditional to simplified characters by language: those of Taiwan, which also know 著 for 着,
and of Hong Kong. The other direction is ambiguous: 发 is 發 and 髮. Words of regions stay: 軟體 is not 软件."""
CASES = {"az crh gag tr": {"I": "ı", "İ": "i", "i\u0307": "i"}}
"""Pairs of case that Unicode's case folding does not have. i with a dot above is what other programs make of İ."""


@cache
def scoring_form(language: str, keeps_case: bool = False) -> Callable[[str], str]:
    """Return the function that gives a text the form of a language.

    Args:
        language: primary subtag of the language, or "und".
        keeps_case: upper and lower case are compared, so pairs of case are not made equal.
    """
    form = partial(_form, [(regex.compile(old), new) for old, new in _pairs(language, keeps_case).items()])
    conversion = next((name for languages, name in SIMPLIFIED.items() if language in languages.split()), None)
    if conversion is None:
        return form
    from opencc import OpenCC  # 0.5 s

    simplified: Callable[[str], str] = OpenCC(conversion).convert
    return lambda text: simplified(form(text))


def _pairs(language: str, keeps_case: bool) -> dict[str, str]:
    tables = [SPELLINGS] if keeps_case else [SPELLINGS, CASES]
    return {
        old: new
        for table in tables
        for key, pairs in table.items()
        if language in key.split()
        for old, new in pairs.items()
    }


def _form(pairs: list[tuple[regex.Pattern[str], str]], text: str) -> str:
    text = unicodedata.normalize("NFKC", text.translate(_SAME_IN_ALL))
    text = reduce(lambda changed, pair: pair[0].sub(pair[1], changed), pairs, text)
    text = _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), _INVISIBLE.sub("", text))
    return unicodedata.normalize("NFKC", _TAG.sub(" ", text))
