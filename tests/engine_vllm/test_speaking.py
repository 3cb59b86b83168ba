"""Tests for Voxtral TTS with a tiny random model: a speech depends on its text, voice and seed alone, and `voxbatch
speak --engine vllm` brings each text to one recording or one failure, whatever is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from waits import kill_all

pytest.importorskip("pyloudnorm", reason="the packages of the extra `speak` are not installed")
pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = [
    "The train to Bristol leaves at nine.",
    "He counted 17 boats. Then the fog came in, and he went home.",
    "Dr. Smith paid $3.50 on Jan. 5th.",
    "No, thank you!",
]
OPTIONS = {"dtype": "float32", "enforce_eager": "true", "max_num_seqs": "3"}


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Voxtral TTS."""
    from engine_runs import once
    from speaking_model import write_speaker

    def write(folder: Path) -> None:
        folder.rmdir()
        write_speaker(folder)

    return once(tmp_path_factory, "speaker", write)


def flags(model: Path, *others: object) -> tuple[object, ...]:
    """Return the options of the command."""
    engine_options = [flag for pair in OPTIONS.items() for flag in ("--engine-option", "=".join(pair))]
    return ("--engine", "vllm", "--model", model, *engine_options, *others)


def spoken(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command voxbatch with its plugin, and return it when it has ended."""
    from engine_runs import command, with_plugin

    return command(folder, *arguments, **with_plugin(folder))


def listed(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def outputs(out: Path) -> dict[str, bytes]:
    """Return the recordings and the lists, by name."""
    files = [out / "recordings.jsonl", out / "failures.jsonl", *(out / "flac").rglob("*.flac")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_a_speech_depends_on_its_text_voice_and_seed_alone(speaker: Path, tmp_path: Path) -> None:
    """The codes and the samples of a piece are the same alone and among others. Another seed gives other codes. A frame
    has 1,920 samples."""
    from engine_runs import with_engine

    from voxbatch.records import TextPiece

    pieces = [TextPiece(text, voice, seed) for seed in (1, 2, 3) for voice in ("ann", "bob") for text in TEXTS]
    runs = [
        with_engine(tmp_path, "speaking.speak", speaker, pieces, options=[f"{k}={v}" for k, v in options.items()])
        for options in ({**OPTIONS, "max_num_seqs": "24"}, {**OPTIONS, "max_num_seqs": "1"})
    ]
    together, alone = ({codes.tobytes() for codes in run.frames} for run in runs)
    assert together == alone
    assert runs[0].failures == runs[1].failures
    assert len(together) == len(pieces) - len(runs[0].failures)
    for piece, samples in runs[0].samples.items():
        np.testing.assert_array_equal(samples, runs[1].samples[piece])
    counts = [len(codes) - 1 for codes in runs[0].frames]
    assert sorted(counts) == sorted(length // 1_920 for length in runs[0].lengths)
    assert all(length % 1_920 == 0 for length in runs[0].lengths)
    assert all((codes[:-1, 0] >= 2).all() and codes[-1, 0] == 1 for codes in runs[0].frames)


def test_a_preempted_speech_is_the_same(speaker: Path, tmp_path: Path) -> None:
    """A speech that was preempted has the samples of one that was not. It takes no keys and values of an earlier speech
    of the same text in the same slot, and keeps its frames when their positions are computed again. So does one that
    vLLM itself preempts, when 16 requests need more than the 13 K/V blocks of the cache, which vLLM counts as 14."""
    from engine_runs import with_engine

    from voxbatch.records import TextPiece

    pieces = [TextPiece(text, "ann", seed) for text in TEXTS[:2] for seed in range(1, 9)]
    given = {**OPTIONS, "max_num_seqs": "1", "block_size": "32", "max_model_len": "416"}
    options = [f"{name}={value}" for name, value in given.items()]
    whole = with_engine(tmp_path, "speaking.speak", speaker, pieces, options=options)
    spoken, preempted = with_engine(tmp_path, "speaking.speak_with_preemptions", speaker, pieces, 40, options=options)
    options = [f"{name}={value}" for name, value in {**given, "max_num_seqs": "16"}.items()]
    crowded, lacking = with_engine(tmp_path, "speaking.speak_with_few_blocks", speaker, pieces, 14, options=options)
    assert min(preempted, lacking) >= 5
    for run in (spoken, crowded):
        assert run.failures == whole.failures
        assert run.samples.keys() == whole.samples.keys()
        for piece, samples in whole.samples.items():
            np.testing.assert_array_equal(run.samples[piece], samples)


def test_on_a_gpu_requests_share_their_voice(speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The K/V cache of a voice is shared, and vLLM leaves memory for the graphs and the codec."""
    from voxbatch.engines import gpu
    from voxbatch.vllm.engine import arguments, compat
    from voxbatch.vllm.engine.model import locate
    from voxbatch.vllm.engine.planned_memory import planned_bytes
    from voxbatch.vllm.engine.settings import VllmSettings

    card = gpu.GpuInfo("0", "NVIDIA H100", 85_520_809_984, 84_000_000_000, 600_000_000, (9, 0))
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [card])
    monkeypatch.setattr(compat, "installed", lambda: ("vllm", "0.32.0"))
    model, settings = locate(str(speaker), None), VllmSettings(max_model_len=1024)
    given = arguments.llm_arguments(model, settings, True, speaker, 512)
    assert given["enable_prefix_caching"] is True
    assert given["max_num_batched_tokens"] == 4_096
    share = planned_bytes(settings, card) / (card.total_bytes - card.reserved_bytes)
    assert 0.01 < share - given["gpu_memory_utilization"] < 0.03


