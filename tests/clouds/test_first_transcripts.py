"""Test of the number of commands from nothing to the first transcripts, as the pages of the platforms show them."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

BATCH_PAGE = "kubernetes-slurm-batch.md"


@pytest.mark.parametrize(
    ("page", "title", "most"),
    [
        ("cloud-run.md", "# Cloud Run", 4),
        ("sagemaker.md", "## Set up", 4),
        (BATCH_PAGE, "## AWS Batch", 6),
        (BATCH_PAGE, "## SkyPilot", 3),
        (BATCH_PAGE, "## dstack", 3),
        ("ray.md", "## A cluster from nothing", 3),
    ],
)
def test_first_transcripts_take_few_commands(page: str, title: str, most: int) -> None:
    """The first block below the title has at most this number of commands. An assignment of a variable is none of them,
    and `&&` joins two.
    """
    _, _, below = (ROOT / "docs" / page).read_text().partition(f"\n{title}\n" if title.startswith("##") else title)
    block = re.search(r"^```(?:console|bash)\n(.*?)^```", below, re.MULTILINE | re.DOTALL)
    assert block
    lines = block[1].replace("\\\n", " ").splitlines()
    commands = [
        command
        for line in lines
        if not re.match(r"[A-Z]+=\"\$\(", line)
        for command in line.removeprefix("$ ").split(" && ")
    ]
    assert 2 <= len(commands) <= most, commands
