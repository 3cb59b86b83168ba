"""Make examples/recordings/ and examples/manifest.jsonl: nine recordings of synthetic speech, for `make demo`.

    apt-get install flite espeak-ng      # the voices
    make test                            # or any other way to .venv with voxbatch's own dependencies
    .venv/bin/python examples/make_recordings.py

Each sentence is synthesised separately and placed on a quiet background with a pause after it, because the cutter needs
pauses. Each recording has its own format, so that the demo shows the formats. The recordings do not sound like real
speech over a real telephone line. No figure about accuracy should rest on these files.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import soundfile
import soxr

HERE = Path(__file__).resolve().parent
SAMPLING_RATE = 16_000  # Hz, the rate of flite's voices; espeak-ng's 22,050 Hz are resampled to it
PAUSE_S = (0.35, 0.75)  # between sentences: read speech has pauses of a third to three quarters of a second
EDGE_S = 0.3  # before the first sentence and after the last
NOISE = 1e-4  # RMS of the background, -80 dBFS: a quiet room rather than digital zero
PEAK = 0.7  # full scale is 1; the margin is for overshoot of lossy codecs
SMALL = 0.9  # libsndfile's compression level, from 0 (best sound) to 1 (smallest file), for Vorbis and Opus

# Female and male American voices and a male Scottish one (flite), and a formant synthesiser (espeak-ng).
ANNA, RON, ALAN, ROBOT = "flite:slt", "flite:rms", "flite:awb", "espeak-ng:en-us"

Line = tuple[str, str]  # voice, sentence


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording of the demo."""

    file: str
    topic: str
    lines: tuple[Line, ...]
    sampling_rate: int = SAMPLING_RATE
    subtype: str | None = None
    """libsndfile's name of the sample format; None: its default for the container."""
    panned: bool = False
    """Two channels, with each speaker mostly on one of them."""

    @property
    def text(self) -> str:
        """Return the reference: all sentences."""
        return " ".join(sentence for _, sentence in self.lines)


def spoken(voice: str, *sentences: str) -> tuple[Line, ...]:
    """Return the lines of one voice."""
    return tuple((voice, sentence) for sentence in sentences)


RECORDINGS = (
    Recording(
        "weather.flac",
        "weather",
        spoken(
            ANNA,
            "Here is the weather for the north coast.",
            "The morning will be dry, with light winds from the west.",
            "Rain arrives after lunch, and it will be nine degrees by the evening.",
        ),
    ),
    Recording(
        "hold-the-line.wav",
        "call centre",
        spoken(
            RON,
            "Thank you for calling the water company.",
            "All of our lines are busy at the moment.",
            "Please stay on the line, and the next free person will take your call.",
        ),
        sampling_rate=8_000,
        subtype="ULAW",
    ),
    Recording(
        "recipe.mp3",
        "recipe",
        spoken(
            ANNA,
            "Warm two spoons of olive oil in a large pan.",
            "Add the onion, and cook it slowly for ten minutes.",
            "Then stir in the rice and a cup of hot water.",
        ),
        sampling_rate=44_100,
    ),
    Recording(
        "platform-four.ogg",
        "announcement",
        spoken(
            RON,
            "The next train from platform four is the evening service to Oxford.",
            "It will stop at every station.",
            "Passengers with bicycles should use the last carriage.",
        ),
        sampling_rate=22_050,
        subtype="VORBIS",
    ),
    Recording(
        "appointment.m4a",
        "voicemail",
        spoken(
            ANNA,
            "This is a message for Mister Harris.",
            "Your appointment has moved to Tuesday, the third of June, at half past two.",
            "Please bring your old glasses with you.",
        ),
    ),
    Recording(
        "where-is-my-order.flac",
        "call centre",
        (
            (ANNA, "Hello, I would like to ask about my order."),
            (RON, "Of course. Could you give me the order number?"),
            (ANNA, "Yes, it is seven four two nine."),
            (RON, "Your parcel left our warehouse this morning."),
        ),
        sampling_rate=44_100,
        panned=True,
    ),
    Recording(
        "museum.wav",
        "tour",
        spoken(
            ALAN,
            "Welcome to the museum of the sea.",
            "The tour begins in the main hall, under the old fishing boat.",
            "Children are welcome to touch the ropes and the sails.",
        ),
    ),
    Recording(
        "library.opus",
        "announcement",
        spoken(
            ROBOT,
            "The library closes in fifteen minutes.",
            "Please take your books to the front desk.",
            "We open again tomorrow at nine in the morning.",
        ),
        sampling_rate=48_000,
        subtype="OPUS",
    ),
    Recording(
        "street-garden.ogg",
        "radio",
        (
            (ANNA, "Good evening, and welcome to the neighbourhood hour."),
            (ANNA, "Tonight we are talking about a small piece of land at the end of Mill Street."),
            (ANNA, "Two years ago it was a car park with broken glass and a single tree."),
            (ANNA, "Today it is a garden that feeds thirty families."),
            (ANNA, "With me is Peter, who planted the first row of beans."),
            (ANNA, "Peter, how did it start?"),
            (RON, "It started with a letter that nobody answered."),
            (RON, "I wrote to the city and asked who owned the land."),
            (RON, "After three months I stopped waiting and bought a spade."),
            (RON, "My neighbour saw me digging in the rain and came out with soup."),
            (RON, "By the end of that week there were six of us."),
            (ANNA, "What was the hardest part?"),
            (RON, "The soil, without a doubt."),
            (RON, "Under the stones there was nothing but sand and old bricks."),
            (RON, "We carried away four hundred buckets by hand."),
            (RON, "Then a farmer gave us two trucks of good earth, and he would not take any money for it."),
            (ANNA, "That was kind of him. And what do you grow there now?"),
            (RON, "Mostly simple things."),
            (RON, "Potatoes, onions, beans and a lot of tomatoes."),
            (RON, "The school next door looks after the strawberries, and they never last until the weekend."),
            (ANNA, "I can believe that. Who decides what is planted, and where?"),
            (RON, "We meet on the first Sunday of every month."),
            (RON, "Everybody brings something to eat, and everybody has one vote."),
            (RON, "It takes a long time, but nobody goes home angry."),
            (ANNA, "The city has now offered you a contract for ten years."),
            (ANNA, "What will you do with all that time?"),
            (RON, "First we want to build a roof that collects the rain."),
            (RON, "In summer we carry water from the river, and that is heavy work for older people."),
            (RON, "After that, we would like some bees."),
            (ANNA, "Bees! Are the neighbours happy about that?"),
            (RON, "They are happy about the honey, and we will talk about the rest."),
            (RON, "My daughter has already read three books about them."),
            (ANNA, "Peter, thank you very much for coming."),
            (ANNA, "If you want to help, the gate on Mill Street is open every Saturday from eight until noon."),
            (ANNA, "Bring gloves, and something for the soup."),
        ),
        subtype="VORBIS",
    ),
)


