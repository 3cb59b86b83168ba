"""The recorded table of NeMo 3.0 means what it says: transformers' networks with the same weights prefer each of its
steps, and transformers' `generate` gives the same tokens and durations wherever its rules are NeMo's.

The rules differ in one point. After ten tokens at one frame, NeMo goes on to the next frame. transformers' RNN-T does
the same; its TDT has no limit. transformers gives no scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nemo_reference
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from nemo_archives import nemo_config, nemo_weights
from tiny_weights import BLANK, DURATIONS, Architecture, Array, audio, encoder_outputs, tiny_model

pytestmark = [pytest.mark.slow]

TABLE = json.loads(Path(nemo_reference.__file__).with_suffix(".json").read_text())
LIMIT = 10
TRANSDUCERS: tuple[Architecture, ...] = ("tdt", "rnnt")
Steps = list[list[int]]
"""The steps of a clip: frame, token or blank, and the preferred duration."""


def network(architecture: Architecture) -> Any:
    """Return transformers' model with the weights of the table."""
    import transformers

    model = tiny_model(architecture)
    cls = getattr(transformers, f"ParakeetFor{architecture.upper()}")
    found = cls(cls.config_class(**model.config)).eval()
    found.load_state_dict({name: torch.from_numpy(values) for name, values in model.weights.items()})
    return found


def generated(model: Any, architecture: Architecture, features: torch.Tensor, mask: torch.Tensor) -> list[Steps]:
    """Return the steps of transformers' `generate` for each clip, each cut at its end."""
    options: dict[str, Any] = {"decoder_start_token_id": BLANK, "max_new_tokens": LIMIT * features.shape[1]}
    if architecture == "tdt":
        options["suppress_tokens"] = [*range(BLANK + 1, BLANK + 1 + len(DURATIONS))]
    output = model.generate(features, attention_mask=mask, **options)
    lengths = model._get_output_attention_mask(mask).sum(-1).tolist()
    rows = []
    for tokens, moves, length in zip(output.sequences, output.durations, lengths, strict=True):
        steps, frame = [], 0
        for token, move in zip(tokens[1:].tolist(), moves[1:].tolist(), strict=True):
            if frame >= length:
                break
            steps.append([frame, token, move])
            frame += move
        rows.append(steps)
    return rows


def decoded(architecture: Architecture, clips: Sequence[Array]) -> list[Steps]:
    """Return the steps of `generate` for given outputs of the encoder."""
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput

    def given(input_features: torch.Tensor, attention_mask: torch.Tensor, **_: object) -> object:
        return ParakeetEncoderModelOutput(last_hidden_state=input_features, attention_mask=attention_mask)

    model = network(architecture)
    model.encoder.forward = given
    model.encoder._get_subsampling_output_length = lambda lengths: lengths
    model._get_output_attention_mask = lambda mask: mask
    frames = torch.zeros(len(clips), max(map(len, clips)), clips[0].shape[1])
    mask = torch.zeros(frames.shape[:2], dtype=torch.long)
    for row, valid, clip in zip(frames, mask, clips, strict=True):
        row[: len(clip)], valid[: len(clip)] = torch.from_numpy(clip), 1
    return generated(model, architecture, frames, mask)


def recorded(architecture: Architecture) -> list[dict[str, Any]]:
    """Return the clips of the table."""
    clips: list[dict[str, Any]] = TABLE["decoding"][architecture]["clips"]
    return clips


def expected(architecture: Architecture, clip: dict[str, Any]) -> Steps:
    """Return the steps of a clip as transformers tells them: with the number of frames that each step moves on.

    A blank of duration 0 moves on by 1. transformers' RNN-T tells a move of 1 for the token that reaches the limit.
    """
    frames = [frame for frame, _, _ in clip["steps"]]
    steps = []
    for place, (frame, token, duration) in enumerate(clip["steps"]):
        move = max(duration, 1) if token == BLANK else duration
        if architecture == "rnnt" and place + 1 < len(frames):
            move = frames[place + 1] - frame
        steps.append([frame, token, move])
    return steps


def reaches_limit(clip: dict[str, Any]) -> bool:
    return any(clip["starts"].count(frame) >= LIMIT for frame in clip["starts"])


