"""Archives of NeMo give the same models as transformers' folders. Nothing in them is executed, and a model that
voxbatch would compute differently is refused with the reason.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import yaml
from conftest import ROOT
from nemo_archives import TOKENIZER, Config, nemo_config, nemo_weights, sentencepiece_model, write_archive
from tiny_weights import BLANK, PIECES, Architecture, TinyModel, audio, tiny_model

from voxbatch.errors import ConfigError
from voxbatch.transducers import nemo_archive

pytestmark = [pytest.mark.slow]

Change = Callable[[Config], object]


def write(path: Path, change: Change = lambda config: None, model: TinyModel | None = None, **others: Any) -> Path:
    """Write the archive of a model, a TDT by default, with a changed configuration."""
    model = model or tiny_model("tdt")
    config = nemo_config(model)
    change(config)
    return write_archive(path / "model.nemo", config, others.pop("weights", nemo_weights(model)), **others)


def saved(content: object, **options: Any) -> bytes:
    """Return what torch.save writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def folder_network(model: TinyModel, path: Path) -> Any:
    """Return transformers' model of a folder with the weights of a tiny model."""
    import transformers

    cls = getattr(transformers, f"ParakeetFor{model.architecture.upper()}")
    network = cls(cls.config_class(**model.config))
    network.load_state_dict({name: torch.from_numpy(values) for name, values in model.weights.items()})
    network.save_pretrained(path)
    return cls.from_pretrained(path, dtype=torch.float32).eval()


@pytest.mark.parametrize("architecture", ["tdt", "rnnt", "ctc"])
@pytest.mark.parametrize("has_biases", [False, True])
def test_archives_give_the_model_of_the_folder(architecture: Architecture, has_biases: bool, tmp_path: Path) -> None:
    """The same configuration, tensors and logits, with and without biases and the scaling of the input."""
    from transformers import ParakeetFeatureExtractor

    model = tiny_model(architecture, has_biases=has_biases, scale_input=has_biases)
    found = nemo_archive.read(write(tmp_path, model=model))
    assert found.architecture == architecture
    assert found.config == model.config
    assert found.pieces == (*PIECES, "<blank>")
    folder = folder_network(model, tmp_path / "folder")
    state = folder.state_dict()
    assert found.state.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.state.items())
    # Tensors of a file lie at other addresses, from which the kernels of some CPUs round differently.
    network, reference = (
        type(folder)(config).eval() for config in (folder.config_class(**found.config), folder.config)
    )
    network.load_state_dict(found.state)
    reference.load_state_dict(state)
    inputs = ParakeetFeatureExtractor(**found.features)(audio()[1:3], sampling_rate=16_000, return_tensors="pt")
    first_frame = {name: values[:, :8] for name, values in inputs.items()}
    tokens = {} if architecture == "ctc" else {"decoder_input_ids": torch.tensor([[BLANK, 3], [BLANK, 5]])}
    with torch.no_grad():
        encoded, expected = (each.encoder(**inputs).last_hidden_state for each in (network, reference))
        logits, expected_logits = (each(**first_frame, **tokens).logits for each in (network, reference))
    assert torch.equal(encoded, expected)
    assert torch.equal(logits, expected_logits)


def test_a_hybrid_model_gives_its_tdt_branch(tmp_path: Path) -> None:
    model = tiny_model("tdt")
    ctc = {
        "ctc_decoder.decoder_layers.0.weight": np.zeros((BLANK + 1, 32, 1)),
        "preprocessor.featurizer.fb": np.ones(3),
    }
    path = write_archive(tmp_path / "hybrid.nemo", nemo_config(model, is_hybrid=True), nemo_weights(model) | ctc)
    found = nemo_archive.read(path)
    assert (found.architecture, found.config) == ("tdt", model.config)
    assert found.state.keys() == model.weights.keys()


def test_compressed_archives_are_read(tmp_path: Path) -> None:
    """NeMo before 1.7 wrote tar.gz."""
    model = tiny_model("rnnt")
    assert nemo_archive.read(write(tmp_path, model=model, mode="w:gz")).config == model.config


def test_a_joint_network_without_dropout_is_read(tmp_path: Path) -> None:
    """Then its last layer has the number 1, not 2."""
    model = tiny_model("tdt")
    weights = {name.replace("joint_net.2", "joint_net.1"): values for name, values in nemo_weights(model).items()}
    assert nemo_archive.read(write(tmp_path, weights=weights)).state.keys() == model.weights.keys()


