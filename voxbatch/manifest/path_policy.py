"""Decide which paths a manifest may name, and resolve them.

A manifest may name what lies with it: a local one the files in its folder, one in a bucket the objects of that bucket,
one on a web server the files of that server. A local manifest may also name any gs://, s3:// and http(s):// address,
because that is how a job lists what to fetch. A manifest that was fetched itself may come from a stranger. Whether an
http address leads into a private network is checked when the connection is made, by the SSRF guard (storage).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from posixpath import normpath
from urllib.parse import unquote_to_bytes

from voxbatch.errors import ConfigError
from voxbatch.manifest.json_line import AUDIO_KEY, LineError, quote
from voxbatch.storage import is_remote, place_of, redacted
from voxbatch.storage.address import HTTP_SCHEMES, is_folder, join, normalized, scheme_of

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)(?:,[^:/]*)?:(//)?", re.IGNORECASE)
_FFMPEG_PROTOCOLS = re.compile(
    "async|bluray|cache|concatf?|crypto|data|fd|file|ftp|gophers?|hls|https?|ipfs|ipns|md5|mmsh|mmst|pipe|prompeg"
    "|rist|rtmp.*|rtp|sctp|sftp|smb|srtp?|subfile|tcp|tee|tls|udp|udplite|unix|zmq"
)
"""Names of protocols. To ffmpeg, "concat:a|b" and similar names do not mean a file of that name."""


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """Rules for the paths of a manifest. By default a manifest may name what lies with it and, if it is a local file,
    any address.

    Paths are judged, and later opened, after "." and ".." are resolved against the manifest's folder. Symbolic links
    inside an admitted folder are followed: only those who can write to that folder can create one.
    """

    allow_outside: bool = False
    """Admit any local path and any address."""
    only_under: tuple[str, ...] = ()
    """Absolute folders, and addresses of folders, that are admitted in place of everything else."""

    @classmethod
    def from_options(cls, allow_outside: bool, only_under: Iterable[str]) -> PathPolicy:
        """Build a policy from the options of a command line. Local folders are relative to the current folder.

        Raises:
            ConfigError: the options contradict each other, or a place is not valid.
        """
        places = tuple(place if is_remote(place) else os.path.abspath(place) for place in only_under)
        return cls(allow_outside, places)

    def __post_init__(self) -> None:
        if self.allow_outside and self.only_under:
            raise ConfigError("--allow-outside and --only-under contradict each other; give one of them")
        object.__setattr__(self, "only_under", tuple(_only_under_prefix(place) for place in self.only_under))

    def resolve(self, path: str, base: str) -> str:
        """Return the absolute path or the address that `path` means in a manifest whose folder is `base`.

        Raises:
            LineError: the address is not valid, or the path is not admitted.
        """
        if ":" in path and is_remote(path):
            return self._admitted_address(path, path, base)
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
        if self.allow_outside:
            return resolved
        if self.only_under or not is_remote(base):
            for folder in self.only_under or (base,):
                if resolved.startswith(folder if folder[-1] == "/" else folder + "/"):
                    return resolved
        raise self._outside_error(path, base)

    def _admitted_address(self, address: str, path: str, base: str) -> str:
        try:
            found = normalized(address)
        except ValueError as e:
            raise LineError(f"`{AUDIO_KEY}` {quote_path(path)}: {e}") from e
        if is_folder(found):
            raise LineError(f"`{AUDIO_KEY}` {quote_path(path)} is the address of a folder; name a recording")
        if self.allow_outside:
            return found
        if self.only_under:
            is_admitted = any(found.startswith(place) for place in self.only_under if is_remote(place))
        else:
            is_admitted = not is_remote(base) or found.startswith(place_of(base))
        if is_admitted:
            return found
        raise self._outside_error(path, base)

    def _outside_error(self, path: str, base: str) -> LineError:
        places = self.only_under or (place_of(base) if is_remote(base) else base,)
        return LineError(
            f"`{AUDIO_KEY}` {quote_path(path)} is outside of {', '.join(places)}, and this manifest may name only "
            f"recordings there{'' if self.only_under or is_remote(base) else ' or at addresses'}; move the recording "
            "there, or allow its folder with --only-under PLACE, or every place with --allow-outside"
        )


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
        if not place.startswith("/"):
            raise ConfigError(f"--only-under {place!r} is relative; give an absolute folder")
        return normalized_path(place)
    try:
        found = normalized(place)
    except ValueError as e:
        raise ConfigError(f"--only-under {redacted(place)}: {e}") from e
    if scheme_of(found) in HTTP_SCHEMES and "?" in found:
        raise ConfigError(f"--only-under {redacted(place)} ends in a query; give the address of a folder")
    return found if found.endswith("/") else found + "/"


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
        what = f"names the protocol {scheme}:, and only files are allowed"
        raise LineError(f"`{AUDIO_KEY}` {quote(path)} {what}; for a file of that name write ./{scheme}:…")


DEFAULT_POLICY = PathPolicy()
"""Default policy."""