def logits_of(architecture: Architecture, clip: Array, steps: Steps) -> torch.Tensor:
    """Return the logits of transformers' networks in each step, given all steps before it."""
    model = network(architecture)
    tokens = [token for _, token, _ in steps if token != BLANK]
    num_before = np.cumsum([0] + [token != BLANK for _, token, _ in steps[:-1]])
    with torch.no_grad():
        predicted = model.decoder(torch.tensor([[BLANK, *tokens]]))[0, num_before]
        encoded = model.encoder_projector(torch.from_numpy(clip))[[frame for frame, _, _ in steps]]
        logits: torch.Tensor = model.joint(predicted, encoded)
    return logits


def test_the_table_is_of_the_stated_version_and_has_its_cases() -> None:
    """The script's own check of the cases holds for the committed table."""
    assert TABLE["versions"]["nemo_toolkit"] == "3.0.0"
    nemo_reference.check(TABLE["decoding"])


@pytest.mark.parametrize("architecture", TRANSDUCERS)
def test_transformers_networks_prefer_each_step(architecture: Architecture) -> None:
    """Tokens and durations of each step are the best ones, and the next step is at the frame that the rules give."""
    for clip, frames in zip(
        recorded(architecture), encoder_outputs(TABLE["decoding"][architecture]["seed"]), strict=True
    ):
        logits = logits_of(architecture, frames, clip["steps"])
        assert logits[:, : BLANK + 1].argmax(-1).tolist() == [token for _, token, _ in clip["steps"]]
        if architecture == "tdt":
            durations = logits[:, BLANK + 1 :].argmax(-1).tolist()
            assert durations == [duration for _, _, duration in clip["steps"]]
        frame = count = 0
        for at, token, duration in clip["steps"]:
            assert at == frame < len(frames)
            count += token != BLANK
            move = max(duration, 1) if token == BLANK else duration
            if move == 0 and count == LIMIT:
                move = 1
            count = 0 if move else count
            frame += move
        assert frame >= len(frames)


@pytest.mark.parametrize("architecture", TRANSDUCERS)
def test_generate_gives_the_steps_of_the_table(architecture: Architecture) -> None:
    """Alone and in company, where the rules agree: all clips of the RNN-T, and those of the TDT below the limit."""
    clips = encoder_outputs(TABLE["decoding"][architecture]["seed"])
    rows = [
        (recorded_clip, clip)
        for recorded_clip, clip in zip(recorded(architecture), clips, strict=True)
        if architecture == "rnnt" or not reaches_limit(recorded_clip)
    ]
    assert len(rows) >= 8
    wanted = [expected(architecture, recorded_clip) for recorded_clip, _ in rows]
    alone = [decoded(architecture, [clip])[0] for _, clip in rows]
    together = decoded(architecture, [clip for _, clip in rows])
    if architecture == "rnnt":  # the last move is not to be seen in the table
        for steps in (*wanted, *alone, *together):
            steps[-1][2] = 1
    assert alone == wanted
    assert together == wanted


def test_transformers_tdt_has_no_limit() -> None:
    """A clip that reaches the limit has the same steps up to the tenth token at a frame, and then stays there."""
    clips = encoder_outputs(TABLE["decoding"]["tdt"]["seed"])
    num_clips = 0
    for clip, frames in zip(recorded("tdt"), clips, strict=True):
        if reaches_limit(clip) and len(frames) <= 12:
            full = next(frame for frame in clip["starts"] if clip["starts"].count(frame) == LIMIT)
            stop = max(place for place, (frame, _, _) in enumerate(clip["steps"]) if frame == full) + 1
            (steps,) = decoded("tdt", [frames])
            assert steps[:stop] == expected("tdt", clip)[:stop]
            assert steps[stop][0] == full
            num_clips += 1
    assert num_clips


def test_durations_are_the_frames_to_the_next_step() -> None:
    """A token's duration leads to the next step. NeMo's durations in a batch on a CPU are others: those of a later
    look of its neighbours (`durations` is overwritten for the whole batch), though its frames are right."""
    num_wrong = 0
    for clip in recorded("tdt"):
        written = [duration for _, token, duration in clip["steps"] if token != BLANK]
        assert clip["durations"] == written
        num_wrong += clip.get("durations_in_batch", written) != written
    assert num_wrong