@pytest.mark.parametrize("context", [None, [[-1, -1]]])
def test_other_forms_of_the_same_setting_are_read(context: object, tmp_path: Path) -> None:
    model = tiny_model("tdt")

    def change(config: Config) -> None:
        config["encoder"] |= {"att_context_size": context, "subsampling_conv_channels": 8, "conv_context_size": [4, 4]}
        del config["encoder"]["xscaling"], config["preprocessor"]["pad_value"]

    found = nemo_archive.read(write(tmp_path, change))
    assert found.config == model.config | {"encoder_config": model.config["encoder_config"] | {"scale_input": True}}


def test_the_blank_of_v2_stays_the_id_after_its_vocabulary(tmp_path: Path) -> None:
    """v2 has no <pad>. Nothing is added to its vocabulary, so that no id moves."""
    found = nemo_archive.read(write(tmp_path))
    assert "<pad>" not in found.pieces
    assert found.config["blank_token_id"] == found.config["vocab_size"] - 1 == len(PIECES) == len(found.pieces) - 1
    assert found.state["decoder.embedding.weight"].shape[0] == len(PIECES) + 1


def test_a_summary_needs_no_pytorch_and_no_weights(tmp_path: Path) -> None:
    path = write(tmp_path, weights=b"no weights")
    script = (
        "import sys; from pathlib import Path; from voxbatch.transducers import nemo_archive as archive;"
        "config, features = archive.summary(Path(sys.argv[1])); print(config['model_type'], features['win_length'],"
        "[name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, path], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("parakeet_tdt 400 []\n", "")


class Harmless:
    """An object whose pickle makes a folder when it is loaded without care."""

    def __init__(self, marker: Path):
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._marker),)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("is_value", [True, False])
def test_code_in_the_weights_is_not_executed(is_zip: bool, is_value: bool, tmp_path: Path) -> None:
    """As the whole content or as one of the tensors, in the present and in the old format of PyTorch."""
    marker = tmp_path / "marker"
    content: object = {"encoder.x": torch.zeros(1), "y": Harmless(marker)} if is_value else Harmless(marker)
    path = write(tmp_path, weights=saved(content, _use_new_zipfile_serialization=is_zip))
    with pytest.raises(ConfigError, match="holds other things than tensors" if is_zip else "is no zip file"):
        nemo_archive.read(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Harmless(marker)))
    assert marker.exists(), "the test would see an execution"


def test_code_in_the_configuration_is_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    text = f"target: !!python/object/apply:os.mkdir ['{marker}']".encode()
    path = write_archive(tmp_path / "model.nemo", {}, {}, others={"model_config.yaml": text})
    with pytest.raises(ConfigError, match=r"model_config\.yaml cannot be read \(ConstructorError"):
        nemo_archive.summary(path)
    assert not marker.exists()


