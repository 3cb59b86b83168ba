"""Tests that what others publish is named by its version or commit, that .github/update_pins.py updates it, and that no
command has a secret among its arguments, where all users of a machine see it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from web_server import Handler, WebServer, served

PROGRAM = ROOT / ".github" / "update_pins.py"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((ROOT / "examples" / "orchestrators").glob("github-*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
COMMANDS = sorted(
    path for pattern in ("docs/*.md", "jobs/**/*.md", "jobs/**/*.sh", "jobs/*.py") for path in ROOT.glob(pattern)
)
"""The pages and scripts with commands of others."""
DIGEST = f"sha256:{'5' * 64}"


@pytest.mark.parametrize("path", [*WORKFLOWS, *EXAMPLES], ids=lambda path: path.stem)
def test_actions_are_named_by_commit(path: Path) -> None:
    """A tag can be moved to other code: each action has a commit, and beside it the release that it is."""
    uses = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert uses
    assert [line for line in uses if not PINNED.search(line)] == []


def test_one_action_has_one_commit() -> None:
    """All files take the same commit of an action."""
    commits = dict[str, set[str]]()
    for path in (*WORKFLOWS, *EXAMPLES):
        for name, commit in re.findall(r"uses: (\S+)@(.+)$", path.read_text(), re.MULTILINE):
            commits.setdefault(name, set()).add(commit)
    assert {name: len(own) for name, own in commits.items()} == dict.fromkeys(commits, 1)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_checkouts_keep_no_credentials(path: Path) -> None:
    """No later step finds the workflow's token in the checkout."""
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    checkouts = [step for job in jobs for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tools_of_others_have_versions(path: Path) -> None:
    """A tool that gets the credentials of a cloud is not the one that was published a minute ago."""
    tool = r"(?:uvx (?:--from )?|pip install (?:--quiet )?)'?((?:dstack|skypilot|modal|huggingface)[^' \n]*)"
    tools = re.findall(tool, path.read_text())
    assert [tool for tool in tools if not re.search(r"[@=]\d", tool)] == []


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_argument_is_a_secret(path: Path) -> None:
    """Secrets come from files, variables and standard input."""
    secret = r"--(?:api-key|token|password)[ =]\S|secrets? create [^`\n]*(?:KEY|TOKEN|SECRET)\w*=|--from-literal"
    assert re.findall(secret, path.read_text()) == []


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Registry(Handler):
    """A registry that gives a token to everybody, and digests to those who have it, as Docker Hub does."""

    def do_GET(self) -> None:
        """Give a token."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "t"}).encode())

    def do_HEAD(self) -> None:
        """Answer with the digest of an index."""
        known = self.path in {"/v2/library/python/manifests/3.12", "/v2/vllm/vllm-openai/manifests/v0.32.0"}
        if self.headers.get("Authorization") != "Bearer t":
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="registry",scope="x"')
        elif known and "image.index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()


@pytest.fixture
def registry() -> Iterator[str]:
    with served(WebServer(Registry)) as server:
        yield server.url


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def action(folder: Path, *tags: str) -> dict[str, str]:
    """Make the repository of an action with a commit for each tag, every other tag annotated; return the commits."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    commits = {}
    for number, tag in enumerate(tags):
        git(folder, "commit", "--quiet", "--allow-empty", "--message", tag)
        git(folder, "tag", tag, *(("--annotate", "--message", tag) if number % 2 else ()))
        commits[tag] = git(folder, "rev-parse", "HEAD")
    return commits


def test_pins_are_updated_within_their_version(tmp_path: Path, registry: str) -> None:
    """Each action gets the commit of the newest release of its major version, whatever it has now, and each image its
    digest. A second run changes nothing, and --check says whether there is something to change.
    """
    commits = action(tmp_path / "github" / "o" / "a", "v4.9.0", "v4.10.0", "v5.0.0", "v4", "v4.11.0-beta")
    other = action(tmp_path / "github" / "o" / "b", "v1.2.0", "v1.13.0")
    root = tmp_path / "root"
    for folder in (root / ".github" / "workflows", root / "examples" / "orchestrators"):
        folder.mkdir(parents=True)
    workflow, image = root / ".github" / "workflows" / "ci.yml", root / "Dockerfile"
    uses = ["o/a@v4", f"o/a@{commits['v4.9.0']} # v4.9.0", "o/b@release/v1"]
    workflow.write_text("".join(f"- uses: {use}\n" for use in uses))
    image.write_text(f"ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0\nARG PYTHON_IMAGE=python:3.12@sha256:{'0' * 64}\n")
    github = (tmp_path / "github").as_uri()
    command = [sys.executable, str(PROGRAM), "--root", str(root), "--github", github, "--registry", registry]

    assert subprocess.run([*command, "--check"], stdout=subprocess.DEVNULL).returncode == 1
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [".github/workflows/ci.yml", "Dockerfile"]
    newest = f"- uses: o/a@{commits['v4.10.0']} # v4.10.0\n"
    assert workflow.read_text() == f"{newest}{newest}- uses: o/b@{other['v1.13.0']} # v1.13.0\n"
    assert image.read_text() == (
        f"ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0@{DIGEST}\nARG PYTHON_IMAGE=python:3.12@{DIGEST}\n"
    )
    assert subprocess.run([*command, "--check"], capture_output=True, text=True).stdout == ""
