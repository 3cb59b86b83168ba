"""Compiled kernels are code that every task runs, and a folder of a model may hold code: no account that decodes audio
of strangers may write them. The files of jobs/ and the pages keep them apart from IN and OUT.
"""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import pytest
from cloudrun_plan import bindings, container, of_kind, planned
from conftest import ROOT
from sagemaker_deployment import jobs_stack, pipeline_of, step_of

FOLDERS = ("README.md", "docs", "jobs", "examples", "voxbatch")
TEXTS = (".md", ".sh", ".py", ".yaml", ".yml", ".json", ".tf", ".ipynb", ".sbatch", ".service")
PLACE = re.compile(
    r"""(?:--(?:kernel-cache|model)[ =]|(?:kernel_cache|KERNEL_CACHE|model|MODEL)\W{1,4})["']?((?:gs|s3)://[^\s"'`,)]+)"""
)
OUTPUT = re.compile(r"""(?:-o |--out |OUT\W{1,3}|out\W{1,4})["']?((?:gs|s3)://[^\s"'`,)/]+)""")
WRITES = ("s3:PutObject", "s3:DeleteObject")


def texts() -> list[Path]:
    """Return the files of the repository that people read or deploy."""
    trees = [ROOT / name for name in FOLDERS]
    files = [path for tree in trees for path in ([tree] if tree.is_file() else sorted(tree.rglob("*")))]
    return [path for path in files if path.suffix in TEXTS]


def test_no_page_and_no_file_names_a_place_in_in_or_out() -> None:
    """A bucket in which a page or a file keeps kernels or a model is not one to which it writes outputs, or from which
    it reads recordings.
    """
    places = {}
    for path in texts():
        text = path.read_text()
        outputs = {match[1] for match in OUTPUT.finditer(text)}
        for match in PLACE.finditer(text):
            bucket = "/".join(match[1].split("/")[:3])
            places[f"{path.relative_to(ROOT)}: {match[1]}"] = bucket in outputs or re.search(r"[-_](in|out)\b", bucket)
    assert {"kernel", "model"} <= {word for name in places for word in ("kernel", "model") if word in name}
    assert [name for name, is_shared in places.items() if is_shared] == []


@pytest.mark.slow
@pytest.mark.parametrize("uploads", ["workflow", "worker"])
def test_tasks_of_cloud_run_only_read_kernels(uploads: str) -> None:
    """Each account of a job that takes uploads may read the buckets of the kernels and of the models, and has no other
    role there.
    """
    plan = planned("jobs", uploads=uploads)
    tasks = [*of_kind(plan, "google_cloud_run_v2_job"), *of_kind(plan, "google_cloud_run_v2_worker_pool")]
    variables = {variable["name"]: variable for task in tasks for variable in container(task).get("env", [])}
    bucket = variables["VOXBATCH_KERNEL_CACHE"]["value"].split("/")[2]
    roles = {(who, role) for who, role, on in bindings(plan) if on == f"storage buckets/{bucket}"}
    assert ("voxbatch-run", "roles/storage.objectViewer") in roles
    assert {who for who, role in roles if role != "roles/storage.objectViewer"} == {"voxbatch-kernels"}
    models = {(who, role) for who, role, on in bindings(plan) if re.fullmatch(r"storage buckets/.*-models", on)}
    assert ("voxbatch-run", "roles/storage.objectViewer") in models
    assert {role for _, role in models} == {"roles/storage.objectViewer"}


def test_jobs_of_sagemaker_only_read_kernels() -> None:
    """The role of the pipeline's runs may not write where the role of the kernels writes, nor anywhere in the bucket of
    the models and of the kernels of KERNELS; nor does that role read recordings or write transcripts.
    """
    stack = jobs_stack(Options='"VOXBATCH_KERNEL_CACHE": "s3://calls-models/kernels/compiled", ')
    place = step_of(pipeline_of(stack))["Environment"]["VOXBATCH_KERNEL_CACHE"].removeprefix("s3://")
    written, used = {}, {}
    for name in ("RunRole", "KernelsRole"):
        [policy] = stack.resources[name][1]["Policies"]
        statements = policy["PolicyDocument"]["Statement"]
        used[name] = json.dumps(statements)
        written[name] = [
            pattern
            for statement in statements
            if set(WRITES) & set(listed(statement["Action"]))
            for pattern in listed(statement["Resource"])
        ]
    archive = f"arn:aws:s3:::{place}/3f2a.tar.gz"
    assert [name for name in written if any(fnmatch.fnmatchcase(archive, pattern) for pattern in written[name])] == [
        "KernelsRole"
    ]
    model = "arn:aws:s3:::calls-models/owner/name/model.safetensors"
    assert not any(fnmatch.fnmatchcase(model, pattern) for pattern in (*written["RunRole"], *written["KernelsRole"]))
    assert "calls-in" not in used["KernelsRole"]
    assert "calls-out" not in used["KernelsRole"]


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
