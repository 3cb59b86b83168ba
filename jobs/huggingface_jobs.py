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
    secrets = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    for index in range(tasks):
        job = run_job(
            image=IMAGE,
            command=["voxbatch", "run", source, "-o", out, "--shard", f"{index}/{tasks}", "--exit-zero"],
            flavor="l4x1",
            timeout="24h",
            attempts=4,
            secrets={**secrets, "HF_TOKEN": get_token()},
            name=f"voxbatch-{index}",
        )
        print(job.url)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
