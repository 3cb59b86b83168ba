"""Draw docs/images/cloud-run.svg and sagemaker.svg: from an upload to the transcripts in a bucket.

python docs/make_cloud_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import svg

IMAGES = Path(__file__).parent / "images"
CLOUDS = {
    "cloud-run": (
        ("Upload", "day.jsonl to gs://…-voxbatch-in/in/"),
        ("Pub/Sub", "keeps the message until its run has started"),
        ("Workflow", "Eventarc starts it; every hour a schedule, too"),
        ("Dispatcher", "a job without a GPU counts the hours"),
        ("Job", "1 to n tasks with an L4, a shard each"),
        ("Bucket", "gs://…-voxbatch-out/out/day/"),
    ),
    "sagemaker": (
        ("Upload", "calls.jsonl to s3://IN/uploads/"),
        ("EventBridge", "a rule for the new object"),
        ("Function", "counts the hours, chooses the hosts"),
        ("Pipeline", "waits and retries while no GPU is free"),
        ("Processing", "1 to n hosts with a GPU, a shard each"),
        ("Bucket", "s3://OUT/uploads/calls/"),
    ),
}
"""Steps by the name of the picture: what it is, and what it does."""
GPU = 4
"""The step that works on GPUs."""
ROW, BOX = 78.0, 52.0
"""Distance between two steps, and the height of one."""


def picture(cloud: str) -> str:
    """Return the picture of a cloud."""
    drawn = []
    for number, (name, does) in enumerate(CLOUDS[cloud]):
        y = 10 + ROW * number
        drawn += [svg.box(20, y, 600, BOX, "fill-soft" if number == GPU else "fill-panel")]
        drawn += [svg.text(36, y + 32, name, "bold fill-accent"), svg.text(180, y + 32, does)]
        drawn += [svg.arrow(90, y - ROW + BOX, 90, y - 3)] if number else []
    title = "; ".join(f"{name}: {does}" for name, does in CLOUDS[cloud])
    return svg.picture(drawn, ROW * len(CLOUDS[cloud]), title)


if __name__ == "__main__":
    for cloud in CLOUDS:
        (IMAGES / f"{cloud}.svg").write_text(picture(cloud))
