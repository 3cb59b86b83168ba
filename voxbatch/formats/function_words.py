"""Words after which no line or cue should end, by language: articles, prepositions, conjunctions, auxiliaries and other
words that lean on the next one.

Subtitling guides ask for breaks before conjunctions and prepositions, and for none between an article and its noun or
an auxiliary and its verb (Netflix, Timed Text Style Guide, "Line treatment"; BBC Subtitle Guidelines, section 5).
"""

from __future__ import annotations

_CONJUNCTIONS = {
    "en": "but so because although though unless until while whereas which who whom whose that if when where since",
    "de": "aber sondern denn weil dass daß obwohl wenn während als ob damit bevor nachdem sowie wie welche welcher "
    "welches",
    "fr": "mais donc or car que qui dont où parce puisque lorsque quand si comme quoique afin",
    "es": "pero sino porque aunque cuando que quien donde si como mientras pues cuyo cuya",
    "it": "ma perché mentre quando oppure",
}
"""Words that begin a clause."""

_LEANING = {
    "en": "and or nor than as a an the this these those my your his her its our their some any each every no not "
    "very of to in on at by for from with without into onto over under about after before between through "
    "during against among upon toward towards within across behind beyond near per via is are was were am be "
    "been being do does did have has had can could will would shall should may might must i you he she we "
    "they i'm i've i'll you're we're they're it's don't doesn't didn't isn't wasn't can't won't mr mrs ms dr "
    "st",
    "de": "und oder der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner mein "
    "meine meinen meinem meiner dein deine sein seine seinen seinem seiner ihr ihre ihren ihrem ihrer unser "
    "unsere dieser diese dieses diesen diesem jede jeder jedes jeden jedem nicht sehr in im ins an am ans auf "
    "aus bei beim bis durch für gegen hinter mit nach neben ohne seit über um unter von vom vor zu zum zur "
    "zwischen wegen ist sind war waren bin bist wird werden wurde wurden hat haben hatte hatten kann können "
    "konnte muss müssen soll sollen will wollen darf dürfen ich du er sie es wir",
    "fr": "et ou ni le la les l un une des du de d au aux ce cet cette ces mon ma mes ton ta tes son sa ses notre "
    "nos votre vos leur leurs chaque aucun aucune ne pas très plus à en dans par pour sur sous avec sans chez "
    "vers entre contre depuis pendant avant après est sont était étaient a ai as ont avait avaient être avoir "
    "sera seront peut peuvent doit doivent je tu il elle on nous ils elles se me te",
    "es": "y e o u el la los las lo un una unos unas mi mis tu tus su sus nuestro nuestra este esta estos estas ese "
    "esa cada ningún no muy más a al de del en por para con sin sobre entre hasta desde hacia según contra "
    "ante bajo es son era eran fue está están ha han había ser estar puede pueden debe se me te le les nos yo "
    "él ella",
}
"""Articles, possessives, prepositions, auxiliaries and pronouns before their verbs."""

CONJUNCTIONS = {language: frozenset(words.split()) for language, words in _CONJUNCTIONS.items()}
LEANING_WORDS = {language: frozenset(words.split()) | CONJUNCTIONS[language] for language, words in _LEANING.items()}
EVERY_CONJUNCTION = frozenset[str]().union(*CONJUNCTIONS.values())
EVERY_LEANING_WORD = frozenset[str]().union(*LEANING_WORDS.values())
