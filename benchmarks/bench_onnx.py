"""Parakeet on a CPU: voxbatch's engine onnx-asr beside onnx-asr's own `recognize` with VAD, on the same recordings.

    .venv-vllm/bin/python benchmarks/bench_onnx.py [--minutes 10] [--hours 10] [--quantizations float32,int8]

Both run the same networks: Parakeet TDT 0.6B v3 in its full shape, with made-up weights that write some tokens
each second. They are written to --folder (3.5 GB) by PyTorch, so the script needs `torch`, `transformers`, `onnx` and
`onnx_asr`. Silero VAD comes from the package silero-vad. The texts mean nothing, so that no chunk is decoded
again (watch=false). Each program is measured twice, in turn; the better run counts.

With --hours, the whole command transcribes so many hours with small networks of the tests. The peak memory of all its
processes is printed, and it must not grow after the start.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import ROOT, Bars, Ran, english_rows, is_long, machine, measured, parser, run, write_manifest

sys.path[:0] = [str(ROOT)]
sys.path.append(str(ROOT / "tests" / "support" / "engine_vllm"))

RTFX_BAR, MEMORY_BAR = 1.15, 1.3
"""Speed and peak memory of voxbatch beside onnx-asr (issue 53)."""
GROWTH_BAR = 1.1
"""Peak memory of all processes in the second half of the time, beside that in the first half."""
SOUND_S = 240.0
"""Seconds of the sound of whose parts the recordings of --hours are: they have up to half of that."""
NEEDS = ("torch", "transformers", "onnx", "onnx_asr")
BLANK_SHARE = 0.5
"""Share of the steps that give blank. With mean jumps of 2 frames, 3 tokens a second are left."""
SILERO = "silero-vad==6.2.1"
NAMES = "encoder-model", "decoder_joint-model"


def main() -> None:
    """Write the networks, measure both programs, and judge."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=10, help="length of the recordings together")
    options.add_argument("--hours", type=float, default=0, help="hours of the check of the memory; 0: none")
    options.add_argument("--quantizations", default="float32,int8")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--folder", type=Path, default=ROOT / "build" / "onnx")
    options.add_argument("--theirs", nargs=2, help="used by the script itself: quantization and folder of recordings")
    given = options.parse_args()
    if missing := [name for name in NEEDS if not importlib.util.find_spec(name)]:
        print(f"skipped: {', '.join(missing)} is not installed here; see the script's help")
        return
    if given.theirs:
        print(json.dumps(recognised(given.folder, *given.theirs)), file=sys.stderr)
        return
    bars = Bars()
    print(machine(), f"onnxruntime {_version('onnxruntime')}, onnx-asr {_version('onnx-asr')}")
    if given.minutes:
        write_full(given.folder)
        with tempfile.TemporaryDirectory() as scratch:
            seconds = write_recordings(Path(scratch), given.minutes * 60)
            print(f"{seconds / 60:.1f} minutes of English speech, {os.getloadavg()[0]:.1f} processes at work before")
            for quantization in given.quantizations.split(","):
                compare(given.folder, Path(scratch), quantization, seconds, given.rounds, bars)
    if given.hours:
        check_memory(given.hours, bars)
    bars.leave()


def compare(folder: Path, recordings: Path, quantization: str, seconds: float, rounds: int, bars: Bars) -> None:
    """Measure both programs in turn with one quantization."""
    best: dict[str, tuple[float, float]] = {}
    cpu_s = dict[str, float]()
    for _ in range(rounds):
        for name, measure in (("onnx-asr", run_theirs), ("voxbatch", run_ours)):
            took, ran = measure(folder, recordings, quantization)
            peak_mb, cpu_s[name] = ran.peak_mb, min(ran.cpu_s, cpu_s.get(name, float("inf")))
            before = best.get(name, (float("inf"), 0.0))
            best[name] = min(before[0], took), max(before[1], peak_mb)
    for name, (took, peak_mb) in best.items():
        print(
            f"{quantization}, {name}: RTFx {seconds / took:.2f}, peak {peak_mb:,.0f} MB, "
            f"{cpu_s[name] / seconds:.3f} CPU seconds a second with the start"
        )
    (theirs, their_mb), (ours, our_mb) = best["onnx-asr"], best["voxbatch"]
    bars.at_least(f"{quantization}: RTFx beside onnx-asr", theirs / ours, RTFX_BAR)
    bars.at_most(f"{quantization}: peak memory beside onnx-asr", our_mb / their_mb, MEMORY_BAR)


def run_ours(folder: Path, recordings: Path, quantization: str) -> tuple[float, Ran]:
    """Return the seconds from the first chunk to the last result of a whole run, and the run."""
    with tempfile.TemporaryDirectory() as out:
        chosen = ("--engine-option", f"quantization={quantization}", "--engine-option", "watch=false")
        output = ("-o", f"{out}/out", "--no-report", "--log-format", "json", "--decoders", "1")
        ran = run(["run", recordings, *output, "--engine", "onnx-asr", "--model", folder, *chosen])
    return float(ran.event("run_finished")["engine_s"]), ran


def run_theirs(folder: Path, recordings: Path, quantization: str) -> tuple[float, Ran]:
    """Return the seconds of `recognize`, and the run of its process."""
    ran = measured([sys.executable, __file__, "--folder", folder, "--theirs", quantization, recordings])
    return float(json.loads(ran.stderr.splitlines()[-1])["seconds"]), ran


