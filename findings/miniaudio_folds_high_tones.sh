#!/usr/bin/env bash
# Good guess: a decoder that is asked for 16 kHz removes what lies above 8 kHz, by 60 dB or more.
# What happens: miniaudio interpolates linearly behind a weak low-pass filter: of a tone at 9 kHz, half the amplitude comes
#   out at 7 kHz, and of one at 10 kHz a third at 6 kHz, where the consonants are. soxr leaves less than a millionth.
# Date: 2026-11-29. Source: found by running miniaudio==1.71 soxr==1.1.0 numpy==2.4.6.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile miniaudio==1.71 soxr==1.1.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import array
import sys
from importlib.metadata import version

import miniaudio
import numpy as np
import soxr

print("versions:", {name: version(name) for name in ("miniaudio", "soxr", "numpy")})
RATE, OUTPUT_RATE = 48_000, 16_000


def levels(frequency):
    """Return the amplitudes, by miniaudio and by soxr, of a tone of amplitude 0.5, and the frequency where it comes out."""
    tone = 0.5 * np.sin(2 * np.pi * frequency * np.arange(4 * RATE) / RATE)
    pcm = array.array("h", (tone * 32_767).astype(np.int16).tobytes())
    miniaudio.wav_write_file("a.wav", miniaudio.DecodedSoundFile("a", 1, RATE, miniaudio.SampleFormat.SIGNED16, pcm))
    sound = miniaudio.decode_file("a.wav", miniaudio.SampleFormat.FLOAT32, 1, OUTPUT_RATE)
    outputs = np.array(sound.samples), soxr.resample(tone, RATE, OUTPUT_RATE)
    seconds = [output[OUTPUT_RATE : 2 * OUTPUT_RATE] for output in outputs]  # so that a bin is one Hz
    spectra = [np.abs(np.fft.rfft(second)) / OUTPUT_RATE * 2 for second in seconds]
    return [float(spectrum.max()) for spectrum in spectra], int(spectra[0].argmax())


results = {frequency: levels(frequency) for frequency in (3_000, 9_000, 10_000, 12_000)}
for frequency, ((by_miniaudio, by_soxr), folded) in results.items():
    print(f"{frequency} Hz: {by_miniaudio:.3f} of 0.5 at {folded} Hz; soxr: {by_soxr:.1e}")
same = all(by_soxr < 1e-6 for frequency, ((_, by_soxr), _) in results.items() if frequency > 8_000)
same = same and results[9_000][0][0] > 0.2 and results[9_000][1] == 7_000 and results[10_000][0][0] > 0.1
same = same and results[10_000][1] == 6_000 and results[3_000][0][0] > 0.4

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
