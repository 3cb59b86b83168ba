"""`--model parakeet` by its name on the hub, with tiny random models on a hub of this machine: for both engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
from conftest import Voxbatch
from hub import COMMIT, Hub, serving

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnx_asr")

import parakeets
from nemo_archives import nemo_config, nemo_weights, write_archive
from onnx_export import export, tiny
from tiny_weights import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
V3, V2, ONNX = "nvidia/parakeet-tdt-0.6b-v3", "nvidia/parakeet-tdt-0.6b-v2", "istupakov/parakeet-tdt-0.6b-v3-onnx"
ENGINES = ("transducers", "onnx-asr")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each repository of the hub, with files that no run needs."""
    root = tmp_path_factory.mktemp("repositories")
    v3 = Path(parakeets.folder(root / "v3", "tdt"))
    v2 = tiny_model("tdt")
    (root / "v2").mkdir()
    write_archive(root / "v2" / "parakeet-tdt-0.6b-v2.nemo", nemo_config(v2), nemo_weights(v2))
    onnx = beside(export(tiny("tdt", 9, blank_bias=8.0), root / "onnx"))
    for folder in (v3, root / "v2", onnx):
        (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
        (folder / "picture.png").write_bytes(b"not needed")
    (v3 / "parakeet-tdt-0.6b-v3.nemo").write_bytes(b"not needed")
    return {V3: v3, V2: root / "v2", ONNX: onnx}


def beside(folder: Path) -> Path:
    """Move the weights of an encoder to a file beside it, as they are in the published export."""
    import onnx

    path = folder / "encoder-model.onnx"
    location = f"{path.name}.data"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=location, size_threshold=0)
    return folder


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three recordings."""
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(3):
        samples = parakeets.sound(24_000 + 8_000 * number, number)
        soundfile.write(folder / f"r{number}.wav", samples, 16_000, subtype="PCM_16")
    return folder


def flags(engine: str) -> tuple[str, ...]:
    return ("--engine", engine, "--no-report", *(("--engine-option", "watch=false") if engine == "onnx-asr" else ()))


def texts(out: Path) -> list[tuple[str, Any]]:
    lines = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
    return [(line["pred_text"], line["words"]) for line in lines]


def fetched(hub: Hub) -> set[str]:
    """Return the names of the files whose content the hub was asked for."""
    return {line.rpartition("/")[2] for line in hub.asked if line.startswith("GET ") and "/resolve/" in line}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_gives_what_its_folder_gives(
    voxbatch: Voxbatch, models: dict[str, Path], recordings: Path, tmp_path: Path, engine: str
) -> None:
    """`--model parakeet` downloads what the engine needs, says so, and gives the texts of the folder. The run records
    the commit and the licence. Later, neither a further run nor the same one needs the hub."""
    repository = ONNX if engine == "onnx-asr" else V3
    run = ("run", recordings, "--model", "parakeet", *flags(engine))
    with serving(models, tmp_path / "hf") as hub:
        done = voxbatch(*run, "-o", "out", env=hub.environment)
    assert done.returncode == 0, done.stderr
    assert f"downloading {repository}: " in done.stderr
    assert fetched(hub) <= {path.name for path in models[repository].iterdir()} - {
        "picture.png", "parakeet-tdt-0.6b-v3.nemo",
    }  # fmt: skip
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())["engine"]
    assert (facts["name"], facts["model"]) == (engine, "parakeet")
    assert (facts["license"], facts["decoding"]["revision"]) == ("CC-BY-4.0", COMMIT)
    for out, offline in (("out", {}), ("other", {}), ("offline", {"HF_HUB_OFFLINE": "1"})):
        again = voxbatch(*run, "-o", out, env={**hub.environment, **offline})
        assert again.returncode == 0, again.stderr
        assert "downloading" not in again.stderr
    local = voxbatch("run", recordings, "--model", models[repository], *flags(engine), "-o", "local")
    assert local.returncode == 0, local.stderr
    assert texts(tmp_path / "out") == texts(tmp_path / "other") == texts(tmp_path / "local")
    assert any(text for text, _ in texts(tmp_path / "out"))


def test_auto_takes_onnx_without_a_gpu(
    voxbatch: Voxbatch, models: dict[str, Path], recordings: Path, tmp_path: Path
) -> None:
    """The same command runs on a machine without a GPU: it asks the hub for the ONNX files only."""
    from voxbatch.engines import has_gpu

    if has_gpu():
        pytest.skip("this machine has a GPU")
    with serving(models, tmp_path / "hf") as hub:
        done = voxbatch("run", recordings, "--model", "parakeet", "--no-report", "-o", "out", env=hub.environment)
    assert done.returncode == 0, done.stderr
    assert "onnx-asr: it runs parakeet" in done.stderr
    assert {line.split("/resolve/")[0].split("/", 1)[1] for line in hub.asked if "/resolve/" in line} == {ONNX}


@pytest.mark.parametrize(
    ("engine", "dropped"), [("transducers", "model.safetensors"), ("onnx-asr", "encoder-model.onnx.data")]
)
def test_an_interrupted_download_is_continued(
    voxbatch: Voxbatch, models: dict[str, Path], recordings: Path, tmp_path: Path, engine: str, dropped: str
) -> None:
    """Files that the first attempt did not get are fetched by the next one."""
    run = ("run", recordings, "--model", "parakeet", *flags(engine), "-o", "out")
    with serving(models, tmp_path / "hf", dropped=dropped) as hub:
        failed = voxbatch(*run, env=hub.environment)
    assert failed.returncode == 1, failed.stderr
    assert "cannot be reached" in failed.stderr
    with serving(models, tmp_path / "hf") as hub:
        done = voxbatch(*run, env=hub.environment)
    assert done.returncode == 0, done.stderr
    assert dropped in fetched(hub)


def test_weights_in_several_files_are_completed(
    voxbatch: Voxbatch, models: dict[str, Path], recordings: Path, tmp_path: Path
) -> None:
    """A model whose weights are in several files is completed, too: a part of them is no model."""
    folder = tmp_path / "sharded"
    shutil.copytree(models[V3], folder)
    (folder / "model.safetensors").unlink()
    parakeets.network("tdt").save_pretrained(folder, max_shard_size="30KB")
    (first, *_) = sorted(path.name for path in folder.glob("*.safetensors"))
    run = ("run", recordings, "--model", "parakeet", *flags("transducers"), "-o", "out")
    with serving({V3: folder}, tmp_path / "hf", dropped=first) as hub:
        assert voxbatch(*run, env=hub.environment).returncode == 1
    with serving({V3: folder}, tmp_path / "hf") as hub:
        done = voxbatch(*run, env=hub.environment)
    assert done.returncode == 0, done.stderr
    assert first in fetched(hub)
    assert any(text for text, _ in texts(tmp_path / "out"))


def test_an_archive_comes_from_the_hub(
    voxbatch: Voxbatch, models: dict[str, Path], recordings: Path, tmp_path: Path
) -> None:
    """Parakeet v2 exists as an archive of NeMo only, which is taken."""
    run = ("run", recordings, *flags("transducers"))
    with serving(models, tmp_path / "hf") as hub:
        done = voxbatch(*run, "--model", "parakeet-v2", "-o", "out", env=hub.environment)
        offline = {**hub.environment, "HF_HUB_OFFLINE": "1"}
        again = voxbatch(*run, "--model", "parakeet-v2", "-o", "offline", env=offline)
    assert done.returncode == 0, done.stderr
    assert again.returncode == 0, again.stderr
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())["engine"]
    assert facts["decoding"]["revision"] == COMMIT
    local = models[V2] / "parakeet-tdt-0.6b-v2.nemo"
    assert voxbatch(*run, "--model", local, "-o", "local").returncode == 0
    assert texts(tmp_path / "out") == texts(tmp_path / "local")


@pytest.mark.parametrize("engine", ENGINES)
def test_doctor_asks_the_hub_and_fetches_no_weights(
    voxbatch: Voxbatch, models: dict[str, Path], tmp_path: Path, engine: str
) -> None:
    """`doctor` finds the model by its name without its weights, and fails with the reason where the hub lacks it."""
    settings = {"VOXBATCH_MODEL": "parakeet", "VOXBATCH_ENGINE": engine}
    with serving(models, tmp_path / "hf") as hub:
        done = voxbatch("doctor", env={**hub.environment, **settings})
    assert "\nok       model                  parakeet" in done.stdout
    assert not {name for name in fetched(hub) if name.endswith((".safetensors", ".onnx", ".data", ".nemo"))}
    with serving({}, tmp_path / "other") as hub:
        done = voxbatch("doctor", env={**hub.environment, **settings})
    assert "no such model on the hub" in done.stdout
    assert done.returncode == 1
