"""The settings of a run that speaks texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from voxbatch.errors import ConfigError
from voxbatch.output.layout import AUDIO_FORMATS
from voxbatch.settings import OUTPUTS, SPEECH, check_settings, setting
from voxbatch.work import WorkOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions(WorkOptions):
    """The way in which a run speaks texts.

    Raises:
        ConfigError: a value is out of range.
    """

    key: ClassVar[str] = "speech"

    voice: str | None = setting(
        None, group=SPEECH, metavar="NAME",
        help="Voice of texts that name none. Default: the engine's first voice.",
    )  # fmt: skip
    seed: int = setting(
        0, minimum=0, maximum=2**31 - 1, group=SPEECH, metavar="N",
        help="Seed of the speech. The same seed gives the same recordings.",
    )  # fmt: skip
    loudness: float = setting(
        -19.0, minimum=-50, maximum=-8, group=SPEECH, metavar="LUFS",
        help="Integrated loudness of each recording (ITU-R BS.1770).",
    )  # fmt: skip
    verify: bool = setting(
        False, group=SPEECH,
        help="Transcribe each piece, and speak it again, up to three times, if there are too many errors.",
    )  # fmt: skip
    max_wer: float = setting(
        0.15, minimum=0, maximum=10, group=SPEECH, metavar="R",
        help="With --verify: WER above which a piece is spoken again, and at last flagged.",
    )  # fmt: skip
    accept_licence: bool = setting(
        False, group=SPEECH,
        help="Accept the licence of a model that forbids commercial use, such as Voxtral TTS (CC BY-NC 4.0).",
    )  # fmt: skip
    audio_formats: tuple[str, ...] = setting(
        (), group=OUTPUTS, metavar="LIST",
        help=f"Formats of the recordings: {','.join(AUDIO_FORMATS)}. flac is always written; m4b is one audiobook with "
        "a chapter for each text.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := sorted(set(self.audio_formats) - set(AUDIO_FORMATS)):
            raise ConfigError(f"--formats {','.join(unknown)}: unknown; known are {', '.join(AUDIO_FORMATS)}")

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the sound."""
        others = ("accept_licence", "audio_formats")
        return {name: value for name, value in asdict(self).items() if name not in others}
