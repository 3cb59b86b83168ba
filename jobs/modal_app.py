"""One run on Modal: a container with an L4 for each shard.

modal run --detach jobs/modal_app.py --source s3://calls/day.jsonl --out s3://calls/out --tasks 8

Change the words in CAPITALS. Modal tells its containers no numbers, so that each gets its shard as an argument.
"""

import subprocess

import modal

# An image that Modal can pull: see docs/containers.md. Its entry point is left out, because Modal runs a program of its
# own; the command `voxbatch` looks for an old driver by itself.
IMAGE = modal.Image.from_registry("REGISTRY/voxbatch:TAG").entrypoint([])

app = modal.App("voxbatch")


@app.function(
    image=IMAGE,
    gpu="L4",
    cpu=8,
    memory=24 * 1024,
    timeout=24 * 3600,
    retries=3,
    secrets=[modal.Secret.from_name("voxbatch")],  # AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, HF_TOKEN
    volumes={"/cache": modal.Volume.from_name("voxbatch-cache", create_if_missing=True)},  # model and compiled kernels
)
def transcribe(source: str, out: str, index: int, tasks: int) -> None:
    """Transcribe one shard. A container that dies is started again, and continues after its last commit."""
    command = ["voxbatch", "run", source, "-o", out, "--shard", f"{index}/{tasks}", "--exit-zero"]
    subprocess.run(command, check=True)


@app.local_entrypoint()
def main(source: str, out: str, tasks: int = 8) -> None:
    """Start all shards, which go on without this program. The last one to finish merges."""
    transcribe.spawn_map([source] * tasks, [out] * tasks, range(tasks), [tasks] * tasks)
