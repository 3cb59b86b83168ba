"""Decide which paths a manifest may name, and resolve them.

A local manifest may name any local file and any gs://, s3:// and http(s):// address: whoever starts the run has it on
this machine. A manifest that is fetched itself may come from a stranger, as with the manifests and uploads of a
listener, so it may name only what lies with it: one in a bucket the objects of that bucket, one on a web server the
files of that server. Whether an http address leads into a private network is checked when the connection is made, by
the SSRF guard (storage).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from posixpath import normpath
from typing import Any
from urllib.parse import unquote_to_bytes

from voxbatch.errors import ConfigError
from voxbatch.manifest.json_line import AUDIO_KEY, LineError, quote
from voxbatch.records import TRANSCRIBE, TRANSLATE
from voxbatch.storage import WEB_PAGE, is_remote, place_of, redacted
from voxbatch.storage.address import HTTP_SCHEMES, is_folder, join, normalized, scheme_of

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)(?:,[^:/]*)?:(//)?", re.IGNORECASE)
_PAGES = re.compile(
    r"https?://(?:[a-z]+\.)?(?:youtube\.com|youtu\.be|youtube-nocookie\.com|vimeo\.com|dailymotion\.com|twitch\.tv"
    r"|tiktok\.com|soundcloud\.com|spotify\.com|bilibili\.com|facebook\.com|instagram\.com|twitter\.com|x\.com"
    r"|podcasts\.apple\.com)(?:[:/?#]|$)",
    re.IGNORECASE,
)
"""Addresses of places that show recordings in pages, which yt-dlp knows."""
_WINDOWS_DRIVE = re.compile(r"[a-z]:[\\/]", re.IGNORECASE)
_FFMPEG_PROTOCOLS = re.compile(
    "async|bluray|cache|concatf?|crypto|data|fd|file|ftp|gophers?|hls|https?|ipfs|ipns|md5|mmsh|mmst|pipe|prompeg"
    "|rist|rtmp.*|rtp|sctp|sftp|smb|srtp?|subfile|tcp|tee|tls|udp|udplite|unix|zmq"
)
"""Names of protocols. To ffmpeg, "concat:a|b" and similar names do not mean a file of that name."""


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """Rules for the paths of a manifest. By default a local manifest may name anything, and one at an address what lies
    with it.

    Paths are judged, and later opened, after "." and ".." are resolved against the manifest's folder. Symbolic links
    inside an admitted folder are followed: only those who can write to that folder can create one.

    Raises:
        ConfigError: the rules contradict each other, or a place is not valid.
    """

    allow_outside: bool = False
    """Admit any local path and any address."""
    only_under: tuple[str, ...] = ()
    """Folders, and addresses of folders, that are admitted in place of everything else. Once the policy is built, the
    folders are absolute."""
    task: str = TRANSCRIBE
    """One of records.TASKS. The `text` of a line is no reference of a translation."""

    def __post_init__(self) -> None:
        if self.allow_outside and self.only_under:
            raise ConfigError("--allow-outside and --only-under contradict each other; give one of them")
        object.__setattr__(self, "only_under", tuple(_only_under_prefix(place) for place in self.only_under))

    def recordings(self, row: dict[str, Any]) -> list[Any]:
        """Return the recordings that a line names, as they are written."""
        return [row.get(AUDIO_KEY)]

    def details(self, row: dict[str, Any], reference: str | None) -> dict[str, Any]:
        """Return the fields of an Item that the kind of work decides. These are the reference and the hotwords.

        Args:
            reference: the `text` of the line.

        Raises:
            LineError: a value is missing or is not usable.
        """
        return {"text": None if self.task == TRANSLATE else reference, "hotwords": hotwords_of(row)}

    def resolve(self, path: str, base: str) -> str:
        """Return the absolute path or the address that `path` means in a manifest whose folder is `base`.

        Raises:
            LineError: the address is not valid, or the path is not admitted.
        """
        if ":" in path and is_remote(path):
            if is_page(path):
                raise LineError(f"`{AUDIO_KEY}` {quote_path(path)} {WEB_PAGE}")
            return self._admitted_address(path, path, base)
        if "\\" in path or ":" in path:
            path = _without_backslashes(path, base)
        if ":" in path and (match := _SCHEME.match(path)):
            if match[1].lower() == "file":
                path = _decoded(path, base)
            else:
                _refuse_scheme(path, match[1].lower(), bool(match[2]))
        if path[0] != "/" and is_remote(base):
            try:
                address = join(base, path)
            except ValueError as e:
                raise LineError(f"`{AUDIO_KEY}` {quote_path(path)}: {e}; name a recording there") from e
            return self._admitted_address(address, path, base)
        resolved = normalized_path(path if path[0] == "/" else f"{base}/{path}")
        if self.allow_outside or not (self.only_under or is_remote(base)):
            return resolved
        if any(resolved.startswith(folder if folder[-1] == "/" else folder + "/") for folder in self.only_under):
            return resolved
        raise self._outside_error(path, base)

    def _admitted_address(self, address: str, path: str, base: str) -> str:
        try:
            target = normalized(address)
        except ValueError as e:
            raise LineError(f"`{AUDIO_KEY}` {quote_path(path)}: {e}") from e
        if is_folder(target):
            raise LineError(f"`{AUDIO_KEY}` {quote_path(path)} is the address of a folder; name a recording")
        if self.allow_outside:
            return target
        if self.only_under:
            is_admitted = any(target.startswith(place) for place in self.only_under if is_remote(place))
        else:
            is_admitted = not is_remote(base) or target.startswith(place_of(base))
        if is_admitted:
            return target
        raise self._outside_error(path, base)

    def _outside_error(self, path: str, base: str) -> LineError:
        places = self.only_under or (place_of(base),)
        return LineError(
            f"`{AUDIO_KEY}` {quote_path(path)} is outside of {', '.join(places)}, and this manifest may name only "
            "recordings there; move the recording there, or allow its folder with --only-under PLACE, or every place "
            "with --allow-outside"
        )


def hotwords_of(row: dict[str, Any]) -> str | None:
    """Return the hotwords of a row, a text or a list of texts, divided by commas."""
    value = row.get("hotwords")
    words = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(word, str) for word in words):
        raise LineError(f"`hotwords` is {quote(value)}; it must be a string, a list of strings, or null")
    return ", ".join(word.strip() for word in words if word.strip()) or None


def _without_backslashes(path: str, base: str) -> str:
    """Return a path of a manifest that was written on Windows, unless there is a file with backslashes in its name."""
    if _WINDOWS_DRIVE.match(path):
        advice = "write the path that it has on this machine, or one relative to the manifest"
        raise LineError(f"`{AUDIO_KEY}` {quote(path)} is a path of Windows; {advice}")
    if is_remote(base) or os.path.lexists(f"{base}/{path}"):
        return path
    return path.replace("\\", "/")


def is_page(address: str) -> bool:
    """Return whether an address is that of a page with a recording, such as one of YouTube. No page is opened."""
    return bool(_PAGES.match(address))


def normalized_path(path: str) -> str:
    """Normalise a path as normpath does, and turn "//a" into "/a" as well."""
    path = normpath(path)
    return path[1:] if path.startswith("//") else path


def quote_path(path: str) -> str:
    """Quote a value as `quote` does, without the query of an address, which may be a signature."""
    return quote(redacted(path))


def _only_under_prefix(place: str) -> str:
    """Return --only-under PLACE as the prefix of everything below it. A local folder has no final slash; an address has
    one."""
    if not is_remote(place):
        return normalized_path(os.path.abspath(place))
    try:
        address = normalized(place)
    except ValueError as e:
        raise ConfigError(f"--only-under {redacted(place)}: {e}") from e
    if scheme_of(address) in HTTP_SCHEMES and "?" in address:
        raise ConfigError(f"--only-under {redacted(place)} ends in a query; give the address of a folder")
    return address if address.endswith("/") else address + "/"


def _decoded(uri: str, base: str) -> str:
    """Return the path that a file: URI means. Its bytes need not be UTF-8, and it may be relative to a local folder."""
    path = re.sub("^file:(//(localhost)?(?=/))?", "", uri, flags=re.IGNORECASE)
    decoded = os.fsdecode(unquote_to_bytes(path))
    if not decoded or "\0" in decoded or decoded.startswith("//") or (decoded[0] != "/" and is_remote(base)):
        raise LineError(f"`{AUDIO_KEY}` {quote(uri)} names no file of this machine; write the plain path")
    return decoded


def _refuse_scheme(path: str, scheme: str, has_authority: bool) -> None:
    if has_authority:
        raise LineError(
            f"`{AUDIO_KEY}` {scheme}://… is of an unsupported kind; give a path, gs://, s3:// or http(s)://"
        )
    if _FFMPEG_PROTOCOLS.fullmatch(scheme.partition("+")[0]):
        problem = f"names the protocol {scheme}:, and only files are allowed"
        raise LineError(f"`{AUDIO_KEY}` {quote(path)} {problem}; for a file of that name write ./{scheme}:…")


DEFAULT_POLICY = PathPolicy()
