"""Tests for --serving-properties: a file made for a server also configures a batch run.

Its settings apply, keys without effect here are named, and settings that contradict the model are refused before a GPU
is used.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch import doctor
from voxbatch.cli import cli
from voxbatch.cli.options import parsed_run_options
from voxbatch.cli.run_command import run
from voxbatch.config import RunOptions
from voxbatch.engines import gpu
from voxbatch.errors import ConfigError
from voxbatch.vllm.engine import prefill
from voxbatch.vllm.engine.checks import check, check_step, divides
from voxbatch.vllm.engine.config_keys import Entry
from voxbatch.vllm.engine.families.choice import FAMILIES, resolve
from voxbatch.vllm.engine.model import Model, locate
from voxbatch.vllm.engine.serving_properties import parse, read

SERVED = """\
# As a server has it.
engine=Python
option.model_id = /opt/ml/model
option.dtype: bf16
option.tokenizer_mode=mistral
option.limit_mm_per_prompt={"audio": 1}
! the memory
option.gpu_memory_utilization=0.65
option.max_rolling_batch_size=\\
    64
option.compilation_config={"cudagraph_mode": "PIECEWISE"}
option.enforce_eager=True
option.rolling_batch=vllm
option.async_mode=true
"""


PUBLISHED = """\
option.model_id=mistralai/Voxtral-Small-24B-2507
option.tensor_parallel_degree=4
option.dtype=bfloat16
option.config_format=mistral
option.load_format=mistral
option.tokenizer_mode=mistral
option.limit_mm_per_prompt=audio:8
option.mm_processor_kwargs={"audio_sampling_rate": 16000, "audio_max_length": 1800.0}
option.trust_remote_code=true
option.enable_prefix_caching=true
option.enable_chunked_prefill=true
option.use_v2_block_manager=true
"""
"""The keys and values of AWS's own file for Voxtral."""
WORLD = Path(__file__).parents[3] / "shared" / "world"


def in_world(name: str) -> Path:
    """Return a file of shared/world; skip the test where it is absent."""
    if not (WORLD / name).is_file():
        pytest.skip(f"the published {name} is absent")
    return WORLD / name


@pytest.fixture
def served(tmp_path: Path) -> Path:
    file = tmp_path / "serving.properties"
    file.write_text(SERVED)
    return file


# -- reading -----------------------------------------------------------------------------------------------------------


def test_keys_become_options(served: Path) -> None:
    """LMI's keys become voxbatch options in our units and names; keys that configure only a server are named."""
    found = read(str(served))
    assert found.model == "/opt/ml/model"
    assert found.options == {
        "dtype": "bfloat16", "tokenizer_mode": "mistral", "limit_mm_per_prompt": '{"audio": 1}', "max_num_seqs": "64",
        "gpu_memory_utilization": "0.65", "cudagraph_mode": "PIECEWISE", "enforce_eager": "true",
    }  # fmt: skip
    assert found.without_effect == ("engine", "option.rolling_batch", "option.async_mode")
    assert found.unknown == ()
    assert resolve("realtime", found.options).max_num_seqs == 64


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_published_file_applies(tmp_path: Path, is_ours: bool) -> None:
    """AWS's serving.properties for Voxtral sets the model and options; keys without a meaning here are named."""
    file = tmp_path / "p" if is_ours else in_world("serving.properties")
    if is_ours:
        file.write_text(PUBLISHED)
    found = read(str(file))
    assert (found.model, found.unknown) == ("mistralai/Voxtral-Small-24B-2507", ())
    assert found.options == {
        "tensor_parallel_size": "4", "dtype": "bfloat16", "tokenizer_mode": "mistral", "config_format": "mistral",
        "load_format": "mistral", "limit_mm_per_prompt": "audio:8",
    }  # fmt: skip
    assert set(found.without_effect) == {
        "option.trust_remote_code", "option.mm_processor_kwargs", "option.enable_chunked_prefill",
        "option.enable_prefix_caching", "option.use_v2_block_manager",
    }  # fmt: skip
    assert resolve("instruct", found.options).max_model_len == 1024


