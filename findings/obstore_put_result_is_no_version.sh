#!/usr/bin/env bash
# Good guess: what put() returns, {"e_tag": …, "version": None}, is the version that put(mode=…) takes for a compare-and-swap:
#   UpdateVersion has the same two fields, may have None in them, and its documentation recommends to keep both.
# What happens: a TypeError, because of the None, which stores without versions always give. Without the field it works:
#   the second of two writers is refused.
# Date: 2026-11-29. Source: found by running obstore==0.12.1.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile obstore==0.12.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

from obstore.exceptions import BaseError
from obstore.store import MemoryStore

print("versions:", {"obstore": version("obstore")})
store = MemoryStore()
created = store.put("lease.json", b"first", mode="create")
print("put() returns", created)


def update(mode):
    """Return the name of the error of an update, or what is stored after it."""
    try:
        store.put("lease.json", b"next", mode=mode)
    except (TypeError, BaseError) as error:
        print(f"mode={mode}: {type(error).__name__}: {error}")
        return type(error).__name__
    print(f"mode={mode}: written")
    return bytes(store.get("lease.json").bytes()).decode()


tag = {"e_tag": created["e_tag"]}
outcomes = [update(created), update(tag), update(tag)]
same = created["version"] is None and outcomes == ["TypeError", "next", "PreconditionError"]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
