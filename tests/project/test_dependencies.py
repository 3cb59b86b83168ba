"""Tests for pyproject.toml: every import is declared, and the extra `vllm` installs a version for which the plugin is
proven.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

from voxbatch.vllm.plugin.vllm_version import VERSION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "faster_whisper": "faster-whisper",
    "google.cloud.pubsub_v1": "google-cloud-pubsub",
    "google.cloud.run_v2": "google-cloud-run",
    "google.cloud.storage": "google-cloud-storage",
    "google.pubsub_v1": "google-cloud-pubsub",
    "hibari": "hibari-tts",
    "huggingface_hub": "huggingface-hub",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "markdown_it": "markdown-it-py",
    "mistral_common": "mistral-common",
    "onnx_asr": "onnx-asr",
    "opencc": "opencc-py",
    "phonenumbers": "phonenumberslite",
    "pynvml": "nvidia-ml-py",
    "whisper_normalizer": "whisper-normalizer",
    "yaml": "pyyaml",
}
"""Modules whose distribution has another name."""
BROUGHT = {
    "aiohttp": ("aiohttp", "vllm"),
    "botocore": ("botocore", "boto3"),
    "fastapi": ("fastapi", "vllm"),
    "google.api_core": ("google-api-core", "google-cloud-storage"),
    "google.auth": ("google-auth", "google-cloud-storage"),
    "google.protobuf": ("protobuf", "google-cloud-run"),
    "google_crc32c": ("google-crc32c", "google-cloud-storage"),
    "referencing": ("referencing", "jsonschema"),
    "requests": ("requests", "google-cloud-storage"),
    "torch": ("torch", "vllm"),
    "triton": ("triton", "vllm"),
}
"""Modules that come with a declared distribution: (their distribution, the one that requires it)."""


def requirements(*extras: str) -> list[Requirement]:
    """Return the base dependencies and those of these extras."""
    optional = PROJECT["optional-dependencies"]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *(e for each in extras for e in optional[each])]]


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports: top-level names, with enough parts of the namespace `google` to identify
    the distribution.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module in ("google", "google.cloud"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            depth = 2 if rest[:1] == ["cloud"] else 1
            yield ".".join([first, *rest[:depth]]) if first == "google" else first


def foreign() -> set[str]:
    """Return the third-party modules that voxbatch imports."""
    found = {name for path in (ROOT / "voxbatch").rglob("*.py") for name in imported(path)}
    return found - sys.stdlib_module_names - {"voxbatch", "_typeshed"}


@pytest.mark.slow
def test_every_import_is_declared() -> None:
    """Each third-party module that voxbatch imports belongs to a declared distribution, or is required by one."""
    declared = {
        each.name
        for each in requirements(
            "cpu",
            "onnx",
            "vllm",
            "parakeet",
            "gcs",
            "s3",
            "pubsub",
            "cloudrun",
            "parquet",
            "ray",
            "score",
            "speak",
            "align",
            "subtitles",
            "redact",
        )
    }
    wanted = {name: BROUGHT[name][1] if name in BROUGHT else DISTRIBUTIONS.get(name, name) for name in foreign()}
    assert {name: of for name, of in wanted.items() if of not in declared} == {}
    assert set(DISTRIBUTIONS) | set(BROUGHT) <= set(wanted), "an entry whose module nothing imports any more"


@pytest.mark.parametrize(("distribution", "by"), BROUGHT.values())
def test_what_comes_with_a_declared_distribution(distribution: str, by: str) -> None:
    """The declared distribution requires the other one."""
    try:
        required = metadata.requires(by) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{by} is not installed")
    assert distribution in {Requirement(line).name for line in required}


def test_the_vllm_extra_is_proven() -> None:
    """`pip install 'voxbatch[vllm]'` installs only a vLLM with which `prefill_encoder=auto` uses the plugin. Another
    version must be installed explicitly.
    """
    (vllm,) = (each for each in requirements("vllm") if each.name == "vllm")
    candidates = [f"0.{minor}" for minor in range(100)] + ["1.0"]
    admitted = {minor for minor in candidates if any(Version(f"{minor}.{n}") in vllm.specifier for n in (0, 1, 99))}
    assert admitted == {VERSION}


def test_the_image_is_proven() -> None:
    """The base image of the Dockerfile has a version of that range, too."""
    (vllm,) = (each for each in requirements("vllm") if each.name == "vllm")
    text = (ROOT / "Dockerfile").read_text()
    base = re.search(r"^ARG BASE_IMAGE=vllm/vllm-openai:v([0-9.]+)(?:@sha256:[0-9a-f]{64})?$", text, re.MULTILINE)
    assert base
    assert base[1] in vllm.specifier
