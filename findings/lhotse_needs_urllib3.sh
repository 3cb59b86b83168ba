#!/usr/bin/env bash
# Good guess: `import lhotse` works after `pip install lhotse`.
# What happens: ModuleNotFoundError: `lhotse.ais`, which `lhotse` imports, needs urllib3, which the package does not name among
#   its dependencies. Beside requests, which most environments have, nobody notices it.
# Date: 2026-11-30. Source: found by running lhotse==1.33.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile lhotse==1.33.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import requires, version

print("versions:", {"lhotse": version("lhotse")})
named = any(line.startswith("urllib3") for line in requires("lhotse") or [])
try:
    import lhotse  # noqa: F401

    missing = None
except ModuleNotFoundError as error:
    missing = error.name
print(f"among the dependencies: {named}; missing at the import: {missing}")
same = (named, missing) == (False, "urllib3")

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
