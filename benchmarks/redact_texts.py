"""Make up calls with secrets whose words are known, in four languages: the texts of bench_redact.

The sentences, names, streets and numbers are invented. Numbers are written in groups of any kind and as words, with
"double" and hesitations, and some lack a digit, as a recogniser leaves one out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

NUMBERS = {
    "en": "zero one two three four five six seven eight nine",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
}
DOUBLE = {"en": "double", "de": "doppel", "fr": "double", "es": "doble"}
PAUSES = {"en": "um okay then", "de": "äh okay dann", "fr": "euh oui puis", "es": "eh vale luego"}
AT_DOT = {"en": ("at", "dot"), "de": ("at", "Punkt"), "fr": ("arobase", "point"), "es": ("arroba", "punto")}
FIRST = {
    "en": "Oliver Amelia Harriet Desmond Priya Callum Beatrice Trevor Naomi Gareth Lucinda Stephen Rachel Kwame Judith",
    "de": "Jürgen Annegret Thorsten Heike Matthias Ulrike Dietmar Sabine Lukas Friederike Gisela Bernd Aylin Wolfgang",
    "fr": "Thierry Amélie Gérard Bénédicte Loïc Véronique Yannick Solène Mathilde Bertrand Étienne Camille Odile",
    "es": "Íñigo Lourdes Gonzalo Maribel Joaquín Remedios Álvaro Nuria Ramón Lucía Emilio Beatriz Jorge Yolanda Andrés",
}
LAST_BEGIN = {
    "en": "Hark Wen Thorn Ash Pem Quil Brock Lang Stan Fair",
    "de": "Brand Wüst Hohen Klop Riem Stolz Gern Lind Acker Feld",
    "fr": "Beau Mont Del Char Lau Ver Bour Tris Gran Mal",
    "es": "Zubi Mont Villa Ara Cast Sal Herre Quin Bena Olm",
}  # fmt: skip
LAST_END = {
    "en": "wick sworth berry dale combe ington ridge more field ley",
    "de": "stetter hofer meyer bauer mann stein thal kamp mer ling",
    "fr": "champ tier gnac mier lain don vois neau ville rand",
    "es": "zarreta tero nueva gorri illo darte ños tana vente dares",
}  # fmt: skip
STREETS = {
    "en": (
        "{n} {s} Road , {t} {p}",
        "Elmcote Harrow Tillman Bexford",
        "Wexcombe Marlow Tenby",
        "SW1A 2BX|NW3 4QT|30318",
    ),
    "de": (
        "{s} {n} , {p} {t}",
        "Lindenstraße Ahornweg Mühlgasse Rosenallee",
        "Ahrbach Neuendorf Kassel",
        "34117|80331|20095",
    ),
    "fr": ("{n} rue {s} , {p} {t}", "Delacroix Voltaire Pasteur Mirabeau", "Rennes Valmont Lyon", "69003|35000|75011"),
    "es": (
        "calle {s} {n} , {p} {t}",
        "Olivares Cervantes Quevedo Almendros",
        "Getafe Ronda Gijón",
        "28901|41003|33201",
    ),
}
MONTHS = {"en": "March June October", "de": "März Juni Oktober", "fr": "mars juin octobre", "es": "marzo junio octubre"}
SENTENCES = {
    "en": {
        "card": ["My card number is {} .", "Sure , the card is {} and it expires soon .", "You can charge {} please ."],
        "phone": ["Call me at {} tomorrow .", "My mobile number is {} .", "You can reach me on {} ."],
        "iban": ["The IBAN is {} .", "Please send it to IBAN {} ."],
        "account": ["My account number is {} .", "The bank account is {} ."],
        "code": ["The security code is {} .", "My PIN is {} ."],
        "email": ["You can write to {} .", "My email is {} ."],
        "person": ["My name is {} .", "I spoke with {} last week .", "Please ask for {} .", "We saw {} at work ."],
        "address": ["I live at {} .", "Please ship it to {} ."],
        "date_of_birth": ["I was born on {} .", "My date of birth is {} ."],
        None: [
            "We sold 300 units in 2019 and 450 in 2020 .", "The train leaves at 10:45 and takes three hours .",
            "It costs 45 dollars and 90 cents , or 12,500 in all .", "One of the two will call back on Monday .",
            "I will be there in May , near the market in London .", "Page 17 of chapter 4 has the answer .",
            "That is a good question , thank you very much .", "The meeting is on the third floor at half past nine .",
        ],
    },
    "de": {
        "card": ["Meine Kartennummer ist {} .", "Die Kreditkarte ist die {} .", "Buchen Sie es bitte von der {} ab ."],
        "phone": ["Rufen Sie mich bitte an unter {} .", "Meine Handynummer ist {} .", "Sie erreichen mich unter {} ."],
        "iban": ["Die IBAN lautet {} .", "Bitte überweisen Sie an IBAN {} ."],
        "account": ["Meine Kontonummer ist {} .", "Das Konto hat die Nummer {} ."],
        "code": ["Die Prüfnummer ist {} .", "Der Code lautet {} ."],
        "email": ["Schreiben Sie an {} .", "Meine E-Mail ist {} ."],
        "person": ["Mein Name ist {} .", "Ich habe mit {} gesprochen .", "Hier spricht {} .", "Gestern war {} hier ."],
        "address": ["Ich wohne in der {} .", "Schicken Sie es an {} ."],
        "date_of_birth": ["Ich bin am {} geboren .", "Mein Geburtsdatum ist der {} ."],
        None: [
            "Wir haben 2019 etwa 300 Stück verkauft und 2020 dann 450 .",
            "Der Zug fährt um 10:45 und braucht drei Stunden .",
            "Das kostet 45 Euro und 90 Cent , zusammen 12.500 .", "Einer der beiden ruft am Montag zurück .",
            "Im Mai bin ich wieder in Berlin auf dem Markt .", "Auf Seite 17 steht die Antwort .",
            "Das ist eine gute Frage , vielen Dank .", "Der Wald und der Berg sind im Winter schön .",
        ],
    },
    "fr": {
        "card": ["Mon numéro de carte est {} .", "La carte bancaire , c'est {} .", "Vous pouvez débiter le {} ."],
        "phone": ["Appelez-moi au {} .", "Mon portable est le {} .", "On peut me joindre au {} ."],
        "iban": ["L'IBAN est {} .", "Merci de virer sur l'IBAN {} ."],
        "account": ["Mon numéro de compte est {} .", "Le compte est le {} ."],
        "code": ["Le cryptogramme est {} .", "Mon code est {} ."],
        "email": ["Écrivez à {} .", "Mon adresse mail est {} ."],
        "person": ["Je m'appelle {} .", "J'ai parlé avec {} hier .", "Je suis {} .", "Nous avons vu {} au bureau ."],
        "address": ["J'habite au {} .", "Envoyez-le au {} ."],
        "date_of_birth": ["Je suis né le {} .", "Ma date de naissance est le {} ."],
        None: [
            "Nous avons vendu 300 pièces en 2019 et 450 en 2020 .", "Le train part à 10:45 et met trois heures .",
            "Cela coûte 45 euros et 90 centimes .", "Un des deux rappellera lundi .",
            "Je serai à Paris en mai , près du marché .", "La réponse est à la page 17 .",
            "C'est une bonne question , merci beaucoup .", "La fontaine et le moulin sont très beaux .",
        ],
    },
    "es": {
        "card": ["Mi número de tarjeta es {} .", "La tarjeta es la {} .", "Puede cargarlo en la {} ."],
        "phone": ["Llámeme al {} .", "Mi móvil es el {} .", "Mi número es el {} ."],
        "iban": ["El IBAN es {} .", "Haga la transferencia al IBAN {} ."],
        "account": ["Mi número de cuenta es {} .", "La cuenta es la {} ."],
        "code": ["El código de seguridad es {} .", "Mi clave es {} ."],
        "email": ["Escriba a {} .", "Mi correo es {} ."],
        "person": ["Me llamo {} .", "Hablé con {} ayer .", "Soy {} .", "Vimos a {} en la oficina ."],
        "address": ["Vivo en la {} .", "Envíelo a la {} ."],
        "date_of_birth": ["Nací el {} .", "Mi fecha de nacimiento es el {} ."],
        None: [
            "Vendimos 300 unidades en 2019 y 450 en 2020 .", "El tren sale a las 10:45 y tarda tres horas .",
            "Cuesta 45 euros y 90 céntimos .", "Uno de los dos llamará el lunes .",
            "En mayo estaré en Madrid , cerca del mercado .", "La respuesta está en la página 17 .",
            "Es una buena pregunta , muchas gracias .", "La flor y la luna son de la paz .",
        ],
    },
}  # fmt: skip
KINDS = tuple(kind for kind in SENTENCES["en"] if kind)
NUMBER_KINDS = ("card", "phone", "iban", "account", "code")


@dataclass(frozen=True, slots=True)
class Planted:
    """A secret in a text."""

    kind: str
    first: int
    stop: int
    """Index of its first word, and of the one after its last."""
    core: frozenset[int]
    """Words that must not stay: those without hesitations and punctuation."""


@dataclass(frozen=True, slots=True)
class Call:
    """A text with secrets."""

    lang: str
    words: tuple[str, ...]
    secrets: tuple[Planted, ...]


def calls(lang: str, count: int, seed: int) -> Iterator[Call]:
    """Yield texts, each with three secrets and two sentences without."""
    chance = random.Random(f"{lang} {seed}")
    for number in range(count):
        kinds = [KINDS[(3 * number + k) % len(KINDS)] for k in range(3)]
        order: list[str | None] = [*kinds, None, None]
        chance.shuffle(order)
        words, secrets = list[str](), list[Planted]()
        for kind in order:
            sentence = chance.choice(SENTENCES[lang][kind]).split()
            for word in sentence:
                if word != "{}":
                    _append(words, word)
                    continue
                first = len(words)
                said = MAKERS[kind](lang, chance)
                for part in said:
                    _append(words, part)
                pauses = {*PAUSES[lang].split()}
                core = frozenset(at for at in range(first, len(words)) if words[at].strip(",.") not in pauses)
                secrets.append(Planted(str(kind), first, len(words), core))
        yield Call(lang, tuple(words), tuple(secrets))


def misheard(call: Call, seed: int) -> Call:
    """Return a call with mistakes as a recogniser makes them, in a third of its secrets and in one of ten cues.

    A digit is lost, groups are divided by hyphens and commas, a name is written as it sounds or small, and a street, an
    "at" or the word before a secret is another one.
    """
    chance, words = random.Random(f"{call.lang} {call.words} {seed}"), [*call.words]
    for secret in call.secrets:
        if chance.random() < 0.1 and secret.first:
            words[secret.first - 1] = "was"
        if chance.random() > 1 / 3:
            continue
        for at in secret.core:
            word = words[at]
            if word.strip(",.").isdigit():
                joint = chance.choice("-,.")
                lost = chance.randrange(len(word)) if len(word) > 4 else len(word)
                words[at] = joint.join(word[:lost] + word[lost + 1 :]) if secret.kind != "address" else word
            elif secret.kind in ("person", "address") and len(word) > 3:
                sounds = (("nn", "n"), ("th", "t"), ("ph", "f"), ("ck", "k"), ("rue", "de"), ("Road", "wrote"))
                for written, sound in sounds:
                    word = word.replace(written, sound)
                words[at] = word.lower() if word.lower().startswith(("é", "í", "á")) else word
            elif secret.kind == "email" and word in AT_DOT[call.lang][:1]:
                words[at] = "and"
    return replace(call, words=tuple(words))


def spoken(call: Call) -> str:
    """Return a call as it is to be said: the digits of its secrets one by one, and those of years and prices not."""
    secret = {at for planted in call.secrets if planted.kind != "date_of_birth" for at in planted.core}
    return " ".join(re.sub(r"(?<=\d)(?=\d)", " ", word) if at in secret else word for at, word in enumerate(call.words))


def _append(words: list[str], word: str) -> None:
    """Append a word, and punctuation to the word before it."""
    if word in ".,":
        words[-1] += word
    else:
        words.append(word)


def _digits(chance: random.Random, count: int, begin: str = "") -> str:
    return begin + "".join(str(chance.randrange(10)) for _ in range(count - len(begin)))


def _said(digits: str, lang: str, chance: random.Random) -> list[str]:
    """Return digits as they are written or said: in groups, one by one, in words, with "double" and hesitations."""
    style = chance.choice(["together", "fours", "threes", "pairs", "single", "words", "words", "double", "paused"])
    size = {"together": len(digits), "fours": 4, "threes": 3, "pairs": 2}.get(style, 1)
    groups = [digits[at : at + size] for at in range(0, len(digits), size)]
    if style in ("words", "double", "paused"):
        names = NUMBERS[lang].split()
        parts, at = list[str](), 0
        while at < len(digits):
            if style == "double" and digits[at : at + 2] == digits[at] * 2:
                parts += [DOUBLE[lang], names[int(digits[at])]]
                at += 2
                continue
            parts.append(names[int(digits[at])])
            at += 1
            if style == "paused" and at % 4 == 0 and at < len(digits):
                parts += [*([","] if chance.random() < 0.5 else []), chance.choice(PAUSES[lang].split())]
        return parts
    return groups


def _card(lang: str, chance: random.Random) -> list[str]:
    return _said(_digits(chance, chance.choice([16, 16, 16, 15])), lang, chance)


def _phone(lang: str, chance: random.Random) -> list[str]:
    begin = {"en": "212555", "de": "0151", "fr": "06", "es": "6"}[lang]
    return _said(_digits(chance, {"en": 10, "de": 11, "fr": 10, "es": 9}[lang], begin), lang, chance)


def _iban(lang: str, chance: random.Random) -> list[str]:
    country, length = {"en": ("DE", 20), "de": ("DE", 20), "fr": ("FR", 25), "es": ("ES", 22)}[lang]
    digits = _digits(chance, length)
    if chance.random() < 0.5:
        return [*country, *_said(digits, lang, chance)]
    text = country + digits
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _account(lang: str, chance: random.Random) -> list[str]:
    return _said(_digits(chance, chance.choice([8, 10])), lang, chance)


def _code(lang: str, chance: random.Random) -> list[str]:
    return _said(_digits(chance, chance.choice([3, 4])), lang, chance)


def _last(lang: str, chance: random.Random) -> str:
    return chance.choice(LAST_BEGIN[lang].split()) + chance.choice(LAST_END[lang].split())


def _person(lang: str, chance: random.Random) -> list[str]:
    return [chance.choice(FIRST[lang].split()), _last(lang, chance)]


def _email(lang: str, chance: random.Random) -> list[str]:
    first, last = (name.lower() for name in _person(lang, chance))
    at, dot = AT_DOT[lang]
    host = chance.choice(["wombatmail", "postbox", "fernwick"])
    if chance.random() < 0.4:
        return [f"{first}.{last}@{host}.com"]
    return [first, dot, last, at, host, dot, "com"]


def _address(lang: str, chance: random.Random) -> list[str]:
    form, streets, towns, codes = STREETS[lang]
    text = form.format(
        n=chance.randrange(1, 99), s=chance.choice(streets.split()), t=chance.choice(towns.split()),
        p=chance.choice(codes.split("|")),
    )  # fmt: skip
    return text.split()


def _birth(lang: str, chance: random.Random) -> list[str]:
    day, year, month = chance.randrange(1, 28), chance.randrange(1940, 2005), chance.choice(MONTHS[lang].split())
    written = f"{day:02d}.{chance.randrange(1, 12):02d}.{year}"
    said = {"en": f"{month} {day} {year}", "de": f"{day}. {month} {year}", "fr": f"{day} {month} {year}",
            "es": f"{day} de {month} de {year}"}[lang]  # fmt: skip
    return chance.choice([[written], said.split()])


MAKERS: dict[str | None, Callable[[str, random.Random], list[str]]] = {
    "card": _card, "phone": _phone, "iban": _iban, "account": _account, "code": _code, "email": _email,
    "person": _person, "address": _address, "date_of_birth": _birth,
}  # fmt: skip
