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
    "acronyms": "scoring",
    "air gap": "gpus-and-models",
    "air-gapped": "gpus-and-models",
    "airflow": "orchestrators",
    "airflow dag": "orchestrators",
    "alert email": "cloud-run sagemaker runbook",
    "analytics": "quickstart",
    "anonymise calls": "redact",
    "api key": "serving",
    "api reference": "python cli",
    "api token": "serving gpus-and-models",
    "applause": "confidence",
    "apple": "coming-from",
    "arabic": "languages gpus-and-models scoring",
    "argo": "tasks",
    "argo workflows": "tasks",
    "array job": "tasks kubernetes-slurm-batch",
    "artifact registry": "containers",
    "ass": "subtitles outputs",
    "ass styles": "subtitles",
    "async": "python",
    "audio stream": "manifests",
    "audiobook": "speech",
    "audit": "runbook redact",
    "autoscaling": "serving ray",
    "aws": "sagemaker",
    "azure": "buckets",
    "azure blob": "buckets",
    "background music": "confidence",
    "batch size": "gpus-and-models no-gpu",
    "beam search": "gpus-and-models cli",
    "beam size": "gpus-and-models cli",
    "beep": "redact",
    "benchmark": "performance",
    "bigquery": "outputs",
    "bisani": "scoring",
    "bits per sample": "manifests speech",
    "bleu": "ask",
    "boto3": "sagemaker serving",
    "bucket": "buckets",
    "budget alert": "cloud-run runbook costs",
    "burn": "subtitles",
    "burn subtitles": "subtitles",
    "bytes": "python",
    "cache folder": "quickstart",
    "calibration": "confidence",
    "callback": "python",
    "canary": "gpus-and-models",
    "cantonese": "gpus-and-models languages scoring",
    "capital letters": "scoring",
    "captions": "subtitles",
    "cascade": "confidence",
    "case": "scoring",
    "celery": "service",
    "cer": "scoring",
    "changelog": "changelog",
    "chapters": "speech",
    "character error rate": "scoring",
    "chatgpt": "ask",
    "checkpoint": "outputs",
    "checksum": "outputs buckets",
    "chinese": "languages gpus-and-models scoring",
    "cloud build": "containers cloud-run",
    "cloudflare": "buckets",
    "cloudwatch": "sagemaker runbook kubernetes-slurm-batch",
    "code switching": "gpus-and-models",
    "cold start": "serving costs",
    "color": "subtitles",
    "commercial use": "gpus-and-models",
    "common voice": "manifests",
    "compare models": "compare",
    "conda": "quickstart",
    "confidence": "confidence",
    "confidence interval": "scoring",
    "config file": "cli",
    "confusion": "report scoring",
    "continue": "quickstart outputs",
    "convert": "manifests outputs",
    "corporate proxy": "serving buckets troubleshooting",
    "correct transcripts": "outputs",
    "corrupt file": "troubleshooting",
    "cost": "costs",
    "court": "redact scoring",
    "cpu": "no-gpu",
    "cpwer": "scoring",
    "credentials": "buckets",
    "credit card": "redact",
    "credit cards": "redact",
    "cron": "nightly orchestrators",
    "crosstalk": "channels",
    "csv": "manifests",
    "csv export": "outputs",
    "ctranslate2": "gpus-and-models cli",
    "cuda out of memory": "troubleshooting",
    "cuda_visible_devices": "troubleshooting gpus-and-models",
    "currency": "scoring",
    "custom metrics": "runbook outputs",
    "custom model": "gpus-and-models",
    "dagster": "orchestrators",
    "danish": "gpus-and-models",
    "databricks": "ray manifests orchestrators",
    "dataframe": "python outputs",
    "dataset export": "datasets",
    "dates": "scoring speech",
    "davinci resolve": "subtitles",
    "dead letter": "runbook",
    "deduplicate": "manifests",
    "delete": "runbook outputs",
    "dependencies": "quickstart",
    "der": "speakers",
    "diarization": "speakers",
    "dictation": "serving quickstart",
    "disk space": "troubleshooting",
    "distil-whisper": "gpus-and-models coming-from",
    "django": "service",
    "django app": "service",
    "docker": "containers",
    "docker compose": "containers",
    "docker hub": "containers sagemaker",
    "docx": "outputs",
    "dry run": "costs cli quickstart",
    "duckdb": "nightly",
    "dutch": "gpus-and-models",
    "echo": "channels",
    "edit srt": "outputs subtitles",
    "edit subtitles": "subtitles outputs",
    "elan": "scoring manifests",
    "email notification": "cloud-run runbook",
    "embed": "subtitles speakers",
    "empty file": "outputs troubleshooting",
    "encryption": "runbook sagemaker",
    "environment variable": "cli",
    "epub": "speech",
    "epub book": "speech",
    "error rate": "scoring",
    "estimate wer": "confidence",
    "eta": "tasks cli",
    "exactly once": "tasks outputs",
    "exceptions": "python",
    "exit code": "troubleshooting outputs",
    "exit codes": "troubleshooting",
    "export to excel": "outputs",
    "faq": "coming-from troubleshooting",
    "fastapi": "service",
    "ffmpeg": "troubleshooting manifests",
    "filler words": "scoring",
    "filter": "manifests",
    "final cut": "subtitles",
    "find and replace": "scoring outputs find",
    "fine tuned whisper": "gpus-and-models datasets",
    "fine-tuning": "datasets",
    "finetuned model": "gpus-and-models",
    "first ten files": "manifests cli",
    "flash attention": "cli gpus-and-models",
    "folder of mp3": "manifests",
    "font": "subtitles",
    "forced alignment": "align",
    "fp8": "performance gpus-and-models cli",
    "frame rate": "subtitles",
    "free tier": "costs",
    "french": "languages gpus-and-models",
    "ftp": "buckets",
    "g.711": "manifests",
    "gated": "gpus-and-models",
    "gcloud": "cloud-run",
    "gcp": "cloud-run",
    "gdpr": "redact",
    "german": "gpus-and-models languages",
    "github actions": "orchestrators",
    "gke": "kubernetes-slurm-batch",
    "glossary": "gpus-and-models",
    "google cloud": "cloud-run",
    "google cloud storage": "buckets",
    "google drive": "buckets",
    "gpu": "gpus-and-models",
    "gpu memory": "gpus-and-models troubleshooting",
    "gpu out of memory": "troubleshooting gpus-and-models",
    "grafana": "runbook",
    "granite": "gpus-and-models",
    "grep transcripts": "find",
    "gui": "coming-from",
    "hallucination": "confidence",
    "heatmap": "report",
    "helm": "kubernetes-slurm-batch",
    "help": "troubleshooting cli",
    "helpdesk": "channels",
    "histogram": "report",
    "hotwords": "gpus-and-models cli",
    "hour long recording": "ask manifests",
    "how do i use the gpu": "gpus-and-models",
    "how many workers": "gpus-and-models tasks cli",
    "how much does it cost": "costs",
    "how to install it": "quickstart",
    "hugging face": "gpus-and-models datasets manifests",
    "huggingface dataset": "datasets manifests",
    "huggingface token": "gpus-and-models",
    "hyphen": "scoring",
    "hypotheses": "scoring",
    "idempotent": "tasks outputs",
    "incremental": "manifests",
    "initial prompt": "gpus-and-models coming-from",
    "install": "quickstart",
    "install without internet": "quickstart gpus-and-models",
    "int8": "no-gpu cli gpus-and-models",
    "interruptible": "kubernetes-slurm-batch costs",
    "interview": "speakers subtitles",
    "is my language supported": "gpus-and-models languages",
    "jiwer": "scoring python",
    "json": "outputs",
    "json output": "outputs",
    "json schema": "ask outputs",
    "jupyter": "python",
    "kaldi": "manifests scoring",
    "karaoke": "subtitles",
    "karaoke subtitles": "subtitles outputs align",
    "keda": "kubernetes-slurm-batch listening",
    "kill": "quickstart outputs performance troubleshooting",
    "kms": "sagemaker runbook",
    "kubernetes": "kubernetes-slurm-batch",
    "kv cache": "gpus-and-models",
    "landlock": "buckets",
    "language": "languages",
    "language auto": "languages gpus-and-models",
    "laptop": "no-gpu",
    "latency": "outputs serving",
    "lecture": "subtitles",
    "lecture recordings": "subtitles",
    "lhotse shar": "datasets manifests",
    "librispeech": "manifests",
    "licence": "gpus-and-models",
    "license": "gpus-and-models",
    "limit number of files": "manifests cli",
    "line breaks": "subtitles",
    "line width": "subtitles",
    "live": "serving",
    "load balancer": "serving",
    "log level": "python outputs",
    "logging": "outputs runbook",
    "logs": "runbook",
    "long audio": "manifests ask align",
    "loudness": "speech",
    "low quality": "confidence manifests",
    "low volume": "confidence channels",
    "m1": "coming-from",
    "m4a": "manifests",
    "m4b": "speech",
    "mac": "coming-from quickstart",
    "manifest.jsonl": "manifests",
    "many files": "manifests nightly",
    "max_num_seqs": "cli serving gpus-and-models",
    "medical": "redact",
    "meeting minutes": "ask",
    "memory per worker": "gpus-and-models no-gpu",
    "merge": "cli tasks outputs",
    "merge subtitles": "subtitles outputs",
    "metrics": "runbook outputs",
    "microphone": "serving",
    "microphone input": "serving",
    "minio": "buckets",
    "minutes of a meeting": "ask",
    "mixed language": "gpus-and-models languages",
    "modal": "kubernetes-slurm-batch",
    "mono": "channels manifests",
    "mov file": "manifests subtitles",
    "mp3": "manifests",
    "mp4 without sound": "outputs troubleshooting",
    "mpi": "tasks",
    "multi gpu": "gpus-and-models",
    "named entities": "redact",
    "names in transcripts": "redact",
    "names wrong": "gpus-and-models",
    "nemo": "coming-from",
    "nemo tarred": "datasets manifests",
    "netflix": "subtitles",
    "new files only": "manifests nightly",
    "nfs": "tasks nightly",
    "nist": "scoring outputs",
    "noise": "confidence",
    "nomad": "tasks",
    "non-root user": "containers",
    "normalise": "scoring",
    "norwegian": "gpus-and-models confidence",
    "numbers": "scoring",
    "numbers as digits": "scoring",
    "numpy array": "python",
    "nvidia l40s": "performance gpus-and-models",
    "offline": "quickstart",
    "onnx": "gpus-and-models",
    "onnxruntime": "gpus-and-models no-gpu cli",
    "oom": "troubleshooting",
    "open asr leaderboard": "scoring",
    "openai api": "serving",
    "opus": "manifests speech",
    "out of memory": "troubleshooting",
    "overlapping speech": "speakers",
    "overwrite": "outputs troubleshooting",
    "p-value": "compare",
    "p95": "outputs scoring",
    "parakeet": "gpus-and-models",
    "parakeet cpu": "gpus-and-models no-gpu",
    "parquet": "outputs manifests",
    "pause": "quickstart outputs datasets runbook",
    "pbs": "tasks",
    "percentiles": "outputs",
    "phone calls": "channels",
    "phone home": "quickstart",
    "phrase search": "find",
    "pii": "redact",
    "plan cost": "costs",
    "plugin": "gpus-and-models",
    "podcast": "manifests",
    "podman": "containers",
    "polish": "gpus-and-models",
    "position": "subtitles",
    "postgres": "outputs nightly",
    "power bi": "outputs",
    "power loss": "outputs nightly quickstart",
    "praat": "outputs scoring manifests",
    "preemption": "kubernetes-slurm-batch costs tasks",
    "prefect": "orchestrators",
    "premiere": "subtitles",
    "presigned url": "buckets",
    "price": "costs",
    "price comparison": "costs",
    "price of l4": "costs",
    "progress": "service python tasks cli",
    "progress bar": "python",
    "prometheus": "runbook",
    "prompt": "ask subtitles",
    "pronunciation": "speech",
    "proper nouns": "scoring subtitles manifests",
    "proxy": "serving buckets troubleshooting",
    "pubsub": "listening quickstart",
    "punctuation": "scoring",
    "python version": "quickstart",
    "pytorch": "gpus-and-models",
    "quantization": "cli gpus-and-models",
    "queue": "listening",
    "queue depth": "runbook listening",
    "qwen": "gpus-and-models",
    "rate limit": "serving",
    "rate limiting": "serving",
    "ray": "ray",
    "rbac": "cloud-run kubernetes-slurm-batch",
    "read-only": "kubernetes-slurm-batch containers",
    "reading speed": "subtitles",
    "realtime model": "gpus-and-models serving",
    "recover": "outputs troubleshooting quickstart",
    "redact": "redact",
    "reference text": "scoring manifests",
    "regex": "redact",
    "release notes": "changelog",
    "rename": "manifests outputs",
    "report.html": "report",
    "reprocess": "outputs manifests",
    "reproducibility": "gpus-and-models",
    "reserved instances": "costs",
    "resume": "outputs quickstart",
    "resume on another machine": "outputs quickstart no-gpu tasks",
    "retries": "troubleshooting tasks outputs",
    "retry": "troubleshooting outputs",
    "rollback": "runbook",
    "root": "containers kubernetes-slurm-batch quickstart",
    "rss": "manifests",
    "rtx 4090": "gpus-and-models costs",
    "runpod": "costs tasks kubernetes-slurm-batch",
    "s3": "buckets",
    "sagemaker": "sagemaker",
    "same output twice": "gpus-and-models quickstart",
    "sandbox": "buckets",
    "save to database": "outputs nightly",
    "sbatch": "kubernetes-slurm-batch",
    "sbom": "containers",
    "sbv": "scoring",
    "schedule": "nightly orchestrators",
    "sclite": "scoring",
    "sdk": "python",
    "search": "find",
    "secrets": "cloud-run runbook redact",
    "security": "buckets",
    "segfault": "troubleshooting",
    "service account": "buckets cloud-run",
    "shard": "tasks",
    "signed urls": "buckets",
    "sigterm": "containers troubleshooting",
    "silence": "confidence",
    "silence names": "redact",
    "singing": "confidence",
    "singularity": "kubernetes-slurm-batch",
    "slo": "runbook",
    "slow": "performance troubleshooting",
    "slow gpu": "troubleshooting performance",
    "slurm": "kubernetes-slurm-batch",
    "snowflake": "outputs",
    "soc 2": "runbook buckets redact",
    "social security number": "redact",
    "spanish": "languages gpus-and-models redact",
    "speaker change": "speakers channels outputs",
    "speaker count": "speakers",
    "speaker diarization error rate": "speakers",
    "speaker embeddings": "speakers",
    "speaker labels": "speakers",
    "speaker names": "speakers",
    "speech recognition": "quickstart index",
    "speech to text": "quickstart",
    "speed": "performance",
    "spelling": "scoring",
    "spot": "costs kubernetes-slurm-batch",
    "sqs": "runbook sagemaker",
    "srt": "subtitles",
    "srt to text": "scoring subtitles outputs",
    "ssl": "troubleshooting",
    "ssrf": "serving buckets",
    "stereo": "channels",
    "stm": "scoring",
    "stop a run": "quickstart runbook outputs",
    "stop and resume": "quickstart outputs runbook",
    "stop early": "quickstart manifests outputs python",
    "streaming": "serving python",
    "streaming api": "serving python",
    "summarize": "ask",
    "summary.json": "outputs",
    "surround": "manifests",
    "symlink": "troubleshooting",
    "systemd": "kubernetes-slurm-batch nightly",
    "telemetry": "quickstart",
    "temp files": "troubleshooting manifests",
    "temperature": "gpus-and-models cli",
    "terraform": "cloud-run",
    "text only mode": "outputs",
    "textgrid": "outputs scoring",
    "thread safe": "python",
    "threads": "gpus-and-models",
    "threads per process": "gpus-and-models cli",
    "timecode": "subtitles",
    "timeout": "cloud-run troubleshooting",
    "timestamps": "outputs align",
    "timestamps are wrong": "align subtitles outputs scoring troubleshooting",
    "tiny.en": "gpus-and-models no-gpu",
    "tmpdir": "troubleshooting manifests",
    "tool calls": "ask serving",
    "torchaudio": "python",
    "torchrun": "tasks",
    "training": "datasets",
    "training set": "datasets",
    "transcribe mp3": "manifests quickstart",
    "transcribe video": "subtitles manifests",
    "translate": "gpus-and-models",
    "ttml": "outputs subtitles",
    "tts": "speech",
    "turbo": "gpus-and-models costs performance",
    "turkish": "gpus-and-models",
    "two gpus": "gpus-and-models performance",
    "two hours": "ask manifests",
    "two-pass": "confidence",
    "typos": "outputs scoring",
    "uninstall": "quickstart",
    "upgrade": "changelog quickstart",
    "upper and lower case": "scoring",
    "use one gpu": "gpus-and-models",
    "uvx": "quickstart",
    "vad": "gpus-and-models confidence",
    "verbose": "cli quickstart",
    "version": "changelog",
    "version number": "changelog",
    "vertical video": "subtitles",
    "video": "subtitles",
    "voice": "speech",
    "voice activity detection": "gpus-and-models confidence",
    "voice anonymization": "redact",
    "voice cloning": "speech",
    "voicemail": "channels",
    "voxtral": "gpus-and-models",
    "voxtral small": "gpus-and-models",
    "vpc": "sagemaker runbook",
    "vtt": "subtitles outputs",
    "vtt words": "subtitles outputs",
    "vulnerabilities": "containers cloud-run",
    "wav files": "manifests",
    "wav2vec2": "align",
    "webdataset": "datasets manifests",
    "webhook": "listening cloud-run",
    "webm": "manifests",
    "webm file": "manifests",
    "webrtc vad": "gpus-and-models confidence",
    "websocket": "serving",
    "wer": "scoring",
    "what does an hour cost": "costs",
    "where are the logs": "runbook outputs",
    "whisper": "gpus-and-models coming-from",
    "whisper large": "gpus-and-models",
    "whisperx": "coming-from",
    "who said what": "scoring speakers find",
    "windows": "coming-from quickstart",
    "word confidence": "confidence outputs",
    "word document": "outputs",
    "word search": "find",
    "word timestamps": "outputs",
    "worker": "tasks",
    "workload identity": "orchestrators kubernetes-slurm-batch",
    "wsl": "coming-from quickstart",
    "youtube": "subtitles manifests",
    "zip": "manifests",
    "zoom": "channels speakers manifests",
}
"""Words that people type, and the pages of which one must come first or second."""
WANTED_FIRST = {
    "--beside": "subtitles cli",
    "--max-line": "subtitles cli",
    "403 forbidden s3": "buckets runbook",
    "aarch64": "no-gpu",
    "accent": "gpus-and-models confidence scoring",
    "apple silicon": "coming-from",
    "arm64": "no-gpu",
    "clone my voice": "speech",
    "confidense": "confidence",
    "convert srt to vtt": "subtitles outputs",
    "cost per hour": "costs",
    "cuda out of memory": "troubleshooting",
    "custom vocabulary": "gpus-and-models",
    "diarisaton": "speakers",
    "docekr": "containers",
    "duplicates": "manifests",
    "exceeds quota": "runbook",
    "exit code 137": "troubleshooting",
    "fix wrong words": "outputs",
    "google sheets": "outputs",
    "graviton": "no-gpu",
    "hallucinaton": "confidence",
    "how long will it take": "no-gpu costs tasks",
    "kill -9": "troubleshooting",
    "killed": "troubleshooting",
    "kuberntes": "kubernetes-slurm-batch",
    "langauge": "languages",
    "lost my results": "outputs",
    "merge two runs": "compare outputs",
    "mp3 to text": "manifests quickstart",
    "multiple audio tracks": "manifests",
    "multiple gpus": "gpus-and-models",
    "names misspelled": "gpus-and-models",
    "nothing happens": "troubleshooting",
    "out of disk space": "troubleshooting",
    "pandas": "outputs python",
    "preempted": "kubernetes-slurm-batch costs tasks",
    "process was killed": "troubleshooting",
    "raspberry pi": "no-gpu",
    "redcat": "redact",
    "remove swear words": "redact",
    "rent a gpu": "costs",
    "repeats the same sentence": "confidence",
    "resume": "outputs quickstart",
    "right to be forgotten": "redact",
    "run --speakers": "speakers cli",
    "sagemker": "sagemaker",
    "self-signed certificate": "troubleshooting buckets",
    "sentiment analysis": "ask",
    "sha256": "outputs",
    "skip already done": "manifests outputs quickstart nightly",
    "srt out of sync": "subtitles",
    "stuck": "troubleshooting",
    "subtitels": "subtitles",
    "too slow": "troubleshooting performance",
    "train on my transcripts": "datasets",
    "trancribe": "quickstart",
    "two machines": "tasks",
    "two speakers one channel": "speakers",
    "watch a folder": "nightly listening",
    "whatsapp voice messages": "manifests",
    "which gpu do i need": "gpus-and-models",
    "who is talking": "speakers",
    "wrong language": "confidence languages",
    "wrong timestamps": "align subtitles troubleshooting outputs scoring",
}
"""Typing errors, processors, symptoms and options that people type, and the pages of which one must come first."""
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
    first = results(page, typed)[:2]
    assert set(WANTED[typed].split()) & set(first), first


