"""Abbreviations after which a sentence goes on, in the languages that voices speak.

    "In town, Ms."  →  True        "He met her."  →  False

A splitter of sentences does not know all of them, and a pause inside "Ms. Smith" is heard. The opposite mistake is
cheap: a piece ends at another sentence. So an abbreviation never ends a piece, although it may end a sentence. Cues of
subtitles take the same rule.
"""

from __future__ import annotations

import re

_OPENING = "([{\"'“„«‹‘¿¡-–—"
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)+")
"""A letter, or several with dots: J. or U.S. or z.B. or J.-C."""

_SHARED = (
    "al approx art c ca cap cf dept dr ed etc ex fig figs jr ltd mr mrs ms mt no nos nr op p pp ph prof sr st tel var"
    " vol vols vs"
)
"""Abbreviations of many languages."""
_ABBREVIATIONS = {
    "en": """adm apr assn atty aug ave blvd brig bros capt ch chap cmdr co col corp cpl dec dr eq eqs esq est feb ft
        gen gov hon hr hrs inc jan jun jul lt maj messrs min misc mlle mme mmes mr mrs mss mx nov oct pvt rd rep
        rev sec sen sep sept sgt supt univ ph.d m.d b.a m.a""",
    "fr": """adr apr av bd bibl boul chap col coll dép dr env ets gal gén hab inf janv févr avr juil sept oct nov déc
        lt lieut m mm me mes mgr mlle mlles mme mmes par paragr pr réf rte ste sté sup suppl tél trad""",
    "de": """abb abs abschn anm apr aug ausg bd bde bes bhf bsp bzgl bzw dez dipl dipl-ing dr ebd eigtl einschl etw
        evtl exkl feb fr frl geb gegr gest ggf hbf hg hr hrsg inkl insb jan jg jh jhdt kap kgl lfd max mia min
        mio mrd mst mwst nov nrn okt orig rd rel sept sog std str stud tab tsd u usf usw verf vgl vs wg zit zt
        zzgl ing med phil jur""",
    "es": """admón aprox arq atte av avda bco bibl cía col comp cta dcha depto doc don dpto dr dra dras dres dña
        ee.uu ej etc excmo excma fdo gob gral ha hna hno ing izq izqda kg lic máx mín mons núm núms pág págs
        párr pdte pl pral profa pta pte pza ref rev rte sgt sgte sig sra sras sres srta srtas sta sto tfno trad
        ud uds vda vd vds""",
    "it": """arch avv bibl cfr cm dott dott.ssa dr dr.ssa ecc egr es fam fig figg fr gent gen geom ing int lett mons
        n nn on pag pagg par prof.ssa proff pref rag ref rev sec seg sen sig sig.na sig.ra sigg spett ss tav
        trad ver vol voll""",
    "pt": """adm av bel cia col cel comp dep des dir dr dra drs dras eng engª enga eng.º etc exma exmo excia gen ilma
        ilmo ltda máx mín min mons núm núms pág págs pe prof profa profª rev sec séc sécs sra sras sres srs srta
        sta sto tel ten trad tv univ""",
    "nl": """afb afd alg apr aug bijl bijv blz bv dec dhr dr drs ds enz evt excl feb fam gem hfst hr incl ing ir jan
        jhr jl jul jun kol lic luit maj max mej mevr min mln mnd mr mrd mw nl nov okt ong penn plm pl red resp
        sec sept st str tab tek vgl voorz wed zgn zn d.w.z o.a m.b.t m.i.v a.u.b""",
    "ar": "د أ م ص أ.د ق.م هـ ج ت ط مج تح إلخ ب.م ق.ه",
    "hi": "डॉ श्री श्रीमती प्रो सं पृ कु पं स्व रु मो चौ अ.प्र भा.प्र ई.पू ले कर्नल मे",
}  # fmt: skip
"""Further ones of each language, without the last dot."""
_WORDS = {
    "en": "art col ed est fig hon min no nos rep sec sen vs",
    "fr": "art ex inf m me mes par sup",
    "de": "art bes ex sog std str tab",
    "es": "art col don no sig",
    "it": "art cap es int no on par ver",
    "pt": "art des dir ex no pe ten",
    "nl": "art ex jul no pp red wed",
}  # fmt: skip
"""Those that are words, too. They are abbreviations before a number, or if they and what follows have capitals."""
_KNOWN = {lang: frozenset(f"{_SHARED} {words}".split()) for lang, words in _ABBREVIATIONS.items()}
_KNOWN_EVERYWHERE = frozenset(_SHARED.split())
_WORDS_TOO = {lang: frozenset(words.split()) for lang, words in _WORDS.items()}
_WORDS_ANYWHERE = frozenset().union(*_WORDS_TOO.values())


def is_abbreviation(word: str, following: str, lang: str) -> bool:
    """Return whether the sentence of a word with a dot goes on with the following one.

    Args:
        lang: primary subtag of the language. One that is not known gets the abbreviations of many languages.
    """
    word = word.lstrip(_OPENING)
    if not word.endswith("."):
        return False
    stem = word[:-1].rpartition(".-")[2]  # of Dipl.-Ing., Ing
    if _INITIALS.fullmatch(word):
        return True
    if stem.casefold() not in _KNOWN.get(lang, _KNOWN_EVERYWHERE):
        return False
    if stem.casefold() not in _WORDS_TOO.get(lang, _WORDS_ANYWHERE):
        return True
    return following[:1].isdigit() or (stem[:1].isupper() and following[:1].isupper())
