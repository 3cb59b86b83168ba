#!/usr/bin/env bash
# Good guess: a test server of Cloud Storage refuses an upload with `if_generation_match=0`, which must create the object, if
#   the object is there: 412, as the service does.
# What happens: each upload succeeds and replaces the object, so that a race for a name has as many winners as racers.
# Date: 2026-11-29. Source: found by running gcp-storage-emulator==2026.7.19 google-cloud-storage==3.17.1.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile gcp-storage-emulator==2026.7.19 google-cloud-storage==3.17.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import os
import socket
import sys
from importlib.metadata import version

print("versions:", {name: version(name) for name in ("gcp-storage-emulator", "google-cloud-storage")})

from gcp_storage_emulator.server import create_server
from google.api_core.exceptions import PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{port}"
server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
server.start()
bucket, results = storage.Client("p", AnonymousCredentials()).bucket("bucket"), []
try:
    for text in (b"first", b"second"):
        try:
            bucket.blob("a").upload_from_string(text, if_generation_match=0)
            results.append("done")
        except PreconditionFailed:
            results.append("412")
    content = bucket.blob("a").download_as_bytes()
finally:
    server.stop()
print(f"two uploads that must create: {results}; the object holds {content}")
same = results == ["done", "done"] and content == b"second"

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