def test_windows_of_the_codec_are_exact(speaker: Path, tmp_path: Path) -> None:
    """A speech that is decoded in windows has the samples of one that is decoded at once."""
    from engine_runs import with_plugin
    from warm_python import call

    difference, loudest = call(
        "speaking.windows", speaker, 300, folder=tmp_path, environment={**with_plugin(tmp_path), "OMP_NUM_THREADS": "1"}
    )
    assert difference < 1e-5 * loudest


def test_a_speech_is_fitted_to_its_cue(speaker: Path) -> None:
    """A speech that is too long for its cue becomes faster, at most 1.7 times, and keeps its pitch. One that still does
    not fit has a warning with both lengths."""
    from voxbatch.engines.pieces import SpokenPiece
    from voxbatch.records import TextPiece
    from voxbatch.vllm.engine.families.speaking import Speaking
    from voxbatch.vllm.engine.model import locate
    from voxbatch.vllm.engine.settings import VllmSettings

    family = Speaking(locate(str(speaker), None), VllmSettings(max_model_len=1024))
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(3 * 24_000) / 24_000)).astype(np.float32)
    for cue_s, seconds, warning in (
        (None, 3.0, ""),
        (3.0, 3.0, ""),
        (2.0, 1.96, ""),
        (1.0, 1.76, "its cue has 1.00 s"),
    ):
        read = family.read(SpokenPiece(tone, spoken=TextPiece("Yes.", "ann", 0, longest_s=cue_s)), [], "stop")
        assert len(read.samples) / 24_000 == pytest.approx(seconds, abs=0.04)
        assert warning in "".join(read.warnings)
        assert bool(warning) == bool(read.warnings)
        crossings = np.count_nonzero(np.diff(np.signbit(read.samples[2_400:-2_400])))
        assert crossings / (len(read.samples) - 4_800) * 24_000 / 2 == pytest.approx(440, rel=0.02)


