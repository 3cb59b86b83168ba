"""Prompts of questions equal mistral-common's, and answers are read in the format of each tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import noise

from voxbatch import engines
from voxbatch.engines.pieces import QuestionPiece
from voxbatch.errors import ConfigError
from voxbatch.records import AnswerOptions, Question, ToolCall
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.families.questions import Questions
from voxbatch.vllm.engine.families.request import UnsupportedPiece, UnusableAnswer
from voxbatch.vllm.engine.model import locate

pytest_plugins = ["engine_runs"]

VERSIONS = ("v7", "v11", "v13")
"""Versions of tekken: the public Mini 3B, the next one with another format of calls, and the first one with a system
prompt beside audio."""
LAMP = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "kitchen"]}},
    "required": ["on", "room"],
    "additionalProperties": False,
}
TOOLS = json.dumps(
    [
        {"type": "function", "function": {"name": "switch", "description": "Switch a lamp.", "parameters": LAMP}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
    ]
)
SECOND = 16_000


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of tiny instruct models by the version of their tokenizer."""
    from checkpoints import write_voxtral

    found = {version: tmp_path_factory.mktemp(version) / "model" for version in VERSIONS}
    for version, folder in found.items():
        write_voxtral(folder, version=version)
    return found


@cache
def family(folder: Path, max_model_len: int = 4_096) -> Questions:
    """Return the loaded family of a tiny instruct model."""
    given = {"task": "ask", "max_model_len": str(max_model_len), "max_answer_tokens": "100"}
    found = Questions(locate(str(folder), None), resolve("instruct", given))
    found.load(folder)
    return found


def piece(prompt: str, *lengths: int, **options: Any) -> QuestionPiece:
    samples = np.concatenate([*map(noise, lengths), np.zeros(0, np.float32)])
    question = Question(prompt, AnswerOptions(**{"max_tokens": 100, **options}))
    return QuestionPiece(samples, question=question, recordings=lengths)


