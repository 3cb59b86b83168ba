"""The networks of speakers by PyTorch give the scores, vectors and turns of onnxruntime, in whatever batch they are."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import killed_at
import numpy as np
import psutil
import pytest
import soundfile
from conftest import environment, gone
from outputs import output_files
from stream import ENVIRONMENT
from warm_python import python

from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import Samples, SpeakerCount, Turn
from voxbatch.speakers import Diarizer, SpeakerWeights, find_weights
from voxbatch.speakers.network import networks_of
from voxbatch.speakers.network_process import beside_engine
from voxbatch.speakers.segmentation import FRAME, STEP

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PIECES = (400, 1_890, 8_240, 20_000, 31_999, 32_130)
"""Lengths of pieces in samples: the shortest one, two that are repeated to half a second, and the longest one."""

TURNS = [
    (6.725, 7.265, 0), (7.501, 7.636, 0), (7.636, 8.261, 1), (8.261, 9.982, 0), (9.982, 11.028, 1), (10.454, 14.774, 0),
    (14.302, 17.93, 1), (17.997, 21.524, 0), (18.149, 18.521, 1), (21.777, 28.544, 1), (27.802, 30.0, 0),
]  # fmt: skip
"""The turns of the call by onnxruntime: start, end, speaker."""


@pytest.fixture(scope="module")
def weights(speaker_networks: Path) -> SpeakerWeights:
    return find_weights(str(speaker_networks))


@pytest.fixture(scope="module")
def call(corpus: Path) -> Samples:
    samples: Samples = soundfile.read(corpus / "conversations" / "sample.flac", dtype="float32")[0]
    return samples


def turns_of(weights: SpeakerWeights, samples: Samples) -> list[Turn]:
    diarizer = Diarizer(weights, SpeakerCount())
    diarizer.add(samples)
    return diarizer.turns()


def test_pytorch_gives_the_turns_of_onnxruntime(weights: SpeakerWeights, call: Samples) -> None:
    with beside_engine(weights, "cpu") as beside:
        turns = turns_of(beside, call)
    assert [(round(turn.start, 3), round(turn.end, 3), turn.speaker) for turn in turns] == TURNS


def test_pytorch_gives_the_outputs_of_onnxruntime(weights: SpeakerWeights, call: Samples) -> None:
    """Probabilities and vectors of a real call differ by less than 1e-4."""
    pytest.importorskip("onnxruntime")
    pieces = [call[50_000 + length : 50_000 + 2 * length] for length in PIECES]
    expected = networks_of(weights)
    with beside_engine(weights, "cpu") as beside:
        networks = networks_of(beside)
        scores, vectors = networks.segment(call, 5), networks.embed(pieces)
        assert np.abs(np.exp(scores) - np.exp(expected.segment(call, 5))).max() < 1e-4
        assert np.abs(vectors - expected.embed(pieces)).max() < 1e-4


def test_an_output_does_not_depend_on_its_batch(weights: SpeakerWeights, call: Samples) -> None:
    """Windows and pieces have the same bits beside others, beside silence, and beside those of other decoders, which
    talk to the same process at once. One of them is gone before it gets its answer. (Each keeps its place in the batch:
    MKL on an AMD CPU rounds the rows of a product by their place.)"""
    pieces = [call[50_000 + length : 50_000 + 2 * length] for length in PIECES]
    with beside_engine(weights, "cpu") as beside:
        networks, lost = networks_of(beside), networks_of(beside)
        scores, vectors = networks.segment(call, 6), networks.embed(pieces)
        assert (networks.segment(call[4 * STEP * FRAME :], 6)[:2] == scores[4:]).all()
        assert (networks.embed(pieces[1::-1] + pieces[2:])[2:] == vectors[2:]).all()
        assert (networks.embed(pieces[:2]) == vectors[:2]).all()
        lost._connection.send(1)  # type: ignore[attr-defined] # and no samples
        del lost
        with ThreadPoolExecutor(3) as pool:
            at_once = list(pool.map(lambda end: turns_of(beside, call[:end]), [len(call), 300_000, len(call)]))
        assert at_once == [turns_of(beside, call[:end]) for end in (len(call), 300_000, len(call))]
        assert len({turn.speaker for turn in at_once[0]}) == 2


def test_another_network_is_refused(weights: SpeakerWeights) -> None:
    """A file with the weights of another network is named."""
    wrong = SpeakerWeights(weights.embedding, weights.embedding)
    message = "embedding.onnx is not the network that runs on a GPU"
    with pytest.raises(ConfigError, match=message), beside_engine(wrong, "cpu"):
        pass


def test_a_process_that_dies_is_no_fault_of_a_recording(weights: SpeakerWeights, call: Samples) -> None:
    """The error is the engine's, which stops the run. The process ends with the context."""
    before = set(psutil.Process().children())
    with beside_engine(weights, "cpu") as beside:
        (process,) = set(psutil.Process().children()) - before
        networks = networks_of(beside)
        process.kill()
        with pytest.raises(EngineError, match="run again to go on"):
            networks.segment(call, 1)
    assert gone([process], 10)


@pytest.mark.long
def test_a_killed_run_with_speakers_has_the_files_of_an_undisturbed_one(
    corpus: Path, speaker_networks: Path, realtime: Path, tmp_path: Path
) -> None:
    """A run with vLLM tells speakers apart by PyTorch, so without onnxruntime. Killed after a part and resumed, it
    writes the files of an undisturbed run."""
    from engine_runs import command

    names = ("sample", "trn00", "trn01", "trn02")
    rows = [{"audio_filepath": str(corpus / "conversations" / f"{name}.flac")} for name in names]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=4", "watch=false"]
    flags = [flag for option in given for flag in ("--engine-option", option)]
    speakers = ("--speakers", "auto", "--speaker-model", speaker_networks)
    small = ("--allow-outside", "--part-items", "1", "--formats", "rttm", "--no-report", "--decoders", "2")
    run = ("run", tmp_path / "m.jsonl", "--engine", "vllm", "--model", realtime, *small, *speakers, *flags, "-o")
    whole = command(tmp_path, *run, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-3_000:]
    code = f"import sys; sys.path.append({str(Path(killed_at.__file__).parent)!r}); import killed_at; "
    code += "killed_at.install(3); from voxbatch.cli import main; main()"
    variables = environment(**ENVIRONMENT)
    killed = python("-c", code, *run, tmp_path / "killed", folder=tmp_path, environment=variables)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3_000:]
    assert command(tmp_path, *run, tmp_path / "killed").returncode == 0
    assert output_files(tmp_path / "killed") == output_files(tmp_path / "whole")
    line = json.loads((tmp_path / "whole" / "transcripts.jsonl").read_text().splitlines()[0])
    assert {segment.get("speaker") for segment in line["segments"]} >= {"Speaker 1", "Speaker 2"}