@pytest.mark.slow
@pytest.mark.parametrize("typed", WANTED_FIRST)
def test_the_first_result_is_right(page: Browser, typed: str) -> None:
    """The first result of a symptom, an option or a misspelled word is the page that is about it."""
    first = results(page, typed)[0]
    assert first in WANTED_FIRST[typed].split()


def results(page: Browser, typed: str) -> list[str]:
    """Return the names of the pages that the search shows, the best one first."""
    search = "document.querySelector('.md-search__input')"
    page.evaluate(f"{search}.value = ''; {search}.dispatchEvent(new Event('keyup'))")
    page.wait(f"{RESULTS}.length === 0")
    page.evaluate(f"{search}.value = {typed!r}; {search}.dispatchEvent(new Event('keyup'))")
    page.wait(f"{RESULTS}.length > 0")
    return [Path(link.partition("#")[0].partition("?")[0]).stem for link in page.evaluate(RESULTS)]


def letters(word: str) -> str:
    """Return a search word as docs/site/search.js compares it with a query."""
    return re.sub(r"[^\w.+#]|(?<=[a-z]{3})(ing|ed|s)\b", "", word.lower())


@pytest.mark.slow
def test_a_search_word_leads_to_its_page_first(page: Browser) -> None:
    """A query that is a search word of pages has one of them as its first result, whatever else its words match. One
    word in twenty is tried.
    """
    rows = [(f"{word}", file) for file, row in yaml.safe_load(WORDS.read_text()).items() for word in row]
    wrong = []
    for word, _ in rows[::20]:
        first = results(page, word)[0]
        if f"{first}.md" not in {file for other, file in rows if letters(other) == letters(word)}:
            wrong.append((word, first))
    assert wrong == []


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
    """Commands, JSON and SQL go on in the next line, so that the copy button hides no end, also on a phone. Beside a
    screen's navigation, no other block scrolls either.
    """
    kinds = {1280: "pre", 390: ":is(.language-console, .language-sh, .language-json, .language-sql)"}
    wide = "filter((code) => code.scrollWidth > code.clientWidth + 1).map((code) => code.innerText.slice(0, 60))"
    for file in sorted(site.glob("*.html")):
        for width in (1280, 390):
            page.open(file, width)
            blocks = f"[...document.querySelectorAll('{kinds[width]} code')]"
            assert page.evaluate(f"{blocks}.{wide}") == [], (file.name, width)


