"""An open file → mono float32 at 16 kHz, in blocks: see `waveforms`. This package does not cut recordings and does not
look for speech.

The package itself imports no decoder: a run starts its decoders as processes, and needs only the versions here.
"""

from __future__ import annotations

from voxbatch.audio import ffmpeg
from voxbatch.errors import AudioError


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that decide which samples a recording gives.

        {"ffmpeg": "7.0.2-static (imageio-ffmpeg 0.6.0)", "libsndfile": "1.2.2"}

    Raises:
        ConfigError: VOXBATCH_FFMPEG names no ffmpeg.
    """
    import soundfile

    try:
        ffmpeg_version = ffmpeg.version()
    except AudioError:
        ffmpeg_version = "not installed"
    return {"ffmpeg": ffmpeg_version, "libsndfile": soundfile.__libsndfile_version__}
