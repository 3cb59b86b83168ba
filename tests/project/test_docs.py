"""Tests that the README, the documentation and the Makefile match the program."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import ManifestWriter, Recorder, Voxbatch, understood

from voxbatch import errors, prices
from voxbatch.cli import cli
from voxbatch.cli.commands import MODULES
from voxbatch.cli.options import unknown_variables
from voxbatch.engines.known_models import KNOWN_MODELS
from voxbatch.scoring.normalize import normalizer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), *sorted((ROOT / "jobs").rglob("*.md"))]
GUIDES = [ROOT / "README.md", *(page for page in sorted(DOCS.glob("*.md")) if page.name != "cli.md")]
"""Pages that show how to use voxbatch."""

MOST_LINES = 120
READERS = {
    "a data engineer": "docs/buckets.md",
    "an ML engineer": "docs/scoring.md",
    "a video editor": "docs/subtitles.md",
    "a platform engineer": "docs/tasks.md",
}
FLAGS_OF_OTHERS = {
    "--auto-ack", "--build-arg", "--device", "--gpus", "--help", "--parameter-overrides", "--requeue", "--secret",
    "--shm-size", "--substitutions", "--defaults", "--with-data",
}  # fmt: skip
"""Flags of docker, gcloud, sbatch and the scripts in jobs/."""


def blocks(page: Path) -> str:
    """Return the text of a page's fenced blocks."""
    return "\n".join(re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def shown_commands() -> list[str]:
    """Return every command that a page shows at a prompt, without its comment."""
    lines = [line for page in GUIDES for line in blocks(page).splitlines() if line.startswith("$ ")]
    return sorted({re.sub(r"\s+#.*", "", line[2:]).strip() for line in lines})


def test_the_readme_is_short() -> None:
    """The README is short; longer text belongs to a page of docs/."""
    assert len(README.splitlines()) <= MOST_LINES


def test_each_reader_finds_a_page_by_one_link() -> None:
    """The README has a row for each kind of reader, with a link to their page."""
    for reader, page in READERS.items():
        (row,) = [line for line in README.splitlines() if line.startswith(f"| {reader} |")]
        assert f"]({page})" in row


def test_the_h200_figure_says_how_it_was_measured() -> None:
    """The sentence with the speed says that the weights were made up and that no WER was measured."""
    text = " ".join(README.split())
    sentences = [sentence for sentence in text.split(". ") if "real time" in sentence]
    assert sentences
    assert all("made up" in sentence and "no WER" in sentence for sentence in sentences)


def test_the_cli_reference_is_what_the_commands_say() -> None:
    """docs/cli.md equals the help texts; `make docs` updates it."""
    from make_cli_reference import PAGE, reference

    assert PAGE.read_text() == reference()


def test_the_tables_of_costs_are_what_the_prices_say() -> None:
    """The tables of docs/costs.md equal those of prices.yaml; `make docs` updates them."""
    from make_costs import PAGE, page

    assert PAGE.read_text() == page(PAGE.read_text())


@pytest.mark.parametrize("command", [c for c in shown_commands() if c.startswith("voxbatch ")])
def test_every_voxbatch_command_in_a_page_parses(command: str) -> None:
    """The program accepts every command that a page shows."""
    command = command.split(" > ", maxsplit=1)[0]
    _, name, *arguments = shlex.split(command)
    if name == "score":
        # the file must exist
        arguments = [
            str(ROOT / "README.md") if each == "out" or each.endswith(".jsonl") else each for each in arguments
        ]
        arguments = [str(ROOT) if each == "open_asr_leaderboard" else each for each in arguments]
    if name in ("run", "redact", "ask"):
        places = dict.fromkeys(("base.json", "names.txt", "names.yaml", "secrets.json"), ROOT / "README.md")
        places["asked"] = ROOT
        arguments = [str(places.get(argument, argument)) for argument in arguments]
    if name in ("calibrate", "correct", "export", "forget", "redact"):
        arguments[0] = str(ROOT)
    if name == "report":
        arguments[0] = arguments[0] if "://" in arguments[0] else str(ROOT)
        arguments = [str(ROOT / "README.md") if each == "test.jsonl" else each for each in arguments]
    if name in ("compare", "flags", "merge", "status", "manifest"):
        arguments = [each if re.match(r"-|gs:|s3:|vtt|lost_speech|[\d.]+$", each) else str(ROOT) for each in arguments]
    understood(name, *arguments)


INDEX = (DOCS / "index.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", INDEX, re.MULTILINE | re.DOTALL))
TYPED = {"README": README, "compare": (DOCS / "compare.md").read_text().partition("\n## ")[0], **SECTIONS}
TYPED["first page"] = INDEX.partition("\n## ")[0]
"""Texts whose blocks a newcomer types one after the other."""


