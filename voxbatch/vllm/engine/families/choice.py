"""Choose the family of a model and a task, and the engine options of that family."""

from __future__ import annotations

from collections.abc import Mapping

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError
from voxbatch.profiles import load_profile
from voxbatch.settings import parse
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.instruct import Instruct
from voxbatch.vllm.engine.families.questions import Questions
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.families.speaking import Speaking
from voxbatch.vllm.engine.families.transcription import Transcription
from voxbatch.vllm.engine.families.whisper import Whisper
from voxbatch.vllm.engine.model import (
    DEFAULT_QUESTION_MODEL,
    DEFAULT_SPEECH_MODEL,
    FAMILIES_OF,
    INSTRUCT,
    SPEECH,
    Model,
)
from voxbatch.vllm.engine.settings import ALL_GPUS, ASK, SPEAK, TRANSCRIBE, VllmSettings

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Realtime, Instruct, Whisper, Transcription, Speaking)
}
FOR_TASKS: dict[tuple[str, str], type[Family]] = {(Questions.name, ASK): Questions}
"""The families of tasks other than the usual one of a model."""


def family_of(name: str, task: str) -> type[Family]:
    """Return the family of a model with this name of a family for a task, or its usual one."""
    return FOR_TASKS.get((name, task), FAMILIES[name])


def published_family(model_name: str, task: str) -> type[Family] | None:
    """Return the family of a model that the profiles name, before its files are there; None for any other model."""
    name = FAMILIES_OF.get(model_name)
    return None if name is None else family_of(name, task)


def model_for(task: str, name: str | None) -> str | None:
    """Return the name of the model that does a task, before its files are there.

    Args:
        name: the value of --model; None means the default model of the task.

    Raises:
        ConfigError: the model is known, and cannot do the task.
    """
    if task == ASK:
        if name is not None:
            _require_answers(name, FAMILIES_OF.get(name, INSTRUCT))
        return name or DEFAULT_QUESTION_MODEL
    return name or DEFAULT_SPEECH_MODEL if task == SPEAK else name


def require_task(model: Model, task: str) -> None:
    """Check that a model does a task.

    Raises:
        ConfigError: it does not.
    """
    if task == ASK:
        _require_answers(model.name, model.family)
    speaks = task == SPEAK
    if speaks != (model.family == SPEECH):
        is_for = (
            "transcribes, and cannot speak" if speaks else "speaks, and cannot transcribe: it is for voxbatch speak"
        )
        raise ConfigError(f"--model {model.name} {is_for}; take another one, or leave it out")


def _require_answers(name: str, family: str) -> None:
    if family != INSTRUCT:
        able = " or ".join(model_type for model_type, kind in FAMILIES_OF.items() if kind == INSTRUCT)
        raise ConfigError(
            f"--model {name} transcribes and cannot answer questions; take {able} (--profile mini-3b or small-24b)"
        )


def resolve(name: str, options: Mapping[str, str]) -> VllmSettings:
    """Return the options, completed by the profile of the family.

    Args:
        name: the name of the family.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type or size.
    """
    family = family_of(name, options.get("task", TRANSCRIBE))
    defaults = load_profile(family.profile)["engine_options"]
    values = {**{option: str(value) for option, value in defaults.items()}, **options}
    if values.get("tensor_parallel_size") == ALL_GPUS:
        values["tensor_parallel_size"] = str(len(gpu.visible_gpus()) or 1)
    if family.default_context and values["max_model_len"] == str(defaults["max_model_len"]):
        values["max_model_len"] = str(family.default_context)  # the profile's value is for its own task
    settings = parse(VllmSettings, "vllm", values)
    if not settings.max_model_len and not family.chooses_context:
        raise ConfigError("engine option max_model_len=0: it must be at least 1")
    return settings
