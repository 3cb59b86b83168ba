"""Pin the actions of the workflows by commit, and the base images of the Dockerfile by digest, or update the pins.

    uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262 # v4.4.0
    ARG PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:…

    python .github/update_pins.py           the newest release of each major version; the digest of each image's tag
    python .github/update_pins.py --check   change nothing, and exit with 1 if there is something to change

A tag can be moved to other code; a commit and a digest cannot. It asks GitHub by `git ls-remote` and the registries by
HTTP, without an account. A new major version, or another tag of an image, is written by hand, with its tag alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USE = re.compile(r"(uses: )([\w.-]+/[\w.-]+)(?:/[\w./-]+)?@(\S+)(?: # (v[\d.]+))?")
"""`uses: OWNER/NAME@COMMIT # TAG`, or `uses: OWNER/NAME@TAG`."""
IMAGE = re.compile(r"^(ARG \w+_IMAGE=)([\w./-]+):([\w.-]+)(?:@sha256:[0-9a-f]{64})?$", re.MULTILINE)
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Media types of the objects that a tag may name."""
DOCKER_HUB = "https://registry-1.docker.io"


@cache
def newest(repository: str, major: str) -> tuple[str, str]:
    """Return the newest release of a major version and its commit: ("v4.4.0", "11d5…").

    Args:
        repository: address of the action's repository.
        major: its major version, such as v4.

    Raises:
        SystemExit: it has none.
    """
    command = ["git", "ls-remote", "--tags", repository, f"refs/tags/{major}.*"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    commits = dict[str, str]()
    for line in listed.splitlines():
        commit, _, name = line.partition("\trefs/tags/")
        tag = name.removesuffix("^{}")
        if re.fullmatch(r"v\d+\.\d+\.\d+", tag) and (name != tag or tag not in commits):
            commits[tag] = commit  # of an annotated tag, the line with ^{} has the commit
    if not commits:
        raise SystemExit(f"{repository} has no release of {major}")
    tag = max(commits, key=lambda tag: [int(part) for part in tag[1:].split(".")])
    return tag, commits[tag]


def digest(registry: str, name: str, tag: str) -> str:
    """Return the digest of an image, for all its platforms: "sha256:…"."""
    name = name if "/" in name else f"library/{name}"
    request = urllib.request.Request(
        f"{registry}/v2/{name}/manifests/{tag}", method="HEAD", headers={"Accept": ", ".join(INDEXES)}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return str(answer.headers["Docker-Content-Digest"])
    except urllib.error.HTTPError as e:
        if e.code != 401 or request.has_header("Authorization"):
            raise
        fields = dict(re.findall(r'(\w+)="([^"]*)"', e.headers["WWW-Authenticate"]))
    query = urllib.parse.urlencode({"service": fields["service"], "scope": f"repository:{name}:pull"})
    with urllib.request.urlopen(f"{fields['realm']}?{query}") as answer:
        request.add_header("Authorization", f"Bearer {json.load(answer)['token']}")
    with urllib.request.urlopen(request) as answer:
        return str(answer.headers["Docker-Content-Digest"])


def with_commits(text: str, github: str) -> str:
    """Return a workflow in which each action has the commit of its newest release."""

    def pinned(match: re.Match[str]) -> str:
        tag = match[4] or match[3].removeprefix("release/")
        release, commit = newest(f"{github}/{match[2]}", tag.partition(".")[0])
        return f"{match[0].partition('@')[0]}@{commit} # {release}"

    return USE.sub(pinned, text)


def with_digests(text: str, registry: str) -> str:
    """Return a Dockerfile in which each base image has its digest."""
    return IMAGE.sub(lambda match: f"{match[1]}{match[2]}:{match[3]}@{digest(registry, match[2], match[3])}", text)


def main() -> int:
    """Update the files, or compare them. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something would change")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--github", default="https://github.com", help="where the repositories of the actions are")
    parser.add_argument("--registry", default=DOCKER_HUB, help="where the images are")
    options = parser.parse_args()
    folders = (options.root / ".github" / "workflows", options.root / "examples" / "orchestrators")
    workflows = [path for folder in folders for path in sorted(folder.glob("*.yml"))]
    updates: list[tuple[Path, Callable[[str, str], str], str]] = [
        *((path, with_commits, options.github) for path in workflows),
        (options.root / "Dockerfile", with_digests, options.registry),
    ]
    changed = 0
    for path, update, place in updates:
        before = path.read_text()
        after = update(before, place)
        if after != before:
            changed += 1
            print(path.relative_to(options.root))
            if not options.check:
                path.write_text(after)
    return int(options.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
