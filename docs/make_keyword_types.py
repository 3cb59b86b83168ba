"""Write voxbatch/api/keyword_types.py, the types of the keyword arguments of the Python interface, from the
declarations of the settings. `make docs` runs this script; a test fails if the module is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import get_args, get_origin

from voxbatch.config import ModelChoice, RunOptions
from voxbatch.records import AnswerOptions
from voxbatch.settings import PROCESS, RECORDING, RUN, Setting, settings_of
from voxbatch.storage import StoreOptions
from voxbatch.work import work
from voxbatch.works.ask.options import QuestionOptions
from voxbatch.works.speak.options import SpeechOptions

MODULE = Path(__file__).parents[1] / "voxbatch" / "api" / "keyword_types.py"
DOCUMENTS = ("json_schema", "tools")
"""Options that are files for the command and objects in Python: `ask` has parameters for them."""
HEAD = '''"""The types of the keyword arguments of the Python interface, for type checkers.

`make docs` writes this module from the declarations of the settings (`config`, `records`, `storage.address`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypedDict
'''


def module() -> str:
    """Return the text of the module."""
    kinds = (ModelChoice, RunOptions, StoreOptions)
    settings = [declared for kind in kinds for declared in settings_of(kind).values()]
    stores = settings_of(StoreOptions)
    by_use = {use: [declared for declared in settings if declared.use == use] for use in (RECORDING, RUN, PROCESS)}
    recording = [declared for declared in by_use[RECORDING] if declared.name not in stores]
    answers = [*settings_of(AnswerOptions).values(), settings_of(QuestionOptions)["map_reduce"]]
    answers = [*answers, *(declared for declared in settings if holds("ask", declared))]
    for_answers = [declared for declared in answers if declared.name not in DOCUMENTS]
    spoken = [*settings_of(SpeechOptions).values(), *(declared for declared in settings if holds("speak", declared))]
    for_speech = [declared for declared in spoken if declared.name != "audio_formats"]
    shards = "Options of a run whose shards several processes transcribe."
    return HEAD + "".join((
        _typed_dict("StoreKeywords", "TypedDict", "Options for access to buckets and web servers.", stores.values()),
        _typed_dict("TranscribeKeywords", "StoreKeywords", "Options of one recording's transcription.", recording),
        _typed_dict("ShardKeywords", "TranscribeKeywords", shards, by_use[RUN]),
        _typed_dict("RunKeywords", "ShardKeywords", "Options of a run.", by_use[PROCESS]),
        _typed_dict("AskKeywords", "TypedDict", "Options of a run that asks questions.", for_answers),
        _typed_dict("SpeakKeywords", "TypedDict", "Options of a run that speaks texts.", for_speech),
    ))  # fmt: skip


def holds(kind: str, declared: Setting) -> bool:
    """Return whether a setting of a run, or of its stores, holds for a kind of work."""
    return work(kind).holds(declared.name) or declared.name in settings_of(StoreOptions)


def _typed_dict(name: str, base: str, doc: str, settings: Iterable[Setting]) -> str:
    lines = [f"    {declared.name}: {_annotation(declared)}\n" for declared in settings]
    return f'\n\nclass {name}({base}, total=False):\n    """{doc}"""\n\n{"".join(lines)}'


def _annotation(declared: Setting) -> str:
    """Return the type of a keyword: the allowed values where they are few. A list of texts may be one text, which is
    split at commas."""
    if declared.choices:
        values = ", ".join(f'"{choice}"' for choice in declared.choices)
        return f"Literal[{values}]{' | None' if NoneType in get_args(declared.hint) else ''}"
    if get_origin(declared.hint) is tuple:
        return "str | Collection[str]"
    if get_origin(declared.hint) is Mapping:
        return "Mapping[str, object]"
    return declared.hint.__name__ if isinstance(declared.hint, type) else str(declared.hint)


if __name__ == "__main__":
    MODULE.write_text(module())
