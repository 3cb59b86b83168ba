"""Record what NVIDIA NeMo 3.0 gives for the tiny models of `tiny_weights`, as `nemo_reference.json` beside this file.

Run it in an environment of Python 3.11 with NeMo's ASR collection and PyTorch for CPUs. No model is needed. The table
was made with these packages; `nemo_toolkit[asr]` asks for more, which decoding does not import:

    pip install torch==2.13.0
    pip install --no-deps nemo_toolkit==3.0.0
    pip install torch==2.13.0 "hydra-core<=1.3.2" "omegaconf<=2.3" "lightning<=2.4.0" "sentencepiece<1" torchmetrics
    pip install torch==2.13.0 wrapt einops braceexpand soundfile scipy librosa editdistance text-unidecode onnx
    pip install torch==2.13.0 smart-open lhotse kaldialign sacrebleu whisper_normalizer pandas scikit-learn webdataset
    pip install torch==2.13.0 datasets transformers nv_one_logger_core nv_one_logger_training_telemetry
    pip install torch==2.13.0 nv_one_logger_pytorch_lightning_integration
    python tests/support/engine_vllm/nemo_reference.py

The table has the tokens, start frames, durations, scores and confidences of NeMo's greedy batched decoding (label
looping, max_symbols=10) for clips alone and in a batch; the whole way from samples to tokens; and what `save_to` writes
into an archive. The script refuses to write a table that lacks one of the cases that it is for.
"""

from __future__ import annotations

import json
import logging
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nemo_archives import nemo_config, nemo_weights, sentencepiece_model
from tiny_weights import (
    BLANK,
    DURATIONS,
    HIDDEN,
    PIECES,
    SEEDS,
    Architecture,
    Array,
    audio,
    encoder_outputs,
    tiny_model,
)

TABLE = Path(__file__).with_suffix(".json")
MAX_SYMBOLS = 10
MIN_MARGIN = 0.005
"""Least difference of the two best logits in any step, so that another machine's rounding changes no token."""
NUM_VALUES = 6
"""Values of the encoder's output that are recorded: the first ones of the first and of the last frame."""


def main() -> None:
    """Write the table."""
    import nemo
    import torch
    from nemo.utils import logging as nemo_logging

    nemo_logging.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    architectures: tuple[Architecture, ...] = ("tdt", "rnnt", "ctc")
    table = {
        "versions": {"nemo_toolkit": nemo.__version__, "torch": torch.__version__, "numpy": np.__version__},
        "decoding": {"tdt": decoded("tdt"), "rnnt": decoded("rnnt")},
    }
    with tempfile.TemporaryDirectory() as folder:
        models = {name: nemo_model(name, Path(folder)) for name in (*architectures, "hybrid")}
        table["whole"] = {name: whole_way(name, models[name]) for name in architectures}
        table["archives"] = {name: archive(model, Path(folder)) for name, model in models.items()}
    check(table["decoding"])
    for architecture, result in table["whole"].items():
        assert result["margin"] >= MIN_MARGIN, f"{architecture}: two logits differ by {result['margin']} only"
        assert any({*clip.get("ids", clip.get("tokens"))} - {BLANK} for clip in result["clips"]), architecture
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    TABLE.write_text(text.replace('},{"', '},\n{"').replace(':[{"', ':[\n{"').replace('":{"', '":\n{"') + "\n")
    print(f"{TABLE}: {TABLE.stat().st_size:,} bytes", file=sys.stderr)


def decoded(architecture: Architecture) -> dict[str, Any]:
    """Return the results of the clips, alone and in a batch."""
    decoder, joint = networks(architecture)
    clips = encoder_outputs(SEEDS[architecture])
    confidence = {"preserve_frame_confidence": True, "exclude_blank_from_confidence": True}
    linear = {**confidence, "confidence_method_cfg": {"name": "max_prob", "alpha": 1.0}}
    default = {**confidence, "confidence_method_cfg": {"name": "max_prob"}}
    batch = infer(architecture, decoder, joint, clips)
    results = []
    for clip, together in zip(clips, batch, strict=True):
        (alone,) = infer(architecture, decoder, joint, [clip])
        assert tokens_of(alone) == tokens_of(together), "tokens or frames depend on the company"
        result: dict[str, Any] = {"frames": len(clip), **tokens_of(alone)}
        if architecture == "tdt":
            result["durations"] = alone.token_duration.tolist()
            if (others := together.token_duration.tolist()) != result["durations"]:
                result["durations_in_batch"] = others
            (pairs,) = infer(architecture, decoder, joint, [clip], **linear, include_duration_confidence=True)
            result["duration_confidences"] = rounded(pair[1] for pair in confidences(pairs))
        result["score"] = round(alone.score, 4)
        joint.log_softmax = False  # as NeMo does on a GPU
        result["score_of_logits"] = round(infer(architecture, decoder, joint, [clip])[0].score, 4)
        joint.log_softmax = None
        for key, options in (("confidences", linear), ("confidences_of_default", default)):
            (other,) = infer(architecture, decoder, joint, [clip], **options)
            assert tokens_of(other) == tokens_of(alone), "tokens depend on the confidence"
            result[key] = rounded(confidences(other))
        result["steps"] = steps(architecture, decoder, joint, clip)
        results.append(result)
    margin = min(step.pop("margin") for result in results for step in result["steps"])
    for result in results:
        written = [step["frame"] for step in result["steps"] if step["token"] != BLANK]
        assert written == result["starts"], "the steps are not those of the result"
        result["steps"] = [[step[key] for key in ("frame", "token", "duration")] for step in result["steps"]]
    return {"seed": SEEDS[architecture], "margin": round(margin, 4), "clips": results}


