"""Download a model from the hub into an image: `weights.py NAME REVISION FOLDER` → FOLDER/NAME; without NAME, an empty
FOLDER.

Only one format is downloaded, because both would double the size: Mistral's own if the model has it, else Hugging
Face's. A token, if one is needed, is the build's secret `hf_token`. It is read from its file and stored nowhere else.
"""

from __future__ import annotations

import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

SECRET = Path("/run/secrets/hf_token")
MISTRAL, HUGGING_FACE = "consolidated*.safetensors*", "model*.safetensors*"
"""Patterns of the weights and, if there are several files, of their index."""
SMALL = ("*.json", "*.txt", "README.md", "LICENSE*")
"""Patterns of the settings, the tokenizers, and the licence."""


def chosen(files: list[str]) -> list[str]:
    """Return the files of a repository that an engine reads; folders of other formats (onnx/, …) are left out."""
    weights = MISTRAL if any(fnmatch(file, MISTRAL) for file in files) else HUGGING_FACE
    return [file for file in files if "/" not in file and any(fnmatch(file, each) for each in (weights, *SMALL))]


def main(name: str, revision: str, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    if not name:
        return
    from huggingface_hub import HfApi, snapshot_download

    token = SECRET.read_text().strip() if SECRET.exists() else None
    files = chosen(HfApi(token=token).list_repo_files(name, revision=revision))
    if not any(file.endswith(".safetensors") for file in files):
        sys.exit(f"weights.py: {name} at {revision} has neither {MISTRAL} nor {HUGGING_FACE}: choose another MODEL")
    place = Path(folder, name)
    snapshot_download(name, revision=revision, allow_patterns=files, local_dir=place, token=token or False)
    shutil.rmtree(place / ".cache", ignore_errors=True)  # the hub's state for resuming a download
    print(f"{place}: {sum(file.stat().st_size for file in place.iterdir() if file.is_file()):,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
