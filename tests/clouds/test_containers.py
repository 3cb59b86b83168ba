"""Tests for the Dockerfile: its text, and its targets, which are built and run on machines that can build."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub
import images
import pytest
from dockerfile_parse import DockerfileParser
from scripts import imported
from waits import until

from voxbatch.vllm.engine.model import SMALL_FILES
from voxbatch.vllm.plugin import vllm_version

ROOT = Path(__file__).parents[2]
PINNED = {"protobuf": "6.33.6", "grpcio": "1.83.0", "click": "8.4.2", "urllib3": "2.7.0"}
"""Versions that vLLM's requirements allow, each older than our locked version."""

built = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]  # five minutes for each image


@pytest.fixture(scope="module")
def dockerfile(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the instructions of the Dockerfile without comments."""
    copy = tmp_path_factory.mktemp("parsed") / "Dockerfile"
    copy.write_text((ROOT / "Dockerfile").read_text())
    return [each for each in DockerfileParser(str(copy)).structure if each["instruction"] != "COMMENT"]


def stages(instructions: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each build stage by its name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in instructions:
        if each["instruction"] == "FROM":
            found[each["value"].split(" AS ")[1]] = []
        elif found:
            found[list(found)[-1]].append((each["instruction"], each["value"]))
    return found


# ── the text of the Dockerfile ────────────────────────────────────────────────────────────────────────────────────────


def test_hadolint() -> None:
    """hadolint reports nothing for the Dockerfile at any level."""
    found = subprocess.run(
        [images.tool("hadolint"), "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True, env={}
    )
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.slow
def test_shellcheck() -> None:
    """shellcheck reports nothing for any shell script of the project."""
    scripts = [ROOT / ".ci" / "run", *(ROOT / "tests").rglob("*.sh"), *(ROOT / "jobs").rglob("*.sh")]
    scripts += (ROOT / "jobs").rglob("*.sbatch")
    command = [images.tool("shellcheck"), "--color=never", "--external-sources", "--source-path=SCRIPTDIR"]
    found = subprocess.run([*command, *map(str, scripts)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_targets(dockerfile: list[dict[str, Any]], target: str) -> None:
    """Both targets run as a user other than root, start voxbatch through tini without a remaining shell, and define no
    health check.
    """
    last = dict(stages(dockerfile)[target])
    assert re.fullmatch(r"[1-9]\d*:0", last["USER"])
    assert json.loads(last["ENTRYPOINT"]) == ["/usr/bin/tini", "--", "voxbatch"]
    assert not {"HEALTHCHECK", "VOLUME"} & set(last)


def test_default_target(dockerfile: list[dict[str, Any]]) -> None:
    """The default target contains the vLLM with which the plugin is proven; every base image can be replaced, also by
    digest.
    """
    assert list(stages(dockerfile))[-1] == "gpu"
    bases = {each["value"].split(" AS ")[0] for each in dockerfile if each["instruction"] == "FROM"}
    assert bases == {"${BASE_IMAGE}", "${PYTHON_IMAGE}"}
    given = dict(each["value"].split("=", 1) for each in dockerfile[:2])
    version = re.fullmatch(r"vllm/vllm-openai:v([0-9.]+)", given["BASE_IMAGE"])
    assert version is not None
    assert vllm_version.is_proven(version[1])


def test_no_secret(dockerfile: list[dict[str, Any]]) -> None:
    """A token is never an argument or a variable, which the image would keep, but a secret of one build step."""
    kept = [each["value"] for each in dockerfile if each["instruction"] in ("ARG", "ENV", "LABEL", "COPY", "ADD")]
    assert not [value for value in kept if re.search(r"token|secret|password|credential", value, re.IGNORECASE)]
    steps = [value for name, value in stages(dockerfile)["weights"] if name == "RUN"]
    assert all(step.startswith("--mount=type=secret,id=hf_token") for step in steps)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_order_of_layers(dockerfile: list[dict[str, Any]], target: str) -> None:
    """The package is the last layer, so that a change of code downloads and installs nothing else again."""
    lines = [value for name, value in stages(dockerfile)[target] if name in ("RUN", "COPY")]
    assert [("from=wheel" in line) for line in lines] == [*([False] * (len(lines) - 1)), True]


def test_context() -> None:
    """The build context contains exactly the files that are copied, because a checkout may contain anything else."""
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    lines = re.findall(
        r"^COPY (?!--from)(?:--chmod=\d+ )?(.*) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE
    )
    copied = {file for line in lines for file in line.split()}
    assert all(any(fnmatch.fnmatch(file, each) for each in admitted) for file in copied)
    assert set(admitted) == {re.sub(r"^jobs/image/.*\.", "jobs/image/*.", file) for file in copied}


def test_locks() -> None:
    """Packages that several lock files of the target cpu name have the same version in each."""
    versions: dict[str, set[str]] = {}
    for name in ("requirements.lock", "requirements-clouds.lock", "requirements-build.lock"):
        for package, version in re.findall(r"^(\S+)==(\S+)", (ROOT / name).read_text(), flags=re.MULTILINE):
            versions.setdefault(package, set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


# ── the scripts of the build ──────────────────────────────────────────────────────────────────────────────────────────

Beside = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that has pip alone."""
    folder = tmp_path_factory.mktemp("environment") / "image"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def beside(tmp_path: Path, wheels: Path, empty_environment: Path) -> Beside:
    """Return a function: beside(["engine==1"], lock) runs beside.py in an environment with these stub packages."""
    shutil.copytree(empty_environment, tmp_path / "image", symlinks=True)
    python = str(tmp_path / "image" / "bin" / "python")
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    env = {"PATH": os.environ["PATH"], **settings}

    def run(image: list[Path], *arguments: object) -> subprocess.CompletedProcess[str]:
        install = [python, "-m", "pip", "install", "--quiet", "--no-deps", *map(str, image)]
        subprocess.run(install, env=env, check=True, capture_output=True)
        script = ROOT / "jobs" / "image" / "beside.py"
        return subprocess.run([python, str(script), *map(str, arguments)], env=env, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_beside_adds_what_is_missing(tmp_path: Path, wheels: Path, beside: Beside) -> None:
    """Only packages of the lock file that the image lacks are installed; packages that it has in
    another version stay.
    """
    old, new = images.stub_wheel(wheels, "engine", "1.0"), images.stub_wheel(wheels, "engine", "2.0")
    addon = images.stub_wheel(wheels, "add_on", "1.0", "engine>=1")
    lock = tmp_path / "lock"
    lock.write_text(images.lock_line(new) + images.lock_line(addon).replace("add_on", "add-on"))
    done = beside([old], lock)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"unchanged: \d+ packages; added: add-on 1.0\n", done.stdout)


@pytest.mark.slow
def test_beside_refuses(tmp_path: Path, wheels: Path, beside: Beside) -> None:
    """Requirements that the image's packages do not meet end the build with a reason, also those of a wheel's extras.
    Packages that were broken before do not.
    """
    image = [images.stub_wheel(wheels, "engine", "1.0"), images.stub_wheel(wheels, "broken", "1.0", "nowhere>=1")]
    addon = images.stub_wheel(wheels, "addon", "1.0", "engine>=2")
    lock = tmp_path / "lock"
    lock.write_text(images.lock_line(addon))
    done = beside(image, lock)
    assert done.returncode == 1
    assert (
        "does not fit into the image:\n  addon 1.0 has requirement engine>=2, but you have engine 1.0.\nTake"
        in done.stderr
    )

    package = images.stub_wheel(wheels, "package", "1.0", "engine>=1", 'addon>=3; extra == "cloud"')
    done = beside(image, package, "cloud")
    assert done.returncode == 1
    assert "package wants addon>=3, and the image has 1.0\n" in done.stderr


FILES = ["README.md", "params.json", "tekken.json", "model.safetensors", "onnx/model.onnx", "config.json", "pic.png"]


@pytest.mark.parametrize(
    ("files", "left_out"),
    [
        ([*FILES, "consolidated.safetensors"], {"model.safetensors", "onnx/model.onnx", "pic.png"}),
        (FILES, {"onnx/model.onnx", "pic.png"}),
    ],
)
def test_weights_in_one_format(files: list[str], left_out: set[str]) -> None:
    """An image gets the weights of a model once, in Mistral's own format if there is one, and every small file that the
    engine reads.
    """
    weights = imported(ROOT / "jobs" / "image" / "weights.py")
    assert set(files) - set(weights.chosen(files)) == left_out
    small = [pattern.replace("*", "x") for pattern in SMALL_FILES]
    assert weights.chosen(small) == small


@pytest.mark.slow
def test_weights_from_a_hub(tmp_path: Path) -> None:
    """The files are stored in a folder with the model's name and commit, to which the revision that was asked for is a
    link. The token is sent to the hub and written to no file.
    """
    (tmp_path / "model").mkdir()
    for name in ("params.json", "consolidated.safetensors", "model.safetensors"):
        (tmp_path / "model" / name).write_text(name)
    (tmp_path / "secret").write_text("hf_of_a_test\n")
    script = (ROOT / "jobs" / "image" / "weights.py").read_text()
    (tmp_path / "weights.py").write_text(script.replace("/run/secrets/hf_token", str(tmp_path / "secret")))
    command = [sys.executable, str(tmp_path / "weights.py"), "o/m", "main", str(tmp_path / "models")]
    with hub.serving({"o/m": tmp_path / "model"}, tmp_path / "home") as served:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **served.environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {str(file.relative_to(tmp_path / "models")) for file in (tmp_path / "models").rglob("*") if file.is_file()}
    assert found == {f"o/m/{hub.COMMIT}/params.json", f"o/m/{hub.COMMIT}/consolidated.safetensors"}
    assert os.readlink(tmp_path / "models" / "o/m/main") == hub.COMMIT
    assert served.tokens == {"Bearer hf_of_a_test"}
    assert not [file for file in (tmp_path / "models").rglob("*") if file.is_file() and b"hf_of" in file.read_bytes()]


def test_no_weights(tmp_path: Path) -> None:
    """An empty folder is created without a model name, which the next build step copies."""
    imported(ROOT / "jobs" / "image" / "weights.py").main("", "main", str(tmp_path / "models"))
    assert list((tmp_path / "models").iterdir()) == []


# ── built images ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[images.Store]:
    with images.store(tmp_path_factory.mktemp("images")) as made:
        yield made


@pytest.fixture(scope="module")
def cpu(store: images.Store) -> Iterator[images.Container]:
    image = store.build("cpu", PYTHON_IMAGE=images.BASE, VERSION="1.2.3")
    with images.container(store, image) as container:
        yield container


@pytest.fixture(scope="module")
def gpu(store: images.Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[images.Container]:
    """Build the target gpu on a stand-in for vLLM's image, with stubs of vLLM and PyTorch and other versions than we
    lock.
    """
    folder = tmp_path_factory.mktemp("stand-in")
    for name, version in (("vllm", "0.32.0"), ("torch", "2.13.0")):
        images.stub_wheel(folder, name, version)
    pins = " ".join(f"{name}=={version}" for name, version in PINNED.items())
    (folder / "Dockerfile").write_text(
        f"FROM {images.BASE} AS stand-in\nENV PIP_BREAK_SYSTEM_PACKAGES=1\nCOPY *.whl /\n"
        f"RUN python3 -m pip install -q --no-cache-dir /*.whl {pins} && rm /*.whl\nENTRYPOINT ['vllm', 'serve']\n"
    )
    base = store.build("stand-in", folder)
    image = store.build("gpu", PYTHON_IMAGE=images.BASE, BASE_IMAGE=base)
    with images.container(store, image) as container:
        yield container


class TestCpu:
    pytestmark = built

    def test_runs_the_examples(self, cpu: images.Container, tmp_path: Path) -> None:
        """The container transcribes the examples with the contents of the image only, without network and root."""
        done = cpu.run(
            "run", "/examples/manifest.jsonl", "-o", "/tmp/out", "--formats", "srt",
            volumes={"/examples": ROOT / "examples"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "9 done + 0 failed = 9 items" in done.stdout

    def test_doctor(self, cpu: images.Container) -> None:
        """`doctor` finds the embedded engine and its model, and reports no failure."""
        done = cpu.run("doctor")
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^ok +engine +faster-whisper", done.stdout, re.MULTILINE)
        assert "failed" not in done.stdout

    def test_settings(self, cpu: images.Container) -> None:
        """The image declares its user, entry point and version; it contains no secret and no cache."""
        assert (cpu.config["User"], cpu.config["WorkingDir"]) == ("10001:0", "/data")
        assert cpu.config["Labels"]["org.opencontainers.image.version"] == "1.2.3"
        assert not [each for each in cpu.config["Env"] if "TOKEN" in each]
        root = Path(cpu.root)
        assert [list((root / name).iterdir()) for name in ("cache", "data")] == [[], []]

    def test_extras(self, cpu: images.Container) -> None:
        """The clients of stores and services are installed."""
        versions = {path.name.split("-")[0] for path in Path(cpu.root, "opt/voxbatch/lib").glob("*/*/*.dist-info")}
        assert versions >= {"google_cloud_storage", "boto3", "google_cloud_pubsub", "google_cloud_run", "voxbatch"}

    def test_any_user(self, cpu: images.Container, tmp_path: Path) -> None:
        """A platform may run the image as any user id in group 0."""
        done = cpu.run("run", "/examples/manifest.jsonl", "-o", "out", "--limit", "1", user="54321:0",
                       volumes={"/examples": ROOT / "examples"})  # fmt: skip
        shutil.rmtree(Path(cpu.root, "data", "out"))
        assert done.returncode == 0, done.stderr

    def test_sigterm(self, cpu: images.Container, tmp_path: Path) -> None:
        """SIGTERM to the first process of the container reaches voxbatch, which commits and exits with 143."""
        out = tmp_path / "out"
        out.mkdir()
        out.chmod(0o777)
        options = ["--engine", "scripted", "--engine-option", "delay_s=3", "--engine-option", "concurrency=1"]
        volumes = {"/examples": ROOT / "examples", "/out": out, "/engines": ROOT / "tests" / "support" / "engines"}
        command = ("run", "/examples/manifest.jsonl", "-o", "/out", *options)
        with cpu.start(*command, volumes=volumes, PYTHONPATH="/engines") as process:
            try:
                until((out / "run.json").exists)
                first = first_process(process.pid)
                assert Path(f"/proc/{first}/comm").read_text() == "tini\n"
                os.kill(first, signal.SIGTERM)
                _, errors = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 143
        assert "interrupted" in errors


class TestGpu:
    pytestmark = built

    def test_leaves_the_image_alone(self, gpu: images.Container) -> None:
        """vLLM, PyTorch and all other packages of the base image keep their versions."""
        done = gpu.run("--version")
        assert done.returncode == 0, done.stderr
        found = {path.name.removesuffix(".dist-info") for path in Path(gpu.root).glob("usr/local/lib/*/*/*.dist-info")}
        assert found >= {"vllm-0.32.0", "torch-2.13.0", *(f"{name}-{version}" for name, version in PINNED.items())}
        names = {each.split("-")[0] for each in found}
        assert names >= {"google_cloud_storage", "boto3", "google_cloud_pubsub", "google_cloud_run", "voxbatch"}

    def test_doctor(self, gpu: images.Container) -> None:
        """`doctor` reports only the engine as failed without a GPU, and names vLLM."""
        done = gpu.run("doctor")
        assert done.returncode == 1
        assert re.search(r"^ok +vllm +0\.32\.0 ", done.stdout, re.MULTILINE)
        assert re.findall(r"^failed +(\S+)", done.stdout, re.MULTILINE) == ["engine"]

    def test_model_of_the_image(self, store: images.Store, tmp_path: Path) -> None:
        """With weights in the image, a run takes them from the folder of their revision. Such an image is not built
        here, because its 9 GB come from the hub: only these lines of the Dockerfile are.
        """
        last = (ROOT / "Dockerfile").read_text().rpartition(" AS gpu\n")[2]
        lines = re.findall(r"^ARG MODEL.*$|^ +(VOXBATCH_MODEL=.*)$", last, flags=re.MULTILINE)
        assert len(lines) == 3
        [model] = filter(None, lines)
        (tmp_path / "Dockerfile").write_text(f"FROM scratch AS gpu\nARG MODEL=\nARG MODEL_REVISION=main\nENV {model}\n")
        for given, expected in (({}, ""), ({"MODEL": "o/m"}, "main"), ({"MODEL": "o/m", "MODEL_REVISION": "c0"}, "c0")):
            config = store.config(store.build("gpu", tmp_path, **given))
            assert config["Env"][-1] == f"VOXBATCH_MODEL={f'/opt/models/o/m/{expected}' if given else ''}"

    def test_settings(self, gpu: images.Container) -> None:
        """Every cache is below /cache, no model is preset without MODEL, and the base's entry point is replaced."""
        given = dict(each.split("=", 1) for each in gpu.config["Env"])
        caches = [value for name, value in given.items() if re.search("CACHE|HF_HOME|WORKSPACE", name)]
        assert len(caches) == 7
        assert {value.split("/")[1] for value in caches} == {"cache"}
        assert given["VOXBATCH_MODEL"] == ""
        assert gpu.config["Entrypoint"] == ["/usr/bin/tini", "--", "voxbatch"]
        assert given["PATH"].split(":")[0] == "/opt/voxbatch/bin"
        script = Path(gpu.root, "opt/voxbatch/bin/voxbatch")
        assert script.read_bytes() == (ROOT / "jobs" / "image" / "entrypoint.sh").read_bytes()
        assert list(Path(gpu.root, "opt/models").iterdir()) == []
        assert gpu.run("profiles").returncode == 0


def first_process(unshare: int) -> int:
    """Return the process id on this machine of the container's process 1."""
    children = Path(f"/proc/{unshare}/task/{unshare}/children")
    until(children.read_text)
    return int(children.read_text().split()[0])
