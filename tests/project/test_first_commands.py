"""The commands that people type first, with the exit code and the first line of each.

The tables are documentation, too. The commands of a table run one after the other in one folder:

    talk.mp3, talk2.wav        two recordings
    recordings/                three recordings, and the references of two
    My Talk.mp3                a recording whose name has a blank
    calls.jsonl                a manifest of three recordings, one of which is missing
    list.txt                   a list of two paths
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import soundfile
from conftest import ROOT, Recorder, Voxbatch

SPEECH = ROOT / "examples" / "recordings" / "platform-four.ogg"
OUT, ERR = "stdout", "stderr"


@dataclass(frozen=True, slots=True)
class Row:
    """A command and what it must do."""

    command: str
    """Arguments of voxbatch, separated by blanks. A command that begins with $ is one of the shell."""
    code: int
    stream: str = OUT
    first_line: str = ""
    """Pattern at the begin of the stream, after the usage. (?s).* skips lines."""


def rows(table: str) -> list[Row]:
    """Return the rows of a table: COMMAND | CODE | STREAM | PATTERN."""
    parsed = []
    for line in textwrap.dedent(table).strip().splitlines():
        command, *rest = (part.strip() for part in line.split(" | ", 3))
        parsed.append(Row(command, int(rest[0]), rest[1], rest[2]) if rest else Row(command, 0))
    return parsed


TABLES = {
    "no source": r"""
        --help                            | 0 | stdout | Usage: voxbatch \[OPTIONS\] COMMAND
        (nothing)                         | 2 | stderr | (?s).*To begin: voxbatch run FOLDER
        --version                         | 0 | stdout | voxbatch, version \d
        run                               | 2 | stderr | Error: Missing argument 'SOURCE...'(?s:.*)voxbatch run talk.mp3
        status                            | 2 | stderr | Error: Missing argument 'OUT'. It is the folder with
        forget .                          | 2 | stderr | Error: Missing argument 'ID...'. It is the `id` of an item
        find gutenberg                    | 2 | stderr | Error: Missing argument 'TEXT...'. OUT comes first, and
        rm talk.mp3                       | 2 | stderr | Error: No such command 'rm'. voxbatch forget OUT ID erases
        rum talk.mp3                      | 2 | stderr | Error: No such command 'rum'. Did you mean 'run'\?
        transcribe talk.mp3               | 2 | stderr | Error: No such command 'transcribe'. voxbatch run SOURCE
        talk.mp3                          | 2 | stderr | Error: No such command 'talk.mp3'. To transcribe it: voxb
        help                              | 2 | stderr | Error: No such command 'help'. Try voxbatch --help
        run --help                        | 0 | stdout | Usage: voxbatch run \[OPTIONS\] SOURCE
        doctor                            | 0 | stdout | ok +voxbatch +\d(?s:.*)\nready: voxbatch run FOLDER
        models                            | 0 | stdout | (?s).*tiny\.en
        profiles                          | 0 | stdout | cpu +Whisper tiny.en
    """,
    "recordings": r"""
        run talk.mp3                      | 0 | stdout | w0 w1 w2\n\Z
        run talk.mp3                      | 0 | stderr | (?s).*nothing to do: 1 item done before \(20[-\d]+ [:\d]+\)
        run nope.mp3                      | 2 | stderr | Error: nope.mp3: does not exist
        run talk.mp3 talk2.wav            | 0 | stdout | ==> talk.mp3 <==\nw0 w1
        run talk.mp3 nope.mp3             | 2 | stderr | Error: talk.mp3 and 1 more: nope.mp3 does not exist
        run @list.txt                     | 0 | stdout | talk.mp3: w0 w1
        run calls.jsonl                   | 3 | stdout | talk.mp3: w0 w1(?s:.*)2 done \+ 1 failed = 3 items
        status calls.voxbatch             | 0 | stdout | calls.voxbatch: 3 of 3 items committed, finished
        run calls.jsonl --retry-failed    | 3 | stdout | transcripts (?s:.*)1 not found: put the recordings in
        validate calls.jsonl              | 3 | stdout | calls.jsonl: 3 items, 1 of them cannot be transcribed
        validate nope.jsonl               | 2 | stderr | Error: nope.jsonl: does not exist
        validate recordings --check-audio | 0 | stdout | recordings: 3 items, all valid
        run My Talk.mp3                   | 2 | stderr | Error: .*'My Talk.mp3' .* put it into quotes
        run talk.mp3 My Talk.mp3 -q       | 2 | stderr | Error: .*'My Talk.mp3' .* put it into quotes
        status My Talk.voxbatch           | 2 | stderr | Error: .*'My Talk.voxbatch' .* put it into quotes
        run talk.mp3 -o My Out            | 2 | stderr | Error: .*'My Out' .* put it into quotes
        run -o My nope.mp3                | 2 | stderr | Error: nope.mp3: does not exist
        $ touch empty.jsonl
        run empty.jsonl                   | 2 | stderr | Error: empty.jsonl: no items
    """,
    "tables": r"""
        $ printf 'audio_filepath,text\ntalk.mp3,w0 w1\n' > t.csv
        run t.csv                         | 0 | stdout | talk.mp3: w0 w1(?s:.*)\nWER \d
        $ printf 'path\ttext\ntalk.mp3\tw0 w1\n' > u.tsv
        run u.tsv                         | 0 | stdout | talk.mp3: w0 w1
        $ mkdir k && cp talk.mp3 k && printf 'first talk.mp3\n' > k/wav.scp
        run k/wav.scp                     | 0 | stdout | first: w0 w1
        $ mkdir h && cp talk.mp3 h && printf 'file_name,transcription\ntalk.mp3,w0\n' > h/metadata.csv
        run h/metadata.csv                | 0 | stdout | talk.mp3: w0 w1
        $ printf 'a,b\n1,2\n' > numbers.csv
        run numbers.csv                   | 2 | stderr | Error: numbers.csv: .*column
    """,
    "a folder": r"""
        run recordings --dry-run          | 0 | stdout | engine +scripted(?s:.*)items +3
        run recordings --limit 2          | 0 | stdout | a.wav: w0 w1
        run recordings                    | 0 | stderr | (?s).*2 of 3 items were done before; 1 to do
        $ cp talk2.wav recordings/d.wav
        run recordings                    | 0 | stderr | (?s).*3 of 4 items were done before; 1 to do
        run recordings -o recordings/out  | 0 | stdout | a.wav: w0 w1
        score recordings.voxbatch         | 0 | stdout | (?s) +WER .*all  0.00%
        merge recordings.voxbatch --formats json | 0 | stdout | a.wav: w0 w1
        find recordings.voxbatch w0       | 0 | stdout | 4 items found
        find w0 recordings.voxbatch       | 0 | stdout | 4 items found
        find w0 nope                      | 2 | stderr | Error: Invalid value for 'OUT': Directory 'w0' does not exist
        find recordings.voxbatch nobody   | 1 | stdout | not found; a \* at the end
        find recordings.voxbatch no --json | 1 | stdout | \Z
        status recordings                 | 2 | stderr | Error: .*recordings: no run .* is in .*recordings.voxbatch
        $ mkdir empty
        run empty                         | 2 | stderr | Error: empty: holds no recordings
        status nope                       | 2 | stderr | Error: Invalid value for 'OUT': Directory 'nope' does not exist
        manifest recordings               | 0 | stdout | \{"audio_filepath": "a.wav"
    """,
    "options": r"""
        run talk.mp3 --formats srt vtt -o a    | 0 | stderr | (?s).*\nsrt .*\nvtt
        run talk.mp3 --formats .SRT,vtt -o b   | 0 | stderr | (?s).*\nsrt .*\nvtt
        run talk.mp3 --formats docx -o c       | 2 | stderr | Error: .*docx: Documents are made from --formats txt; .*
        run talk.mp3 --formats html,pdf -o c   | 2 | stderr | Error: .*html: Documents are made from --formats txt
        run talk.mp3 -o out.docx               | 2 | stderr | Error: -o out.docx: OUT is a .*; give -o out; trans
        run talk.mp3 -j 4                      | 2 | stderr | Error: No such option '-j'. Processes are given by
        ls a                                   | 2 | stderr | Error: No such command 'ls'. voxbatch models lists
        run talk.mp3 --device cpu              | 2 | stderr | Error: No such option.* --engine-option device=cpu
        report a --export                      | 2 | stderr | Error: Option .* requires an argument. --export FILE:
        $ printf '1\n00:00:00,000 --> 00:00:02,000\nHello\n' > subs.srt
        run subs.srt                           | 2 | stderr | Error: subs.srt: .*subtitles are .*: voxbatch speak subs
        $ echo '{"text": "a", "segments": [{"id": 0, "start": 0, "end": 2, "text": "a"}]}' > whisper.json
        run whisper.json                       | 2 | stderr | Error: whisper.json: .*: give the recordings, or score it:
        $ printf '{"audio_filepath": "talk.mp3"}\n{"audio_filepath": "gone.mp3"}\n' > some.jsonl
        run some.jsonl -o some -q              | 3 | stderr | 1 of 2 items failed: see some/failures.jsonl\n\Z
        run s3://clals/day                     | 1 | stderr | (?s)Error: cannot (read|list) s3://clals.*s3://clals/day/
        run talk.mp3 --formats parquet -o c    | 2 | stderr | Error: .*parquet: A table .*report OUT --export items
        run talk.mp3 --formats all -o c        | 2 | stderr | Error: .*all: .*--formats srt,vtt,txt,json
        run talk.mp3 --language english -o d   | 0 | stdout | w0 w1
        run talk.mp3 --language auto           | 2 | stderr | Error: --language auto: .*leave it out, and a multilingual
        run talk.mp3 talk.srt                  | 2 | stderr | Error: talk.srt does not exist, .*: -o OUT --formats srt
        run ~/talk.mp3                         | 2 | stderr | Error: .*; in quotes, the shell leaves ~ as it is
        run file:///data/talk.mp3              | 2 | stderr | Error: .*; give a path, without file://
        run C:\Users\rec.wma                   | 2 | stderr | Error: .*; a path of Linux has / in place of
        run talk.mp3 -j 2                      | 2 | stderr | Error: .*-j'. Processes are given by --workers
        run talk.mp3 --progress                | 2 | stderr | Error: .*--progress'. The log has everything already
        run youtube.com/watch?v=abc            | 2 | stderr | Error: .*; a web address begins with https://
        run www.example.org/talk.mp3           | 2 | stderr | Error: .*; a web address begins with https://
        uninstall                              | 2 | stderr | Error: No such command 'uninstall'. .*rm -r ~/voxbatch-env
        run talk.mp3 --language klingon -o e   | 2 | stderr | Error: --language klingon: no known language
        run a.mp3 --format srt | 2 | stderr | Error: No such option '--format'. Formats are given by --formats srt,vtt
        merge a --formats xyz                  | 2 | stderr | Error: --formats xyz: unknown; known are srt, vtt, vtt-w
        run talk.mp3 --engine transducers --dry-run | 0 | stdout | (?s)engine +transducers .*\nL4 +about .* at \$
        run talk.mp3 --engine vllm --profile whisper --dry-run | 0 | stdout | (?s)engine +vllm .*\nH200 +about .* at
        run talk.mp3 --engine transducers      | 2 | stderr | Error: engine transducers is for NVIDIA GPUs, and this
        run talk.mp3 --engine whisper          | 2 | stderr | Error: engine 'whisper' is unknown; known are auto
        run talk.mp3 --profile fast            | 2 | stderr | Error: profile 'fast' is unknown; known are cpu
        run talk.mp3 --workers many            | 2 | stderr | Error: Invalid value for '--workers'
        submit gs://calls/m.jsonl --target cloudrun --dry-run --engine vllm | 1 | stderr | Error: cannot read gs://
        submit gs://calls/m.jsonl --target cloudrun --dry-run --tasks 2 | 0 | stdout | source +cannot be read from here
        submit talk.mp3 --target cloudrun      | 2 | stderr | Error: SOURCE talk.mp3 lies on this machine
        run talk.mp3 --limit 99999999999999999999 | 2 | stderr | Error: --limit is 9+; it must be at most 1,000,0
        run talk.mp3 -o out.txt                | 2 | stderr | Error: -o out.txt: OUT is a folder.* give -o out and --
        run talk.mp3 --beam-size 5             | 2 | stderr | Error: No such option.* --engine-option beam_size=5
        run talk.mp3 --task translate          | 2 | stderr | Error: --task translate: .* take a multilingual Whisper
        run talk.mp3 --diarize                 | 2 | stderr | Error: No such option.* --speakers 2-4
        run talk.mp3 --task diarize            | 2 | stderr | Error: .* is not one of .* --speakers, their number by
        run talk.mp3 --verbose False           | 2 | stderr | Error: .*'False' is no recording. A switch such as --ver
        run talk.mp3 -osrt                     | 2 | stderr | Error: No such option '-osrt'. Formats are given by --form
        run talk.mp3 --output_dir out          | 2 | stderr | Error: No such option.* is given by -o\.
        run talk.mp3 --formats str             | 2 | stderr | Error: --formats str: unknown; .*did you mean srt\?
        models qwen3-asr                       | 2 | stderr | Error: .* did you mean Qwen/Qwen3-ASR-1.7B\?
        models Tiny.EN                         | 2 | stderr | Error: .* did you mean tiny\.en\?
        models ggml-large-v3.bin               | 2 | stderr | Error: .* did you mean large-v3\?
        models whisper-small                   | 2 | stderr | Error: .* did you mean small\?
        models best                            | 2 | stderr | Error: .* a model is chosen by --quality best
        delete out                             | 2 | stderr | Error: No such command .* voxbatch forget OUT ID
        failures out                           | 2 | stderr | Error: No such command 'failures'. OUT/failures.jsonl
        run +pretrained_name=nvidia/canary     | 2 | stderr | Error: Invalid value .* is no recording. Give --model
        speak Hello                            | 2 | stderr | Error: Hello: does not exist .*: echo Hello > text.txt
        $ cp talk.mp3 calls.zip && cp talk.mp3 calls.tar.gz && mkdir sub && cp talk.mp3 sub/a.zip
        run calls.zip --dry-run                | 2 | stderr | Error: calls.zip: is an archive; .*: unzip calls.zip -d
        run gs://calls/a.zip                   | 2 | stderr | Error: gs://calls/a.zip: is an archive; download it, un
        run sub/a.zip                          | 2 | stderr | Error: sub/a.zip: is an archive; .*: unzip sub/a.zip
        run calls.xlsx                         | 2 | stderr | Error: calls.xlsx: is a spreadsheet; save it as CSV
        run https://youtu.be/x                 | 2 | stderr | Error: https://youtu.be/x: is a web page, .*: yt-dlp -x
        run notes.docx                         | 2 | stderr | Error: notes.docx: is a document, and no recording; give r
        report talk.mp3                        | 2 | stderr | Error: talk.mp3: is a recording, and no text: give the O
        score talk.mp3                         | 2 | stderr | Error: talk.mp3: is a recording, and no text: give the O
        status talk.mp3                        | 2 | stderr | (?s).*talk.mp3 is a recording, and a folder OUT is neede
        run sub/a.PDF                          | 2 | stderr | Error: sub/a.PDF: is a document, and no recording; give r
        run page.html                          | 2 | stderr | Error: page.html: is a document, and no recording; give r
        run calls.tar.gz                       | 2 | stderr | Error: calls.tar.gz: is an archive; .*: mkdir calls && t
    """,
}
REAL = r"""
    run speech.ogg                        | 0 | stdout | .*platform
    run speech.ogg --language de --dry-run | 2 | stderr | Error: --language de: model tiny.en knows only en; take
    run speech.ogg --model nonexistent    | 2 | stderr | Error: --model nonexistent: there is no such folder
"""


@pytest.fixture
def folder(tmp_path: Path, recording: Recorder) -> Path:
    """Return the folder in which the commands run."""
    for name in ("talk2.wav", "recordings/a.wav", "recordings/b.wav", "recordings/c.wav"):
        recording(name, 1.1)
    for name in "ab":
        (tmp_path / "recordings" / f"{name}.txt").write_text("w0 w1\n")
    samples, rate = soundfile.read(recording("talk.wav", 1.5))
    soundfile.write(tmp_path / "talk.mp3", samples, rate)
    (tmp_path / "talk.wav").unlink()
    shutil.copy(SPEECH, tmp_path / "speech.ogg")
    names = ("talk.mp3", "talk2.wav", "gone.wav")
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps({"audio_filepath": name}) + "\n" for name in names))
    shutil.copy(tmp_path / "talk.mp3", tmp_path / "My Talk.mp3")
    (tmp_path / "My Talk.voxbatch").mkdir()
    (tmp_path / "list.txt").write_text("talk.mp3\ntalk2.wav\n")
    return tmp_path


def check(voxbatch: Voxbatch, folder: Path, table: str, env: dict[str, str], starts: bool = False) -> None:
    """Run the commands of a table, and compare each with its row. With `starts`, the first run, the first score and so
    on is a process of its own, which imports all that it needs.
    """
    wrong, started = [], set[str]()
    for row in rows(table):
        if row.command.startswith("$ "):
            assert os.system(f"cd {folder} && {row.command[2:]}") == 0
            continue
        arguments = [] if row.command == "(nothing)" else row.command.split()
        is_process = starts and arguments[0] not in started
        started.update(arguments[:1])
        done = voxbatch(*arguments, env=env, **({"capture_output": True} if is_process else {}))
        shown = re.sub(r"\AUsage: .*\nTry .*\n\n", "", getattr(done, row.stream))
        if done.returncode != row.code or not re.match(row.first_line, shown) or "Traceback" in done.stderr:
            wrong.append(
                f"{row.command}: {done.returncode}, expected {row.code} {row.first_line}\n{shown}{done.stderr}"
            )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", TABLES)
def test_first_commands(voxbatch: Voxbatch, folder: Path, name: str) -> None:
    """Each command ends with its exit code, and says what is in the table first."""
    nowhere = {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / "no-key.json"), "GOOGLE_CLOUD_PROJECT": ""}
    check(voxbatch, folder, TABLES[name], {"VOXBATCH_ENGINE": "scripted", **nowhere}, starts=name == "a folder")


def test_first_commands_with_real_weights(voxbatch: Voxbatch, folder: Path) -> None:
    """The same with Whisper tiny.en, which hears the speech, without a network."""
    check(voxbatch, folder, REAL, {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