@pytest.mark.slow
def test_the_copy_button_covers_no_letter_of_a_command(site: Path, page: Browser) -> None:
    """The first line of a block that wraps ends before the button, also on a phone."""
    covered = """
        [...document.querySelectorAll(":is(.language-console, .language-sh, .language-json, .language-sql) code")]
        .filter((code) => {
            const button = code.closest("pre").querySelector(".md-code__nav, .md-clipboard").getBoundingClientRect();
            const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
            const range = document.createRange();
            while (texts.nextNode()) {
                range.setStart(texts.currentNode, 0);
                range.setEnd(texts.currentNode, texts.currentNode.data.trimEnd().length);  // spaces are no letters
                const boxes = [...range.getClientRects()].filter((box) => box.width > 0 && box.right > button.left);
                if (boxes.some((box) => box.top < button.bottom && box.bottom > button.top)) return true;
            }
        }).map((code) => code.innerText.slice(0, 60))"""
    for file in sorted(site.glob("*.html")):
        for width in (1280, 390):
            page.open(file, width)
            if page.evaluate("document.querySelectorAll('pre code').length"):
                page.wait("document.querySelector('.md-code__nav, .md-clipboard') !== null")
            assert page.evaluate(covered) == [], (file.name, width)


@pytest.mark.slow
def test_a_percentage_stays_on_one_line(site: Path) -> None:
    """No line ends between a number and its sign; in code the space stays as it was typed."""
    text = (site / "confidence.html").read_text()
    assert "6.4&nbsp;%" in text
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