@pytest.mark.parametrize("architecture", TRANSDUCERS)
def test_scores_and_confidences_are_functions_of_the_logits(architecture: Architecture) -> None:
    """`max_prob` is (p·V - 1) / (V - 1) with alpha 1, over tokens and blank, and by default with p and V to the power
    0.33. Durations have the same V. A score is the sum of log probabilities over tokens and durations together on a
    CPU, and of logits on a GPU."""
    size = BLANK + 1
    for clip, frames in zip(
        recorded(architecture), encoder_outputs(TABLE["decoding"][architecture]["seed"]), strict=True
    ):
        logits = logits_of(architecture, frames, clip["steps"])
        logits = logits[[token != BLANK for _, token, _ in clip["steps"]]]
        best = logits[:, :size].log_softmax(-1).amax(-1)
        assert clip["confidences"] == pytest.approx(((best.exp() * size - 1) / (size - 1)).tolist(), abs=2e-4)
        power = ((best * 0.33).exp() * size**0.33 - 1) / (size**0.33 - 1)
        assert clip["confidences_of_default"] == pytest.approx(power.tolist(), abs=2e-4)
        if architecture == "tdt":
            likely = logits[:, size:].softmax(-1).amax(-1)
            assert clip["duration_confidences"] == pytest.approx(((likely * size - 1) / (size - 1)).tolist(), abs=2e-4)
        together = logits.log_softmax(-1)[:, :size].amax(-1).sum()
        assert math.isclose(clip["score"], together, abs_tol=2e-3)
        assert math.isclose(clip["score_of_logits"], logits[:, :size].amax(-1).sum(), abs_tol=2e-2)


@pytest.mark.parametrize("architecture", ["tdt", "rnnt", "ctc"])
def test_the_whole_way_is_that_of_transformers(architecture: Architecture) -> None:
    """Samples → features → encoder → tokens, in one batch, by transformers' own classes."""
    from transformers import ParakeetFeatureExtractor

    clips = audio()
    inputs = ParakeetFeatureExtractor(feature_size=80)(clips, sampling_rate=16_000, return_tensors="pt")
    features, mask = inputs.input_features, inputs.attention_mask
    model = network(architecture)
    with torch.no_grad():
        encoded = model.encoder(features, mask).last_hidden_state
    if architecture == "ctc":
        rows = model.generate(features, attention_mask=mask).tolist()
    else:
        rows = generated(model, architecture, features, mask)
    number = nemo_reference.NUM_VALUES
    for index, clip in enumerate(TABLE["whole"][architecture]["clips"]):
        assert (clip["samples"], clip["features"]) == (len(clips[index]), int(mask[index].sum()))
        assert clip["features_begin"] == pytest.approx(features[index, 0, :number].tolist(), abs=2e-3)
        assert clip["features_end"] == pytest.approx(features[index, clip["features"] - 1, :number].tolist(), abs=2e-3)
        assert clip["encoded_begin"] == pytest.approx(encoded[index, 0, :number].tolist(), abs=2e-3)
        assert clip["encoded_end"] == pytest.approx(encoded[index, clip["frames"] - 1, :number].tolist(), abs=2e-3)
        if architecture == "ctc":
            assert clip["ids"] == rows[index][: clip["frames"]]
            continue
        written = [step for step in rows[index] if step[1] != BLANK]
        assert clip["tokens"] == [token for _, token, _ in written]
        assert clip["starts"] == [frame for frame, _, _ in written]
        assert clip.get("durations", []) == [move for _, _, move in written if architecture == "tdt"]


@pytest.mark.parametrize("kind", ["tdt", "rnnt", "ctc", "hybrid"])
def test_made_archives_are_as_nemo_writes_them(kind: str) -> None:
    """`nemo_archives` has the configuration, the names and the shapes of NeMo's `save_to`."""
    model = tiny_model("tdt" if kind == "hybrid" else kind)  # type: ignore[arg-type]
    archive = TABLE["archives"][kind]
    config = nemo_config(model, is_hybrid=kind == "hybrid")
    config["tokenizer"] = {key: str(value).rpartition("_")[2] for key, value in config["tokenizer"].items()}
    assert archive["config"] == nemo_reference.without_vocabulary(config)
    assert archive["members"] == [".", "./model_config.yaml", "./model_weights.ckpt", "tokenizer.model", "vocab.txt"]
    shapes = {name: list(values.shape) for name, values in nemo_weights(model).items()}
    assert sum(name.startswith("encoder.") for name in shapes) == archive["encoder"]
    own = {name: shape for name, shape in shapes.items() if not name.startswith("encoder.")}
    added = {name for name in archive["state"] if name.startswith(("preprocessor.", "ctc_decoder."))}
    assert own == {name: shape for name, shape in archive["state"].items() if name not in added}
    assert bool(added - {"preprocessor.featurizer.window", "preprocessor.featurizer.fb"}) == (kind == "hybrid")
