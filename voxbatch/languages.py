"""Language tags and the names of languages.

language_tag("English")  →  "en"        language_tag("pt-BR")  →  "pt-BR"        language_tag("deu")  →  "de"
"""

from __future__ import annotations

import difflib
import functools
import re

DETECTED_LANGUAGE = "detected_language"
"""Key of an output line for the language that the engine detected. A line has it if nobody gave the language. Its
`lang` is the same language then."""

_NAMES = """
    aa afar, ab abkhazian, ae avestan, af afrikaans, ak akan, am amharic, an aragonese, ar arabic, as assamese,
    av avaric, ay aymara, az azerbaijani, ba bashkir, be belarusian, bg bulgarian, bi bislama, bm bambara, bn bengali,
    bo tibetan, br breton, bs bosnian, ca catalan, ce chechen, ch chamorro, co corsican, cr cree, cs czech,
    cu church slavonic, cv chuvash, cy welsh, da danish, de german, dv divehi, dz dzongkha, ee ewe, el greek,
    en english, eo esperanto, es spanish, et estonian, eu basque, fa persian, ff fulah, fi finnish, fj fijian,
    fo faroese, fr french, fy western frisian, ga irish, gd scottish gaelic, gl galician, gn guarani, gu gujarati,
    gv manx, ha hausa, he hebrew, hi hindi, ho hiri motu, hr croatian, ht haitian creole, hu hungarian, hy armenian,
    hz herero, ia interlingua, id indonesian, ie interlingue, ig igbo, ii sichuan yi, ik inupiaq, io ido, is icelandic,
    it italian, iu inuktitut, ja japanese, jv javanese, ka georgian, kg kongo, ki kikuyu, kj kuanyama, kk kazakh,
    kl kalaallisut, km khmer, kn kannada, ko korean, kr kanuri, ks kashmiri, ku kurdish, kv komi, kw cornish,
    ky kyrgyz, la latin, lb luxembourgish, lg ganda, li limburgish, ln lingala, lo lao, lt lithuanian, lu luba-katanga,
    lv latvian, mg malagasy, mh marshallese, mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay,
    mt maltese, my burmese, na nauru, nb norwegian bokmål, nd north ndebele, ne nepali, ng ndonga, nl dutch,
    nn norwegian nynorsk, no norwegian, nr south ndebele, nv navajo, ny chichewa, oc occitan, oj ojibwa, om oromo,
    or odia, os ossetian, pa punjabi, pi pali, pl polish, ps pashto, pt portuguese, qu quechua, rm romansh, rn rundi,
    ro romanian, ru russian, rw kinyarwanda, sa sanskrit, sc sardinian, sd sindhi, se northern sami, sg sango,
    sh serbo-croatian, si sinhala, sk slovak, sl slovenian, sm samoan, sn shona, so somali, sq albanian, sr serbian,
    ss swati, st southern sotho, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik, th thai,
    ti tigrinya, tk turkmen, tl tagalog, tn tswana, to tongan, tr turkish, ts tsonga, tt tatar, tw twi, ty tahitian,
    ug uyghur, uk ukrainian, ur urdu, uz uzbek, ve venda, vi vietnamese, vo volapük, wa walloon, wo wolof, xh xhosa,
    yi yiddish, yo yoruba, za zhuang, zh chinese, zu zulu
"""
NAMES = {entry.split()[0]: entry.strip().partition(" ")[2] for entry in _NAMES.split(",")}
"""English names of the languages of ISO 639-1, by their two-letter codes. The standard has withdrawn "sh", but it is
still in use. mistral-common accepts the same codes (TranscriptionRequest.language)."""
ISO_639_1 = frozenset(NAMES)

