"""Speak sentences with `voxbatch speak`, transcribe the recordings with `voxbatch run`, and print the word error rate.

    python benchmarks/bench_speak.py MANIFEST [--sentences 100] [--out FOLDER]

The sentences come from the English references of a manifest of recordings, each once. The CPU
seconds of each command contain those of its child processes: a wall time means little on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencex

MIN_WORDS = 3


def sentences_of(manifest: Path, count: int | None) -> list[str]:
    """Return different sentences of the English references, evenly over the manifest; None means all."""
    rows = [json.loads(line) for line in manifest.read_text().splitlines() if line.strip()]
    texts = [row["text"] for row in rows if row.get("text") and row.get("lang") == "en"]
    split = (sentence.strip() for text in texts for sentence in sentencex.segment("en", text))
    every = list(dict.fromkeys(sentence for sentence in split if len(sentence.split()) >= MIN_WORDS))
    if count is None:
        return every
    if len(every) < count:
        sys.exit(f"{manifest} has {len(every)} sentences, not {count}")
    return [every[number * len(every) // count] for number in range(count)]


def measured(*arguments: object) -> float:
    """Run a command of voxbatch, and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "voxbatch", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--sentences", type=int, help="default: all")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    texts = folder / "texts.jsonl"
    sentences = sentences_of(arguments.manifest, arguments.sentences)
    texts.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences))
    speak_s = measured("speak", texts, "-o", folder / "spoken", "-q")
    run_s = measured("run", folder / "spoken" / "recordings.jsonl", "-o", folder / "heard", "--profile", "cpu", "-q")
    spoken, heard = (json.loads((folder / name / "summary.json").read_text()) for name in ("spoken", "heard"))
    audio_s = spoken["audio_s"]
    exact = sum(json.loads(line)["wer"] == 0 for line in (folder / "heard" / "transcripts.jsonl").open())
    print(f"{spoken['done']} recordings, {audio_s:.0f} s of audio, {spoken['failed']} failed")
    print(f"spoken: {speak_s:.1f} CPU s, {speak_s / audio_s:.4f} for each second of audio")
    print(f"heard: {run_s:.1f} CPU s; WER {heard['score']['wer']:.2%}, {exact} of {heard['done']} without an error")


if __name__ == "__main__":
    main()
