"""Tests for --vllm-config: a YAML file made for `vllm serve --config` also configures a batch, in place of a
serving.properties.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.cli import cli
from voxbatch.cli.options import parsed_run_options
from voxbatch.cli.run_command import run
from voxbatch.config import RunOptions
from voxbatch.errors import ConfigError
from voxbatch.vllm.engine.config_keys import KEYS, Entry
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.vllm_config import parse, read

PUBLISHED = """\
model: .
max_model_len: 512
max_num_seqs: 1
gpu_memory_utilization: 0.65
dtype: bfloat16
enforce_eager: true
compilation_config:
  cudagraph_mode: PIECEWISE
"""
"""The keys and values of a published latency submission."""
WORLD = Path(__file__).parents[3] / "shared" / "world"


def written(folder: Path, text: str) -> str:
    file = folder / "vllm_config.yaml"
    file.write_text(text)
    return str(file)


def configured(*arguments: object) -> RunOptions:
    with run.make_context("run", ["m.jsonl", *map(str, arguments)], click.Context(cli, help_option_names=["-h"])) as c:
        return parsed_run_options(c)


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_published_file_applies(tmp_path: Path, is_ours: bool) -> None:
    """Every key reaches the settings, and the model is the folder of the file."""
    file = Path(written(tmp_path, PUBLISHED)) if is_ours else WORLD / "vllm_config.yaml"
    if not file.is_file():
        pytest.skip("the published vllm_config.yaml is absent")
    found = read(str(file))
    assert (found.model, found.without_effect, found.unknown) == (str(file.parent), (), ())
    settings = resolve("realtime", found.options)
    assert (settings.max_model_len, settings.max_num_seqs, settings.gpu_memory_utilization) == (512, 1, 0.65)
    assert (settings.dtype, settings.enforce_eager, settings.cudagraph_mode) == ("bfloat16", True, "PIECEWISE")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("max-model-len: 512", {"max_model_len": "512"}),
        ("tensor-parallel-size: 2", {"tensor_parallel_size": "2"}),
        ("enforce-eager: no", {"enforce_eager": "false"}),
        ("dtype: half", {"dtype": "float16"}),
        ("limit-mm-per-prompt:\n  audio: 8\n  image: 0", {"limit_mm_per_prompt": '{"audio": 8, "image": 0}'}),
        ("limit_mm_per_prompt: '{\"audio\": 1}'", {"limit_mm_per_prompt": '{"audio": 1}'}),
        ('compilation_config: \'{"cudagraph_mode": "NONE"}\'', {"cudagraph_mode": "NONE"}),
        ("compilation-config: {cudagraph_mode: full}", {"cudagraph_mode": "FULL"}),
        ("revision: 007", {"revision": "007"}),
        ("kv_cache_dtype: fp8", {"fp8": "kv"}),
        ("max_model_len: null\ndtype:", {}),
        ("", {}),
        ("# nothing\n", {}),
    ],
)
def test_keys_become_options(tmp_path: Path, text: str, options: dict[str, str]) -> None:
    """Keys may use "-" or "_", and a mapping equals its JSON text; null keeps a setting unchanged."""
    assert read(written(tmp_path, text)).options == options
    resolve("realtime", options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nmax_model_len: 0", "2: max_model_len='0': it must be a whole number from 1"),
        ("a: 1\nmax-model-len: [1]", "2: max_model_len='[1]': it must be a whole number from 1"),
        ("limit_mm_per_prompt: {audio: 0}", "1: limit_mm_per_prompt='{\"audio\": 0}': it must be audio:N, audio=N or"),
        ("\ncompilation_config:\n  level: 3", "2: compilation_config='{\"level\": 3}': it must be JSON that gives cud"),
        ("- max_model_len", "1: give vLLM's options as a mapping, KEY: VALUE"),
        ("text", "1: give vLLM's options as a mapping, KEY: VALUE"),
        ("a: 1\nb: [", "2: this cannot be read as YAML ("),
        ("a: 1\n b: 2", "2: this cannot be read as YAML (mapping values are not allowed here)"),
        ("model: x\n---\nmodel: y", "2: this cannot be read as YAML (but found another document)"),
        ("a: {b: !!python/object:os.x 1}", "1: this cannot be read as YAML ("),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A malformed file is refused with file, line, value and rule."""
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}:{message}")


