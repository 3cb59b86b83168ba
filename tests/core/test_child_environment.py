"""Tests for the variables of child processes: a process gets no secret that it has no use for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import IMPORT_PATH, Recorder, Starter

from voxbatch.audio.ffmpeg import executable
from voxbatch.process.child import for_program, for_voxbatch

SECRETS = {
    "HUGGING_FACE_HUB_TOKEN": "hub",
    "GITHUB_TOKEN": "forge",
    "WANDB_API_KEY": "tracker",
    "PGPASSWORD": "database",
    "VOXBATCH_ADMIN_SECRET": "own",
    "AZURE_CLIENT_SECRET": "azure",
    "AZURE_STORAGE_CONNECTION_STRING": "azure",
    "DATABASE_URL": "postgres://user:word@host/db",
    "JWT": "eyJ",
    "SLACK_HOOK": "https://hooks.example/T0",
}
"""Variables that no decoder has a use for."""
CREDENTIALS = {
    "GOOGLE_APPLICATION_CREDENTIALS": "/run/key.json",
    "AWS_ACCESS_KEY_ID": "AKID",
    "AWS_SECRET_ACCESS_KEY": "store",
    "AWS_SESSION_TOKEN": "store",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN": "store",
    "HF_TOKEN": "hub",
}
"""Variables with which a decoder reads recordings in buckets and on the hub."""
SETTINGS = {
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://user:word@proxy:3128",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/etc/ssl/own.pem",
    "VOXBATCH_MODEL": "gs://models/voxtral",
    "PYTHONHASHSEED": "0",
}
"""Variables that a decoder needs for other reasons."""
SYSTEM = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "TMPDIR": "/scratch", "LC_ALL": "C.UTF-8", "HOME": "/root"}
"""Variables that any program may need."""


def test_a_decoder_gets_the_credentials_of_stores_alone() -> None:
    """A decoder gets the stores' credentials and all settings, and no other secret; without credentials if requests are
    anonymous."""
    everything = {**SECRETS, **CREDENTIALS, **SETTINGS, **SYSTEM}
    assert for_voxbatch(everything, keeps_stores=True) == {**CREDENTIALS, **SETTINGS, **SYSTEM}
    assert for_voxbatch(everything) == {**SETTINGS, **SYSTEM}


def test_a_program_gets_what_any_program_needs() -> None:
    """ffmpeg gets the variables of an allow-list."""
    assert for_program({**SECRETS, **CREDENTIALS, **SETTINGS, **SYSTEM}) == SYSTEM


RECORDS_ITSELF = """#!/bin/sh
cat /proc/$$/environ > {folder}/$$.ffmpeg
if grep -q decoding.decoder /proc/$PPID/cmdline; then cat /proc/$PPID/environ > {folder}/$PPID.decoder; fi
exec {ffmpeg} "$@"
"""
RECORD_THEMSELVES = """
import os, sys
for kind in ("long_texts", "worker"):
    if any(f'.{{kind}}"' in word for word in sys.orig_argv):
        with open("/proc/self/environ", "rb") as environ, open(f"{folder}/{{os.getpid()}}.{{kind}}", "wb") as file:
            file.write(environ.read())
"""
"""A sitecustomize.py: the child processes whose module has one of these names write their variables down."""


def variables(content: bytes) -> dict[str, str]:
    """Return the variables in the content of /proc/PID/environ."""
    pairs = (entry.decode().partition("=") for entry in content.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("anonymous", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_process_of_a_run_has_the_secrets_that_it_needs(
    recording: Recorder, tmp_path: Path, start: Starter, anonymous: bool
) -> None:
    """Workers of a real run have all variables, decoders the credentials of stores, and ffmpeg and the process that
    counts errors neither."""
    ffmpeg, seen = executable(), tmp_path / "seen"
    seen.mkdir()
    subprocess.run([ffmpeg, "-v", "error", "-i", recording("a.wav", 3), "-c", "copy", tmp_path / "a.mka"], check=True)
    program = tmp_path / "ffmpeg"
    program.write_text(RECORDS_ITSELF.format(folder=seen, ffmpeg=ffmpeg))
    program.chmod(0o755)
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(RECORD_THEMSELVES.format(folder=seen))
    rows = [{"audio_filepath": "a.mka", "id": str(i), "text": "so it goes " * 6000} for i in range(6)]
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = ["--engine", "scripted", *("--engine-option", "workers=2")]
    import_path = os.pathsep.join([str(tmp_path / "python"), IMPORT_PATH])
    run = start(
        "run", "m.jsonl", "-o", "out", *options, "--decoders", "2", *(["--anonymous"] if anonymous else []),
        env={**SECRETS, **CREDENTIALS, "VOXBATCH_FFMPEG": str(program), "PYTHONPATH": import_path},
    )  # fmt: skip
    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    found = {path.suffix: variables(path.read_bytes()) for path in seen.iterdir()}
    given = {**SECRETS, **CREDENTIALS}
    kept = {kind: {name: each[name] for name in given if name in each} for kind, each in found.items()}
    decoders = {} if anonymous else CREDENTIALS
    assert kept == {".ffmpeg": {}, ".decoder": decoders, ".long_texts": {}, ".worker": given}
    assert "VOXBATCH_FFMPEG" not in found[".ffmpeg"]
    assert "PATH" in found[".ffmpeg"]
