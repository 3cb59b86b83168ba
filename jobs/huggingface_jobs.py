"""One run on Hugging Face Jobs: a job with an L4 for each shard.

python jobs/huggingface_jobs.py s3://calls/day.jsonl s3://calls/out 8

Change the words in CAPITALS. It needs `hf auth login`, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the
environment. Jobs are not told their numbers, so that each gets its shard as an argument. A job is stopped with
`hf jobs cancel ID`, and its log is `hf jobs logs ID`.
"""

import os
import sys

from huggingface_hub import get_token, run_job

IMAGE = "REGISTRY/voxbatch:TAG"  # a public image, or hf.co/spaces/OWNER/SPACE: see docs/containers.md


def main(source: str, out: str, tasks: int) -> None:
    """Start the jobs and print their pages. The last one to finish merges."""
    secrets = {name: os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    secrets["HF_TOKEN"] = get_token()
    if missing := [name for name, value in secrets.items() if not value]:
        sys.exit(f"missing: {', '.join(missing)}. Export the keys of the bucket, and log in with `hf auth login`.")
    for index in range(tasks):
        job = run_job(
            image=IMAGE,
            command=["voxbatch", "run", source, "-o", out, "--shard", f"{index}/{tasks}", "--exit-zero"],
            flavor="l4x1",
            timeout="24h",
            attempts=4,
            secrets=secrets,
            name=f"voxbatch-{index}",
        )
        print(job.url)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: python {sys.argv[0]} SOURCE OUT TASKS")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
