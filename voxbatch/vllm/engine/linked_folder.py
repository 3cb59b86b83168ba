"""The folder that vLLM loads: the files of a model, and those that vLLM needs and the model lacks or has otherwise."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxbatch.vllm.engine.model import HF_WEIGHTS, Model, read_json

DELAY = "transcription_delay_ms"
"""Key of tekken.json."""
LOOK_BACK = "streaming_look_back_ms"
"""Key of tekken.json: the audio before each block of a stream that is encoded again with the block."""
FRAME_MS = 10.0
"""Distance of the frames of the spectrum, in ms."""


def linked_folder(
    model: Model,
    delay_ms: int,
    cache: Path,
    aligns_stream: bool = False,
    further_files: Mapping[str, str] | None = None,
) -> Path:
    """Return the folder from which vLLM loads a Voxtral.

    This is the folder of the model if it has all files that vLLM needs. Otherwise it is a folder in `cache` that holds
    links to the files of the model, and the generated files:

    - a tekken.json with another delay or look-back, because vLLM reads them only from this file;
    - the params.json of a model in Hugging Face's format;
    - further files that vLLM needs and the model lacks.

    The path of the folder is the same every time, so that vLLM can reuse what it compiled for that path.

    Args:
        delay_ms: the transcription delay; 0 means the model's own.
        aligns_stream: round the look-back up to whole frames. With the published 52.5 ms, the frames of a stream lie
            2.5 ms beside those of the whole recording, and the texts of both differ.
        further_files: their contents by name.
    """
    tokenizer, new_files = read_json(model.path / "tekken.json"), dict(further_files or {})
    if model.is_translated:
        new_files["params.json"] = json.dumps(model.shape())
    audio: dict[str, Any] = tokenizer["audio"]
    values: dict[str, float] = {DELAY: delay_ms} if delay_ms else {}
    if aligns_stream and LOOK_BACK in audio:
        values[LOOK_BACK] = FRAME_MS * math.ceil(audio[LOOK_BACK] / FRAME_MS)
    changes = {key: value for key, value in values.items() if audio.get(key) != value}
    if changes:
        new_files["tekken.json"] = json.dumps({**tokenizer, "audio": {**audio, **changes}})
    if not new_files:
        return model.path
    delay = f"-delay{delay_ms}" if DELAY in changes else ""
    aligned = "-aligned" if LOOK_BACK in changes else ""
    short_hash = hashlib.sha256(str(model.path).encode()).hexdigest()[:8]
    folder = cache / f"{model.path.name}-{short_hash}{delay}{aligned}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in filter(Path.is_file, model.path.iterdir()):
        unread = model.is_translated and file.suffix == ".safetensors" and not file.match(HF_WEIGHTS)
        if file.name not in new_files and not unread:
            temporary = _temporary(folder / file.name)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(file.resolve())
            temporary.replace(folder / file.name)
    for link in filter(Path.is_symlink, folder.iterdir()):
        if not link.exists():  # the model has changed, and the file is gone
            link.unlink(missing_ok=True)
    for name, content in new_files.items():
        temporary = _temporary(folder / name)
        temporary.write_text(content)
        temporary.replace(folder / name)  # atomic, because another process may be reading the old file
    return folder


def _temporary(path: Path) -> Path:
    """Return a path in the same folder that no other process or thread uses now."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
