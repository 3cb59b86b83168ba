"""Tests of the table of commands and kinds of OUT: a command reads an OUT of each kind, or refuses it in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import ROOT, Voxbatch, environment
from fork_server import ForkServer
from whisper_base import needs_tiny_en

import voxbatch as package
from voxbatch.cli.commands import COMMANDS
from voxbatch.output.layout import FAILURES
from voxbatch.work import ADDITIONS, KINDS, READERS, TRANSCRIBE, work

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples" / "recordings"
SCRIPTED = ("--engine", "scripted", "--engine-option", "confidence=true", "--formats", "srt")
BUILDERS: Mapping[str, tuple[str, ...]] = {
    TRANSCRIBE: ("run", "m.jsonl", *SCRIPTED),
    "cascade": ("run", "m.jsonl", *SCRIPTED, "--cascade", "little,big:0.5"),
    "channels": ("run", "m.jsonl", *SCRIPTED, "--channels", "split"),
    "speakers": ("run", "m.jsonl", *SCRIPTED, "--speakers", "2", "--speaker-model", "networks"),
    "language": ("language", "m.jsonl", "--model", "base"),
    "align": ("align", "given.jsonl", "--formats", "srt"),
    "ask": ("ask", "m.jsonl", "--prompt", "Who speaks?", "--engine", "scripted"),
    "redact": ("redact", TRANSCRIBE),
    "speak": ("speak", "texts.jsonl"),
    "speak --verify": ("speak", "texts.jsonl", "--verify"),
}
"""The command that makes an OUT of each kind, in a folder with its models; see MODELS."""
MODELS = {"language": ("base", "base_model"), "speakers": ("networks", "speaker_networks")}
"""The name of the folder with the model of a kind, and the fixture that gives it."""
READING: Mapping[str, tuple[str, ...]] = {
    "status": ("status", "OUT"),
    "status --verify": ("status", "OUT", "--verify"),
    "flags": ("flags", "OUT"),
    "merge": ("merge", "OUT"),
    "merge --formats": ("merge", "OUT", "--formats", "srt,txt,json"),
    "merge --beside": ("merge", "OUT", "--beside"),
    "merge --mux": ("merge", "OUT", "--mux"),
    "merge --calibration": ("merge", "OUT", "--calibration", "calibration.json"),
    "calibrate": ("calibrate", "OUT", "-o", "again.json"),
    "compare": ("compare", "OUT", "OUT"),
    "correct": ("correct", "OUT"),
    "correct --drop": ("correct", "OUT", "--drop"),
    "score": ("score", "OUT"),
    "score --ref": ("score", "OUT", "--ref", "references.jsonl"),
    "find": ("find", "OUT", "the", "w1", "who", "--any"),
    "report": ("report", "OUT"),
    "report --export": ("report", "OUT", "--export", "table.csv"),
    "export": ("export", "OUT", "-o", "data"),
    "redact": ("redact", "OUT", "-o", "data"),
    "forget": ("forget", "OUT", "ID"),
}
"""The commands that read an OUT, and those of their options for which a kind may have nothing."""
OTHERS = KINDS.keys() - {"redact"} | {
    "run", "doctor", "models", "validate", "manifest", "profiles", "submit", "listen", "deployment", "serve",
}  # fmt: skip
"""The commands that read no OUT."""
READER = {
    "merge --formats": "formats", "merge --beside": "beside", "merge --mux": "videos",
    "merge --calibration": "calibrate", "score --ref": "score", "correct --drop": "correct --drop",
}  # fmt: skip
"""The reader of work.READERS that a cell is about, if it is not the command."""
WITHOUT_DATA = {
    ("align", "score"): "no item has a reference",
    ("ask", "score"): "no item has a reference",
    ("language", "report"): "for a table of all recordings",
    ("channels", "export"): "no cut is left for a data set",  # both speakers say each word at the same time
    ("speakers", "export"): "no cut is left for a data set",  # turns in noise are short
    ("speak", "report"): "that no engine has heard; add --verify",
}
"""Cells that are refused although the kind takes the command: this OUT lacks what it needs."""


def refusal(kind: str, command: str) -> str | None:
    """Return the reason for which a cell is refused; None if the command takes the OUT."""
    name = READER.get(command, command.partition(" ")[0])
    own = work(kind.partition(" ")[0])
    return own.refused.get(name) or WITHOUT_DATA.get((kind, command))


@pytest.fixture(scope="module")
def made(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes an OUT of a kind at its first use, in a folder with the sources of all kinds."""
    folder = tmp_path_factory.mktemp("kinds")
    loudness = 0.1 * (1 + np.sin(np.arange(5 * 16_000) / 16_000 * 25)) ** 2  # like that of syllables
    noise = np.random.default_rng(0).standard_normal((5 * 16_000, 2)) * loudness[:, None]
    reference = " ".join(f"w{number}" for number in range(10))
    rows = []
    for number in range(25):
        soundfile.write(folder / f"{number}.wav", np.clip(noise, -1, 1), 16_000, subtype="PCM_16")
        rows.append({"audio_filepath": f"{number}.wav", "id": str(number), "text": reference, "lang": "en"})
    examples = [json.loads(line) for line in (EXAMPLES.parent / "manifest.jsonl").read_text().splitlines()[:2]]
    given = [{**row, "audio_filepath": str(EXAMPLES.parent / row["audio_filepath"])} for row in examples]
    for name, lines in (("m", rows), ("given", given), ("references", [*rows, *given])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "texts.jsonl").write_text('{"text": "Yes."}\n{"text": "The train leaves at nine."}\n')

    @cache
    def make(kind: str) -> Path:
        out = folder / kind.replace(" ", "")
        done = fork_server.run([*BUILDERS[kind], "-o", str(out), "-q"], environment(), cwd=folder, timeout=240)
        assert done.returncode == 0, done.stderr
        if kind == TRANSCRIBE:
            made_of = ["calibrate", str(out), "-o", "calibration.json"]
            assert fork_server.run(made_of, environment(), cwd=folder, timeout=240).returncode == 0
        return out

    return make