def infer(architecture: Architecture, decoder: Any, joint: Any, clips: Sequence[Array], **options: Any) -> list[Any]:
    """Return NeMo's hypotheses of clips."""
    import torch
    from nemo.collections.asr.parts.submodules import rnnt_greedy_decoding as greedy

    options |= {
        "decoder_model": decoder,
        "joint_model": joint,
        "blank_index": BLANK,
        "max_symbols_per_step": MAX_SYMBOLS,
    }
    if architecture == "tdt":
        decoding = greedy.GreedyBatchedTDTInfer(durations=list(DURATIONS), include_duration=True, **options)
    else:
        decoding = greedy.GreedyBatchedRNNTInfer(**options)
    frames = torch.zeros(len(clips), HIDDEN, max(map(len, clips)))
    for row, clip in zip(frames, clips, strict=True):
        row[:, : len(clip)] = torch.from_numpy(clip).T
    lengths = torch.tensor([len(clip) for clip in clips])
    hypotheses: list[Any] = decoding(encoder_output=frames, encoded_lengths=lengths)[0]
    return hypotheses


def networks(architecture: Architecture) -> tuple[Any, Any]:
    """Return NeMo's prediction network and joint network of a tiny model."""
    import torch
    from nemo.collections.asr.modules import RNNTDecoder, RNNTJoint

    model = tiny_model(architecture)
    config, weights = nemo_config(model), nemo_weights(model)
    found = []
    for name, cls in (("decoder", RNNTDecoder), ("joint", RNNTJoint)):
        network = cls(**{key: value for key, value in config[name].items() if key != "_target_"}).eval()
        own = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
        network.load_state_dict({key: torch.from_numpy(value) for key, value in own.items()})
        found.append(network)
    return found[0], found[1]


def tokens_of(hypothesis: Any) -> dict[str, list[int]]:
    """Return the tokens of a hypothesis and the frames where they begin."""
    return {"tokens": hypothesis.y_sequence.tolist(), "starts": hypothesis.timestamp.tolist()}


def confidences(hypothesis: Any) -> list[Any]:
    """Return the confidences of the tokens of a hypothesis."""
    values: list[Any] = hypothesis.non_blank_step_confidence_precomputed
    return values


def rounded(values: Any) -> list[float]:
    """Return numbers with four digits after the point."""
    return [round(float(value), 4) for value in values]


def steps(architecture: Architecture, decoder: Any, joint: Any, clip: Array) -> list[dict[str, Any]]:
    """Return all steps of a clip, with those of blanks: what the joint network prefers, and by how much."""
    (hypothesis,) = infer(architecture, decoder, joint, [clip], preserve_alignments=True)
    found = []
    frame = 0
    for at_frame in hypothesis.alignments:  # of the frames that are looked at
        duration = 0
        for logits, label in at_frame:
            best = logits[: BLANK + 1].topk(2).values
            margin = float(best[0] - best[1])
            if architecture == "tdt":
                best = logits[BLANK + 1 :].topk(2).values
                margin = min(margin, float(best[0] - best[1]))
                duration = DURATIONS[int(logits[BLANK + 1 :].argmax())]
            found.append({"frame": frame, "token": int(label), "duration": duration, "margin": margin})
        frame += max(duration, 1)
    return found


