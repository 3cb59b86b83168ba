"""What a manifest may name, and how its paths resolve."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from posixpath import normpath

from voxbatch.errors import ConfigError
from voxbatch.manifest.row import AUDIO, LineError, show

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)(?:,[^:/]*)?:(//)?", re.IGNORECASE)
_PROTOCOL = re.compile(
    "async|bluray|cache|concatf?|crypto|data|fd|file|ftp|gophers?|hls|https?|ipfs|ipns|md5|mmsh|mmst|pipe|prompeg"
    "|rist|rtmp.*|rtp|sctp|sftp|smb|srtp?|subfile|tcp|tee|tls|udp|udplite|unix|zmq"
)
"""To ffmpeg, "concat:a|b" and its like are something other than a file of that name."""


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """What a manifest may name: local files inside its own folder, unless told otherwise.

    Paths are judged, and later opened, as they read once "." and ".." are resolved against the manifest's folder.
    Symbolic links inside an admitted folder are followed: only those who can write there can make one.
    """

    allow_outside: bool = False
    """Admit any local path."""
    only_under: tuple[str, ...] = ()
    """Absolute folders that are admitted in place of the manifest's own."""

    @classmethod
    def given(cls, allow_outside: bool, only_under: Iterable[str]) -> PathPolicy:
        """From a command line, where folders count from the current one."""
        return cls(allow_outside, tuple(os.path.abspath(folder) for folder in only_under))

    def __post_init__(self) -> None:
        if self.allow_outside and self.only_under:
            raise ConfigError("--allow-outside and --only-under contradict each other; give one of them")
        for folder in self.only_under:
            if not folder.startswith("/"):
                raise ConfigError(f"--only-under {folder!r} is relative; give an absolute folder")
        object.__setattr__(self, "only_under", tuple(tidy(folder) for folder in self.only_under))

    def resolve(self, path: str, base: str) -> str:
        """The absolute path of `path` in a manifest whose folder is `base`. Raises LineError if it is not admitted."""
        if ":" in path and (match := _SCHEME.match(path)):
            _refuse_scheme(path, match[1].lower(), bool(match[2]))
        resolved = tidy(path if path[0] == "/" else f"{base}/{path}")
        if self.allow_outside:
            return resolved
        folders = self.only_under or (base,)
        for folder in folders:
            if resolved.startswith(folder if folder[-1] == "/" else folder + "/"):
                return resolved
        raise LineError(
            f"`{AUDIO}` {show(path)} is outside of {', '.join(folders)}, all that this manifest may name; move the"
            " recording there, or admit its folder with --only-under DIR, or any with --allow-outside"
        )


def tidy(path: str) -> str:
    """normpath, but "//a" is "/a" too."""
    path = normpath(path)
    return path[1:] if path.startswith("//") else path


def _refuse_scheme(path: str, scheme: str, has_authority: bool) -> None:
    if scheme == "file":
        raise LineError(f"`{AUDIO}` {show(path)} is a file: URI; write the plain path")
    if has_authority:
        raise LineError(f"`{AUDIO}` {show(path)} is remote; this version reads local files only: copy it here")
    if _PROTOCOL.fullmatch(scheme.partition("+")[0]):
        what = f"names the protocol {scheme}:, and only files are allowed"
        raise LineError(f"`{AUDIO}` {show(path)} {what}; for a file of that name write ./{scheme}:…")


INSIDE = PathPolicy()
"""The default."""