@pytest.fixture
def out(request: pytest.FixtureRequest, made: Callable[[str], Path]) -> Path:
    """Return an OUT of the kind that the test is about."""
    kind = request.node.callspec.params["kind"]
    if kind.startswith("speak "):
        pytest.importorskip("faster_whisper")
    if kind in ("speak", "speak --verify"):
        pytest.importorskip("hibari", reason="the extra `speak` is not installed")
    if kind == "align":
        pytest.importorskip("pocketsphinx")
    if "redact" in request.node.callspec.params.values():
        pytest.importorskip("faker", reason="the extra `redact` is not installed")
    folder = made(TRANSCRIBE).parent
    if kind in MODELS:
        name, fixture = MODELS[kind]
        model: Path = request.getfixturevalue(fixture)
        if not (folder / name).exists():
            (folder / name).symlink_to(model)
    return made(kind)


def _first_id(place: Path) -> str:
    """Return the id of the first item of a finished run."""
    lines = next(file for file in place.glob("*.jsonl") if file.name != FAILURES).read_text().splitlines()
    return str(json.loads(lines[0])["id"])


def test_the_table_is_complete() -> None:
    """Each kind is built, each command reads an OUT or does not, and each refusal is of a reader that is asked."""
    assert {kind.split()[0] for kind in BUILDERS} == {TRANSCRIBE, *KINDS, *ADDITIONS}
    assert {command.split()[0] for command in READING} == {*COMMANDS} - OTHERS
    assert {reader for kind in (*KINDS, *ADDITIONS) for reader in work(kind).refused} <= READERS
    assert {READER.get(command, command) for command in READING} >= READERS


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("kind", [pytest.param(k, marks=needs_tiny_en if "-" in k else ()) for k in BUILDERS])
def test_each_cell(kind: str, command: str, out: Path, voxbatch: Voxbatch) -> None:
    """A command takes the OUT and ends with 0, or refuses it in one line that says why and what to give."""
    place = shutil.copytree(out, out.parent / "copy", dirs_exist_ok=False)
    try:
        places = {"OUT": str(place), "ID": _first_id(place)}
        arguments = [places.get(argument, argument) for argument in READING[command]]
        done = voxbatch(*arguments, cwd=out.parent)
    finally:
        shutil.rmtree(place)
        shutil.rmtree(out.parent / "data", ignore_errors=True)
    assert "Traceback" not in done.stderr
    if (reason := refusal(kind, command)) is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2, done.stdout
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith(f"Error: {place}")
        assert reason.format(out=place) in done.stderr


@pytest.mark.parametrize("kind", BUILDERS)
def test_results_of_any_kind(kind: str, out: Path) -> None:
    """`read_results` yields a result for each item of any run."""
    results = list(package.read_results(out))
    assert len(results) in (2, 25)
    assert all(isinstance(result.outcome, package.Transcript) for result in results)


@needs_tiny_en
def test_flags_of_speech(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The texts that an engine heard otherwise are listed with what was heard, and merged to subtitles of the texts."""
    pytest.importorskip("hibari", reason="the extra `speak` is not installed")
    (tmp_path / "m.jsonl").write_text('{"id": "a", "text": "Say [water](/fˈaɪɚ/) now."}\n')
    assert voxbatch("speak", "m.jsonl", "-o", "out", "--verify", "-q").returncode == 0
    listed = json.loads(voxbatch("flags", "out", "--json").stdout)
    assert listed["flags"] == {"items": 1, "by_kind": {"misheard": 1}}
    (item,) = listed["worst"]
    assert (item["id"], item["pred_text"]) == ("a", "Say water now.")
    assert "heard '" in item["flags"][0]["reason"]
    assert Path(tmp_path, item["audio_filepath"]).is_file()
    assert voxbatch("merge", "out", "--formats", "srt").returncode == 0
    assert "Say water now." in (tmp_path / "out" / "srt" / "a.srt").read_text()