def say(voice: str, sentence: str) -> np.ndarray:
    """Return a sentence as mono float32 at 16 kHz with peak PEAK, without the synthesiser's silence at the ends."""
    program, name = voice.split(":")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/sentence.wav"
        command = {
            "flite": ["flite", "-voice", name, "-t", sentence, "-o", path],
            "espeak-ng": ["espeak-ng", "-v", name, "-s", "150", "-w", path, sentence],  # 150 words a minute
        }[program]
        subprocess.run(command, check=True)
        samples, sampling_rate = soundfile.read(path, dtype="float32")
    samples = soxr.resample(samples, sampling_rate, SAMPLING_RATE)
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    samples = samples[loud[0] : loud[-1] + 1]
    return samples * np.float32(PEAK / np.abs(samples).max())


def silence(seconds: float) -> np.ndarray:
    """Return seconds of digital zero."""
    return np.zeros(round(seconds * SAMPLING_RATE), np.float32)


def voice_tracks(recording: Recording, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the recording from start to end as (voice, samples); a pause belongs to the voice before it."""
    first_voice, last_voice = recording.lines[0][0], recording.lines[-1][0]
    yield first_voice, silence(EDGE_S)
    for number, (voice, sentence) in enumerate(recording.lines):
        if number:
            yield voice, silence(rng.uniform(*PAUSE_S))
        yield voice, say(voice, sentence)
    yield last_voice, silence(EDGE_S)


def compose(recording: Recording, rng: np.random.Generator) -> np.ndarray:
    """Return the samples as float32 at the recording's rate, shape (num_samples,) or, if panned, (num_samples, 2)."""
    near, far = np.array([1.0, 0.25], np.float32), np.array([0.25, 1.0], np.float32)
    pieces = []
    for voice, samples in voice_tracks(recording, rng):
        gains = near if voice == recording.lines[0][0] else far
        pieces.append(samples[:, None] * gains if recording.panned else samples)
    mixed = np.concatenate(pieces)
    mixed = mixed + rng.normal(0, NOISE, mixed.shape).astype(np.float32)
    return soxr.resample(mixed, SAMPLING_RATE, recording.sampling_rate)


def write(recording: Recording, samples: np.ndarray, path: Path) -> None:
    """Encode the samples in the recording's format."""
    if path.suffix != ".m4a":
        container = "OGG" if path.suffix == ".opus" else None
        level = SMALL if recording.subtype in ("VORBIS", "OPUS") else None
        soundfile.write(
            path, samples, recording.sampling_rate, recording.subtype, format=container, compression_level=level
        )
        return
    encode = f"-y -loglevel error -f f32le -ar {recording.sampling_rate} -ac 1 -i pipe: -c:a aac -b:a 32k -bitexact"
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()  # libsndfile has no AAC
    subprocess.run([ffmpeg, *encode.split(), str(path)], input=samples.tobytes(), check=True)


def main() -> None:
    folder = HERE / "recordings"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(2026)  # a fixed seed: the same pauses and background each time
    with (HERE / "manifest.jsonl").open("w", encoding="utf-8") as manifest:
        for recording in RECORDINGS:
            samples = compose(recording, rng)
            path = folder / recording.file
            write(recording, samples, path)
            row = {
                "id": path.stem,
                "audio_filepath": f"recordings/{recording.file}",
                "duration": len(samples) * 1000 // recording.sampling_rate / 1000,  # whole ms, never past the end
                "text": recording.text,
                "lang": "en",
                "topic": recording.topic,
            }
            manifest.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(f"{path.relative_to(HERE)}: {row['duration']:.1f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
