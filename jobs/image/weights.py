"""Bring the weights of a model of the hub into an image or a bucket: `weights.py NAME REVISION PLACE`.

The revision is resolved to a commit, and the folder carries it, so that its content never changes:

    /opt/models → /opt/models/NAME/COMMIT/…, and a link /opt/models/NAME/REVISION to it. Without NAME, an empty folder.
    gs://BUCKET → gs://BUCKET/NAME/COMMIT/…, and the object gs://BUCKET/NAME/current with this address. Files that are
                  complete stay.

Only one format is brought, because both would double the size: Mistral's own if the model has it, else Hugging Face's.
Large files are checked against the hub's SHA-256. A token, if one is needed, is the build's secret `hf_token` or the
variable HF_TOKEN. It is stored nowhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

SECRET = Path("/run/secrets/hf_token")
MISTRAL, HUGGING_FACE = "consolidated*.safetensors*", "model*.safetensors*"
"""Patterns of the weights and, if there are several files, of their index."""
SMALL = ("*.json", "*.txt", "chat_template.*", "*.model", "*.tiktoken", "voice_embedding/*.pt", "README.md", "LICENSE*")
"""Patterns of the settings, the tokenizers, the voices, and the licence."""


def chosen(files: list[str]) -> list[str]:
    """Return the files of a repository that an engine reads; folders of other formats (onnx/, …) are left out."""
    weights = MISTRAL if any(fnmatch(file, MISTRAL) for file in files) else HUGGING_FACE

    def fits(file: str, pattern: str) -> bool:  # for fnmatch, a star is also a slash
        return fnmatch(file, pattern) and file.count("/") == pattern.count("/")

    return [file for file in files if any(fits(file, pattern) for pattern in (weights, *SMALL))]


def download(name: str, commit: str, files: Mapping[str, Any], folder: Path, token: str | None) -> None:
    """Download files of a commit and check them.

    Args:
        files: the hub's description of each file by its name.
    """
    from huggingface_hub import snapshot_download

    folder.mkdir(parents=True, exist_ok=True)
    snapshot_download(name, revision=commit, allow_patterns=list(files), local_dir=folder, token=token or False)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub's state for resuming a download
    for file, about in files.items():
        if about.lfs is None:  # a small file, for which the hub has no SHA-256
            continue
        with (folder / file).open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != about.lfs.sha256:
            sys.exit(f"weights.py: {name}/{file} at {commit}: SHA-256 is {found}, not {about.lfs.sha256}: start again")


def into_folder(name: str, revision: str, commit: str, files: Mapping[str, Any], place: str, token: str | None) -> None:
    """Download into PLACE/NAME/COMMIT, and link PLACE/NAME/REVISION to it."""
    folder = Path(place, name, commit)
    download(name, commit, files, folder, token)
    if revision != commit:
        link = Path(place, name, revision)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder, link.parent))
    print(f"{folder}: {sum((folder / file).stat().st_size for file in files):,} bytes")


def into_bucket(name: str, commit: str, files: Mapping[str, Any], place: str, token: str | None) -> None:
    """Upload the files that PLACE/NAME/COMMIT lacks. The object `current` is written last, when all are there."""
    from google.cloud import storage

    bucket, folder = storage.Client().bucket(place.removeprefix("gs://").rstrip("/")), f"{name}/{commit}/"
    there = {blob.name.removeprefix(folder): blob for blob in bucket.list_blobs(prefix=folder)}
    missing = {
        file: about for file, about in files.items() if file not in there or there[file].size not in (None, about.size)
    }
    with tempfile.TemporaryDirectory() as temporary:
        if missing:
            download(name, commit, missing, Path(temporary), token)
        for file in missing:
            # Nothing that appeared or changed since the listing is replaced: two builds may run at a time.
            generation = there[file].generation if file in there else 0
            upload = bucket.blob(folder + file)
            upload.upload_from_filename(
                str(Path(temporary, file)), if_generation_match=generation, checksum="crc32c", timeout=600
            )
    address = f"gs://{bucket.name}/{folder}"
    bucket.blob(f"{name}/current").upload_from_string(address)
    count, kept = sum(about.size for about in files.values()), len(files) - len(missing)
    print(f"{address}: {len(missing)} files uploaded, {kept} were there, {count:,} bytes")


def main(name: str, revision: str, place: str) -> None:
    if not place.startswith("gs://"):
        Path(place).mkdir(parents=True, exist_ok=True)
    if not name:
        return
    from huggingface_hub import HfApi

    token = SECRET.read_text().strip() if SECRET.exists() else os.environ.get("HF_TOKEN") or None
    found = HfApi(token=token or False).model_info(name, revision=revision, files_metadata=True)
    about = {each.rfilename: each for each in found.siblings or ()}
    files = {file: about[file] for file in chosen(list(about))}
    if found.sha is None or not any(file.endswith(".safetensors") for file in files):
        sys.exit(f"weights.py: {name} at {revision} has neither {MISTRAL} nor {HUGGING_FACE}: choose another MODEL")
    if place.startswith("gs://"):
        into_bucket(name, found.sha, files, place, token)
    else:
        into_folder(name, revision, found.sha, files, place, token)


if __name__ == "__main__":
    main(*sys.argv[1:])
