"""A model is found and described before a GPU is used; anything missing or incomplete is named, with a solution."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hub
import pytest
from conftest import ROOT, environment
from hub import COMMIT

from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm.engine.linked_folder import linked_folder
from voxbatch.vllm.engine.model import (
    INSTRUCT,
    REALTIME,
    WHISPER,
    Model,
    check_weights,
    complete,
    locate,
    weights_bytes,
)

needs_hub = pytest.mark.skipif(not find_spec("huggingface_hub"), reason="huggingface_hub is not installed")

NOWHERE = "http://127.0.0.1:9"
"""An address where no server listens."""
AUDIO = {"sampling_rate": 16_000, "transcription_delay_ms": 480, "streaming_n_left_pad_tokens": 32}


def params(transcription_format: str | None = "streaming") -> dict[str, Any]:
    """Return the keys of params.json that tell the family of a model."""
    audio = {"transcription_format": transcription_format} if transcription_format else {}
    return {"dim": 64, "multimodal": {"whisper_model_args": {"encoder_args": {"audio_encoding_args": audio}}}}


def write(folder: Path, **files: Any) -> Path:
    """Write JSON files: write(folder, params={…}) → folder/params.json, and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def safetensors(path: Path, size: int = 64) -> Path:
    """Return a file of one tensor of bytes, made by hand: length of the header, header, data."""
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return path


def realtime(folder: Path) -> Path:
    """Write a complete Voxtral Realtime, with the files that are read before loading."""
    write(folder, params=params(), tekken={"audio": AUDIO, "vocab": ["é", "你"]})
    (folder / "README.md").write_text("---\nlanguage:\n- en\nlicense: apache-2.0\n---\n# A model\n")
    safetensors(folder / "consolidated.safetensors")
    return folder


