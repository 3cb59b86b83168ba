"""Install packages next to those of an image, and change none of these: `beside.py LOCK` or `beside.py WHEEL [EXTRA
…]`.

From a lock file, the packages that the image lacks are installed, at the locked version and checked by hash. From a
wheel, only its own package is installed. The image's packages keep their versions, so that the tested versions are the
ones that run.

The build fails in three cases: a package has another version afterwards, `pip check` has a new complaint, or the
wheel's requirements are not met.
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
except ImportError:  # pip contains a copy
    from pip._vendor.packaging.requirements import Requirement

# A Linux distribution forbids pip to install next to its own packages, to protect workstations. An image needs no such
# protection.
PIP_ENVIRONMENT = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pip and return the finished process, with its output as text."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, env=PIP_ENVIRONMENT, check=False, stdout=subprocess.PIPE, text=True)


def canonical(name: str) -> str:
    """Return a package's normalised name: "Foo_Bar" → "foo-bar"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return the version of each installed package: of several copies, the first on Python's path, which Python
    imports.
    """
    found: dict[str, str] = {}
    for each in metadata.distributions():
        if name := each.metadata["Name"]:  # a half-removed package has no name
            found.setdefault(canonical(name), each.version)
    return found


def complaints() -> set[str]:
    """Return the lines that `pip check` prints about broken requirements."""
    return {line for line in pip("check").stdout.splitlines() if line != "No broken requirements found."}


def missing_of(lock: str, present: dict[str, str]) -> str:
    """Return the lock file's entries, with their hashes, for the packages that are not installed."""
    entries = re.findall(r"^[A-Za-z0-9](?:.*\\\n)*.*\n", lock, flags=re.MULTILINE)
    return "".join(entry for entry in entries if canonical(re.split(r"[=\[ ;]", entry)[0]) not in present)


def install_missing(lock: Path, present: dict[str, str]) -> None:
    """Install the lock file's packages that are missing."""
    text = missing_of(lock.read_text(), present)
    if not text:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        _must(pip("install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", file.name))


def install_wheel(wheel: Path) -> None:
    """Install a wheel without its dependencies."""
    _must(pip("install", "--quiet", "--no-cache-dir", "--no-index", "--no-deps", str(wheel)))


def _must(process: subprocess.CompletedProcess[str]) -> None:
    if process.returncode:
        sys.exit(f"beside.py: pip failed with exit code {process.returncode}, see above\n{process.stdout}")


def unmet(package: str, extras: list[str]) -> list[str]:
    """Return the requirements of a package, with these extras, that the installed packages do not meet."""
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
    """Exit with an error if an installed package changed, `pip check` complains anew, or `wrong` is not empty."""
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
