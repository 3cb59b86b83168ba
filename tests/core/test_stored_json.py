"""Tests for stored JSON: several threads may read the first record of a class."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONVERT = """
import dataclasses, sys, threading
from voxbatch.output.stored_json import record_of

def convert(kind, barrier):
    barrier.wait()
    record_of({**dict.fromkeys(names, 1), "inner": dict.fromkeys(names, 1)}, kind)

sys.setswitchinterval(1e-6)
names = [f"field{number}" for number in range(30)]
fields = [(name, int) for name in names]
for _ in range(60):
    inner = dataclasses.make_dataclass("Inner", fields)
    kind, barrier = dataclasses.make_dataclass("Kind", [*fields, ("inner", inner)]), threading.Barrier(8)
    threads = [threading.Thread(target=convert, args=(kind, barrier)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.slow
def test_threads_read_the_first_record_of_a_class() -> None:
    """Threads that read the headers of parts at the same time do not crash the process."""
    assert subprocess.run([sys.executable, "-c", CONVERT], check=False, timeout=60).returncode == 0
