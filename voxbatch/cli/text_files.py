"""Read the small text files that options name: a question, a JSON schema, functions, hotwords."""

from __future__ import annotations

from voxbatch.errors import ConfigError
from voxbatch.storage import Stores

MAX_FILE_BYTES = 1 << 20
"""Size of the largest file."""


def read_text(flag: str, place: str, stores: Stores) -> str:
    """Return the content of a small text file, local or at an address.

    Raises:
        ConfigError: it cannot be read, is too large or is not UTF-8.
        StorageError: the address cannot be read.
    """
    try:
        with stores.open(place) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{flag} {place} has more than {MAX_FILE_BYTES:,} bytes; give a smaller file")
        return content.decode("utf-8-sig")
    except OSError as e:
        raise ConfigError(f"{flag} {place}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{flag} {place} is not UTF-8; save it again as UTF-8") from e


def read_hotwords(place: str, stores: Stores) -> str:
    """Return the lines of the file of hotwords, divided by commas.

    Raises:
        ConfigError, StorageError: there are none; see `read_text`.
    """
    words = [line.strip() for line in read_text("--hotwords", place, stores).splitlines() if line.strip()]
    if not words:
        raise ConfigError(f"--hotwords {place} has no words; write one name or term on each line")
    return ", ".join(words)