def recognised(folder: Path, quantization: str, recordings: str) -> dict[str, float]:
    """Transcribe recordings by onnx-asr with Silero VAD, as its documentation says, with times and probabilities."""
    import onnx_asr
    from onnxruntime import SessionOptions

    allowed = SessionOptions()
    allowed.intra_op_num_threads = len(os.sched_getaffinity(0))  # onnxruntime counts the cores that it may not use, too
    chosen = quantization if quantization == "int8" else None
    model = onnx_asr.load_model(
        "nemo-conformer-tdt", folder, quantization=chosen, sess_options=allowed, providers=["CPUExecutionProvider"]
    )
    vad = onnx_asr.load_vad("silero", folder, providers=["CPUExecutionProvider"])
    watched = model.with_vad(vad).with_timestamps()
    began = time.monotonic()
    tokens = sum(
        len(segment.tokens or ())
        for path in sorted(Path(recordings).glob("*.wav"))
        for segment in watched.recognize(str(path))
    )
    return {"seconds": time.monotonic() - began, "tokens": tokens}


def write_recordings(folder: Path, seconds: float) -> float:
    """Write the English recordings of the corpus, one after another, until there are so many seconds; return those."""
    written = 0.0
    for index, row in enumerate(sorted(english_rows(), key=is_long, reverse=True)):
        try:
            samples, rate = soundfile.read(row["audio_filepath"], dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            continue
        if rate != 16_000:
            continue
        samples = samples[: round((seconds - written) * rate), 0]
        soundfile.write(folder / f"{index:04}.wav", samples, rate)
        written += len(samples) / rate
        if written >= seconds:
            break
    return written


# ── the networks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def write_full(folder: Path) -> None:
    """Write the networks in full size, in 32 and 8 bits, and Silero VAD, unless they are there."""
    if (folder / "silero_vad.onnx").exists():
        return
    import onnx
    import torch
    from onnx_export import babble, export, extractor, randomise
    from onnxruntime.quantization import quantize_dynamic
    from transformers import ParakeetForTDT, ParakeetTDTConfig

    began = time.monotonic()
    logging.disable(logging.WARNING)  # of each tensor that stays in 32 bits
    encoder = {"num_mel_bins": 128, "convolution_bias": False, "scale_input": False, "attention_bias": False}
    torch.manual_seed(0)
    model = ParakeetForTDT(ParakeetTDTConfig(encoder_config=encoder)).eval()
    randomise(model)
    inputs = extractor(128)([babble(30.0, 2)], sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        frames = model.get_audio_features(inputs.input_features).pooler_output[0]
        scores, blank = model.joint.head(torch.relu(frames)), model.config.blank_token_id
        model.joint.head.bias[blank] += torch.quantile(scores[:, :blank].amax(-1) - scores[:, blank], BLANK_SHARE)
    with tempfile.TemporaryDirectory(dir=_made(folder.parent)) as scratch:
        raw, whole = Path(scratch, "raw"), _made(Path(scratch, "whole"))
        export(model, raw, [f"▁w{number}" for number in range(8_192)])
        del model
        for name in NAMES:  # PyTorch writes each tensor to a file of its own
            network = onnx.load(raw / f"{name}.onnx")
            beside = f"{name}.onnx.data"
            onnx.save(network, whole / f"{name}.onnx", save_as_external_data=True, location=beside)
            del network
            quantize_dynamic(whole / f"{name}.onnx", whole / f"{name}.int8.onnx")
        for name in ("vocab.txt", "config.json"):
            shutil.copy(raw / name, whole / name)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, SILERO]
        subprocess.run(download, check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("silero_vad*.whl"))) as package:
            (whole / "silero_vad.onnx").write_bytes(package.read("silero_vad/data/silero_vad.onnx"))
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)
    print(f"wrote {folder} in {time.monotonic() - began:.0f} s")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


# ── the memory of a long run ──────────────────────────────────────────────────────────────────────────────────────────


def check_memory(hours: float, bars: Bars) -> None:
    """Transcribe hours of recordings of all lengths with a small model, by the whole command. Compare the memory of all
    its processes in the second half of the time with that in the first one, which has the start."""
    from onnx_export import babble, export, tiny

    rng, rows, left = np.random.default_rng(0), list[dict[str, Any]](), hours * 3600
    with tempfile.TemporaryDirectory() as scratch:
        folder = export(tiny("tdt", 9, blank_bias=8.0), Path(scratch, "model"))
        soundfile.write(Path(scratch, "sound.wav"), babble(SOUND_S), 16_000)
        while left > 0:
            duration = float(rng.uniform(0.5, SOUND_S / 2))
            offset = float(rng.uniform(0, SOUND_S - duration))
            rows.append({"id": f"{len(rows)}", "audio_filepath": "sound.wav", "offset": offset, "duration": duration})
            left -= duration
        manifest = write_manifest(Path(scratch, "m.jsonl"), rows)
        engine = ("--engine", "onnx-asr", "--model", folder, "--engine-option", "watch=false")
        ran = run(["run", manifest, "-o", Path(scratch, "out"), *engine, "--no-report"])
    tenths = [max(part) for part in np.array_split(ran.memory_mb, 10)]
    shown = ", ".join(f"{megabytes:,.0f}" for megabytes in tenths)
    print(
        f"{hours:g} hours, {len(rows):,} recordings in {ran.wall_s:.0f} s; peak of all processes {ran.peak_mb:,.0f} MB"
    )
    print(f"the peak of each tenth of the time: {shown} MB")
    bars.at_most("peak of the second half beside the first", max(tenths[5:]) / max(tenths[:5]), GROWTH_BAR)


if __name__ == "__main__":
    main()
