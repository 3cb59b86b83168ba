"""One family serves every class of vLLM that transcribes, with the tokens and texts of vLLM's own endpoint."""

from __future__ import annotations

import json
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import babble
from warm_python import run_code

from voxbatch.audio.waveforms import decode
from voxbatch.errors import ConfigError
from voxbatch.storage import Stores
from voxbatch.text.chunking import cut_into_chunks
from voxbatch.vllm.engine.model import locate

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WINDOW = 480_000
OPTIONS = ("dtype=float32", "enforce_eager=true", "watch=false", "confidence=false", "max_num_seqs=4", "restarts=0")


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("GlmAsrForConditionalGeneration", "transformers"),
        pytest.param("GraniteSpeechForConditionalGeneration", "torchaudio", marks=pytest.mark.long),
        pytest.param("Qwen3ASRForConditionalGeneration", "torchvision", marks=pytest.mark.long),
        pytest.param("voxtral", "transformers", marks=pytest.mark.long),
    ],
)
def test_the_family_gives_the_text_of_vllms_endpoint(
    model: str, needs: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In float32 the tokens and the text of each clip equal those of /v1/audio/transcriptions, for a tiny random
    checkpoint. The texts differ from clip to clip."""
    from engine_runs import with_engine

    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed, which this class needs")
    clips = {f"{seconds}": babble(seconds, seed) for seed, seconds in enumerate((1.3, 0.6, 6.0, 17.7))}
    folder = request.getfixturevalue(model) if model.islower() else tmp_path / model
    options = (*OPTIONS, "max_model_len=896")  # random models write up to the end of the context
    results = with_engine(tmp_path, "endpoint.transcribe_both_ways", folder, clips, "de", options=options)
    _check_equality(results["generic"], results["endpoint"])
    assert len({tuple(tokens) for tokens in results["generic"]["tokens"].values()}) == len(clips)


def test_real_words_are_those_of_the_endpoint_and_of_the_own_family(corpus: Path, tmp_path: Path) -> None:
    """With Whisper's real weights, recordings in three languages that nobody names get the text of vLLM's endpoint, and
    the words that voxbatch's own family for Whisper gives."""
    import whisper_tiny
    from engine_runs import with_engine

    try:
        model = whisper_tiny.whisper_tiny(whisper_tiny.default_cache())
    except whisper_tiny.UnavailableError as e:
        pytest.skip(str(e))
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    clips = {}
    for lang in ("fr", "de", "en"):
        row = next(row for row in rows if row["lang"] == lang and 5 < row["duration"] < 12)
        path = str(corpus / "speech" / row["audio_filepath"])
        with closing(Stores().recording(path)) as recording:
            clips[lang] = np.concatenate(
                [samples for samples, _ in cut_into_chunks(decode(recording, path), WINDOW, 0)]
            )
    results = with_engine(tmp_path, "endpoint.transcribe_both_ways", model, clips, None, options=OPTIONS)
    _check_equality(results["generic"], results["endpoint"])
    assert _words(results["generic"]) == _words(results["own"])
    assert all(len(words) > 5 for words in _words(results["own"]).values())


def _check_equality(generic: dict[str, Any], endpoint: dict[str, Any]) -> None:
    assert generic["failures"] == {}
    assert generic["tokens"] == endpoint["tokens"]
    assert _words(generic) == _words(endpoint)


def _words(results: dict[str, Any]) -> dict[str, list[str]]:
    return {name: text.split() for name, text in results["texts"].items()}


def test_the_classes_are_those_that_vllm_calls_transcribing(tmp_path: Path) -> None:
    """vLLM itself says so of the classes of the table, and of no other one whose source names its interface, as far as
    the installed packages allow to import them."""
    run_code(
        """
import importlib.util
from pathlib import Path
from vllm.model_executor.models.interfaces import supports_transcription
from vllm.model_executor.models.registry import ModelRegistry
from voxbatch.vllm.engine.model import TRANSCRIBING
imported = []
for name, model in ModelRegistry.models.items():
    source = Path(importlib.util.find_spec(model.module_name).origin).read_text()
    if name not in TRANSCRIBING and "SupportsTranscription" not in source and "Qwen3ASR" not in source:
        continue
    try:
        transcribes = supports_transcription(model.load_model_cls())
    except ImportError:
        continue
    imported.append(name)
    assert bool(transcribes) == (name in TRANSCRIBING or name.startswith(("Voxtral", "Whisper"))), name
assert len({*imported} & {*TRANSCRIBING}) > 5, imported
""",
        tmp_path,
    )


def test_a_recording_whose_result_depends_on_company_is_encoded_alone(tmp_path: Path) -> None:
    """vLLM encodes all recordings of a step together. Each one of Granite Speech, and of some other classes, has a
    group of its own, and so has a recording of Qwen3-ASR of less than a second. The order is kept."""
    run_code(
        """
from types import SimpleNamespace
import torch
from vllm.model_executor.models.registry import ModelRegistry
from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem
from vllm.v1.worker import gpu_model_runner
from voxbatch.vllm.engine.model import TRANSCRIBING
from voxbatch.vllm.plugin.patches import group_and_batch_mm_kwargs as patch

FRAMES = [40, 250, 300, 99, 99, 100]
BATCHED = MultiModalBatchedField(keep_on_cpu=True)
items = [("audio", MultiModalKwargsItem(audio_feature_lengths=MultiModalFieldElem(torch.tensor(frames), BATCHED)))
         for frames in FRAMES]
together, alone, short_alone = [6], [1] * 6, [1, 2, 1, 1, 1]
expected = {
    "CohereAsrForConditionalGeneration": together, "FireRedASR2ForConditionalGeneration": together,
    "FunASRForConditionalGeneration": alone, "Gemma3nForConditionalGeneration": alone,
    "GlmAsrForConditionalGeneration": together, "GraniteSpeechForConditionalGeneration": alone,
    "GraniteSpeechPlusForConditionalGeneration": alone, "MoonshotKimiaForCausalLM": alone,
    "MossTranscribeDiarizeForConditionalGeneration": together, "Qwen3ASRForConditionalGeneration": short_alone,
    "Qwen3ASRRealtimeGeneration": short_alone, "Qwen3OmniMoeForConditionalGeneration": short_alone,
    "WhisperForConditionalGeneration": together,
}
assert {*TRANSCRIBING} <= {*expected}
vllms, checked = gpu_model_runner.group_and_batch_mm_kwargs, []
for name, sizes in expected.items():
    try:
        kind = ModelRegistry.models[name].load_model_cls()
    except ImportError:
        continue
    model = kind.__new__(kind)
    object.__setattr__(model, "audio_tower", SimpleNamespace(n_window=50))
    gpu_model_runner.group_and_batch_mm_kwargs = vllms
    patch.replace(model)
    groups = [*gpu_model_runner.group_and_batch_mm_kwargs(items, device=torch.device("cpu"))]
    assert [size for _, size, _ in groups] == sizes, name
    assert torch.cat([batch["audio_feature_lengths"] for _, _, batch in groups]).tolist() == FRAMES, name
    checked.append(name)
assert "GraniteSpeechPlusForConditionalGeneration" in checked and len(checked) > 5, checked
""",
        tmp_path,
    )


def test_other_models_than_whisper_get_their_start_token_from_vllm(tmp_path: Path) -> None:
    """vLLM puts the start token before a prompt, unless a class does so itself. voxbatch changes this for Whisper."""
    run_code(
        """
from vllm.model_executor.models.whisper import WhisperMultiModalProcessor
from vllm.multimodal.processing import EncDecMultiModalProcessor
from voxbatch.vllm.plugin.patches import skip_decoder_start_token
skip_decoder_start_token.add_no_start_token()
assert WhisperMultiModalProcessor.skip_decoder_start_token
assert not EncDecMultiModalProcessor.skip_decoder_start_token
""",
        tmp_path,
    )


def test_a_model_that_cannot_transcribe_is_refused_with_those_that_can(tmp_path: Path) -> None:
    """The refusal comes before anything is loaded, and names the classes of the installed vLLM."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ConfigError, match=r"is LlamaForCausalLM; .* CohereAsrForConditionalGeneration, .*Qwen3ASRFor"):
        locate(str(tmp_path), None)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ASRForConditionalGeneration"]}))
    assert locate(str(tmp_path), None).family == "transcription"


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="the package that shall be missing is installed")
def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """A class that needs a package that is not installed is refused before anything is loaded, with the package."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ASRForConditionalGeneration"]}))
    run_code(
        f"""
from voxbatch.engines import create
from voxbatch.errors import ConfigError
try:
    create("vllm", {str(tmp_path)!r}, {{}})
except ConfigError as e:
    assert "No module named 'torchvision'" in str(e), e
else:
    raise AssertionError("it was not refused")
""",
        tmp_path,
    )
