"""Tests of the documentation site in a real browser: opened from a folder, without a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from browser import CHROMIUM, Browser, browser

from voxbatch import __version__

pytest.importorskip("material", reason="mkdocs-material is not installed")

ROOT = Path(__file__).parents[2]
PAGES, CHANGELOG = ROOT / "docs", ROOT / "CHANGELOG.md"
WORDS = PAGES / "site" / "search_words.yml"
WANTED = {
    "403": "runbook",
    "8 khz": "manifests channels",
    "a100": "performance",
    "abbreviations": "scoring",
    "accuracy": "scoring confidence",
    "air-gapped": "gpus-and-models",
    "airflow": "orchestrators",
    "api key": "serving",
    "apple": "coming-from",
    "array job": "tasks kubernetes-slurm-batch",
    "ass": "subtitles outputs",
    "async": "python",
    "audiobook": "speech",
    "aws": "sagemaker",
    "azure": "buckets",
    "azure blob": "buckets",
    "background music": "confidence",
    "batch size": "gpus-and-models no-gpu",
    "beam size": "gpus-and-models cli",
    "benchmark": "performance",
    "bigquery": "outputs",
    "burn subtitles": "subtitles",
    "bytes": "python",
    "callback": "python",
    "capital letters": "scoring",
    "captions": "subtitles",
    "celery": "service",
    "cer": "scoring",
    "changelog": "changelog",
    "chapters": "speech",
    "chatgpt": "ask",
    "checkpoint": "outputs",
    "code switching": "gpus-and-models",
    "commercial use": "gpus-and-models",
    "confidence": "confidence",
    "confidence interval": "scoring",
    "config file": "cli",
    "continue": "quickstart outputs",
    "convert": "manifests outputs",
    "corrupt file": "troubleshooting",
    "cost": "costs",
    "cpu": "no-gpu",
    "credentials": "buckets",
    "credit card": "redact",
    "cron": "nightly orchestrators",
    "csv": "manifests",
    "csv export": "outputs",
    "cuda out of memory": "troubleshooting",
    "custom model": "gpus-and-models",
    "danish": "gpus-and-models",
    "databricks": "ray manifests orchestrators",
    "dataframe": "python outputs",
    "davinci resolve": "subtitles",
    "dead letter": "runbook",
    "delete": "runbook outputs",
    "dependencies": "quickstart",
    "diarization": "speakers",
    "disk space": "troubleshooting",
    "django": "service",
    "docker": "containers",
    "docx": "outputs",
    "duckdb": "nightly",
    "edit subtitles": "subtitles outputs",
    "email notification": "cloud-run runbook",
    "encryption": "runbook sagemaker",
    "environment variable": "cli",
    "epub": "speech",
    "exactly once": "tasks outputs",
    "exceptions": "python",
    "exit code": "troubleshooting outputs",
    "fastapi": "service",
    "ffmpeg": "troubleshooting manifests",
    "filter": "manifests",
    "fine-tuning": "datasets",
    "finetuned model": "gpus-and-models",
    "forced alignment": "align",
    "frame rate": "subtitles",
    "ftp": "buckets",
    "g.711": "manifests",
    "gdpr": "redact",
    "german": "gpus-and-models languages",
    "github actions": "orchestrators",
    "glossary": "subtitles",
    "google cloud storage": "buckets",
    "google drive": "buckets",
    "gpu": "gpus-and-models",
    "gpu memory": "gpus-and-models troubleshooting",
    "gpu out of memory": "troubleshooting gpus-and-models",
    "grafana": "runbook",
    "gui": "coming-from",
    "hallucination": "confidence",
    "helm": "kubernetes-slurm-batch",
    "helpdesk": "channels",
    "hotwords": "manifests cli",
    "how do i use the gpu": "gpus-and-models",
    "how to install it": "quickstart",
    "idempotent": "tasks outputs",
    "incremental": "manifests",
    "initial prompt": "coming-from scoring subtitles",
    "install": "quickstart",
    "interview": "speakers subtitles",
    "is my language supported": "gpus-and-models languages",
    "json schema": "ask outputs",
    "jupyter": "python",
    "kaldi": "manifests scoring",
    "karaoke": "align outputs subtitles",
    "kubernetes": "kubernetes-slurm-batch",
    "kv cache": "gpus-and-models",
    "language": "languages",
    "laptop": "no-gpu",
    "lecture": "subtitles",
    "license": "gpus-and-models",
    "live": "serving",
    "logging": "outputs runbook",
    "logs": "runbook",
    "low quality": "confidence manifests",
    "m1": "coming-from",
    "m4a": "manifests",
    "mac": "coming-from quickstart",
    "meeting minutes": "ask",
    "merge": "cli tasks outputs",
    "metrics": "runbook outputs",
    "microphone": "serving",
    "multi gpu": "gpus-and-models",
    "named entities": "redact",
    "nemo": "coming-from",
    "new files only": "manifests nightly",
    "nfs": "tasks nightly",
    "noise": "confidence",
    "numbers": "scoring",
    "numpy array": "python",
    "offline": "troubleshooting coming-from",
    "onnx": "gpus-and-models",
    "open asr leaderboard": "scoring",
    "openai api": "serving",
    "opus": "manifests speech",
    "out of memory": "troubleshooting",
    "overlapping speech": "speakers",
    "overwrite": "outputs troubleshooting",
    "p-value": "compare",
    "parakeet": "gpus-and-models",
    "parquet": "outputs manifests",
    "phone calls": "channels",
    "pii": "redact",
    "podcast": "manifests",
    "price": "costs",
    "progress bar": "python",
    "prometheus": "runbook",
    "prompt": "ask subtitles",
    "proxy": "serving buckets troubleshooting",
    "punctuation": "scoring",
    "python version": "quickstart",
    "pytorch": "gpus-and-models",
    "quantization": "cli gpus-and-models",
    "queue": "listening",
    "rate limit": "serving",
    "ray": "ray",
    "rbac": "cloud-run kubernetes-slurm-batch",
    "redact": "redact",
    "regex": "redact",
    "resume": "outputs quickstart",
    "retries": "troubleshooting tasks outputs",
    "retry": "troubleshooting outputs",
    "rollback": "runbook",
    "rss": "manifests",
    "rtx 4090": "gpus-and-models costs",
    "s3": "buckets",
    "sagemaker": "sagemaker",
    "sandbox": "buckets",
    "sbv": "scoring",
    "schedule": "nightly orchestrators",
    "sdk": "python",
    "search": "find",
    "secrets": "cloud-run runbook redact",
    "security": "buckets",
    "service account": "buckets cloud-run",
    "shard": "tasks",
    "slo": "runbook",
    "slow": "performance troubleshooting",
    "slow gpu": "troubleshooting performance",
    "slurm": "kubernetes-slurm-batch",
    "snowflake": "outputs",
    "speaker labels": "speakers",
    "speaker names": "speakers",
    "speech recognition": "quickstart index",
    "speed": "performance",
    "spot": "costs kubernetes-slurm-batch",
    "srt": "subtitles",
    "ssrf": "serving buckets",
    "stereo": "channels",
    "stop a run": "quickstart runbook outputs",
    "streaming": "serving python",
    "summarize": "ask",
    "symlink": "troubleshooting",
    "temperature": "gpus-and-models cli",
    "terraform": "cloud-run",
    "threads": "gpus-and-models",
    "timecode": "subtitles",
    "timeout": "cloud-run troubleshooting",
    "timestamps": "outputs align",
    "tiny.en": "gpus-and-models no-gpu",
    "torchaudio": "python",
    "translate": "gpus-and-models",
    "ttml": "outputs subtitles",
    "tts": "speech",
    "turkish": "gpus-and-models",
    "typos": "outputs scoring",
    "uninstall": "quickstart",
    "upgrade": "changelog quickstart",
    "uvx": "quickstart",
    "vad": "gpus-and-models confidence",
    "version": "changelog",
    "voice activity detection": "gpus-and-models confidence",
    "voicemail": "channels",
    "voxtral": "gpus-and-models",
    "vtt": "subtitles outputs",
    "webhook": "listening cloud-run",
    "webm": "manifests",
    "wer": "scoring",
    "what does an hour cost": "costs",
    "where are the logs": "runbook outputs",
    "whisperx": "coming-from",
    "who said what": "scoring speakers find",
    "windows": "coming-from quickstart",
    "word timestamps": "outputs",
    "worker": "tasks",
    "workload identity": "orchestrators kubernetes-slurm-batch",
    "youtube": "subtitles manifests",
    "zip": "manifests",
    "zoom": "channels speakers manifests",
}
"""Words that people type, and the pages of which one must come first or second."""
RESULTS = "[...document.querySelectorAll('.md-search-result__item > a')].map((link) => link.href)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Browser]:
    """Yield a browser that shows the first page of the site, whose index of the search is loaded."""
    if CHROMIUM is None:
        pytest.skip("takes Chromium")
    with browser() as shown:
        shown.open(site / "index.html")
        shown.evaluate("document.querySelector('.md-search__input').focus()")
        shown.wait("document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
        yield shown


@pytest.mark.slow
@pytest.mark.parametrize("typed", WANTED)
def test_the_search_of_a_site_in_a_folder_finds(page: Browser, typed: str) -> None:
    """Among the first two results of what people type is the page that is about it."""
    search = "document.querySelector('.md-search__input')"
    page.evaluate(f"{search}.value = ''; {search}.dispatchEvent(new Event('keyup'))")
    page.wait(f"{RESULTS}.length === 0")
    page.evaluate(f"{search}.value = '{typed}'; {search}.dispatchEvent(new Event('keyup'))")
    page.wait(f"{RESULTS}.length > 0")
    first = [Path(link.partition("#")[0].partition("?")[0]).stem for link in page.evaluate(RESULTS)[:2]]
    assert set(WANTED[typed].split()) & set(first), first


@pytest.mark.slow
def test_results_of_the_search_show_no_search_words(page: Browser) -> None:
    """The words of docs/site/search_words.yml lead to a page, and do not fill the list of results."""
    search = "document.querySelector('.md-search__input')"
    page.evaluate(f"{search}.value = 'subtitles'; {search}.dispatchEvent(new Event('keyup'))")
    page.wait("document.querySelectorAll('.md-search-result .md-tags').length > 0")
    shown = "[...document.querySelectorAll('.md-search-result .md-tags')].filter((words) => words.checkVisibility())"
    assert page.evaluate(f"{shown}.length") == 0


@pytest.mark.slow
def test_a_comment_that_is_too_long_for_its_line_goes_below_the_command(site: Path, page: Browser) -> None:
    """A comment is one box, so that its end does not stand below the command as if it were the next one."""
    broken = "[...document.querySelectorAll('pre .c1')].filter((comment) => comment.getClientRects().length > 1)"
    for file in sorted(site.glob("*.html")):
        for width in (1280, 390):
            page.open(file, width)
            in_commands = f"{broken}.filter((comment) => comment.closest('.language-console, .language-sh')).length"
            assert page.evaluate(in_commands) == 0, (file.name, width)


@pytest.mark.slow
def test_no_block_of_commands_or_data_scrolls_sideways(site: Path, page: Browser) -> None:
    """Commands, JSON and SQL go on in the next line, so that the copy button hides no end of a line."""
    kinds = ":is(.language-console, .language-sh, .language-json, .language-sql)"
    wide = "filter((code) => code.scrollWidth > code.clientWidth + 1).map((code) => code.innerText.slice(0, 60))"
    for file in sorted(site.glob("*.html")):
        page.open(file)
        assert page.evaluate(f"[...document.querySelectorAll('{kinds} code')].{wide}") == [], file.name


@pytest.mark.slow
def test_a_percentage_stays_on_one_line(site: Path) -> None:
    """No line ends between a number and its sign; in code the space stays as it was typed."""
    text = (site / "confidence.html").read_text()
    assert "8.7&nbsp;%" in text
    assert not re.search(r"\d %(?![^<]*</code>)", text.partition("<article")[2].partition("</article>")[0])


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(site: Path, page: Browser) -> None:
    """At a width of 390 pixels no page and no table scrolls sideways, and each picture is there and fits."""
    fits = "document.documentElement.scrollWidth <= innerWidth"
    cut = (
        "[...document.querySelectorAll('.md-content img')].filter((image) => image.checkVisibility() &&"
        " (!image.naturalWidth || image.getBoundingClientRect().right > innerWidth + 1)).map((image) => image.src)"
    )
    scrolled = (
        "[...document.querySelectorAll('.md-typeset__scrollwrap')].filter((table) =>"
        " table.scrollWidth > table.clientWidth + 1).map((table) => table.innerText.slice(0, 60))"
    )
    for file in sorted(site.glob("*.html")):
        if file.stem != "404":  # its links are those of a server's first folder
            page.open(file, 390)
            assert page.evaluate(fits), file.name
            assert page.evaluate(cut) == [], file.name
            assert page.evaluate(scrolled) == [], file.name


@pytest.mark.slow
def test_a_continued_row_is_named_on_a_phone(site: Path, page: Browser) -> None:
    """A card of a row whose first cell is empty begins with the name of the row that it continues."""
    page.open(site / "cloud-run.html", 390)
    rows = (
        "[...document.querySelectorAll('table[data-stacked] td:first-child')].filter((cell) => !cell.innerText)"
        ".map((cell) => getComputedStyle(cell, '::before').content)"
    )
    names = page.evaluate(rows)
    assert len(names) > 5
    assert '"voxbatch-run (GPU tasks)"' in names
    assert "none" not in names


@pytest.mark.slow
def test_a_command_is_copied_without_its_prompt_and_output(site: Path, page: Browser) -> None:
    """The copy button of a block of the console copies what is typed; that of another block copies all of it."""
    page.open(site / "quickstart.html")
    assert copied(page, "make demo") == "make demo"
    page.open(site / "index.html")
    assert copied(page, "import voxbatch").count("\n") > 3


def copied(page: Browser, content: str) -> str:
    """Return what the theme's copy button takes of the first block with a content: the text shown under its mark."""
    block = f"[...document.querySelectorAll('pre > code')].find((code) => code.textContent.includes('{content}'))"
    take = "code.setAttribute('data-md-copying', ''); return code.innerText.trimEnd()"
    text: str = page.evaluate(f"((code) => {{ {take} }})({block})")
    return text


@pytest.mark.slow
def test_each_page_names_the_version_and_links_to_the_changelog(site: Path) -> None:
    """A reader sees which version the pages are about, and what has changed."""
    for file in site.glob("*.html"):
        assert f'voxbatch {__version__} · Apache License 2.0 · <a href="changelog.html">' in file.read_text(), file
    assert "Keep a Changelog" in (site / "changelog.html").read_text()


def test_a_page_is_called_as_in_the_navigation() -> None:
    """The title of a page is its name in the navigation, or begins with it and a colon or a comma."""
    names = re.findall(r"^ +- (.+): ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(names) > 30
    for name, file in names:
        title = (CHANGELOG if file == "changelog.md" else PAGES / file).read_text().splitlines()[0].removeprefix("# ")
        assert file == "index.md" or re.match(rf"{re.escape(name)}($|[:,]| and | \()", title), file


def test_each_page_has_words_for_the_search() -> None:
    """docs/site/search_words.yml names existing pages, and all of them but the first one."""
    assert {*yaml.safe_load(WORDS.read_text()), "index.md"} == {
        "changelog.md",
        *(page.name for page in PAGES.glob("*.md")),
    }
