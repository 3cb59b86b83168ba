"""Check before a run that recordings have channels to recognise alone."""

from __future__ import annotations

from contextlib import closing

from voxbatch.config import Config
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.errors import AudioError, ConfigError, StorageError
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.safe_text import counted
from voxbatch.storage import DEFAULT_STORES, is_remote

MAX_PROBED = 1000
"""Number of recordings whose headers are read: a second or two."""


def check_channels(config: Config, source: Source, policy: PathPolicy) -> None:
    """Check that --channels split has something to split: that not all recordings are mono by the headers of WAV, FLAC
    and similar files on this machine.

    Raises:
        ConfigError: all recordings are mono.
    """
    number = 0
    with HeaderReader() as headers:
        for number, item in enumerate(items(source, policy, config.limit), 1):
            if number > MAX_PROBED or item.channel is not None or is_remote(item.audio):
                return
            if not _is_mono(item.audio, headers):
                return
    raise ConfigError(
        f"--channels split needs two channels or more, and SOURCE has {counted(number, 'recording')} with one; leave "
        "it out, or give --speakers, which tells the voices of one channel apart"
    )


def _is_mono(path: str, headers: HeaderReader) -> bool:
    """Return whether the header of a recording certainly tells one channel."""
    try:
        with closing(DEFAULT_STORES.recording(path)) as recording:
            return headers.channels(recording) == 1
    except (AudioError, StorageError):  # the item fails when it is decoded
        return False
