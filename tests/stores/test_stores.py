"""Tests for Stores: a value that opens every place, whose clients are shared by a process, and the only way to pass on
the options of access.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from voxbatch.errors import ConfigError
from voxbatch.storage import StoreOptions, Stores

PACKAGE = ROOT / "voxbatch"
ANONYMOUS = StoreOptions(anonymous=True, s3_endpoint_url="http://127.0.0.1:9")
MAX_SIGNATURES = 12
"""Signatures and fields that have StoreOptions: those of Stores and of the clients."""


def declared(module: Path) -> Iterator[tuple[str, str]]:
    """Yield the (name, annotation) of each parameter and each field in a module."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.arg):
            yield node.arg, ast.unparse(node.annotation) if node.annotation else ""
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), ast.unparse(node.annotation)


def test_only_stores_and_clients_have_the_options_of_access() -> None:
    """Everything else gets Stores, so that no option of access concerns it."""
    carriers = [
        module.relative_to(PACKAGE).parts[0]
        for module in PACKAGE.rglob("*.py")
        for name, annotation in declared(module)
        if name == "store_options" or "StoreOptions" in annotation
    ]
    assert set(carriers) == {"storage", "stores"}
    assert len(carriers) <= MAX_SIGNATURES


def test_another_process_gets_equal_stores() -> None:
    """Stores are sent in the first message to a process, without their clients."""
    stores = Stores(ANONYMOUS)
    stores.bucket("s3", "calls")
    assert pickle.loads(pickle.dumps(stores)) == stores != Stores()


@pytest.mark.slow
def test_equal_stores_share_a_client() -> None:
    """A process has one client for each bucket, each web server and each set of options."""
    first, second = Stores(ANONYMOUS), Stores(ANONYMOUS)
    assert first.bucket("s3", "calls") is second.bucket("s3", "calls")
    assert first.bucket("s3", "calls") is not first.bucket("s3", "texts")
    assert first.bucket("s3", "calls") is not Stores(StoreOptions(s3_endpoint_url="http://x")).bucket("s3", "calls")
    assert first.reader("https://host/a.wav")[0] is second.reader("https://host/b.wav")[0]


def test_a_local_file_is_opened_as_it_is(tmp_path: Path) -> None:
    """A local file is not copied, and a missing one is the error of the system."""
    (path := tmp_path / "a.txt").write_text("words")
    with Stores().open(str(path)) as file:
        assert (file.name, file.read()) == (str(path), b"words")
    with pytest.raises(FileNotFoundError):
        Stores().open(str(tmp_path / "none.txt"))


@pytest.mark.parametrize("place", ["https://host/out", "hf://datasets/o/n/out", "gs://a"])
def test_a_place_that_takes_no_outputs_is_refused(place: str) -> None:
    """A web server and the hub take none, and an address must be one."""
    with pytest.raises(ConfigError, match=f"-o {place}: "):
        Stores().out(place)
