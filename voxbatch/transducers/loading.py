"""Load the weights of a model into transformers' class."""

from __future__ import annotations

from typing import Any

import torch

from voxbatch.errors import EngineError
from voxbatch.transducers.model import TransducerModel

SPECIAL_PIECES = ("<unk>", "<pad>", "<blank>", "<blk>")


def load(model: TransducerModel, device: str, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """Return a model on a device, and the pieces of its vocabulary by their ids.

    Raises:
        EngineError: the weights do not fit the configuration, or transformers does not know the model.
    """
    if model.path.is_file():
        return _from_archive(model, device, dtype)
    import transformers
    from tokenizers import Tokenizer

    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(model.path)
    name = next(iter(config.architectures or ()), "")
    cls = getattr(transformers, name, None)
    if cls is None:
        raise EngineError(
            f"--model {model.name}: transformers {transformers.__version__} has no class {name!r}: install a newer one"
        )
    try:
        network, report = cls.from_pretrained(
            model.path, dtype=dtype, use_safetensors=True, output_loading_info=True, local_files_only=True
        )
    except Exception as e:  # transformers and safetensors raise many types
        raise EngineError(f"--model {model.name}: its weights cannot be loaded: {_first_line(e)}") from e
    _check(model, report)
    tokenizer = Tokenizer.from_file(str(model.path / "tokenizer.json"))
    pieces = [tokenizer.id_to_token(number) or "<unk>" for number in range(tokenizer.get_vocab_size())]
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    blank = config.pad_token_id if name.endswith("CTC") else config.blank_token_id
    if blank < len(pieces) and blank not in special and pieces[blank] not in SPECIAL_PIECES:
        raise EngineError(
            f"--model {model.name}: blank is token {blank} in config.json, which the tokenizer writes as "
            f"{pieces[blank]!r}: the two are of different models, or a conversion added a token before blank"
        )
    pieces = [_as_special(piece) if number in special else piece for number, piece in enumerate(pieces)]
    pieces += ["<blank>"] * (config.vocab_size - len(pieces))
    return network.to(device).eval(), pieces


def _from_archive(model: TransducerModel, device: str, dtype: torch.dtype) -> tuple[Any, list[str]]:
    import transformers

    from voxbatch.transducers.nemo_archive import read

    archive = read(model.path)
    names = {"tdt": "ParakeetForTDT", "rnnt": "ParakeetForRNNT", "ctc": "ParakeetForCTC"}
    cls = getattr(transformers, names[archive.architecture])
    with torch.device("meta"):
        network = cls(cls.config_class(**archive.config))
    missing, unexpected = network.load_state_dict(archive.state, strict=False, assign=True)
    positions = network.encoder.encode_positions  # its frequencies are no weights
    positions.inv_freq = positions.compute_default_relative_positional_parameters(positions.config)
    _check(model, {"missing_keys": missing, "unexpected_keys": unexpected})
    return network.to(device, dtype).eval(), list(archive.pieces)


def _check(model: TransducerModel, report: dict[str, Any]) -> None:
    """Refuse weights of another shape or number: transformers fills what is missing with random numbers.

    Raises:
        EngineError: some are missing, left over, or of another shape.
    """
    for key, text in (
        ("missing_keys", "it lacks weights"),
        ("mismatched_keys", "weights have another shape than its config.json says"),
        ("unexpected_keys", "it has weights that its config.json knows nothing of"),
    ):
        if names := sorted(map(str, report.get(key) or ())):
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise EngineError(f"--model {model.name}: {text}: {shown}; copy the model again, or convert it again")


def _as_special(piece: str) -> str:
    """Return a special token in a form that is no text for `words`."""
    return piece if piece.startswith("<") and piece.endswith(">") else "<special>"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