def test_nothing_is_written_where_the_archive_says(tmp_path: Path) -> None:
    """Members that lead out of a folder, and links, are not followed."""
    path = write(tmp_path, others={"../outside": b"", "/tmp/voxbatch-outside": b""})
    nemo_archive.read(path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.nemo"]
    with tarfile.open(tmp_path / "link.nemo", "w:") as tar:
        link = tarfile.TarInfo("./model_config.yaml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ConfigError, match=r"no file model_config\.yaml"):
        nemo_archive.summary(tmp_path / "link.nemo")


def test_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    whole = write(tmp_path).read_bytes()
    for content in (b"", b"no archive", b"\x1f\x8b\x08 no gzip", whole[: len(whole) // 2], zipped({"a": b"b"})):
        (tmp_path / "other.nemo").write_bytes(content)
        with pytest.raises(ConfigError, match=r"other\.nemo: .*(cannot be read as a \.nemo archive|has no file)"):
            nemo_archive.read(tmp_path / "other.nemo")
    with pytest.raises(ConfigError, match=r"cannot be read as a \.nemo archive"):
        nemo_archive.read(tmp_path / "missing.nemo")


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    for name, value, message in (
        ("MAX_MEMBERS", 3, "up to 3 members"),
        ("MAX_BYTES", 100_000, "100,000 bytes"),
        ("MAX_SMALL_BYTES", 100, "up to 100"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(nemo_archive, name, value)
            with pytest.raises(ConfigError, match=message):
                nemo_archive.summary(path)


def changed(section: str, **values: object) -> Change:
    """Return a change of values of a section."""
    return lambda config: config[section].update(values)


REFUSED: dict[str, tuple[Change, str]] = {
    "class": (lambda config: config.update(target="os.system"), "its class .target. is 'os.system'"),
    "characters": (
        lambda config: config.update(target="nemo.collections.asr.models.rnnt_models.EncDecRNNTModel"),
        "EncDecRNNTModel'; voxbatch runs NeMo's EncDecRNNTBPEModel",
    ),
    "foreign class": (lambda config: config.update(target="x.EncDecRNNTBPEModel"), "its class"),
    "no class": (lambda config: config.pop("target"), "its class .target. is None"),
    "encoder": (changed("encoder", _target_="SqueezeformerEncoder"), "encoder._target_ is 'SqueezeformerEncoder'"),
    "no encoder": (lambda config: config.pop("encoder"), "encoder._target_ is None"),
    "subsampling": (changed("encoder", subsampling="striding"), "encoder.subsampling is 'striding'"),
    "factor": (changed("encoder", subsampling_factor=4), "subsampling_factor is 4; voxbatch runs models with 8"),
    "no factor": (lambda config: config["encoder"].pop("subsampling_factor"), "subsampling_factor is None"),
    "stream": (changed("encoder", att_context_size=[70, 13]), r"att_context_size is \[70, 13\]"),
    "streams": (changed("encoder", att_context_size=[[70, 13], [-1, -1]]), "att_context_size"),
    "chunks": (changed("encoder", att_context_style="chunked_limited"), "'chunked_limited'"),
    "local attention": (changed("encoder", self_attention_model="rel_pos_local_attn"), "rel_pos_local_attn"),
    "causal subsampling": (changed("encoder", causal_downsampling=True), "causal_downsampling is True"),
    "causal convolution": (changed("encoder", conv_context_size="causal"), "conv_context_size is 'causal'"),
    "norm of convolutions": (changed("encoder", conv_norm_type="layer_norm"), "'layer_norm'"),
    "shared biases": (changed("encoder", untie_biases=False), "untie_biases is False"),
    "reduction": (changed("encoder", reduction="pooling"), "'pooling'"),
    "projection": (changed("encoder", feat_out=64), "feat_out is 64"),
    "layers": (changed("encoder", n_layers=10**6), "n_layers is 1000000"),
    "no number": (changed("encoder", d_model="32"), "d_model is '32'"),
    "normalisation": (changed("preprocessor", normalize="NA"), "normalize is 'NA'; voxbatch runs models with 'per_fe"),
    "window": (changed("preprocessor", window="hamming"), "window is 'hamming'"),
    "length of a window": (changed("preprocessor", window_size="x"), "window_size is 'x'"),
    "preemphasis": (changed("preprocessor", preemph=None), "preemph is None"),
    "sampling rate": (changed("preprocessor", sample_rate=8000), "sample_rate is 8000"),
    "mel bins": (changed("preprocessor", features=128), "encoder.feat_in is 80 and preprocessor.features is 128"),
    "decoder": (changed("decoder", _target_="StatelessTransducerDecoder"), "StatelessTransducerDecoder"),
    "norm of the decoder": (changed("decoder", normalization_mode="layer"), "normalization_mode is 'layer'"),
    "vocabulary": (
        changed("joint", num_classes=BLANK + 1),
        f"vocab_size is {BLANK} and joint.num_classes is {BLANK + 1}",
    ),
    "sizes": (lambda config: config["joint"]["jointnet"].update(joint_hidden=640), "pred_hidden is 24 and .* is 640"),
    "activation": (lambda config: config["joint"]["jointnet"].update(activation="gelu"), "'gelu'"),
    "durations": (changed("decoding", durations=[0, 1, 2, 4, 8]), r"durations is \[0, 1, 2, 4, 8\]"),
    "no durations": (
        lambda config: (config["decoding"].pop("durations"), config["loss"].pop("tdt_kwargs")),
        "durations is None",
    ),
    "number of durations": (changed("joint", num_extra_outputs=4), "num_extra_outputs is 4"),
    "outputs of an RNN-T": (
        lambda config: (config["decoding"].pop("model_type"), config["loss"].update(loss_name="default")),
        "num_extra_outputs is 5; voxbatch runs 0",
    ),
    "multi-blank": (changed("decoding", model_type="multiblank"), "model_type is 'multiblank'"),
    "contradiction": (changed("decoding", model_type="rnnt"), "'rnnt' and loss.loss_name is 'tdt'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_would_be_computed_differently_are_refused(name: str, tmp_path: Path) -> None:
    """Before the weights are read, with the setting, its value and what is allowed."""
    change, message = REFUSED[name]
    path = write(tmp_path, change, weights=b"")
    with pytest.raises(ConfigError, match=rf"--model .*model\.nemo: .*{message}.*Take a model that `voxbatch models`"):
        nemo_archive.summary(path)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (sentencepiece_model((*PIECES, "<pad>")), f"its tokenizer has {BLANK + 1} pieces; voxbatch runs {BLANK} with"),
        (sentencepiece_model()[:-30], "cannot be read"),
        (b"\x0f\xff\xff", "cannot be read"),
        (b"", "its tokenizer has 0 pieces"),
    ],
)
def test_tokenizers_that_do_not_fit_are_refused(tokenizer: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        nemo_archive.read(write(tmp_path, tokenizer=tokenizer))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"type": "wpe"}, "tokenizer.type is 'wpe'"),
        ({"type": "agg"}, "tokenizer.type is 'agg'"),
        ({"model_path": "nemo:other.model"}, "no file other.model"),
        ({"model_path": None}, "no file None"),
    ],
)
def test_other_tokenizers_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        nemo_archive.read(write(tmp_path, changed("tokenizer", **values)))


def test_pieces_are_those_of_sentencepiece(tmp_path: Path) -> None:
    """The package sentencepiece reads the same pieces out of the same file."""
    from sentencepiece import SentencePieceProcessor

    with tarfile.open(write(tmp_path)) as tar:
        file = tar.extractfile(f"./{TOKENIZER}")
        assert file
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(file.read())
    assert [processor.IdToPiece(number) for number in range(processor.vocab_size())] == list(PIECES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("joint.pred.bias"), "it lacks weights: decoder.decoder_projector.bias;"),
        (
            lambda weights: [weights.pop(name) for name in [*weights] if ".lstm." in name],
            r"it lacks weights: decoder.lstm.bias_hh_l0 and 7 more",
        ),
        (lambda weights: weights.update(adapter=np.zeros(1)), "does not tell of: adapter"),
        (
            lambda weights: weights.update({"joint.joint_net.2.bias": np.zeros(BLANK + 2 + 5)}),
            "another shape than model_config.yaml tells: joint.head.bias",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Callable[[Any], object], message: str, tmp_path: Path) -> None:
    weights = nemo_weights(tiny_model("tdt"))
    change(weights)
    with pytest.raises(ConfigError, match=message):
        nemo_archive.read(write(tmp_path, weights=weights))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (saved([torch.zeros(1)]), "holds no mapping of names to tensors"),
        (saved({"a": 1}), "holds no mapping of names to tensors"),
        (zipped({"data.pkl": b"x" * 999}, zipfile.ZIP_DEFLATED), "compressed records"),
        (zipped({"other": b""}), "is damaged"),
        (saved({"a": torch.zeros(100)})[:-200], "is damaged"),
        (b"", "is no zip file"),
    ],
)
def test_other_weights_are_refused(weights: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        nemo_archive.read(write(tmp_path, weights=weights))


def test_the_configuration_is_a_mapping(tmp_path: Path) -> None:
    for content, message in (
        (b"[1]", "holds a list"),
        (b"\xff\xfe\xfd", "cannot be read"),
        (b"a: [", "cannot be read"),
    ):
        path = write_archive(tmp_path / "model.nemo", {}, {}, others={"model_config.yaml": content})
        with pytest.raises(ConfigError, match=message):
            nemo_archive.summary(path)


def test_pieces_that_yaml_takes_for_other_values_do_no_harm(tmp_path: Path) -> None:
    """Labels such as `no` and `1e5` are not read from the configuration, whose vocabulary YAML may change."""
    path = write(tmp_path, lambda config: config.update(labels=yaml.safe_load("[no, 1.0e+5, ~]")))
    assert nemo_archive.read(path).pieces == (*PIECES, "<blank>")
