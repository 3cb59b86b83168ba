"""Models of the Hugging Face hub: find and download them, and say plainly what is wrong.

A wrong name is a ConfigError, because no retry helps. A hub that cannot be reached is an EngineError, because the same
command may succeed later. The hub's client is imported only by the functions that need it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NoReturn

from voxbatch.engines.model_files import NotFetched, may_fetch
from voxbatch.engines.results import EngineMessage
from voxbatch.errors import ConfigError, EngineError, VoxbatchError

REPORT_S = 1.0
"""Seconds between two messages about a download."""
MAX_CACHED_NAMES = 5
"""Largest number of cached models that a message lists."""


def snapshot(
    name: str, revision: str | None, patterns: Iterable[str], option: str = "--model", copied: str | None = None
) -> Path:
    """Return the local folder of a model at one commit, with the files that match a pattern.

    The name of the folder is the commit. If the hub cannot be reached, the folder of an earlier download is returned,
    which may lack files.

    Args:
        name: owner/name.
        revision: branch, tag or commit; None means the main branch.
        option: the option that names the model, for messages.
        copied: the files that a folder without the hub needs, for messages; None: the whole model, or another one.

    Raises:
        ConfigError: the hub does not have the model or does not give it to this user; or the hub is switched off by
            HF_HUB_OFFLINE, and the model is not in the cache.
        EngineError: the hub cannot be reached, and the model is not in the cache.
        NotFetched: the model is not in the cache, inside `nothing_fetched`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # no __all__ there

    disable_progress_bars()  # see `download`
    client = logging.getLogger("huggingface_hub.utils._http")
    client.addFilter(_is_first_retry)
    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=list(patterns), local_files_only=not may_fetch())
        )
    except Exception as e:
        if not may_fetch():
            raise NotFetched(name, revision) from e
        _refuse(name, revision, e, option, copied)
    finally:
        client.removeFilter(_is_first_retry)


def _is_first_retry(record: logging.LogRecord) -> bool:
    """Let the hub's client tell once that it waits for the hub, and not twice for each of its retries."""
    if record.levelno != logging.WARNING or not (name := _RETRY.search(record.getMessage())):
        return True
    record.msg, record.args = "the hub does not answer; it is asked again for half a minute", ()
    return name["number"] == "1"


_RETRY = re.compile(r" thrown while requesting |^Retrying in .*\[Retry (?P<number>\d+)/")


def file_sizes(name: str, revision: str | None, patterns: Iterable[str]) -> dict[str, int]:
    """Return the sizes in bytes of the files of a model that match a pattern, by name. An unknown size is 0.

    Raises:
        ConfigError, EngineError: see `snapshot`.
        NotFetched: inside `nothing_fetched`.
    """
    if not may_fetch():
        raise NotFetched(name, revision)
    from huggingface_hub import HfApi

    try:
        files = HfApi().model_info(name, revision=revision, files_metadata=True).siblings or []
    except Exception as e:  # noqa: BLE001 see `snapshot`
        _refuse(name, revision, e)
    patterns = list(patterns)
    return {
        file.rfilename: file.size or 0
        for file in files
        if any(fnmatch(file.rfilename, pattern) for pattern in patterns)
    }


def download(name: str, revision: str, patterns: Iterable[str], first: Iterable[str] = ()) -> Iterator[EngineMessage]:
    """Download the files of a model that match a pattern. Yield its size, and every few seconds the bytes so far.

    Args:
        first: patterns of files that come before all others, so that a file whose presence means a complete model is
            never alone after an interrupted download.

    Raises:
        ConfigError, EngineError: see `snapshot`.
    """
    first = list(first)
    patterns = [*first, *patterns]
    total = sum(file_sizes(name, revision, patterns).values())
    of = f" of {total / 1e6:,.0f} MB" if total else " MB"
    blobs = cache_folder() / f"models--{name.replace('/', '--')}" / "blobs"
    initial_bytes, errors = _bytes_below(blobs), list[VoxbatchError]()

    def fetch() -> None:
        try:
            for chosen in filter(None, (first, patterns)):
                snapshot(name, revision, chosen)
        except VoxbatchError as e:
            errors.append(e)

    yield EngineMessage(
        f"downloading {name}: {f'{total / 1e6:,.0f} MB' if total else 'size unknown'}, to {blobs.parent}"
    )
    thread = threading.Thread(target=fetch, daemon=True, name="hub")
    thread.start()
    while thread.is_alive():
        thread.join(REPORT_S)
        if thread.is_alive():
            text = f"downloading {name}: {(_bytes_below(blobs) - initial_bytes) / 1e6:,.0f}{of}"
            yield EngineMessage(text, is_progress=True)
    if errors:
        raise errors[0]


def cache_folder() -> Path:
    """Return the folder in which the hub's client keeps models."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or home) / "hub")


def is_cached(name: str, pattern: str) -> bool:
    """Return whether files of a model that match a pattern are in the hub's cache, at any commit."""
    return any(cache_folder().glob(f"models--{name.replace('/', '--')}/snapshots/*/{pattern}"))


def license_of(folder: Path) -> str:
    """Return the `license:` of a model's card, or "unknown" if there is none."""
    card = folder / "README.md"
    if card.is_file():
        for line in card.read_text(errors="replace").splitlines()[:50]:
            key, _, value = line.partition(":")
            if key == "license":
                return value.strip()
    return "unknown"


def _bytes_below(folder: Path) -> int:
    """Return the bytes of all files in a folder, of unfinished ones, too."""
    sizes = 0
    for path in folder.glob("*"):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:  # it has just been renamed: it is finished
            continue
    return sizes


def _refuse(
    name: str, revision: str | None, error: Exception, option: str = "--model", copied: str | None = None
) -> NoReturn:
    """Raise the project's error for an error of the hub's client."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    absent = f"{option} {name}: there is no such folder here"
    refusals = {
        GatedRepoError: f"{name} is gated: accept its terms on its page of the hub, then set HF_TOKEN to a token of "
        "that account",
        RevisionNotFoundError: f"{name} has no revision {revision!r}: give a branch, a tag or a commit of it",
        RepositoryNotFoundError: f"{absent} and no such model on the hub; if it is private, set HF_TOKEN",
        HFValidationError: f"{absent}, and a hub name is owner/name ({first_line(error)})",
    }
    for kind, text in refusals.items():  # a gated model is also one that is not found, so it comes first
        if isinstance(error, kind):
            raise ConfigError(text) from error
    names = sorted(path.name.removeprefix("models--").replace("--", "/") for path in cache_folder().glob("models--*/"))
    shown = ", ".join(names[:MAX_CACHED_NAMES]) + (", …" if len(names) > MAX_CACHED_NAMES else "")
    cached = f"the cache has {shown}" if names else "the cache has none, and `voxbatch models` lists the bundled ones"
    remedy = f"copy {copied or 'the model'} into a folder, and give that as {option}"
    if copied is None:
        remedy = f"take a model that is here: {cached}; or {remedy}"
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(
            f"{option} {name}: HF_HUB_OFFLINE is set, and the model is not in the cache {cache_folder()}: unset it, or "
            f"{remedy}"
        ) from error
    raise EngineError(
        f"{option} {name}: the hub {constants.ENDPOINT} cannot be reached ({first_line(error)}), and the model is not "
        f"in its cache {cache_folder()}. Check the network and HF_ENDPOINT, and run again; or {remedy}"
    ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, shortened."""
    return str(error).strip().split("\n")[0][:200]
