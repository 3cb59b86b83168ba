"""The engine onnx-asr gives the tokens, times, confidences and text of transformers, on exports of tiny random
checkpoints of each class: for clips alone and together, in any order, and with both types of the decoder's integers.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")


onnx_asr = pytest.importorskip("onnx_asr")
import torch  # noqa: E402
from conftest import Voxbatch  # noqa: E402
from onnx_export import BLANK, PIECES, babble, export, extractor, tiny  # noqa: E402
from tokenizers import decoders  # noqa: E402

from voxbatch.engines import Engine, Feed, create  # noqa: E402
from voxbatch.errors import ConfigError  # noqa: E402
from voxbatch.onnx_asr import OnnxAsrEngine  # noqa: E402
from voxbatch.onnx_asr.folder import recognises  # noqa: E402
from voxbatch.records import Chunk, Hypothesis, Samples, Span, Word  # noqa: E402
from voxbatch.transducers.words import Vocabulary  # noqa: E402

KINDS = "ctc", "rnnt", "tdt"
SECONDS = (3.0, 1.234, 0.05, 3.5, 0.7, 2.0)
FRAME_S = 0.08
BIAS = {"ctc": 6.0, "rnnt": 12.0, "tdt": 8.0}
SEEDS = {"ctc": 3, "rnnt": 1, "tdt": 9}
"""The TDT model of this seed never has ten tokens at a frame: transformers' loop has no limit, and would not end."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A model of transformers, and the folder of its export."""

    kind: str
    model: Any
    folder: Path


def checkpoint(kind: str) -> Any:
    """Return a random model that emits tokens, some at the frame of the token before."""
    return tiny(kind, SEEDS[kind], blank_bias=BIAS[kind])