@pytest.mark.parametrize("text", ["a: \0", "a: {b: 2025-99-99}"])
def test_a_fault_without_a_line_is_refused(tmp_path: Path, text: str) -> None:
    """A fault for which PyYAML gives no line is refused without a line."""
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"vllm_config\.yaml: this cannot be read as YAML"):
        read(file)


def test_keys_without_effect_are_named(tmp_path: Path) -> None:
    """Keys of a server have no effect and are named; an unknown key is reported with its line and the most similar
    known key.
    """
    file = written(tmp_path, "host: 0.0.0.0\nport: 8000\nserved-model-name: x\nmax_modl_len: 512\n")
    found = read(file)
    assert found.without_effect == ("host", "port", "served_model_name")
    nearest = "max_modl_len is unknown and has no effect; the nearest known key is max_model_len"
    assert found.unknown == (f"{file}:4: {nearest}",)


def test_a_relative_model_is_resolved_against_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is resolved against the file, wherever the command runs; hub names, buckets and absolute paths
    stay.
    """
    folder = tmp_path / "submission"
    (folder / "weights").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for model, resolved in {
        ".": str(folder), "./weights": str(folder / "weights"), "weights": str(folder / "weights"),
        "..": str(tmp_path), "./absent": str(folder / "absent"), "mistralai/Voxtral-Mini-3B-2507": None,
        "gs://bucket/model": None, "/models/a": None,
    }.items():  # fmt: skip
        written(folder, f"model: {model}")
        assert read("submission/vllm_config.yaml").model == (resolved or model)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2k", 2000), ("2K", 2048), ("0.5k", 500), ("25.6k", 25_600), ("1m", 10**6), ("1M", 2**20), (" 8192 ", 8192)],
)
def test_sizes(tmp_path: Path, text: str, size: int) -> None:
    """Sizes have vLLM's units: small letters are powers of 1000, capital letters powers of 1024."""
    settings = read(written(tmp_path, f"max-model-len: '{text}'\nmax-num-batched-tokens: '{text}'\n"))
    assert settings.options == {"max_model_len": str(size), "max_num_batched_tokens": str(size)}


@pytest.mark.parametrize(
    "line", ["max-model-len: 0.5K", "max-model-len: 2 k", "max-model-len: 0.0001k", "max-num-seqs: 2k"]
)
def test_sizes_that_vllm_refuses(tmp_path: Path, line: str) -> None:
    """Fractions of powers of 1024, other spellings and sizes of counts are refused, as vLLM refuses them."""
    with pytest.raises(ConfigError, match="it must be a whole number from 1"):
        read(written(tmp_path, line))


@given(st.dictionaries(st.sampled_from(sorted(KEYS)), st.integers(0, 10**9)))
def test_values_keep_their_text(values: dict[str, int]) -> None:
    """Each key of the top level becomes one entry with its line."""
    text = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in values.items())
    expected = [Entry(i, key, str(value)) for i, (key, value) in enumerate(values.items(), 1)]
    assert list(parse("f", text)) == expected


def test_precedence_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has priority over the profile, and variables and flags over the file."""
    file = written(tmp_path, PUBLISHED)
    config = configured("--vllm-config", file, "--profile", "mini-3b")
    assert (config.engine, config.model) == ("vllm", str(tmp_path))
    assert (config.engine_options["max_model_len"], config.engine_options["enforce_eager"]) == ("512", "true")
    assert config.engine_options["max_num_batched_tokens"] == "0"
    monkeypatch.setenv("VOXBATCH_VLLM_CONFIG", file)
    monkeypatch.setenv("VOXBATCH_ENGINE_OPTION", "max_num_seqs=7")
    assert configured("--model", "mine").model == "mine"
    assert configured().engine_options["max_num_seqs"] == "7"
    with pytest.raises(ConfigError, match=r"--vllm-config .* is for the engine vllm, but --engine is scripted"):
        configured("--engine", "scripted")


def test_two_files_are_refused(tmp_path: Path) -> None:
    """A serving.properties and vLLM's own file together are refused, because they could contradict each other."""
    served = tmp_path / "serving.properties"
    served.write_text("option.dtype=bf16\n")
    with pytest.raises(ConfigError) as caught:
        configured("--vllm-config", written(tmp_path, PUBLISHED), "--serving-properties", served)
    assert str(caught.value) == (
        f"--serving-properties {served} and --vllm-config {tmp_path}/vllm_config.yaml both set vLLM; leave out one of "
        "them"
    )