@pytest.mark.parametrize("limit", ["audio:8", "audio=8", "audio=1,image=0", "audio: 2, image: 0", '{"audio": 8}'])
def test_limits_of_at_least_one_audio_are_accepted(limit: str) -> None:
    """A request here holds one recording, so any limit of at least 1 is accepted."""
    assert resolve("instruct", {"limit_mm_per_prompt": limit}).limit_mm_per_prompt == limit


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("option.revision=abc", {"revision": "abc"}),
        ("option.tensor_parallel_degree=max", {"tensor_parallel_size": "max"}),
        ("option.dtype=half", {"dtype": "float16"}),
        ("option.dtype=FP32", {"dtype": "float32"}),
        ("option.load_format=dummy", {"load_format": "dummy"}),
        ("option.max_model_len=512", {"max_model_len": "512"}),
        ("option.max_num_seqs=8", {"max_num_seqs": "8"}),
        ("option.max_num_batched_tokens=8192", {"max_num_batched_tokens": "8192"}),
        ("option.quantize=fp8", {"quantization": "fp8"}),
        ("option.kv_cache_dtype=fp8_e4m3", {"fp8": "kv"}),
        ("option.kv_cache_dtype=auto", {"fp8": ""}),
        ("option.block_size=64", {"block_size": "64"}),
        ("option.attention_backend=FLASH_ATTN", {"attention_backend": "FLASH_ATTN"}),
    ],
)
def test_each_key_has_its_setting(tmp_path: Path, line: str, option: dict[str, str]) -> None:
    """Each line gives one option, which VllmSettings accepts."""
    file = tmp_path / "p"
    file.write_text(line)
    assert read(str(file)).options == option
    resolve("realtime", option)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("option.max_model_len=0", "option.max_model_len='0': it must be a whole number from 1"),
        ("option.dtype=int8", "option.dtype='int8': it must be auto, fp16, bf16, fp32, or vLLM's own name of these"),
        ("option.gpu_memory_utilization=nan", "option.gpu_memory_utilization='nan': it must be above 0, at most 1"),
        ("option.enforce_eager=yes", "option.enforce_eager='yes': it must be true or false"),
        ("option.tokenizer_mode=fast", "option.tokenizer_mode='fast': it must be auto, hf or mistral"),
        ("option.tensor_parallel_degree=all", "option.tensor_parallel_degree='all': it must be a number of GPUs"),
        ("option.limit_mm_per_prompt={", "option.limit_mm_per_prompt='{': it must be audio:N, audio=N or as JSON"),
        ("option.limit_mm_per_prompt=audio:0", "option.limit_mm_per_prompt='audio:0': it must be audio:N, audio=N or"),
        (
            'option.compilation_config={"cudagraph_mode": "SOME"}',
            'option.compilation_config=\'{"cudagraph_mode": "SOME"}\': it must be JSON that gives cudagraph_mode',
        ),
        ("option.model_id=", "option.model_id='': it must be a folder, a hub name, gs:// or s3://"),
    ],
)
def test_a_malformed_value_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """A malformed value is refused with file, line, value and rule."""
    file = tmp_path / "p"
    file.write_text(f"# one\n\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read(str(file))
    assert str(caught.value).startswith(f"{file}:3: {message}")


def test_two_keys_for_one_setting_agree(tmp_path: Path) -> None:
    """The last of equal keys counts, as in Java; different keys with contradicting values are refused."""
    file = tmp_path / "p"
    file.write_text("option.max_num_seqs=4\noption.max_num_seqs=8\noption.max_rolling_batch_size=8\n")
    assert read(str(file)).options == {"max_num_seqs": "8"}
    file.write_text("option.max_num_seqs=4\n\noption.max_rolling_batch_size=8\n")
    with pytest.raises(ConfigError) as caught:
        read(str(file))
    assert str(caught.value) == (
        f"{file}:3: option.max_rolling_batch_size=8 contradicts option.max_num_seqs=4 in line 1; give one of them"
    )


def test_an_unknown_key_is_named_with_its_nearest(tmp_path: Path) -> None:
    """An unknown key is reported with its line and the most similar known key, if there is one."""
    file = tmp_path / "p"
    file.write_text("option.max_modl_len=512\nzzz=1\n")
    assert read(str(file)).unknown == (
        f"{file}:1: option.max_modl_len is unknown and has no effect; the nearest known key is option.max_model_len",
        f"{file}:2: zzz is unknown and has no effect",
    )


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A file that is not UTF-8 text is refused with its name and the cause."""
    file = tmp_path / "p"
    file.write_bytes(b"option.dtype=\xff\n")
    with pytest.raises(ConfigError, match=r"p cannot be read \(.*utf-8.*\); give a text file in UTF-8"):
        read(str(file))


def test_java_properties() -> None:
    """Separators, comments, escapes and continued lines follow java.util.Properties; entries keep their lines."""
    text = 'a=1\r\n# c\\\nb : 2\n  c 3\n\nd=x\\\n    y\\\n\ne\\=f=\\u00e9\\t{"k"\\: 1}\n!\ng\nh==i\nj=\\\\\nk=end\\'
    assert [(entry.number, entry.key, entry.value) for entry in parse(text)] == [
        (1, "a", "1"), (3, "b", "2"), (4, "c", "3"), (6, "d", "xy"), (9, "e=f", 'é\t{"k": 1}'), (11, "g", ""),
        (12, "h", "=i"), (13, "j", "\\"), (14, "k", "end"),
    ]  # fmt: skip


NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="._"), min_size=1)
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z"]))


EQUALS = ("=", ":")


@given(st.lists(st.tuples(NAMES, VALUES)), st.sampled_from(["=", ":", " = ", "\t"]))
def test_any_pairs_are_read_back(pairs: list[tuple[str, str]], separator: str) -> None:
    """Any keys and values are read back with their line numbers."""
    escaped = [(name, value.replace("\\", "\\\\")) for name, value in pairs]
    text = "".join(f"{name}{separator}{chr(92) if value[:1] in EQUALS else ''}{value}\n" for name, value in escaped)
    assert list(parse(text)) == [Entry(i, name, value) for i, (name, value) in enumerate(pairs, 1)]


# -- above the profile, below flags and variables ----------------------------------------------------------------------


HELP = ["-h", "--help"]


def configured(*arguments: object) -> RunOptions:
    with run.make_context("run", ["m.jsonl", *map(str, arguments)], click.Context(cli, help_option_names=HELP)) as ctx:
        return parsed_run_options(ctx)


@pytest.mark.parametrize("arguments", [("--profile", "mini-3b", "-f"), ("-f", "--profile", "mini-3b"), ("-f",)])
def test_a_file_overrides_the_profile(served: Path, arguments: tuple[str, ...]) -> None:
    """The file overrides the profile setting by setting, including model and engine, in any order of the options; other
    settings stay those of the profile.
    """
    config = configured(*(f"--serving-properties={served}" if word == "-f" else word for word in arguments))
    assert (config.engine, config.model) == ("vllm", "/opt/ml/model")
    assert config.engine_options["max_num_seqs"] == "64"
    assert config.engine_options.get("max_model_len") == ("1024" if "--profile" in arguments else None)


def test_flags_and_variables_override_a_file(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags and variables override the file, which may itself be given by a variable."""
    monkeypatch.setenv("VOXBATCH_SERVING_PROPERTIES", str(served))
    assert configured("--engine-option", "max_num_seqs=2").engine_options["max_num_seqs"] == "2"
    assert configured("--model", "mine").model == "mine"
    monkeypatch.setenv("VOXBATCH_MODEL", "theirs")
    monkeypatch.setenv("VOXBATCH_ENGINE_OPTION", "dtype=float16")
    config = configured()
    assert (config.model, config.engine_options["dtype"]) == ("theirs", "float16")


def test_a_revision_goes_with_its_model(tmp_path: Path) -> None:
    """If a flag names another model, the revision of the file's model is not used."""
    file = tmp_path / "p"
    file.write_text("option.model_id=a/b\noption.revision=v1\n")
    assert configured("--serving-properties", file).engine_options == {"revision": "v1"}
    assert configured("--serving-properties", file, "--model", "c/d").engine_options == {}


def test_another_engine_is_refused(served: Path) -> None:
    """The file selects vLLM: another requested engine is refused, and the engine of a profile is replaced."""
    with pytest.raises(ConfigError, match="is for the engine vllm, but --engine is scripted"):
        configured("--serving-properties", served, "--engine", "scripted")
    config = configured("--serving-properties", served, "--profile", "cpu")
    assert (config.engine, "beam_size" in config.engine_options) == ("vllm", False)


# -- contradictions of the model ---------------------------------------------------------------------------------------

ENCODER = {"n_heads": 4, "sliding_window": 750, "dim": 64, "n_layers": 2, "n_kv_heads": 4, "head_dim": 16}
DECODER = {"n_heads": 8, "n_kv_heads": 2, "max_position_embeddings": 131072}


def folder(path: Path, kind: str, **changes: Any) -> Model:
    """Write the small files of a model that are read before it starts."""
    path.mkdir(exist_ok=True)
    if kind == "whisper":
        config = {"architectures": ["WhisperForConditionalGeneration"], "max_target_positions": 448}
        config |= {"decoder_attention_heads": 6, "encoder_attention_heads": 6, **changes}
        for name, content in (("config", config), ("generation_config", {}), ("preprocessor_config", {})):
            (path / f"{name}.json").write_text(json.dumps(content))
        return locate(str(path), None)
    pads = {"transcription_delay_ms": 480, "streaming_n_left_pad_tokens": 32}
    (path / "tekken.json").write_text(json.dumps({"audio": pads}))
    if kind == "translated":
        rope = {"rope_parameters": {"rope_theta": 1e6}}
        config = {"architectures": ["VoxtralRealtimeForConditionalGeneration"], "audio_config": rope}
        (path / "config.json").write_text(json.dumps(config))
        return locate(str(path), None)
    audio = {"transcription_format": "streaming"} if kind == "realtime" else {}
    encoder = {**ENCODER, "audio_encoding_args": audio}
    params = {**DECODER, "multimodal": {"whisper_model_args": {"encoder_args": encoder}}, **changes}
    (path / "params.json").write_text(json.dumps(params))
    return locate(str(path), None)


def checked(model: Model, options: dict[str, str], requests: int = 16) -> None:
    """Run the checks that precede the start of vLLM."""
    settings = resolve(model.family, options)
    check(model, settings, prefill.Decision(on=False))
    check_step(model, FAMILIES[model.family](model, settings), settings, requests)


@pytest.mark.parametrize("kind", ["realtime", "translated", "instruct", "whisper"])
def test_default_settings_of_each_family_pass(tmp_path: Path, kind: str) -> None:
    """The default settings of a family contradict none of its models."""
    checked(folder(tmp_path / kind, kind), {})


@pytest.mark.parametrize(
    ("kind", "option", "value", "message"),
    [
        ("realtime", "tokenizer_mode", "hf", "{} is in Mistral's format, which allows mistral; leave the option out"),
        ("instruct", "config_format", "auto", "{} is in Mistral's format, which allows mistral; leave the option out"),
        ("realtime", "load_format", "auto", "{} is in Mistral's format, which allows mistral or dummy; leave the op"),
        ("whisper", "tokenizer_mode", "mistral", "{} is in Hugging Face's format, which allows auto or hf; leave the"),
        ("whisper", "load_format", "mistral", "{} is in Hugging Face's format, which allows auto, hf, safetensors, "),
        ("realtime", "limit_mm_per_prompt", "audio=0", "a request holds one recording; give audio=1 or more, or"),
        ("translated", "load_format", "mistral", "{} is in Hugging Face's format, which allows auto, hf, safetensors "),
        ("translated", "config_format", "mistral", "{} is in Hugging Face's format, which allows auto or hf; leave th"),
        ("translated", "tokenizer_mode", "hf", "{} is in Hugging Face's format, which allows auto or mistral; leave"),
        ("translated", "tensor_parallel_size", "3", "{} has 32 attention heads, 32 in the audio encoder, which 3 GPUs"),
        (
            "realtime",
            "tensor_parallel_size",
            "8",
            "{} has 8 attention heads, 4 in the audio encoder, which 8 GPUs cannot share evenly; give 1, 2 or 4",
        ),
        ("whisper", "tensor_parallel_size", "4", "{} has 6 attention heads, 6 in the audio encoder, which 4 GPUs"),
        ("realtime", "dtype", "fp16", "it must be one of auto, bfloat16, float16, float32"),
        ("realtime", "max_model_len", "0", "it must be at least 1"),
        ("realtime", "max_model_len", "131073", "{} has 131072 positions; give at most 131072"),
        ("whisper", "max_model_len", "449", "{} has 448 positions; give at most 448"),
        ("instruct", "delay_ms", "480", "{} has no delay, only Voxtral Realtime has one; leave the option out"),
        ("realtime", "delay_ms", "500", "it must be a multiple of 80 from 80 to 1200, or 2400; or 0 for the model's"),
        ("realtime", "max_num_batched_tokens", "62", "a prompt of {} takes 63 positions, and 16 requests at a time ta"),
        ("instruct", "max_num_batched_tokens", "382", "a prompt of {} takes 383 positions, and 16 requests at a time "),
        ("whisper", "max_num_batched_tokens", "1499", "a prompt of {} takes 1500 positions, and 16 requests at a time"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, kind: str, option: str, value: str, message: str) -> None:
    """The error names the option, its value, the permitted values and the remedy, before anything is loaded."""
    model = folder(tmp_path / kind, kind)
    with pytest.raises(ConfigError) as caught:
        checked(model, {option: value})
    assert str(caught.value).startswith(f"engine option {option}={value}: {message.format(model.name)}")


def test_a_step_holds_all_requests(tmp_path: Path) -> None:
    """Each concurrent request takes one position of every step."""
    model = folder(tmp_path / "m", "realtime")
    checked(model, {"max_num_batched_tokens": "64"}, requests=64)
    with pytest.raises(ConfigError, match="and 65 requests at a time take one each; give at least 65, or 0 for vLLM's"):
        checked(model, {"max_num_batched_tokens": "64"}, requests=65)


@given(st.integers(1, 64), st.integers(0, 4), st.integers(1, 64))
def test_heads_are_shared_evenly(kv_heads: int, groups: int, size: int) -> None:
    """A size fits exactly if all GPUs get the same number of heads, and each has a key-value head."""
    heads = kv_heads * 2**groups
    fits = heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    assert divides({"n_heads": heads, "n_kv_heads": kv_heads}, size) == fits


def test_the_shorter_maximum_length_counts(tmp_path: Path) -> None:
    """If a model gives two maximum lengths, the shorter one counts; a model without one is not limited."""
    checked(folder(tmp_path / "none", "realtime", max_position_embeddings=None), {"max_model_len": "999999"})
    with pytest.raises(ConfigError, match="has 256 positions"):
        checked(folder(tmp_path / "two", "realtime", model_max_length=256), {})


# -- GPUs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", ["a", "0;1", "0,-1", "cuda:0"])
def test_devices_are_ids(devices: str) -> None:
    """Anything but GPU ids is refused, with or without a GPU."""
    with pytest.raises(ConfigError, match=r"is not the id of a GPU; give ids with commas, such as 0,1"):
        gpu.use_only(devices)


def nvml() -> ModuleType:
    """Return a fake of NVML's Python library that reports two GPUs."""
    library = ModuleType("pynvml")
    fake: Any = library
    fake.NVMLError = OSError
    fake.nvmlInit = fake.nvmlShutdown = lambda: None
    fake.nvmlDeviceGetCount = lambda: 2
    fake.nvmlDeviceGetHandleByIndex = lambda index: index
    fake.nvmlMemory_v2 = 2
    seen = SimpleNamespace(total=24 * 10**9, free=23 * 10**9, reserved=5 * 10**8)
    fake.nvmlDeviceGetMemoryInfo = lambda handle, version=None: seen
    fake.nvmlDeviceGetCudaComputeCapability = lambda handle: [8, 9]
    fake.nvmlDeviceGetName = lambda handle: f"Card {handle}"
    fake.nvmlSystemGetDriverVersion = lambda: "535.216.03"
    fake.nvmlSystemGetCudaDriverVersion = lambda: 12020
    return library


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the fake NVML, and restore the environment variables that a test changes."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def visible() -> list[str]:
    return [card.device for card in gpu.visible_gpus()]


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize(("devices", "used"), [("", ["0", "1"]), ("1", ["1"]), ("1, 0,1", ["1", "0"])])
def test_devices_hide_all_other_gpus(devices: str, used: list[str]) -> None:
    """`use_only` hides other GPUs in this process and its children, and makes CUDA number the GPUs like NVML."""
    gpu.use_only(devices)
    gpu.use_only(devices)
    assert visible() == used
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == (",".join(used) if devices else None)
    assert os.environ.get("CUDA_DEVICE_ORDER") == ("PCI_BUS_ID" if devices else None)


@pytest.mark.usefixtures("two_cards")
def test_cuda_visible_devices_limits_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES restricts the choice, too: only GPUs in both lists are used."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    gpu.use_only("0,1")
    assert visible() == ["1"]
    for devices in ("0", "0,2"):
        with pytest.raises(ConfigError, match=f"devices={devices}: the visible GPUs are 1; give some of these"):
            gpu.use_only(devices)


@pytest.mark.usefixtures("two_cards")
def test_the_drivers_reserved_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that the driver reserves is known for each GPU, with its capability; an old driver reports 0."""
    assert [(card.reserved_bytes, card.capability) for card in gpu.visible_gpus()] == [(5 * 10**8, (8, 9))] * 2

    def of_old(handle: int, version: int | None = None) -> SimpleNamespace:
        if version:
            raise OSError("function not found")
        return SimpleNamespace(total=24 * 10**9, free=23 * 10**9)

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetMemoryInfo", of_old)
    assert [card.reserved_bytes for card in gpu.visible_gpus()] == [0, 0]


@pytest.mark.usefixtures("two_cards")
def test_more_gpus_than_visible_are_refused(tmp_path: Path) -> None:
    """Requesting more GPUs than are visible is refused; "max" means all of them."""
    with pytest.raises(ConfigError, match="the visible GPUs are 0, 1; give at most 2"):
        checked(folder(tmp_path / "m", "realtime"), {"tensor_parallel_size": "4"})
    assert resolve("realtime", {"tensor_parallel_size": "max"}).tensor_parallel_size == 2
    gpu.use_only("0")
    assert resolve("realtime", {"tensor_parallel_size": "max"}).tensor_parallel_size == 1


@pytest.mark.usefixtures("two_cards")
def test_the_doctor_lists_the_gpus() -> None:
    """`doctor` lists each GPU with its memory, and the CUDA version of the driver."""
    found = [(each.name, each.state, each.detail) for each in doctor.findings() if each.name in ("gpu", "cuda")]
    assert found == [
        ("gpu", "ok", "0: Card 0, 24.0 GB, 23.0 GB of it free"),
        ("gpu", "ok", "1: Card 1, 24.0 GB, 23.0 GB of it free"),
        ("cuda", "ok", "driver 535.216.03 runs CUDA 12.2"),
    ]