def test_the_command_continues_after_kills(speaker: Path, tmp_path: Path) -> None:
    """A run that was killed ends in the bytes of one that was not: each text once, and what fails has its reason."""
    from conftest import environment
    from engine_runs import with_plugin
    from stream import ENVIRONMENT
    from warm_python import start

    rows: list[dict[str, Any]] = [{"text": f"{text} {number}"} for number in range(3) for text in TEXTS]
    rows += [{"text": ""}, {"text": "Hi.", "voice": "eve"}, {"text": "Hei.", "lang": "fi"}]
    source, out = listed(tmp_path / "a.jsonl", *rows), tmp_path / "killed"
    options = flags(speaker, "--voice", "ann", "--part-items", 1, "-q", "--accept-licence")
    variables = environment(**{**ENVIRONMENT, **with_plugin(tmp_path)})
    process = start("-m", "voxbatch", "speak", source, "-o", out, *options, folder=tmp_path, environment=variables)
    try:
        while len(list(out.rglob("part-*.jsonl"))) < 6:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
    finally:
        kill_all([process])
    for folder in (out, tmp_path / "whole"):
        ended = spoken(tmp_path, "speak", source, "-o", folder, *options)
        assert ended.returncode == 3, ended.stderr[-3_000:]
    assert outputs(out) == outputs(tmp_path / "whole")
    recordings, failures = lines(out / "recordings.jsonl"), lines(out / "failures.jsonl")
    assert sorted(line["text"] for line in recordings + failures) == sorted(row["text"] for row in rows)
    kinds = [line["error_kind"] for line in failures]
    assert kinds[-3:] == ["text", "voice", "language"]
    assert all("no sound came of" in line["message"] for line in failures[:-3])
    assert len(recordings) >= 6
    for line in recordings:
        assert line["voice"] == "ann"
        assert soundfile.info(out / line["audio_filepath"]).duration == pytest.approx(line["duration"], abs=1e-3)
    summary = json.loads((out / "summary.json").read_text())
    assert "CC BY-NC 4.0" in json.dumps(summary["engine"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--voice", "ann"), "CC BY-NC 4.0, which forbids commercial use"),
        (("--voice", "eve", "--accept-licence"), "knows ann, bob"),
        (("--accept-licence", "--engine-option", "max_model_len=300"), "give at least"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_is_loaded(
    arguments: tuple[str, ...], message: str, speaker: Path, tmp_path: Path
) -> None:
    """The licence must be accepted, the voice known, and the context long enough."""
    source = listed(tmp_path / "a.jsonl", {"text": TEXTS[0]})
    refused = spoken(tmp_path, "speak", source, "-o", tmp_path / "out", *flags(speaker, *arguments))
    assert refused.returncode == 2
    assert message in refused.stderr
    assert "loading" not in refused.stderr


def test_a_model_that_speaks_does_not_transcribe(speaker: Path, tmp_path: Path) -> None:
    """`run` refuses it, with the command that takes it. `serve` needs vllm-omni for it."""
    source = listed(tmp_path / "a.jsonl", {"audio_filepath": "a.wav"})
    refused = spoken(tmp_path, "run", source, "-o", tmp_path / "out", "--engine", "vllm", "--model", speaker)
    assert refused.returncode == 2
    assert "it is for voxbatch speak" in refused.stderr
    served = spoken(tmp_path, "serve", "--profile", "tts", "--dry-run", "--model", speaker)
    if find_spec("vllm_omni"):
        assert f"vllm_omni.entrypoints.cli.main serve {speaker} --omni" in served.stdout
        assert "CC BY-NC 4.0" in served.stderr
    else:
        assert served.returncode == 2
        assert "pip install 'voxbatch[tts]'" in served.stderr


@pytest.mark.skipif(find_spec("vllm_omni") is None, reason="vllm-omni is not installed (see omni_on_cpu)")
@pytest.mark.timeout(900)
def test_codes_are_those_of_vllm_omni(speaker: Path, tmp_path: Path) -> None:
    """With the same noise, in float32, each speech has the codes of vllm-omni's engine, eight requests at a time,
    and as many samples. A speech that ends at once is a failure."""
    import omni_speaking
    from engine_runs import with_engine, with_plugin
    from omni_on_cpu import NOISE, site
    from stream import ENVIRONMENT

    from voxbatch.records import TextPiece

    texts = ["Yes.", "The train to Bristol leaves at nine.", "He counted 17 boats. Then the fog came in."]
    pieces = [TextPiece(" ".join(texts[: 1 + n % 3]) + f" Number {n}.", ("ann", "bob")[n % 2], n) for n in range(24)]
    plugin = with_plugin(tmp_path)
    path = f"{site(tmp_path / 'omni')}:{plugin['PYTHONPATH']}"
    theirs = subprocess.run(
        [sys.executable, omni_speaking.__file__, speaker, "8", "760"],
        env={**os.environ, **ENVIRONMENT, **plugin, "PYTHONPATH": path, NOISE: str(tmp_path)},
        input="".join(json.dumps([piece.text, piece.voice, piece.seed]) + "\n" for piece in pieces),
        capture_output=True,
        text=True,
    )
    assert theirs.returncode == 0, theirs.stderr[-3_000:]
    options = ["dtype=float32", "enforce_eager=true", "max_num_seqs=8"]
    ours = with_engine(tmp_path, "speaking.speak", speaker, pieces, options=options)
    codes = [np.load(path) for path in tmp_path.glob("*.npy")]
    assert len(codes) == len(pieces)
    spoken = {frames.tobytes() for frames in codes if len(frames) > 1}
    assert spoken == {frames.tobytes() for frames in ours.frames}
    assert len(spoken) > len(pieces) / 2
    assert sorted(map(int, theirs.stdout.split())) == sorted(1_920 * (len(frames) - 1) for frames in codes)