def translated(folder: Path) -> Path:
    """Write a complete Voxtral Realtime in Hugging Face's format."""
    rope = {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    config = {"architectures": ["VoxtralRealtimeForConditionalGeneration"], "audio_config": rope}
    write(folder, config=config, tekken={"audio": AUDIO, "vocab": ["é", "你"]})
    safetensors(folder / "model.safetensors")
    return folder


def whisper(folder: Path) -> Path:
    """Write a complete Whisper."""
    write(folder, config={"architectures": ["WhisperForConditionalGeneration"]}, generation_config={})
    write(folder, preprocessor_config={})
    safetensors(folder / "model.safetensors")
    return folder


# -- family and format -------------------------------------------------------------------------------------------------


def test_a_local_folder_is_described(tmp_path: Path) -> None:
    """The family, format and licence of a local folder are read from its small files."""
    folder = realtime(tmp_path / "m")
    found = locate(str(folder), None)
    assert found.fingerprint
    assert replace(found, fingerprint=None) == Model(str(folder), folder, REALTIME, True, None, "apache-2.0")
    assert locate(str(folder), None).audio_settings() == AUDIO
    write(folder, params=params(None))
    assert locate(str(folder), None).family == INSTRUCT
    model = locate(str(whisper(tmp_path / "w")), None)
    assert (model.family, model.is_mistral, model.license) == (WHISPER, False, "unknown")


def test_realtime_in_hugging_faces_format_is_described(tmp_path: Path) -> None:
    """Realtime in Hugging Face's format is found by its config.json and described by the params.json made from it.

    A folder with both formats is read in Mistral's.
    """
    folder = translated(tmp_path / "m")
    model = locate(str(folder), None)
    assert (model.family, model.is_mistral, model.is_translated) == (REALTIME, False, True)
    assert (model.shape()["dim"], model.audio_settings()) == (3072, AUDIO)
    assert complete(model) == model
    assert weights_bytes(model) == (folder / "model.safetensors").stat().st_size
    realtime(folder)
    assert locate(str(folder), None).is_mistral


def test_a_relative_folder_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is found from any directory afterwards, and has priority over a hub's name."""
    realtime(tmp_path / "mistralai" / "m")
    monkeypatch.chdir(tmp_path)
    assert locate("mistralai/m", None).path == tmp_path / "mistralai" / "m"


@pytest.mark.parametrize("name", ["./m", "/nowhere/m", "~/m", "m", "a/b/c"])
def test_a_missing_folder_is_refused(name: str) -> None:
    """A name that cannot be a hub's name is not looked up there."""
    with pytest.raises(ConfigError, match=f"--model {name}: there is no such folder; give a folder, a hub name"):
        locate(name, None)


@needs_hub
@pytest.mark.parametrize("name", ["owner/na..me", "owner/-name", "ow ner/name", "owner/name.git", f"owner/{'x' * 99}"])
def test_an_invalid_hub_name_is_refused(name: str) -> None:
    """A name that breaks the hub's rules is refused without a request, in our words."""
    with pytest.raises(ConfigError, match=f"--model {name}: there is no such folder here, and a hub name "):
        locate(name, None)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no model: it has neither params.json (Mistral's format) nor config.json (Hugging Face's)"),
        ({"params": params()}, "has a params.json but lacks tekken.json, the tokenizer: download the whole model"),
        ({"params": {"dim": 1}}, "is not a speech model: its params.json has no multimodal.whisper_model_args"),
        ({"params": []}, "params.json is not a JSON object: download it again"),
        ({"config": {"architectures": ["LlamaForCausalLM"]}}, "is LlamaForCausalLM; this engine runs Voxtral"),
        ({"config": {}}, "is nothing; this engine runs Voxtral Realtime,"),
        ({"config": {"architectures": ["WhisperForConditionalGeneration"]}}, "lacks generation_config.json: downl"),
        ({"config": {"architectures": ["VoxtralRealtimeForConditionalGeneration"]}},
         "lacks tekken.json, the tokenizer, which is not part of Hugging Face's format: copy it from the model that"),
        ({"config": {"architectures": ["VoxtralForConditionalGeneration"]}},
         "lacks params.json, tekken.json and consolidated*.safetensors; they are in the same repository on the hub"),
    ],
)  # fmt: skip
def test_unsupported_models_are_refused(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Another kind of model, or an incomplete one, is refused with the folder and the missing part."""
    with pytest.raises(ConfigError) as caught:
        locate(str(write(tmp_path / "m", **files)), None)
    assert str(tmp_path / "m") in str(caught.value)
    assert message in str(caught.value)


def test_damaged_small_files_are_refused(tmp_path: Path) -> None:
    """A damaged JSON file is named, with the damage and a solution; a tokenizer without audio is that of a text
    model."""
    write(tmp_path, params=params(), tekken={})
    with pytest.raises(ConfigError, match=r"tekken\.json has no `audio` section"):
        locate(str(tmp_path), None).audio_settings()
    (tmp_path / "params.json").write_text('{"dim": ')
    with pytest.raises(
        ConfigError, match=r"params\.json cannot be read as JSON \(Expecting value.*\): download it again"
    ):
        locate(str(tmp_path), None)


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    """A revision of a local folder is refused."""
    with pytest.raises(ConfigError, match="only a hub's model has revisions"):
        locate(str(realtime(tmp_path / "m")), "main")


# -- weights -----------------------------------------------------------------------------------------------------------


def test_complete_weights_are_accepted(tmp_path: Path) -> None:
    """Complete weights are accepted, in one file or several."""
    for model in (locate(str(realtime(tmp_path / "r")), None), locate(str(whisper(tmp_path / "w")), None)):
        assert complete(model) == model
        assert weights_bytes(model) == sum(file.stat().st_size for file in model.path.glob("*.safetensors"))


@pytest.mark.parametrize("missing", [1, 63])
def test_an_incomplete_file_is_refused(missing: int, tmp_path: Path) -> None:
    """An incomplete file is named, with its size and the size it should have."""
    model = locate(str(realtime(tmp_path / "m")), None)
    file = model.path / "consolidated.safetensors"
    whole = file.stat().st_size
    os.truncate(file, whole - missing)
    with pytest.raises(EngineError) as caught:
        check_weights(model)
    seen = f"{whole - missing:,} bytes of {whole:,}"
    assert str(caught.value) == f"{file} is incomplete: {seen}; delete it and download it again"


@pytest.mark.parametrize("size", [0, 7, 8, 40])
def test_a_broken_header_is_refused(size: int, tmp_path: Path) -> None:
    """A file with a broken header is refused."""
    model = locate(str(realtime(tmp_path / "m")), None)
    os.truncate(model.path / "consolidated.safetensors", size)
    with pytest.raises(EngineError, match="is not a complete safetensors file"):
        check_weights(model)
    (model.path / "consolidated.safetensors").write_bytes(b"<!DOCTYPE html><html>" * 9)
    with pytest.raises(EngineError, match="is not a complete safetensors file"):
        check_weights(model)


def test_a_missing_weights_file_is_refused(tmp_path: Path) -> None:
    """The files that the index names and the folder lacks are named."""
    model = locate(str(whisper(tmp_path / "m")), None)
    (model.path / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"has no model\*\.safetensors: download the whole model, with its weights"):
        check_weights(model)
    shards = {f"w{i}": f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    (model.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    safetensors(model.path / shards["w2"])
    with pytest.raises(EngineError) as caught:
        check_weights(model)
    absent = "model-00001-of-00003.safetensors, model-00003-of-00003.safetensors"
    assert str(caught.value) == f"{model.path} lacks {absent}, which its index names: download the model again"
    safetensors(model.path / shards["w1"])
    safetensors(model.path / shards["w3"])
    check_weights(model)


# -- another delay -----------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_another_delay_gets_a_linked_folder(tmp_path: Path) -> None:
    """The folder for another delay has links to all files and its own tekken.json; the model's folder is not touched.

    Only the delay differs in tekken.json.
    """
    model = locate(str(realtime(tmp_path / "m")), None)
    before = contents(model.path)
    folder = linked_folder(model, 2400, tmp_path / "cache")
    assert contents(model.path) == before
    assert contents(folder).keys() == before.keys()
    assert {name for name, content in contents(folder).items() if content != before[name]} == {"tekken.json"}
    own = {path.name for path in folder.iterdir() if not path.is_symlink()}
    assert own == {"tekken.json"}
    changed, original = (json.loads((each / "tekken.json").read_text()) for each in (folder, model.path))
    assert changed["audio"].pop("transcription_delay_ms") == 2400
    assert original["audio"].pop("transcription_delay_ms") == 480
    assert changed == original
    check_weights(locate(str(folder), None))


def test_the_linked_folder_is_the_same_each_time(tmp_path: Path) -> None:
    """A model and a delay always have the same folder, and no folder is made if the model has this delay."""
    model = locate(str(realtime(tmp_path / "m")), None)
    folder = linked_folder(model, 960, tmp_path / "cache")
    before = contents(folder)
    assert linked_folder(model, 960, tmp_path / "cache") == folder
    assert contents(folder) == before
    other = locate(str(realtime(tmp_path / "other" / "m")), None)
    folders = {
        folder,
        linked_folder(model, 80, tmp_path / "cache"),
        linked_folder(other, 960, tmp_path / "cache"),
    }
    assert len(folders) == 3
    assert linked_folder(model, 480, tmp_path / "cache") == model.path


def test_removed_files_leave_the_linked_folder(tmp_path: Path) -> None:
    """A file that the model no longer has disappears from the folder, because the engine would fail at the link."""
    model = locate(str(realtime(tmp_path / "m")), None)
    folder = linked_folder(model, 960, tmp_path / "cache")
    (model.path / "consolidated.safetensors").rename(model.path / "consolidated-00001-of-00001.safetensors")
    assert linked_folder(model, 960, tmp_path / "cache") == folder
    assert contents(folder).keys() == contents(model.path).keys()


@pytest.mark.parametrize("delay_ms", [0, 480, 960])
def test_hugging_faces_format_gets_a_linked_folder(delay_ms: int, tmp_path: Path) -> None:
    """A model in Hugging Face's format is served from a folder with a params.json of its own.

    The folder has its own tekken.json only for another delay. The weights are linked. Other tensor files are left out.
    """
    model = locate(str(translated(tmp_path / "m")), None)
    safetensors(model.path / "adapter.safetensors")
    before = contents(model.path)
    folder = linked_folder(model, delay_ms, tmp_path / "cache")
    assert contents(model.path) == before
    assert contents(folder).keys() == {*before, "params.json"} - {"adapter.safetensors"}
    own = {path.name for path in folder.iterdir() if not path.is_symlink()}
    assert own == ({"params.json", "tekken.json"} if delay_ms == 960 else {"params.json"})
    assert locate(str(folder), None).shape() == model.shape()


@pytest.mark.slow
def test_two_processes_can_make_the_linked_folder_at_once(tmp_path: Path) -> None:
    """Processes and threads that make the folder at the same time all find it complete, and leave nothing behind."""
    model = locate(str(realtime(tmp_path / "m")), None)
    script = (
        "import sys, threading; from pathlib import Path; from voxbatch.vllm.engine.model import locate\n"
        "from voxbatch.vllm.engine.linked_folder import linked_folder\n"
        "model, cache, failed = locate(sys.argv[1], None), Path(sys.argv[2]), []\n"
        "threading.excepthook = lambda each: failed.append(each.exc_value)\n"
        "def make():\n"
        "    for _ in range(100):\n"
        "        assert (linked_folder(model, 960, cache) / 'tekken.json').read_text().endswith('}')\n"
        "threads = [threading.Thread(target=make) for _ in range(2)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "sys.exit(str(failed) if failed else 0)"
    )
    command = [sys.executable, "-c", script, str(model.path), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[1] for process in running] == ["", ""]
    assert contents(linked_folder(model, 960, tmp_path / "cache")).keys() == contents(model.path).keys()


# -- a hub -------------------------------------------------------------------------------------------------------------

TOKEN = "hf_notarealtoken"
ASK = """
import json, sys
from voxbatch.vllm.engine.model import locate, complete
from voxbatch.errors import VoxbatchError
for name, revision in json.loads(sys.argv[1]):
    try:
        model = locate(name, revision)
        seen = sorted(path.name for path in model.path.iterdir())
        whole = sorted(path.name for path in complete(model).path.iterdir())
        print(json.dumps([model.revision, model.family, model.license, seen, whole]))
    except VoxbatchError as e:
        print(json.dumps(f"{type(e).__name__}: {e}"))
"""


def ask(variables: dict[str, str], *models: tuple[str, str | None]) -> list[Any]:
    """Ask in a separate process, because the client reads its variables when it is imported."""
    kept = {name: value for name, value in environment().items() if not name.lower().endswith("_proxy")}
    env = {**kept, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_PROGRESS_BARS": "1", **variables}
    command = [sys.executable, "-c", ASK, json.dumps(models)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert TOKEN not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_hub
@pytest.mark.slow
def test_a_hub_model_is_fetched_in_two_steps(tmp_path: Path) -> None:
    """Small files are fetched first and weights of the model's format later; a branch stands for its commit.

    A repository without params.json gives the weights in Hugging Face's format, with their index. A model that is here
    already is found without the hub.
    """
    both, sharded = realtime(tmp_path / "both"), translated(tmp_path / "sharded")
    safetensors(both / "model.safetensors")
    (sharded / "model.safetensors").rename(sharded / "model-00001-of-00001.safetensors")
    write(sharded, **{"model.safetensors.index": {"weight_map": {"w": "model-00001-of-00001.safetensors"}}})
    small, weights = ["README.md", "params.json", "tekken.json"], "consolidated.safetensors"
    whole = [COMMIT, REALTIME, "apache-2.0", small, sorted([*small, weights])]
    again = [*whole[:3], whole[4], whole[4]]
    with hub.serving({"owner/good": both, "owner/sharded": sharded}, tmp_path / "home") as server:
        models = ("owner/good", "main"), ("owner/good", None), ("owner/good", COMMIT), ("owner/sharded", None)
        found = ask(server.environment, *models)
    assert found[:3] == [whole, again, again]
    in_parts = sorted(path.name for path in sharded.iterdir())
    assert found[3] == [COMMIT, REALTIME, "unknown", ["config.json", "tekken.json"], in_parts]
    assert ask(hub.variables(NOWHERE, tmp_path / "home"), ("owner/good", COMMIT)) == [again]


@needs_hub
@pytest.mark.slow
def test_each_refusal_of_the_hub_has_its_message(tmp_path: Path) -> None:
    """Each refusal of the hub has its own message with a solution. A hub that fails during a download is no fault of
    the user: the run or listener ends and may be restarted."""
    folders = dict.fromkeys(("owner/good", "owner/gated"), realtime(tmp_path / "good"))
    models = ("owner/gated", None), ("owner/good", "v9"), ("owner/absent", None), ("owner/good", None)
    dropped = "consolidated.safetensors"
    with hub.serving(folders, tmp_path / "home", gated="owner/gated", dropped=dropped) as server:
        gated, revision, absent, fleeting = ask(server.environment, *models)
    assert gated == (
        "ConfigError: owner/gated is gated: accept its terms on its page of the hub, then set HF_TOKEN to a token of "
        "that account"
    )
    assert revision == "ConfigError: owner/good has no revision 'v9': give a branch, a tag or a commit of it"
    no_such = "there is no such folder here and no such model on the hub; if it is private, set HF_TOKEN"
    assert absent == f"ConfigError: --model owner/absent: {no_such}"
    (nowhere,) = ask(hub.variables(NOWHERE, tmp_path / "new"), ("owner/good", None))
    for unreachable in (fleeting, nowhere):
        assert unreachable.startswith("EngineError: --model owner/good: the hub http")
        assert " cannot be reached (" in unreachable
        assert unreachable.endswith("; or copy the model into a folder, and give that as --model")
