#!/usr/bin/env bash
# Good guess: importing a library of charts changes nothing for other imports.
# What happens: `import pygal` puts a finder for its plugins into sys.meta_path that has find_module alone. In Python 3.11
#   each later import of a module that is missing, also one inside of try/except ImportError, gives an ImportWarning, which
#   is an error under -W error.
# Date: 2026-11-29. Source: found by running pygal==3.1.3 in Python 3.11.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pygal==3.1.3
cd "$folder"
cat > optional.py <<'PYTHON'
import sys

for name in sys.argv[1:]:
    __import__(name)
try:
    import no_such_module
except ImportError as e:
    print(f"after {sys.argv[1:]}: {type(e).__name__}")
except ImportWarning as e:
    print(f"after {sys.argv[1:]}: {type(e).__name__}: {e}")
PYTHON
without=$("$folder/venv/bin/python" -W error::ImportWarning optional.py json)
with=$("$folder/venv/bin/python" -W error::ImportWarning optional.py pygal)
"$folder/venv/bin/python" --version
printf '%s\n%s\n' "$without" "$with"
if [[ $without == *ModuleNotFoundError && $with == *"ImportWarning: PluginImportFixer.find_spec() not found"* ]]; then
    echo "as described"
else
    echo "THE BEHAVIOUR HAS CHANGED"
    exit 1
fi
