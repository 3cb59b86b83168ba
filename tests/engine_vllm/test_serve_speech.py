"""Voxtral TTS by vllm-omni: `voxbatch serve` with the openai package, and its codes beside ours.

They run where vllm-omni is installed beside vLLM's CPU build, in an environment of its own:

    pip install --no-deps vllm-omni==0.32.0rc1 accelerate==1.12.0 aenum==3.1.16 antlr4-python3-runtime==4.13.2 av \\
        diffusers==0.40.0 janus msgpack omegaconf prettytable
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
from conftest import ROOT

if TYPE_CHECKING:
    from test_serve import Served

pytest_plugins = ["engine_runs"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm_omni") is None, reason="vllm-omni is not installed"),
]
FRAMES = 40
"""Frames of a speech of the server: its model never ends by itself."""
PIECES = 24
"""Speeches whose codes are compared: 1 to some hundred frames."""


def speaker(folder: Path, end_gain: float) -> Path:
    """Return the folder of a tiny Voxtral TTS."""
    from speaking_model import write_speaker

    write_speaker(folder / "speaker", end_gain=end_gain)
    return folder / "speaker"


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a model whose speeches do not end."""
    import omni_on_cpu
    from test_serve import served

    folder = tmp_path_factory.mktemp("tts")
    found = f"{ROOT}:{omni_on_cpu.site(folder / 'site')}:{Path(omni_on_cpu.__file__).parent}"
    options = ("--profile", "tts", "--engine-option", "enforce_eager=true", "--engine-option", "max_num_seqs=4")
    with served(speaker(folder, 0), folder / "log", *options, on_cpu=(), PYTHONPATH=found) as server:
        yield server


def test_speech_is_served(tts: Served) -> None:
    """The openai package gets a speech at once, and in parts: all frames, at 24 kHz, the same number of samples in WAV,
    PCM and events. An unknown voice and an empty text are refused with the reason."""
    from openai import BadRequestError, OpenAI

    limit = {"max_new_tokens": FRAMES}
    with OpenAI(base_url=f"{tts.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [tts.model]
        asked: dict[str, Any] = {"model": tts.model, "input": "The train leaves at nine.", "voice": "ann"}
        whole = client.audio.speech.create(**asked, response_format="wav", extra_body=limit)
        samples, rate = soundfile.read(io.BytesIO(whole.content))
        assert (rate, len(samples)) == (24_000, FRAMES * 1_920)
        assert np.abs(samples).max() > 0
        streaming = client.audio.speech.with_streaming_response
        with streaming.create(
            **asked, response_format="pcm", extra_body={**limit, "stream": True, "stream_format": "audio"}
        ) as answer:
            assert sum(map(len, answer.iter_bytes())) == FRAMES * 1_920 * 2
        with streaming.create(**asked, response_format="pcm", extra_body={**limit, "stream": True}) as answer:
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        assert [event["type"] for event in events[-1:]] == ["speech.audio.done"]
        assert len(events) > 2, "the speech came in one part"
        for wrong, reason in (({"voice": "eve"}, "ann, bob"), ({"input": " "}, "empty")):
            with pytest.raises(BadRequestError, match=reason):
                client.audio.speech.create(**{**asked, **wrong})


def test_codes_are_those_of_vllm_omni(tmp_path: Path) -> None:
    """With the same noise, in float32, each speech has the codes of vllm-omni's engine, eight requests at a time,
    and as many samples. A speech that ends at once is a failure."""
    import omni_speaking
    from engine_runs import with_engine, with_plugin
    from omni_on_cpu import NOISE, site
    from stream import ENVIRONMENT

    from voxbatch.records import Piece

    texts = ["Yes.", "The train to Bristol leaves at nine.", "He counted 17 boats. Then the fog came in."]
    pieces = [Piece(" ".join(texts[: 1 + n % 3]) + f" Number {n}.", ("ann", "bob")[n % 2], n) for n in range(PIECES)]
    model, plugin = speaker(tmp_path, 1.3), with_plugin(tmp_path)
    path = f"{site(tmp_path / 'omni')}:{plugin['PYTHONPATH']}"
    theirs = subprocess.run(
        [sys.executable, omni_speaking.__file__, model, "8", "760"],
        env={**os.environ, **ENVIRONMENT, **plugin, "PYTHONPATH": path, NOISE: str(tmp_path)},
        input="".join(json.dumps([piece.text, piece.voice, piece.seed]) + "\n" for piece in pieces),
        capture_output=True,
        text=True,
    )
    assert theirs.returncode == 0, theirs.stderr[-3_000:]
    options = ["dtype=float32", "enforce_eager=true", "max_num_seqs=8"]
    ours = with_engine(tmp_path, "speaking.speak", model, pieces, options=options)
    codes = [np.load(path) for path in tmp_path.glob("*.npy")]
    assert len(codes) == PIECES
    spoken = {frames.tobytes() for frames in codes if len(frames) > 1}
    assert spoken == {frames.tobytes() for frames in ours.frames}
    assert len(spoken) > PIECES / 2
    assert sorted(map(int, theirs.stdout.split())) == sorted(1_920 * (len(frames) - 1) for frames in codes)
