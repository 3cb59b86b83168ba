"""Install packages beside those of an image, and change none of these: `beside.py LOCK` or `beside.py WHEEL [EXTRA …]`.

Of a lock file, what the image lacks, at the locked version and by its hash; of a wheel, the package alone. Whatever the
image has stays as it is, so that what it was tested with is what runs. The build fails where that does not work out: a
package has another version afterwards, `pip check` complains of something new, or the wheel's requirements are not met.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:  # pip brings its own
    from pip._vendor.packaging.requirements import Requirement

# A distribution forbids pip to install beside its own packages for the sake of workstations; an image is none.
PIP_ENVIRONMENT = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, env=PIP_ENVIRONMENT, check=False, stdout=subprocess.PIPE, text=True)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """What Python would import, so the first of several on its path, and its version."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        if name := each.metadata["Name"]:  # what a half-removed package leaves behind has none
            found.setdefault(canonical(name), each.version)
    return found


def complaints() -> set[str]:
    return {line for line in pip("check").stdout.splitlines() if line != "No broken requirements found."}


def missing_of(lock: str, present: dict[str, str]) -> str:
    """The lock file's entries, hashes included, of the packages that are not there."""
    entries = re.findall(r"^[A-Za-z0-9](?:.*\\\n)*.*\n", lock, flags=re.MULTILINE)
    return "".join(entry for entry in entries if canonical(re.split(r"[=\[ ;]", entry)[0]) not in present)


def install_missing(lock: Path, present: dict[str, str]) -> None:
    text = missing_of(lock.read_text(), present)
    if not text:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        _must(pip("install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", file.name))


def install_wheel(wheel: Path) -> None:
    _must(pip("install", "--quiet", "--no-cache-dir", "--no-index", "--no-deps", str(wheel)))


def _must(process: subprocess.CompletedProcess[str]) -> None:
    if process.returncode:
        sys.exit(f"beside.py: pip failed with exit code {process.returncode}, see above\n{process.stdout}")


def unmet(package: str, extras: list[str]) -> list[str]:
    """The package's requirements, with these extras, that what is installed does not meet."""
    present, wrong = installed(), []
    for text in metadata.requires(package) or ():
        wanted = Requirement(text)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        version = present.get(canonical(wanted.name))
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            wrong.append(f"{package} wants {wanted.name}{wanted.specifier}, and the image has {version or 'none'}")
    return wrong


def check(before: dict[str, str], old_complaints: set[str], wrong: list[str]) -> None:
    after = installed()
    changed = [f"{name} was {old} and is {after.get(name)}" for name, old in before.items() if after.get(name) != old]
    if found := [*changed, *sorted(complaints() - old_complaints), *wrong]:
        sys.exit(
            "beside.py: this does not fit into the image:\n  " + "\n  ".join(found) + "\n"
            "Take a BASE_IMAGE of a vLLM that voxbatch knows, or lock versions that fit (pyproject.toml, make lock)."
        )
    added = sorted(f"{name} {after[name]}" for name in after.keys() - before.keys())
    print(f"unchanged: {len(before)} packages; added: {', '.join(added) or 'none'}")


def main(file: str, *extras: str) -> None:
    before, old_complaints, wrong = installed(), complaints(), []
    if file.endswith(".whl"):
        install_wheel(Path(file))
        wrong = unmet(canonical(Path(file).name.split("-")[0]), list(extras))
    else:
        install_missing(Path(file), before)
    check(before, old_complaints, wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