_OTHER_CODES = """
    aa aar, ab abk, ae ave, af afr, ak aka fat, am amh, an arg, ar ara acm aeb afb ajp apc apd arb arq ars ary arz,
    as asm, av ava, ay aym ayr, az aze azj, ba bak, be bel, bg bul, bi bis, bm bam, bn ben, bo bod tib, br bre, bs
    bos, ca cat, ce che, ch cha, co cos, cr cre cwd, cs ces cze, cu chu, cv chv, cy cym wel, da dan, de deu ger, dv
    div, dz dzo adp, ee ewe, el ell gre, en eng, eo epo, es spa, et est ekk, eu eus baq, fa fas drw per pes prs tnf,
    ff ful fuc, fi fin, fj fij, fo fao, fr fra fre, fy fry, ga gle, gd gla, gl glg, gn grn gug, gu guj, gv glv, ha
    hau, he heb iw, hi hin, ho hmo, hr hrv scr, ht hat, hu hun, hy hye arm, hz her, ia ina, id ind in, ie ile, ig
    ibo, ii iii, ik ipk esk, io ido, is isl ice, it ita, iu iku ike, ja jpn, jv jav, ka kat geo, kg kon kng, ki kik,
    kj kua, kk kaz, kl kal, km khm, kn kan, ko kor, kr kau knc, ks kas, ku kur kmr, kv kom kpv, kw cor, ky kir, la
    lat, lb ltz, lg lug, li lim, ln lin, lo lao, lt lit, lu lub, lv lav lvs, mg mlg plt, mh mah, mi mri mao, mk mkd
    mac, ml mal, mn mon drh khk, mr mar, ms msa may zsm, mt mlt, my mya bur, na nau, nb nob, nd nde, ne nep npi, ng
    ndo, nl nld dut, nn nno, no nor, nr nbl, nv nav, ny nya, oc oci, oj oji ojg, om orm gaz, or ori ory, os oss, pa
    pan, pi pli, pl pol, ps pus pbu, pt por, qu que quz, rm roh, rn run, ro ron mo mol rum, ru rus, rw kin, sa san,
    sc srd src, sd snd, se sme, sg sag, sh hbs, si sin, sk slk slo, sl slv, sm smo, sn sna, so som, sq sqi alb als,
    sr srp cnr scc, ss ssw, st sot, su sun, sv swe, sw swa swc swh, ta tam, te tel, tg tgk, th tha, ti tir, tk tuk,
    tl tgl fil, tn tsn, to ton, tr tur, ts tso, tt tat, tw twi, ty tah, ug uig, uk ukr, ur urd, uz uzb uzn, ve ven,
    vi vie, vo vol, wa wln, wo wol, xh xho, yi yid ji ydd, yo yor, za zha zyb, zh zho chi cmn, zu zul
"""
SAME_CODE = {code: entry.split()[0] for entry in _OTHER_CODES.split(",") for code in entry.split()[1:]}
"""Codes of ISO 639-2 and 639-3, and withdrawn ones, that mean a language of ISO 639-1: as in CLDR's aliases of
languages, and the dialects of Arabic."""
_THREE_LETTERS = {entry.split()[0]: entry.split()[1] for entry in _OTHER_CODES.split(",")}
"""Terminological codes of ISO 639-2 by those of ISO 639-1: the first code of each entry."""

_OTHER_NAMES = {
    "deutsch": "de", "español": "es", "castellano": "es", "français": "fr", "italiano": "it", "português": "pt",
    "nederlands": "nl", "polski": "pl", "русский": "ru", "українська": "uk", "čeština": "cs", "svenska": "sv",
    "dansk": "da", "norsk": "no", "suomi": "fi", "türkçe": "tr", "magyar": "hu", "ελληνικά": "el", "עברית": "he",
    "العربية": "ar", "हिन्दी": "hi", "中文": "zh", "日本語": "ja", "한국어": "ko", "ไทย": "th", "mandarin": "zh",
    "farsi": "fa", "cantonese": "yue", "hawaiian": "haw", "flemish": "nl", "filipino": "tl", "slovene": "sl",
}  # fmt: skip
"""Names that are often written instead of the English ones, first of all the languages' own names. Without these, the
suggestion for "deutsch" would be "dutch"."""
_CODE_OF = {name: code for code, name in NAMES.items()} | _OTHER_NAMES
_SUGGESTION_CUTOFF = 0.75
"""Similarity (difflib's ratio) from which a name is suggested: one or two wrong letters."""


@functools.lru_cache(maxsize=1000)  # called several times for each item, and most runs have few languages
def primary_subtag(lang: str) -> str:
    """Return the primary subtag of a language tag in lower case: "pt-BR" → "pt", "EN_us" → "en", "eng" → "en"."""
    subtag = re.split("[-_]", lang.strip(), maxsplit=1)[0].lower()
    return SAME_CODE.get(subtag, subtag)


def three_letter_code(lang: str) -> str:
    """Return the three-letter code of a language tag, as videos have it: "de" → "deu", "yue" → "yue", "" → "und"."""
    subtag = primary_subtag(lang)
    return _THREE_LETTERS.get(subtag, subtag) or "und"


@functools.lru_cache(maxsize=1000)
def language_tag(text: str) -> str:
    """Return the tag of a language that is given as a tag or as a name.

    A name becomes its code, also before a region in brackets. The primary subtag of a tag becomes lower case, and its
    two-letter code if it has one: "eng_Latn" → "en_Latn".
    """
    tag = text.strip()
    name, bracket, _ = tag.casefold().partition("(")
    if (code := _CODE_OF.get(name.strip() if bracket else name)) is not None:
        return code
    return primary_subtag(tag) + re.sub("^[^-_]*", "", tag)


def language_name(code: str) -> str:
    """Return the English name of a language: "de" → "German", "yue" → "Cantonese"."""
    codes = {code: name for name, code in _OTHER_NAMES.items()}
    return (NAMES.get(code) or codes.get(code) or code).title()


def unknown_language(lang: str) -> str | None:
    """Return, as text for people, why a tag is no tag of a language, or None if it may be one.

    Two letters must be a code of ISO 639-1. Three other letters may be a code of ISO 639-3, and are not looked up.
    """
    primary = primary_subtag(lang)
    if primary in ISO_639_1 or (len(primary) == 3 and primary.isascii() and primary.isalpha()):
        return None
    if lang.strip().casefold() in ("auto", "detect"):
        return "no known language; leave it out, and a multilingual model hears the language"
    if re.search("[,;+/]", lang):
        return "no known language; one language is given, or none: a multilingual model hears that of each recording"
    close = difflib.get_close_matches(lang.strip().casefold(), _CODE_OF, n=1, cutoff=_SUGGESTION_CUTOFF)
    hint = f"did you mean {close[0]} ({_CODE_OF[close[0]]})?" if close else "give a code such as en, or a name"
    return f"no known language; {hint}"
