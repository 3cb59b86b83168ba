"""What the README, the CLI reference and the Makefile say is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

import click
import pytest
from conftest import understood

from voxbatch.cli import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted(ROOT.glob("*.md"))

sys.path.append(str(ROOT / "docs"))


def shown_commands() -> list[str]:
    """Every command that the README shows at a prompt, without its comment."""
    return [line[2:].split("  #")[0].strip() for line in README.splitlines() if line.startswith("$ ")]


def test_the_cli_reference_is_what_the_commands_say() -> None:
    """docs/cli.md equals the help texts; `make docs` writes it anew."""
    from make_cli_reference import PAGE, reference

    assert PAGE.read_text() == reference()


@pytest.mark.parametrize("command", [c for c in shown_commands() if c.startswith("voxbatch ")])
def test_every_voxbatch_command_in_the_readme_parses(command: str) -> None:
    """A command that the README shows is one that the program takes."""
    _, name, *arguments = shlex.split(command)
    understood(name, *arguments)


@pytest.mark.parametrize("name", re.findall(r"^\| `voxbatch (\w+)", README, re.MULTILINE))
def test_every_command_in_the_readmes_table_exists(name: str) -> None:
    """The table of commands names real ones …"""
    assert name in cli.commands


def test_the_readmes_table_leaves_no_command_out() -> None:
    """… and all of them."""
    assert set(re.findall(r"^\| `voxbatch (\w+)", README, re.MULTILINE)) == set(cli.commands)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z]+)", README)) & {"demo", "test", "bench"}))
def test_every_make_target_in_the_readme_exists(target: str) -> None:
    """make knows it."""
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_flag_in_the_readme_exists() -> None:
    """Flags in the README's prose are the program's."""
    known = {name for command in cli.commands.values() for p in command.params for name in [*p.opts, *p.secondary_opts]}
    assert set(re.findall(r"`(--[a-z0-9-]+)", README)) <= known | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file that is there."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_option_and_command_says_what_it_does() -> None:
    """No command without a docstring, no option without help."""
    for name, command in cli.commands.items():
        assert command.help, name
        assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == [], name


@pytest.mark.slow
def test_the_readmes_demo_output_is_real(tmp_path: Path) -> None:
    """The demo's command prints what the README opens with, times aside, and all but the odd word."""
    makefile = (ROOT / "Makefile").read_text()
    arguments = re.search(r"voxbatch (run examples/.*)", makefile)
    assert arguments
    command = [
        sys.executable,
        "-m",
        "voxbatch",
        *shlex.split(arguments[1].replace("demo.voxbatch", str(tmp_path / "demo"))),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = README.split("$ make demo\n")[1].split("```")[0]

    heads, rest = split(done.stdout.replace(str(tmp_path / "demo"), "demo.voxbatch"))
    shown_heads, shown_rest = split(shown)
    assert rest == shown_rest
    assert [head.partition(": ")[0] for head in heads] == [head.partition(": ")[0] for head in shown_heads]
    # 8-bit arithmetic rounds differently on other processors, and a word in fifty may change
    assert all(SequenceMatcher(None, a, b).ratio() > 0.8 for a, b in zip(heads, shown_heads, strict=True))
    assert error_rate(done.stdout) == pytest.approx(error_rate(shown), abs=1.0)


def split(output: str) -> tuple[list[str], list[str]]:
    """(the transcripts' first lines, all other lines without what differs from run to run)."""
    lines = re.sub(r"in [\d:. s]+, RTFx [\d.]+|(?<=P\d\d )[\d.]+ s", "…", output).splitlines()
    lines = [re.sub(r"^WER .* over", "WER … over", line) for line in lines]
    more = next(i for i, line in enumerate(lines) if line.startswith("… and"))
    return lines[:more], lines[more:]


def error_rate(output: str) -> float:
    found = re.search(r"^WER ([\d.]+)%", output, re.MULTILINE)
    assert found
    return float(found[1])