def nemo_model(name: str, folder: Path) -> Any:
    """Return NeMo's whole model with the weights of a tiny model, or a hybrid one with those of the TDT."""
    import torch
    from nemo.collections.asr import models
    from omegaconf import OmegaConf

    tiny = tiny_model("tdt" if name == "hybrid" else name)  # type: ignore[arg-type]
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "tokenizer.model").write_bytes(sentencepiece_model())
    (tokenizer / "vocab.txt").write_text("\n".join(PIECES[1:]))
    config = nemo_config(tiny, is_hybrid=name == "hybrid")
    config["tokenizer"] = {"dir": str(tokenizer), "type": "bpe"}
    cls = getattr(models, config["target"].rpartition(".")[2])
    model = cls(cfg=OmegaConf.create(config)).eval()
    weights = {key: torch.from_numpy(value) for key, value in nemo_weights(tiny).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all(key.startswith(("preprocessor.", "ctc_decoder.")) for key in missing), missing
    return model


def whole_way(architecture: Architecture, model: Any) -> dict[str, Any]:
    """Return the results from samples to tokens of clips in one batch."""
    import torch

    clips = audio()
    samples = torch.zeros(len(clips), max(map(len, clips)))
    for row, clip in zip(samples, clips, strict=True):
        row[: len(clip)] = torch.from_numpy(clip)
    lengths = torch.tensor([len(clip) for clip in clips])
    with torch.no_grad():
        features, num_features = model.preprocessor(input_signal=samples, length=lengths)
        encoded, num_frames = model.encoder(audio_signal=features, length=num_features)
    results, margins = [], []
    for index, count in enumerate(num_frames.tolist()):
        clip_features, frames = features[index, :, : num_features[index]], encoded[index, :, :count]
        result: dict[str, Any] = {
            "samples": len(clips[index]),
            "features": int(num_features[index]),
            "features_begin": rounded(clip_features[:NUM_VALUES, 0]),
            "features_end": rounded(clip_features[:NUM_VALUES, -1]),
            "frames": count,
            "encoded_begin": rounded(frames[:NUM_VALUES, 0]),
            "encoded_end": rounded(frames[:NUM_VALUES, -1]),
        }
        if architecture == "ctc":
            with torch.no_grad():
                scores = model.decoder(encoder_output=encoded[index : index + 1, :, :count])[0]
            result["ids"] = scores.argmax(-1).tolist()
            margins += [float(best[0] - best[1]) for best in scores.topk(2).values]
        else:
            clip = frames.T.contiguous().numpy()
            (hypothesis,) = infer(architecture, model.decoder, model.joint, [clip])
            margins += [step["margin"] for step in steps(architecture, model.decoder, model.joint, clip)]
            result |= tokens_of(hypothesis)
            if architecture == "tdt":
                result["durations"] = hypothesis.token_duration.tolist()
        results.append(result)
    return {"seed": SEEDS[architecture], "margin": round(min(margins), 4), "clips": results}


def archive(model: Any, folder: Path) -> dict[str, Any]:
    """Return the members of the archive that NeMo writes, its configuration without the vocabulary, and the names and
    shapes of its tensors after the encoder."""
    import torch
    import yaml

    path = folder / "model.nemo"
    model.save_to(str(path))
    with tarfile.open(path, "r:") as tar:
        names = [member.name.rpartition("_")[2] if "_" in member.name[34:] else member.name for member in tar]
        config = yaml.safe_load(tar.extractfile("./model_config.yaml"))  # type: ignore[arg-type]
        state = torch.load(tar.extractfile("./model_weights.ckpt"), weights_only=True)
    config["tokenizer"] = {key: str(value).rpartition("_")[2] for key, value in config["tokenizer"].items()}
    return {
        "members": sorted(names),
        "config": without_vocabulary(config),
        "state": {name: list(value.shape) for name, value in state.items() if not name.startswith("encoder.")},
        "encoder": sum(name.startswith("encoder.") for name in state),
    }


def without_vocabulary(config: Any) -> Any:
    """Return a configuration without its lists of pieces, and without what NeMo adds for decoding and training."""
    if not isinstance(config, dict):
        return config
    left_out = ("vocabulary", "labels", "decoding", "aux_ctc", "dir", "spec_augment")
    return {key: without_vocabulary(value) for key, value in config.items() if key not in left_out}


def check(results: dict[str, Any]) -> None:
    """Refuse a table without the cases that it is for."""
    for architecture, result in results.items():
        clips = result["clips"]
        counts = [clip["starts"].count(frame) for clip in clips for frame in set(clip["starts"])]
        assert result["margin"] >= MIN_MARGIN, f"{architecture}: two logits differ by {result['margin']} only"
        assert max(counts) == MAX_SYMBOLS, f"{architecture}: no frame reaches the limit"
        assert any(1 < count < MAX_SYMBOLS for count in counts), f"{architecture}: no frame has a few tokens"
        assert any(clip["frames"] == 1 for clip in clips), f"{architecture}: no clip of one frame"
        assert any(clip["tokens"] for clip in clips)
        assert any(not clip["tokens"] for clip in clips), f"{architecture}: no clip without a token"
    clips = results["tdt"]["clips"]
    all_steps = [step for clip in clips for step in clip["steps"]]
    assert any(token != BLANK and duration == 0 for _, token, duration in all_steps), "no token of duration 0"
    assert any(token == BLANK and duration == 0 for _, token, duration in all_steps), "no blank of duration 0"
    ends = [(clip["starts"][-1] + clip["durations"][-1], clip["frames"]) for clip in clips if clip["tokens"]]
    assert any(end > frames for end, frames in ends), "no clip ends in the middle of a duration"
    assert any("durations_in_batch" in clip for clip in clips), "NeMo's durations in a batch are those of clips alone"


if __name__ == "__main__":
    main()
