"""Images built with buildah, without a daemon or a registry, and their containers, for tests/clouds/test_containers.py.

The base image is a Debian made for the tests (mmdebstrap), or the image that VOXBATCH_TEST_BASE_IMAGE names. A
container is the file system of the image with its own processes and no network (unshare). The entry point of the image
is process 1, with the image's user and environment. Other isolation of a container engine is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BASE = "localhost/voxbatch-test-base"
PIP_LEVELS = ("global", "user", "site", ":env:")
"""Sources of pip's settings; later ones have priority."""

NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child")
# The script is process 1: it mounts /proc of these processes and the machine's /dev, then replaces itself by the
# image's command.
ENTER = """set -e
root=$1 user=$2 folder=$3; shift 3
mount --make-rprivate /
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done; shift
exec env -i "$(command -v chroot)" --userspec="$user" --groups="${user#*:}" "$root" /usr/bin/env -C "$folder" "$@"
"""


@dataclass(frozen=True, slots=True)
class Store:
    """A store of buildah images for the duration of the tests."""

    options: tuple[str, ...]

    def buildah(self, *arguments: str, **settings: Any) -> str:
        """Run buildah and return its output; fail the test if it fails."""
        process: subprocess.CompletedProcess[str] = subprocess.run(
            ["buildah", *self.options, *arguments], capture_output=True, text=True, timeout=900, **settings
        )
        assert process.returncode == 0, (
            f"buildah {' '.join(arguments)}\n{process.stdout[-4000:]}\n{process.stderr[-4000:]}"
        )
        return process.stdout.strip()

    def build(self, target: str, context: Path = ROOT, **arguments: str) -> str:
        """Build a target and return the name of the image."""
        given = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
        tag = f"localhost/voxbatch-test-{target}"
        volumes = [part for each in pip_volumes(Path(self.options[1]).parent) for part in ("--volume", each)]
        self.buildah("build", "--isolation=chroot", "--target", target, "--tag", tag, *given, *volumes, str(context))
        return tag

    def config(self, image: str) -> dict[str, Any]:
        """Return the configuration of an image."""
        found = json.loads(self.buildah("inspect", "--type", "image", image))
        return dict(found["OCIv1"]["config"])


@dataclass(frozen=True, slots=True)
class Container:
    """The mounted file system of an image, with its configuration."""

    root: str
    config: dict[str, Any]

    def command(self, arguments: Sequence[object], volumes: dict[str, Path], user: str, **env: str) -> list[str]:
        """Return the command that runs the entry point in the container."""
        mounts = [part for place, folder in volumes.items() for part in (str(folder), place)]
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in env.items())]
        inner = [*variables, *self.config["Entrypoint"], *map(str, arguments)]
        enter = ["sh", "-c", ENTER, "enter", self.root, user or self.config["User"], self.config["WorkingDir"]]
        return [*NAMESPACES, *enter, *mounts, "--", *inner]

    def run(
        self, *arguments: object, volumes: dict[str, Path] | None = None, user: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(arguments, volumes or {}, user, **env)
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    def start(self, *arguments: object, volumes: dict[str, Path], **env: str) -> subprocess.Popen[str]:
        command = self.command(arguments, volumes, "", **env)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pip_volumes(folder: Path) -> list[str]:
    """Return volumes that give the builder this machine's pip settings: one file, and the certificates and folders that
    it names.

    They are mounted during a build step, and are in no image.
    """
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        level, _, name = key.partition(".")
        if level in PIP_LEVELS and PIP_LEVELS.index(level) >= found.get(name, (0, ""))[0]:
            found[name] = PIP_LEVELS.index(level), value.strip("'\"").replace("\\n", " ")
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, (_, value) in found.items()))
    words = {word.removeprefix("file://") for _, value in found.values() for word in value.split()}
    named = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    mounted = {path.parent if path.name == "simple" else path for path in named}  # the files of an index lie beside it
    return [f"{file}:/etc/pip.conf:ro", *(f"{each}:{each}:ro" for each in sorted(mounted))]


@contextlib.contextmanager
def store(folder: Path) -> Iterator[Store]:
    """Yield a store of images with the base image; skip the test without a builder or a base."""
    if os.geteuid() != 0 or not shutil.which("buildah"):
        pytest.skip("building an image takes root and buildah: apt-get install buildah mmdebstrap")
    if subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody have namespaces of their own (unshare)")
    given = os.environ.get("VOXBATCH_TEST_BASE_IMAGE")
    if not given and not shutil.which("mmdebstrap"):
        pytest.skip("no base image: apt-get install mmdebstrap, or name one with VOXBATCH_TEST_BASE_IMAGE")
    made = Store(_options(folder))
    try:
        _bring(made, given) if given else _make_base(made, folder)
        yield made
    finally:
        subprocess.run(["buildah", *made.options, "rm", "--all"], capture_output=True)
        subprocess.run(["buildah", *made.options, "rmi", "--all", "--force"], capture_output=True)


def _options(folder: Path) -> tuple[str, ...]:
    """Return buildah's options with the first storage driver that works: overlay shares common layers, and vfs, which
    copies them, works everywhere.
    """
    where = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))
    for driver in ("overlay", "vfs"):
        options = (*where, "--storage-driver", driver)
        tried = subprocess.run(["buildah", *options, "from", "scratch"], capture_output=True, text=True)
        if tried.returncode == 0:
            mounted = subprocess.run(["buildah", *options, "mount", tried.stdout.strip()], capture_output=True)
            subprocess.run(["buildah", *options, "rm", "--all"], capture_output=True)
            if mounted.returncode == 0:
                return options
        shutil.rmtree(folder / "store", ignore_errors=True)
    pytest.skip("buildah can keep no images here, neither with overlay nor with vfs")


def _bring(store: Store, image: str) -> None:
    store.buildah("tag", store.buildah("pull", image), BASE)


def _make_base(store: Store, folder: Path) -> None:
    """Build a Debian or Ubuntu of this machine's release with Python, from this machine's package sources."""
    archive = folder / "base.tar"
    release = _release()
    sources = [*Path("/etc/apt/sources.list.d").glob("*.sources"), *Path("/etc/apt").glob("sources.list")]
    include = "--include=python3,python3-venv,python3-pip,ca-certificates"
    command = ["mmdebstrap", "--variant=apt", include, release, str(archive), *map(str, sources)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if made.returncode:
        pytest.skip(f"no base image: mmdebstrap {release} failed: {made.stderr.strip().splitlines()[-1]}")
    container = store.buildah("from", "scratch")
    store.buildah("add", "--quiet", container, str(archive), "/")
    store.buildah("commit", "--quiet", "--rm", container, BASE)
    archive.unlink()


def _release() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "stable")


@contextlib.contextmanager
def container(store: Store, image: str) -> Iterator[Container]:
    """Create a container of the image and yield it."""
    name = store.buildah("from", "--pull-never", image)
    try:
        yield Container(store.buildah("mount", name), store.config(image))
    finally:
        store.buildah("rm", name)


def stub_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """Write a wheel that has only a name, a version and requirements."""
    about, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        f"{name}_stub.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def lock_line(wheel: Path) -> str:
    """Return the line of a lock file for this wheel, with its hash."""
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def tool(name: str) -> str:
    """Return the path of a program of the development packages or the system."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed: make test brings it where there is a wheel of it")
    return found