def test_every_reader_is_one_click_away() -> None:
    """The table of docs/index.md leads each reader to a section that begins with commands, or to a page."""
    rows = re.findall(r"^\| .* \| .* \| \[[^\]]*\]\(([^)]*)\)", SECTIONS["Find your page"], re.MULTILINE)
    headings = ["Recordings on your computer", "Thousands of hours in a bucket", "A word error rate", "Python"]
    assert rows[:4] == [f"#{heading.lower().replace(' ', '-')}" for heading in headings]
    assert all(SECTIONS[heading].startswith("\n```console\n$ pip install") for heading in headings)
    assert all("Next: [" in SECTIONS[heading] for heading in headings)


@pytest.mark.parametrize("name", TYPED)
def test_every_block_runs_in_order(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A newcomer who types all blocks one after the other, in one folder, meets no error. What installs something or
    takes a bucket of one's own is left out, and the scripted engine takes the place of the model.
    """
    for path in ("talk.wav", "recordings/a.wav", "recordings/weather.wav", "clips/c.wav"):
        recording(path, 1.1)
    (tmp_path / "talk.wav").rename(tmp_path / "talk.mp3")
    (tmp_path / "recordings" / "weather.wav").rename(tmp_path / "recordings" / "weather.flac")
    for manifest in ("test.jsonl", "manifest.jsonl"):
        (tmp_path / manifest).write_text(json.dumps({"audio_filepath": "talk.mp3", "text": "w0"}) + "\n")
    (tmp_path / "validated.tsv").write_text("client_id\tpath\tsentence\n1\tc.wav\tw0 w1\n")
    if name in ("first page", "Python"):  # in a checkout, which has no recordings of the reader
        (tmp_path / "examples").mkdir()
        (tmp_path / "recordings").rename(tmp_path / "examples" / "recordings")
    monkeypatch.chdir(tmp_path)
    for language, block in re.findall(r"^```(console|python)\n(.*?)^```", TYPED[name], re.MULTILINE | re.DOTALL):
        if language == "python":
            exec(re.sub(r"\b(transcribe|run)\((.*?\")\)", r'\1(\2, engine="scripted")', block), {})
        for command in re.findall(r"^\$ voxbatch ([^#\n]*)", block, re.MULTILINE):
            if "gs://" not in command:
                done = voxbatch(*shlex.split(command), env={"VOXBATCH_ENGINE": "scripted"})
                assert done.returncode == 0, (command, done.stderr)
    if "```python" in TYPED[name]:
        assert (tmp_path / "out" / "summary.json").exists(), "the block of Python runs, too"


COMING_FROM = (DOCS / "coming-from.md").read_text()


def test_each_line_about_another_set_up_names_a_command_or_a_page(tmp_path: Path) -> None:
    """In docs/coming-from.md each line of a table has a command, a setting or a link, and the program accepts each
    command.
    """
    lines = [
        line.split(" | ") for line in COMING_FROM.splitlines() if line.startswith("| ") and "| there |" not in line
    ]
    assert len(lines) > 40
    assert [line for line in lines if not re.search(r"`|\]\(", line[1])] == []
    for command in re.findall(r"`(voxbatch [^`]+)`", COMING_FROM):
        _, name, *arguments = shlex.split(command)
        files = {"serving.properties": "option.model_id=m\n", "vllm_config.yaml": "model: m\n"}
        for file, text in files.items():
            (tmp_path / file).write_text(text)
        known = {file: str(tmp_path / file) for file in files} | dict.fromkeys(
            ["OUT", "out", "out-a", "out-b"], str(ROOT)
        )
        understood(name, *(known.get(each, each) for each in arguments))


def test_each_part_of_the_earlier_set_ups_has_a_file_and_a_command() -> None:
    """In the table "File by file" of jobs/README.md each file exists, and so does the program of each command."""
    page = (ROOT / "jobs" / "README.md").read_text()
    (table,) = re.findall(r"^\| there \| file \| command \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len(lines) > 15
    for _, files, command in lines:
        assert [file for file in re.findall(r"`([^`]+)`", files) if not (ROOT / file).is_file()] == []
        words = [word for word in shlex.split(command.strip("`")) if not re.match(r"[A-Z_]+=|python$", word)]
        assert words[0] in ("voxbatch", "gcloud") or (ROOT / words[0]).is_file(), command


def test_batch_file_of_vllm_becomes_a_manifest(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The documented command makes a manifest of a batch file, and audio in a line itself is refused."""
    if shutil.which("jq") is None:
        pytest.skip("takes jq")
    bodies = [{"file_url": "https://h/a.wav", "language": "en"}, {"file_url": "https://h/b.wav"}]
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/audio/transcriptions", "body": body}
        for i, body in enumerate(bodies)
    ]
    (tmp_path / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (command,) = re.findall(r"^jq .*$", COMING_FROM, re.MULTILINE)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    done = voxbatch("validate", "calls.jsonl")
    assert (done.returncode, "2 items" in done.stdout + done.stderr) == (0, True), done.stdout + done.stderr
    (tmp_path / "calls.jsonl").write_text(json.dumps({"audio_filepath": "data:audio/wav;base64,AAAA"}) + "\n")
    done = voxbatch("validate", "calls.jsonl")
    assert done.returncode == 2, done.stdout + done.stderr


def test_the_links_to_commands_have_all_of_them() -> None:
    """docs/cli.md, to which docs/index.md leads, begins with links to exactly the commands of the program."""
    assert "](cli.md)" in INDEX
    beginning = (DOCS / "cli.md").read_text().partition("\n## ")[0]
    assert re.findall(r"\[`(\w+)`\]\(#voxbatch-\1\)", beginning) == cli.list_commands(click.Context(cli))
    assert set(cli.list_commands(click.Context(cli))) == set(MODULES)


NORMALISED = re.findall(r"^\| `(\w\w)` \| `(.+?)` \| `(.+?)` \|$", (DOCS / "scoring.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("lang", "written", "compared"), NORMALISED)
def test_texts_are_normalised_as_the_page_shows(lang: str, written: str, compared: str) -> None:
    """Each example of docs/scoring.md is what the default rules make of it."""
    assert normalizer(lang)(written) == unicodedata.normalize("NFKC", compared)
    assert len(NORMALISED) >= 6


TARGETS = {
    target for page in PAGES for target in re.findall(r"(?:`|^\$ )make ([a-z-]+)", page.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_make_target_in_a_page_exists(target: str) -> None:
    """Every make target that a page names exists in the Makefile."""
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_flag_in_a_page_exists(page: Path) -> None:
    """Flags in the text of a page belong to voxbatch or to a known other program."""
    known = {name for command in cli.commands.values() for p in command.params for name in [*p.opts, *p.secondary_opts]}
    assert set(re.findall(r"`(--[a-z0-9-]+)", page.read_text())) <= known | FLAGS_OF_OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_text_of_a_page_has_its_flags(page: Path) -> None:
    """A command of voxbatch in the text of a page, or in a block, has only flags of that command."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    for name, words in re.findall(r"\bvoxbatch (\w+)((?: [^`|\n]*)?)", text):
        if (command := cli.commands.get(name)) is not None:
            known = {flag for p in command.params for flag in [*p.opts, *p.secondary_opts]} | {"--help"}
            flags = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", words.partition(" -- ")[0].partition("#")[0])
            assert set(flags) <= known, (name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_the_repository_in_a_page_exists(page: Path) -> None:
    """A path such as `jobs/slurm/submit.sh` in a page's code exists. `jobs/a.jsonl:41` is a place in a user's file."""
    folders = "jobs|examples|voxbatch|docs|findings"
    named = re.findall(rf"(?:`|^\$ | )((?:{folders})/[\w./-]*)(?=[`\s),;]|$)", page.read_text(), re.MULTILINE)
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link leads to an existing file and heading. That of a picture may name the scheme it is for."""
    wrong = []
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    for target, _, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(#?)([^)]*)\)", text):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in set(anchors(file))):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as GitHub and mkdocs make them; of a picture, the colour schemes."""
    if page.suffix == ".webp":
        yield from ("only-light", "only-dark")
        return
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower()))


def test_every_option_and_command_says_what_it_does() -> None:
    """Every command has a help text, and so has every option."""
    for name, command in (("voxbatch", cli), *cli.commands.items()):
        assert command.help, name
        assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == [], name


def classes(above: type[errors.VoxbatchError]) -> Iterator[type[errors.VoxbatchError]]:
    """Yield an error class and all of its subclasses in errors.py."""
    yield above
    for each in above.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from classes(each)


@pytest.mark.parametrize("error", sorted({each.__name__ for each in classes(errors.VoxbatchError)}))
def test_troubleshooting_explains_every_error_class(error: str) -> None:
    """docs/troubleshooting.md names every error class."""
    assert re.search(rf"\b{error}\b", (DOCS / "troubleshooting.md").read_text())


def fields(value: Any) -> Iterator[str]:
    """Yield the names of a JSON value's fields at every depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from fields(inner)
    if isinstance(value, list):
        for inner in value:
            yield from fields(inner)


def test_the_outputs_page_names_every_field(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """docs/outputs.md explains every field of transcripts, failures, the summary and the last log line."""
    words = [{"word": "w0", "start": 0.1, "end": 0.4}]
    path = manifest(1.5, None, text="one two", lang="en", words=words)
    done = voxbatch("run", path, "-o", "out", "--engine", "scripted", "--log-format", "json", "--formats", "json")
    assert done.returncode == 3, done.stderr
    out = tmp_path / "out"
    summary = json.loads((out / "summary.json").read_text())
    for free in ("config", "failures_by_error", "failures_by_kind", "libraries"):  # their keys are names of others
        summary[free] = None
    for free in ("decoding", "versions"):
        summary["engine"][free] = None
    summary["outputs"] = list(summary["outputs"].values())
    summary["score"]["by_language"] = list(summary["score"]["by_language"].values())
    texts = [(out / f"{name}.jsonl").read_text() for name in ("transcripts", "failures")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    files = [json.loads(file.read_text()) for file in (out / "json").iterdir()]
    finished = [event for event in map(json.loads, done.stderr.splitlines()) if event["message"] == "run_finished"]
    assert (len(lines), len(files), len(finished)) == (2, 1, 1)
    manifests_own = {"audio_filepath", "duration", "text"}
    written = {*fields(summary), *fields(lines), *fields(files), *fields(finished)} - manifests_own
    explained = set(re.findall(r"`(?:\w+\[\]\.)?(\w+)`", (DOCS / "outputs.md").read_text()))
    assert written - explained == set()


@pytest.mark.slow
def test_the_site_is_built_with_strict_links(tmp_path: Path) -> None:
    """`make docs` succeeds, and no page of the site loads anything from another site."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in pages}
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\"\s>]+)", page.read_text())
        assert loaded == [], page.name


def table(page: str, heading: str) -> dict[str, list[str]]:
    """Return the other cells of each row of the first table under a heading, by the model that the row begins with."""
    rows = page.partition(f"\n## {heading}\n\n")[2].partition("\n\n")[0].splitlines()
    return {cells[1].strip("`"): cells[2:-1] for cells in (re.split(r" ?\| ?", row) for row in rows)}


def test_the_page_of_models_has_the_tables_of_the_command() -> None:
    """Each model of vLLM that transcribes has its WER, languages, licence, weights, speed and price on both."""
    page = (DOCS / "gpus-and-models.md").read_text()
    accuracies, speeds = table(page, "Accuracy and licence"), table(page, "Speed and cost")
    usd_per_hour = prices.machines()[prices.RENTED_H200].usd_per_hour
    for model in KNOWN_MODELS:
        if model.engine != "vllm" or model.work == "speak":
            continue
        wer, languages, licence, _, weights = accuracies[model.name]
        assert wer == ("" if model.wer is None else f"{model.wer:.2f} %")
        assert (int(languages), licence) == (len(model.languages), model.license)
        assert weights == (f"{model.megabytes / 1000:.1f}" if model.megabytes else "")
        assert (model.name in speeds) == bool(model.rtfx)
        if model.rtfx:
            _, speed, usd = speeds[model.name]
            assert re.findall(r"^[\d,]*", speed) == [f"{model.rtfx:,}"]
            assert usd == f"{usd_per_hour / model.rtfx:.4f}"


def test_every_variable_of_the_sources_is_known() -> None:
    """A variable that the sources name is an option's, or one of those that are read elsewhere."""
    sources = "".join(path.read_text() for path in (ROOT / "voxbatch").rglob("*.py"))
    assert unknown_variables(re.findall(r"[\"'](VOXBATCH_[A-Z_]+[A-Z])[\"']", sources)) == []