def official(folder: Path, asked: QuestionPiece, system: str | None, prompt: str) -> Any:
    """Return the tokens and the audio that mistral-common makes of a chat with recordings as WAV files."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.audio import Audio
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    ends = list(accumulate(asked.recordings))
    each = [asked.samples[end - length : end] for end, length in zip(ends, asked.recordings, strict=True)]
    files = [Audio(samples, SECOND, format="wav").to_base64("wav") for samples in each]
    sounds = [{"type": "input_audio", "input_audio": {"data": file, "format": "wav"}} for file in files]
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": [*sounds, {"type": "text", "text": prompt}]})
    tools = asked.question.options.tools
    request = ChatCompletionRequest.from_openai(messages, tools=json.loads(tools) if tools else None)
    return MistralTokenizer.from_file(str(folder / "tekken.json")).encode_chat_completion(request)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((SECOND,), {}),
        ((480_000,), {}),
        ((480_001, 1), {}),
        ((SECOND,) * 8, {}),
        ((), {}),
        ((), {"system": "Be brief."}),
        ((SECOND,), {"tools": TOOLS}),
        ((), {"tools": TOOLS, "system": "Be brief."}),
    ],
)
def test_the_prompt_is_the_official_one(
    folders: dict[str, Path], version: str, lengths: tuple[int, ...], options: dict[str, str]
) -> None:
    """Prompt and audio of a question are those of encode_chat_completion, token for token and sample for sample."""
    asked = piece("What is said? [AUDIO] é 日本", *lengths, **options)
    request = family(folders[version]).request(asked)
    expected = official(folders[version], asked, options.get("system"), asked.question.prompt)
    assert request.prompt["prompt_token_ids"] == expected.tokens
    given = request.prompt.get("multi_modal_data", {"audio": []})["audio"]
    assert len(given) == len(lengths) == len(expected.audios)
    for (samples, rate), audio in zip(given, expected.audios, strict=True):
        assert rate == SECOND
        np.testing.assert_array_equal(samples, audio.audio_array)
    assert ("multi_modal_data" in request.prompt) == bool(lengths)
    assert request.max_tokens == 100


@pytest.mark.parametrize("version", VERSIONS)
def test_a_system_prompt_beside_audio(folders: dict[str, Path], version: str) -> None:
    """From v13 on the prompt is the official one. The tokenizers before have no such prompt, and mistral-common refuses
    it: the system prompt then stands in front of the question."""
    asked = piece("What is said?", SECOND, system="Be brief.")
    found = family(folders[version]).prompt(asked)
    if version == "v13":
        assert found == official(folders[version], asked, "Be brief.", "What is said?").tokens
    else:
        assert found == official(folders[version], asked, None, "Be brief.\n\nWhat is said?").tokens
        with pytest.raises(Exception, match="ystem messages"):
            official(folders[version], asked, "Be brief.", "What is said?")


def test_a_recording_without_samples_is_silence(folders: dict[str, Path]) -> None:
    """A recording of length 0 is a window of silence, and the other recordings keep their samples."""
    request = family(folders["v11"]).request(piece("?", 0, SECOND))
    first, second = (samples for samples, _ in request.prompt["multi_modal_data"]["audio"])
    assert not first.any()
    np.testing.assert_array_equal(second[:SECOND], noise(SECOND))


def test_a_question_that_is_too_long_is_refused(folders: dict[str, Path]) -> None:
    """The refusal has the tokens of a question, those of its audio, and the context. At the limit none is refused."""
    asked = family(folders["v11"], 1_000)
    besides = len(asked.prompt(piece("?", SECOND, SECOND))) - 750
    asked.request(piece("?", SECOND, SECOND, max_tokens=250 - besides))
    with pytest.raises(UnsupportedPiece, match=rf"has {750 + besides} tokens, 750 of them audio .* holds 1,000"):
        asked.request(piece("?", SECOND, SECOND, max_tokens=251 - besides))


def test_sampling_is_that_of_the_question(folders: dict[str, Path]) -> None:
    """Greedy decoding needs no seed; otherwise each request has the seed of the run."""
    asked = family(folders["v11"])
    greedy = asked.request(piece("?", SECOND, seed=7))
    assert (greedy.temperature, greedy.seed, greedy.grammar) == (0.0, None, "")
    drawn = asked.request(piece("?", SECOND, seed=7, temperature=0.7, top_p=0.9))
    assert (drawn.temperature, drawn.top_p, drawn.seed) == (0.7, 0.9, 7)


# -- the engine before its model is loaded -----------------------------------------------------------------------------


def test_the_spec_leaves_room_for_question_and_answer(voxtral: Path) -> None:
    """Whole windows fill the context, beside an answer and 512 tokens of text, up to 30 minutes a recording."""
    spec = engines.create("vllm", str(voxtral), {"task": "ask", "max_answer_tokens": "1024"}).spec
    assert spec.max_recordings == 8
    assert spec.max_question_samples == (32_768 - 1_024 - 512) // 375 * 480_000
    assert spec.max_chunk_samples == 30 * 60 * SECOND
    assert (spec.prefetch, spec.languages, spec.uses_language, spec.word_times) == (2, None, False, False)
    assert spec.decoding["task"] == "ask"
    assert not {"watch", "max_model_len", "max_answer_tokens"} & spec.decoding.keys()
    short = engines.create("vllm", str(voxtral), {"task": "ask", "max_model_len": "4096"}).spec
    assert short.max_chunk_samples == short.max_question_samples == 6 * 480_000
    with pytest.raises(ConfigError, match="take 4,887: give a smaller --max-tokens"):
        engines.create("vllm", str(voxtral), {"task": "ask", "max_model_len": "4096", "max_answer_tokens": "4000"})


def test_models_that_cannot_answer_are_refused(realtime: Path, voxtral: Path) -> None:
    """Realtime and Whisper are refused by name before anything is fetched, and a folder by its content. So is the
    plugin that encodes chunks."""
    with pytest.raises(ConfigError, match="the plugin transcribes chunks and answers no questions"):
        engines.create("vllm", str(voxtral), {"task": "ask", "prefill_encoder": "true"})
    for name in ("mistralai/Voxtral-Mini-4B-Realtime-2602", "openai/whisper-large-v3-turbo", str(realtime)):
        with pytest.raises(ConfigError, match=r"cannot answer questions; take mistralai/Voxtral-Mini-3B-2507 or"):
            engines.create("vllm", name, {"task": "ask"})


def test_the_preview_shows_the_model_for_questions() -> None:
    """The preview shows Mini 3B, with its whole context and eight recordings, if no model is given."""
    from voxbatch.vllm.engine.forecast import preview_arguments

    found = preview_arguments(None, {"task": "ask", "max_answer_tokens": "1024"})
    assert found["engine_arguments"]["model"] == "mistralai/Voxtral-Mini-3B-2507"
    assert found["engine_arguments"]["max_model_len"] == 32_768
    assert found["engine_arguments"]["limit_mm_per_prompt"] == {"audio": 8}
    assert found["longest_chunk_s"] == 1_800


def test_profiles_for_transcripts_get_the_context_for_questions() -> None:
    """The 1,024 positions of the profiles hold one window of 30 s. Another value is kept."""
    ask = {"task": "ask"}
    assert resolve("instruct", {**ask, "max_model_len": "1024"}).max_model_len == 32_768
    assert resolve("instruct", {**ask, "max_model_len": "2048"}).max_model_len == 2_048
    assert resolve("instruct", {}).max_model_len == 1_024


# -- answers -----------------------------------------------------------------------------------------------------------

CALLED: Mapping[str, str] = {
    "v7": '[TOOL_CALLS][{"name": "switch", "arguments": {"on": true, "room": "hall"}}, '
    '{"name": "stop", "arguments": {}}]',
    "v11": '[TOOL_CALLS]switch[ARGS]{"on": true, "room": "hall"}[TOOL_CALLS]stop[ARGS]{}',
    "v13": '[TOOL_CALLS]switch[ARGS]{"on":true,"room":"hall"}[TOOL_CALLS]stop[ARGS]{}',
}


def tokens(asked: Questions, text: str) -> list[int]:
    """Return the tokens of a text in which control tokens are written out."""
    found, control = list[int](), {"[TOOL_CALLS]": asked._tekken.instruct.TOOL_CALLS}
    if hasattr(asked._tekken.instruct, "ARGS"):
        control["[ARGS]"] = asked._tekken.instruct.ARGS
    for part in text.replace("[TOOL_CALLS]", "\0[TOOL_CALLS]\0").replace("[ARGS]", "\0[ARGS]\0").split("\0"):
        found += [control[part]] if part in control else asked._tekken.encode(part)
    return found


def accepts(asked: Questions, grammar: str, token_ids: list[int]) -> bool:
    """Return whether llguidance, as vLLM uses it, lets a model write these tokens and end there."""
    llguidance = pytest.importorskip("llguidance")
    from mistral_common.guidance.tokenizer import from_mistral_tokenizer

    tokenizer = from_mistral_tokenizer(asked._tekken.mistral)
    compiled = llguidance.grammar_from("grammar", grammar)
    assert llguidance.LLMatcher.validate_grammar(compiled, tokenizer) == ""
    matcher = llguidance.LLMatcher(tokenizer, compiled, log_level=0)
    return bool(matcher.consume_tokens(token_ids) and matcher.is_accepting())


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_are_read_in_the_format_of_the_tokenizer(folders: dict[str, Path], version: str) -> None:
    """The grammar allows text, calls, and text before calls, and nothing else; calls are read with their arguments."""
    asked = family(folders[version])
    question = piece("Switch it on.", SECOND, tools=TOOLS)
    grammar = asked.request(question).grammar
    called, eos = tokens(asked, CALLED[version]), asked._tekken.instruct.tokenizer.eos_id
    for allowed in ([], tokens(asked, "Which one?"), called, [*tokens(asked, "Now."), *called]):
        assert accepts(asked, grammar, allowed)
    for wrong in ('"hall"', "true", "switch", "stop"):
        assert not accepts(asked, grammar, tokens(asked, CALLED[version].replace(wrong, '"attic"')))
    answer = asked.read(question, [*tokens(asked, "Now."), *called, eos], "stop")
    assert answer.text == "Now."
    assert answer.finish_reason == "tool_calls"
    assert answer.tool_calls == (ToolCall("switch", '{"on": true, "room": "hall"}'), ToolCall("stop", "{}"))
    assert answer.prompt_tokens == len(asked.prompt(question))
    text = asked.read(question, [*tokens(asked, "Which one?"), eos], "stop")
    assert (text.text, text.finish_reason, text.tool_calls) == ("Which one?", "stop", ())


@pytest.mark.parametrize("version", ["v7", "v11"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hall", "attic", r"arguments of the call of switch does not follow its schema at \$.room: 'attic'"),
        ("switch", "explode", "calls 'explode', which is none of the tools switch, stop"),
        ("{}", "[]", "arguments of the call of stop are no JSON object"),
        ("{}", "{", "is not the JSON that was asked for"),
    ],
)
def test_no_call_is_given_that_is_not_valid(
    folders: dict[str, Path], version: str, old: str, new: str, message: str
) -> None:
    """A call of another function, with other arguments or without JSON makes the whole answer unusable."""
    asked = family(folders[version])
    with pytest.raises(UnusableAnswer, match=message):
        asked.read(piece("?", tools=TOOLS), tokens(asked, CALLED[version].replace(old, new)), "stop")


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "not": {"required": ["m"]}}

ENDLESS_SCHEMA = {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}]}}}


def test_an_answer_follows_its_schema(folders: dict[str, Path]) -> None:
    """JSON is allowed on one line only; a keyword that the grammar cannot express is checked afterwards."""
    asked = family(folders["v11"])
    question = piece("?", json_schema=json.dumps(SCHEMA))
    grammar = asked.request(question).grammar
    for text in ('{"n": 3}', '{"n":3}', '{"n": 3, "m": 1}'):
        assert accepts(asked, grammar, tokens(asked, text))
    for text in ('{"n": "3"}', "{}", '{"n":      3}', "3", '{\n"n": 3}'):
        assert not accepts(asked, grammar, tokens(asked, text))
    assert asked.read(question, tokens(asked, '{"n": 3}'), "length").finish_reason == "length"
    with pytest.raises(UnusableAnswer, match="does not follow its schema"):
        asked.read(question, tokens(asked, '{"n": 3, "m": 1}'), "stop")
    with pytest.raises(UnusableAnswer, match=r"cut off at its largest number of tokens, .* increase --max-tokens"):
        asked.read(question, tokens(asked, '{"n": '), "length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": '{"type": "thing"}'}, "the JSON Schema of the answers: 'thing' is not valid"),
        ({"json_schema": json.dumps(ENDLESS_SCHEMA)}, r"'#/\$defs/b' leads back to itself"),
        (
            {"tools": '[{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]'},
            "the parameters of the tool f: 3 is not valid",
        ),
    ],
)
def test_a_schema_that_is_none_is_refused(folders: dict[str, Path], options: dict[str, str], message: str) -> None:
    """The refusal names the schema and its error."""
    with pytest.raises(UnsupportedPiece, match=message):
        family(folders["v11"]).request(piece("?", **options))
