"""The Python interface drives vLLM from a plain script: without a main guard, and with a model that stays loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import soundfile
from conftest import environment
from stream import ENVIRONMENT

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import json
import voxbatch

print("begin")
options = {{
    "engine": "vllm",
    "model": {model!r},
    "engine_options": {{
        "dtype": "float32", "enforce_eager": True, "max_num_batched_tokens": 2048, "max_num_seqs": 4, "watch": False
    }},
}}
with voxbatch.Transcriber(**options) as transcriber:
    texts = [transcriber.transcribe(name).text for name in ("a.wav", "b.wav")]
summary = voxbatch.run("m.jsonl", "out", **options)
print(json.dumps([summary.done, texts == [each.outcome.text for each in voxbatch.read_results("out")]]))
"""


def test_a_script_without_a_main_guard(realtime: Path, tmp_path: Path) -> None:
    """The script runs once, and a Transcriber gives the texts of a run."""
    from sounds import babble

    for number, name in enumerate(("a.wav", "b.wav")):
        soundfile.write(tmp_path / name, babble(6.0 + number, number), 16_000, subtype="PCM_16")
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "a.wav"}\n{"audio_filepath": "b.wav"}\n')
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(model=str(realtime))))
    env = environment(**ENVIRONMENT, PYTHONUNBUFFERED="")  # the first line waits in a buffer while vLLM is loaded
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    begin, result = done.stdout.splitlines()
    assert (begin, json.loads(result)) == ("begin", [2, True])
