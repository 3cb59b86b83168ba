"""Look at a model in a bucket without fetching its weights, for `voxbatch doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from voxbatch.errors import EngineError, StorageError
from voxbatch.storage import Stores
from voxbatch.storage.address import parse_bucket_address
from voxbatch.vllm.engine.model import SMALL_FILES, Model


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The files of a model in a bucket."""

    uri: str
    sizes: Mapping[str, int]
    """Bytes of each file by its name."""

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(self.sizes.values())

    def weights_bytes(self, model: Model) -> int:
        """Return the bytes of the weights in the model's format.

        Raises:
            EngineError: there are none.
        """
        weight_sizes = [size for name, size in self.sizes.items() if fnmatch(name, model.weights)]
        if not weight_sizes:
            raise EngineError(f"{self.uri} has no {model.weights}: upload the whole model, with its weights")
        return sum(weight_sizes)


def preview(uri: str, folder: Path, stores: Stores) -> ModelListing:
    """List a model in a bucket, and fetch the files that are read before the weights.

    Args:
        folder: an empty folder for these files.

    Raises:
        StorageError: nothing is there, or the bucket cannot be read.
    """
    uri = uri.rstrip("/") + "/"
    try:
        prefix = parse_bucket_address(uri).key
        sizes = {stat.key.removeprefix(prefix): stat.size for stat in stores.list(uri)}
    except ValueError as e:
        raise StorageError(f"cannot read {uri}: {e}") from e
    if not sizes:
        raise StorageError(f"there is no object below {uri}: give the folder that holds the model's files")
    for name in sizes:
        if any(fnmatch(name, pattern) for pattern in SMALL_FILES):
            with stores.open(uri + name) as file:
                (folder / name).write_bytes(file.read())
    return ModelListing(uri, sizes)