@pytest.fixture(scope="module", params=KINDS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = checkpoint(request.param)
    return Exported(request.param, model, export(model, tmp_path_factory.mktemp("onnx") / request.param))


@pytest.fixture(scope="module")
def tdt(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = checkpoint("tdt")
    return Exported("tdt", model, export(model, tmp_path_factory.mktemp("onnx") / "tdt"))


def clips(seconds: Sequence[float] = SECONDS) -> list[Samples]:
    """Return recordings that the models write tokens for."""
    return [babble(length, seed) for seed, length in enumerate(seconds)]


def transcribed(engine: Engine, samples: Sequence[Samples]) -> list[Hypothesis]:
    """Return the results of clips, in their order."""
    feed = Feed(10**9)
    for index, clip in enumerate(samples):
        feed.put(Chunk(index, 0, clip, Span(0, len(clip), 0, len(clip))))
    feed.close()
    results = [result for result in engine.stream(feed) if isinstance(result, Hypothesis)]
    assert len(results) == len(samples)
    return sorted(results, key=lambda result: result.item)


def engine_of(folder: Path, **options: str) -> OnnxAsrEngine:
    return OnnxAsrEngine(str(folder), {"watch": "false", **options})


Row = tuple[int, int, int, float]
"""Token, its frame, the frame after its last one, and its probability."""


def generated(exported: Exported, clip: Samples) -> list[Row]:
    """Return the tokens that transformers' `generate` gives for one clip."""
    model, config = exported.model, exported.model.config
    inputs = extractor(config.encoder_config.num_mel_bins)(
        [clip], sampling_rate=16_000, return_tensors="pt", return_attention_mask=True
    )
    with torch.no_grad():
        if exported.kind == "ctc":
            logits = model(**inputs).logits[0]
            mask = model._get_output_attention_mask(inputs.attention_mask, target_length=len(logits))[0]
            return list(_collapsed(model.generate(**inputs)[0][mask], logits[mask].softmax(-1), config.pad_token_id))
        size = config.vocab_size
        model.generation_config.suppress_tokens = list(range(size, size + 5)) if exported.kind == "tdt" else None
        model.generation_config.decoder_start_token_id = config.blank_token_id
        output = model.generate(**inputs, max_new_tokens=700)
    frames = int(model._get_subsampling_output_length(inputs.attention_mask.sum(-1)))
    rows, frame, chances = list[Row](), 0, _probabilities(exported, inputs, output)
    for token, duration, chance in zip(output.sequences[0, 1:], output.durations[0, 1:], chances, strict=True):
        if int(token) != config.blank_token_id and frame < frames:
            rows.append((int(token), frame, frame + (int(duration) if exported.kind == "tdt" else 1), chance))
        frame += int(duration)
    return rows


def _collapsed(ids: Any, probabilities: Any, blank: int) -> Iterator[Row]:
    start = 0
    for token, run in groupby(ids.tolist()):
        end = start + len(list(run))
        if token != blank:
            yield token, start, end, float(probabilities[start:end, token].mean())
        start = end


def _probabilities(exported: Exported, inputs: Any, output: Any) -> list[float]:
    """Return the probability of each token that was generated, by the joint network over the same states."""
    model, chances, frame = exported.model, list[float](), 0
    encoded = model.get_audio_features(inputs.input_features, inputs.attention_mask).pooler_output
    sequence, blank = output.sequences[0].tolist(), model.config.blank_token_id
    emitted = [blank]
    for token, duration in zip(sequence[1:], output.durations[0, 1:].tolist(), strict=True):
        with torch.no_grad():
            states = model.decoder(torch.tensor([emitted]))[:, -1:]
            at = encoded[:, min(frame, encoded.shape[1] - 1), None]
            logits = model.joint(encoder_hidden_states=at[:, :, None], decoder_hidden_states=states[:, None])
        chances.append(float(logits.flatten()[: model.config.vocab_size].softmax(-1)[token]))
        emitted += [token] if token != blank else []
        frame += duration
    return chances


def expected_words(rows: Sequence[Row], clip: Samples) -> tuple[Word, ...]:
    """Return the words of the tokens of transformers."""
    columns: list[Any] = [np.array(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0)] * 4
    ids, starts, ends, chances = columns
    vocabulary = Vocabulary([*PIECES, BLANK])
    return vocabulary.words(ids, starts * FRAME_S, ends * FRAME_S, chances, len(clip) / 16_000)


def decoded(rows: Sequence[Row]) -> str:
    """Return the text of the tokenizers library, without the special tokens."""
    return str(decoders.Metaspace().decode([PIECES[row[0]] for row in rows if not PIECES[row[0]].startswith("<")]))


def same(first: Sequence[Word], second: Sequence[Word]) -> bool:
    """Return whether words are equal, with confidences up to their rounding."""
    without = [[replace(word, confidence=None) for word in words] for words in (first, second)]
    pairs = zip(first, second, strict=False)
    return without[0] == without[1] and all(a.confidence == pytest.approx(b.confidence, abs=0.02) for a, b in pairs)


def test_the_tokens_are_those_of_transformers(exported: Exported) -> None:
    """Text, times and confidences of each clip equal those of `generate`, and so do the tokens behind them: some clips
    have tokens of duration 0, and the engine's clips are decoded together."""
    samples = clips()
    rows = [generated(exported, clip) for clip in samples]
    assert sum(map(len, rows)) > 20
    assert len({row[0] for clip in rows for row in clip}) > 4
    if exported.kind == "tdt":
        assert any(start == end for clip in rows for _, start, end, _ in clip)
    results = transcribed(engine_of(exported.folder), samples)
    for clip, expected, result in zip(samples, rows, results, strict=True):
        words = expected_words(expected, clip)
        assert same(result.words, words), (result.words, words)
        assert result.text.removeprefix(" ") == decoded(expected).rstrip() or not words
        assert result.text == "".join(word.text for word in words)


def test_company_and_order_change_nothing(exported: Exported) -> None:
    """A clip has the same result alone, among others, in another order, and with one thread or several."""
    samples = clips()
    together = transcribed(engine_of(exported.folder), samples)
    engine = engine_of(exported.folder, threads="1")
    alone = [transcribed(engine, [clip])[0] for clip in samples]
    backwards = transcribed(engine, samples[::-1])[::-1]
    for index, result in enumerate(together):
        assert same(result.words, alone[index].words)
        assert same(result.words, backwards[index].words)
        assert result.text == alone[index].text == backwards[index].text


@pytest.mark.parametrize("kind", ["rnnt", "tdt"])
def test_both_types_of_integers(kind: str, tmp_path: Path) -> None:
    """A decoder whose inputs are int64, as in older exports, gives the same results as one with int32."""
    model = checkpoint(kind)
    results = [
        [
            replace(result, words=())
            for result in transcribed(engine_of(export(model, tmp_path / str(i), integers=i)), clips())
        ]
        for i in (torch.int32, torch.int64)
    ]
    assert results[0] == results[1]
    assert any(result.text for result in results[0])


def test_max_symbols_end_a_frame(tmp_path: Path) -> None:
    """A TDT model that goes on at a frame moves on after the largest number of tokens, as NeMo does; transformers' own
    loop would not end."""
    model = tiny("tdt", 1, blank_bias=0.0)
    with torch.no_grad():
        model.joint.head.bias[model.config.vocab_size] += 50.0  # duration 0
        model.joint.head.bias[model.config.blank_token_id] -= 50.0
    folder = export(model, tmp_path / "model")
    (result,) = transcribed(engine_of(folder), clips([0.7]))
    frames = -(-70 // 8)
    joined = "".join(word.text for word in result.words)
    engine = engine_of(folder)
    assert joined
    network = _network(engine)
    assert len(network._tokens([network.encode(_piece(clips([0.7])[0]))])[0].ids) == 10 * frames


def _network(engine: OnnxAsrEngine) -> Any:
    transcribed(engine, clips([0.5]))
    return engine._network


def _piece(clip: Samples) -> Any:
    from voxbatch.engines.pieces import Piece

    return Piece(clip)


def test_short_and_empty_clips_have_no_text(exported: Exported) -> None:
    """Less than 25 ms never reach the network, whose features would be NaN."""
    empty = [np.zeros(0, np.float32), np.full(100, 0.5, np.float32), np.full(399, 0.5, np.float32)]
    results = transcribed(engine_of(exported.folder), [*empty, *clips([1.0])])
    assert [(result.text, result.words) for result in results[:3]] == [("", ())] * 3


def test_onnx_asr_removes_spaces_and_the_engine_does_not(exported: Exported) -> None:
    """The text keeps the spaces before signs, which onnx-asr's own text loses."""
    theirs = onnx_asr.load_model(f"nemo-conformer-{exported.kind}", exported.folder)
    texts = theirs.recognize([clip for clip in clips() if len(clip) > 1000])
    ours = [result.text.strip() for result in transcribed(engine_of(exported.folder), clips())]
    ours = [text for text, clip in zip(ours, clips(), strict=True) if len(clip) > 1000]
    without = ["".join(text.split()) for text in ours]
    hidden = ("<unk>", "<pad>")
    assert without == ["".join(_without(text, hidden).split()) for text in texts]


def _without(text: str, hidden: Sequence[str]) -> str:
    for sign in hidden:
        text = text.replace(sign, "")
    return text


def _vocabulary(edit: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "vocab.txt"
        path.write_text("".join(f"{line}\n" for line in edit(path.read_text().splitlines())))

    return change


def _config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(
            json.dumps({k: v for k, v in {**json.loads(path.read_text()), **values}.items() if v is not None})
        )

    return change


NUMBER = len(PIECES)
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "another kind": (_config(model_type="conformer"), "config.json has the model_type 'conformer'; known are gigaam-"),
    "no kind": (_config(model_type=None), "config.json has the model_type ''"),
    "no blank": (_vocabulary(lambda rows: rows[:-1]), "vocab.txt has no <blk>"),
    "a pad after blank": (
        _vocabulary(lambda rows: [*rows, f"<pad> {NUMBER + 1}"]), f"has <blk> as number {NUMBER} of {NUMBER + 2}",
    ),
    "a pad before blank": (
        _vocabulary(lambda rows: [*rows[:-1], f"<pad> {NUMBER}", f"<blk> {NUMBER + 1}"]),
        f"gives {NUMBER + 6} scores, and vocab.txt and config.json have {NUMBER + 2} tokens and 5 durations",
    ),
    "a line less": (
        _vocabulary(lambda rows: [*rows[: NUMBER - 1], f"<blk> {NUMBER - 1}"]), f"gives {NUMBER + 6} scores",
    ),
    "a hole": (_vocabulary(lambda rows: rows[1:]), "whose numbers are not 0 to"),
    "words for numbers": (_vocabulary(lambda rows: [*rows, "one two"]), "vocab.txt is no list of pieces"),
    "other durations": (_config(durations=[0, 1, 2, 4]), f"{NUMBER + 1} tokens and 4 durations [0, 1, 2, 4]"),
    "an rnnt": (_config(model_type="nemo-conformer-rnnt"), f"vocab.txt and config.json have {NUMBER + 1} tokens; "),
    "other features": (_config(features_size=128), "takes 80 features, and config.json says features_size 128"),
    "unknown features": (_config(features_size=64), "features_size 64; onnx-asr computes 80 or 128"),
    "another subsampling": (_config(subsampling_factor=4), "gives 13 frames for a second, and config.json's"),
    "no decoder": (lambda folder: (folder / "decoder_joint-model.onnx").unlink(), "no files for quantization=auto;"),
    "no vocabulary": (lambda folder: (folder / "vocab.txt").unlink(), "has one vocab.txt; seen: none"),
    "no network": (
        lambda folder: (folder / "encoder-model.onnx").write_text("<html>"), "cannot load it as nemo-conformer-tdt",
    ),
    "8 khz": (_config(model_type="t-one-ctc"), "T-one takes audio at 8,000 Hz"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_folders_are_refused(case: str, tdt: Exported, tmp_path: Path) -> None:
    """A folder whose files contradict each other gives an error before the first chunk, never a text."""
    change, message = WRONG[case]
    folder = tmp_path / "model"
    shutil.copytree(tdt.folder, folder)
    change(folder)
    with pytest.raises(ConfigError) as refused:
        transcribed(engine_of(folder), clips([1.0]))
    assert message in str(refused.value)


def test_other_durations_are_looked_up(tdt: Exported, tmp_path: Path) -> None:
    """The frames that a token takes are those that config.json lists, not their places in the list."""
    folder = tmp_path / "model"
    shutil.copytree(tdt.folder, folder)
    _config(durations=[0, 1, 2, 4, 8])(folder)
    plain, other = (transcribed(engine_of(path), clips([3.0]))[0] for path in (tdt.folder, folder))
    assert plain.text != other.text
    assert other.text


def test_weights_beside_the_network(tdt: Exported, tmp_path: Path) -> None:
    """Weights of more than 2 GB are in a file beside the network. Without it, the error names it."""
    import onnx

    folder = tmp_path / "model"
    shutil.copytree(tdt.folder, folder)
    network = onnx.load(folder / "encoder-model.onnx")
    onnx.save(
        network,
        folder / "encoder-model.onnx",
        save_as_external_data=True,
        location="encoder-model.onnx.data",
        size_threshold=0,
    )
    assert transcribed(engine_of(folder), clips()) == transcribed(engine_of(tdt.folder), clips())
    fingerprint = engine_of(folder).spec.decoding
    with (folder / "encoder-model.onnx.data").open("r+b") as file:
        file.write(b"\1" * 64)
    assert engine_of(folder).spec.decoding != fingerprint
    (folder / "encoder-model.onnx.data").unlink()
    with pytest.raises(ConfigError, match=r"Copy the model again with all its files, the \.onnx\.data"):
        transcribed(engine_of(folder), clips())


def test_files_in_8_bits(tdt: Exported, tmp_path: Path) -> None:
    """`quantization` chooses the files, `auto` takes 8 bits if they are there, and then no clip has more than 20 s. A
    clip has the same text alone and among others, though its numbers have one scale."""
    from onnxruntime.quantization import quantize_dynamic

    folder = tmp_path / "model"
    shutil.copytree(tdt.folder, folder)
    assert engine_of(folder).spec.decoding["quantization"] == "float32"
    with pytest.raises(ConfigError, match=r"quantization=int8; it has the files of float32, with \.int8 before"):
        engine_of(folder, quantization="int8")
    for name in ("encoder-model", "decoder_joint-model"):
        quantize_dynamic(folder / f"{name}.onnx", folder / f"{name}.int8.onnx")
    engine = engine_of(folder)
    assert engine.spec.decoding["quantization"] == "int8"
    assert engine.spec.max_chunk_samples == 20 * 16_000
    assert engine_of(folder, quantization="float32").spec.max_chunk_samples == 30 * 16_000
    together = transcribed(engine, clips())
    assert together == [replace(transcribed(engine, [clip])[0], item=i) for i, clip in enumerate(clips())]
    assert any(result.text for result in together)


def test_a_folder_is_recognised_by_its_names(exported: Exported, tmp_path: Path) -> None:
    """The names of the files tell the folder of onnx-asr from others."""
    assert recognises(exported.folder)
    (tmp_path / "config.json").write_text('{"model_type": "parakeet_tdt"}')
    (tmp_path / "model.safetensors").touch()
    assert not recognises(tmp_path)
    (tmp_path / "model.onnx").touch()
    (tmp_path / "vocab.json").touch()
    assert not recognises(tmp_path)


def test_a_suspect_text_is_decoded_again(tmp_path: Path) -> None:
    """A model writes nothing over sounds like speech: the chunk is decoded again in two halves, and keeps a flag."""
    folder = export(tiny("ctc", 3, blank_bias=1000.0), tmp_path / "model")
    (result,) = transcribed(OnnxAsrEngine(str(folder), {}), clips([12.0]))
    assert [flag.kind for flag in result.flags] == ["lost_speech"]
    assert ["decoded again in two halves" in warning for warning in result.warnings] == [True]
    (unwatched,) = transcribed(engine_of(folder), clips([12.0]))
    assert (unwatched.flags, unwatched.warnings) == (result.flags, ())


def write_recordings(folder: Path, seconds: Sequence[float]) -> Path:
    import soundfile

    rows = []
    for index, clip in enumerate(clips(seconds)):
        soundfile.write(folder / f"{index}.wav", clip, 16_000)
        rows.append({"audio_filepath": f"{index}.wav"})
    (folder / "m.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder / "m.jsonl"


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]


def test_a_run_has_word_times_and_resumes(tdt: Exported, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`voxbatch run --engine onnx-asr` writes words with times and confidences; the same command again does nothing."""
    source = write_recordings(tmp_path, [2.0, 3.0, 1.0])
    engine = ("--engine", "onnx-asr", "--model", tdt.folder, "--engine-option", "watch=false")
    command = ("run", source, "-o", tmp_path / "out", *engine)
    done = voxbatch(*command)
    assert done.returncode == 0, done.stderr
    lines = lines_of(tmp_path / "out")
    words = [word for line in lines for word in line["words"]]
    assert words
    assert all(0 <= word["start"] <= word["end"] <= 3.0 and 0 <= word["confidence"] <= 1 for word in words)
    again = voxbatch(*command)
    assert again.returncode == 0, again.stderr
    assert lines_of(tmp_path / "out") == lines


def test_a_killed_engine_changes_nothing(tdt: Exported, tmp_path: Path) -> None:
    """The engine runs in a process of its own. When that process is killed, the results are the same."""
    import os
    import signal

    samples = clips([2.0, 3.0, 1.0, 2.5] * 4)
    expected = transcribed(engine_of(tdt.folder), samples)
    with closing(create("onnx-asr", str(tdt.folder), {"watch": "false", "threads": "1"})) as engine:
        feed, results = Feed(10**9), list[Hypothesis]()
        for index, clip in enumerate(samples):
            feed.put(Chunk(index, 0, clip, Span(0, len(clip), 0, len(clip))))
        feed.close()
        killed = threading.Event()
        for result in engine.stream(feed):
            if isinstance(result, Hypothesis):
                results.append(result)
                if not killed.is_set():
                    killed.set()
                    os.kill(engine.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert sorted(results, key=lambda result: result.item) == expected


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export of the real Whisper tiny."""
    import whisper_tiny
    from onnx_export import export_whisper

    try:
        directory = whisper_tiny.whisper_tiny(whisper_tiny.default_cache())
    except whisper_tiny.UnavailableError as e:
        pytest.skip(str(e))
    return export_whisper(directory, tmp_path_factory.mktemp("whisper") / "onnx")


def test_english_only_whisper_begins_as_it_learnt(tmp_path: Path) -> None:
    """A Whisper that knows English only gets neither a language nor a task: its text is that of transformers after
    the two tokens with which openai/whisper begins."""
    from onnx_export import export_whisper
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    end, start, untimed, size = 50_256, 50_257, 50_362, 51_864
    words = {"".join(chr(97 + number // 26**place % 26) for place in range(4)): number for number in range(end)}
    control = {
        end: "endoftext",
        start: "startoftranscript",
        50_258: "en",
        50_358: "transcribe",
        untimed: "notimestamps",
    }
    added = [{"content": f"<|{name}|>", "id": number} for number, name in control.items()]
    others = set(range(end, size)) - set(control)
    added += [{"content": f"<|{number}|>", "id": number} for number in sorted(others)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": added}))
    torch.manual_seed(1)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
    config = WhisperConfig(vocab_size=size, **layers, **heads, pad_token_id=end, eos_token_id=end, bos_token_id=end)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.normal_(0, 1.0)
    model.save_pretrained(tmp_path)
    engine = engine_of(export_whisper(tmp_path, tmp_path / "onnx"))
    assert engine.spec.only_language == "en"
    (clip,) = clips([2.0])
    (result,) = transcribed(engine, [clip])
    features = WhisperFeatureExtractor(feature_size=80)(
        [clip], sampling_rate=16_000, return_tensors="pt"
    ).input_features
    ids = [start, untimed]
    with torch.no_grad():
        while len(ids) < 12:
            logits = model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits
            ids.append(int(logits[0, -1].argmax()))
    names = {number: word for word, number in words.items()}
    assert len(set(ids[2:])) > 1
    assert result.text.startswith("".join(names.get(number, "") for number in ids[2:]))


def test_real_whisper_writes_what_is_said(whisper: Path, corpus: Path) -> None:
    """Whisper tiny, with real weights, writes about the words of the references in three languages, if it is told the
    language and if it is not. Clips change nothing for each other, however loud they are."""
    import soundfile
    import soxr
    from rapidfuzz import fuzz, utils

    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    said, feed = list[str](), Feed(10**9)
    for lang in ("en", "de", "fr"):
        row = next(
            row
            for row in rows
            if row["lang"] == lang and 4 < row["duration"] < 12 and row["audio_filepath"].endswith(("flac", "wav"))
        )
        recorded, rate = soundfile.read(corpus / "speech" / row["audio_filepath"], dtype="float32", always_2d=True)
        samples = soxr.resample(recorded[:, 0], rate, 16_000)
        for told, gain in ((lang, 1.0), (None, 0.1)):
            span = Span(0, len(samples), 0, len(samples))
            feed.put(Chunk(len(said), 0, (samples * gain).astype(np.float32), span, told))
            said.append(row["text"])
    feed.close()
    engine = engine_of(whisper)
    assert (engine.spec.word_times, engine.spec.uses_language, engine.spec.knows("de")) == (False, True, True)
    results = sorted(
        (result for result in engine.stream(feed) if isinstance(result, Hypothesis)), key=lambda result: result.item
    )
    assert [result.language for result in results] == ["en", None, "de", None, "fr", None]
    for result, text in zip(results, said, strict=True):
        assert fuzz.ratio(result.text, text, processor=utils.default_process) > 60, (result.text, text)
