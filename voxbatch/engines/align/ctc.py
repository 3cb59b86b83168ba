"""Scores of the characters of a text by a CTC network (wav2vec2, MMS) through onnxruntime.

The network is a folder with `model.onnx`, whose input is (1, num_samples) at 16 kHz and whose output is
(1, num_frames, num_characters), a frame for each 320 samples, and with `vocab.json`, as Hugging Face exports it. The
input is normalised to mean 0 and variance 1 unless `preprocessor_config.json` has `do_normalize: false`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from voxbatch.engines.align.numbers import number_words
from voxbatch.engines.align.trellis import States
from voxbatch.errors import ConfigError, EngineError
from voxbatch.onnx_runtime import import_onnxruntime
from voxbatch.records import Samples

BLANKS = ("<pad>", "[PAD]", "<blank>", "-")
"""Names of CTC's blank, as they are looked for."""
DELIMITERS = ("|", " ", "▁")
"""Names of the space between words."""
OTHER_SOUND = 3.0
"""Costs of a frame of sound that the text lacks, beside the likeliest character."""
JUMP = 20.0
"""Costs of text that is left out, however much."""
FILES = ("model.onnx", "*.json", "*.onnx_data")
"""Patterns of the files that decide the times."""
SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Tamil",
    "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Khmer", "Myanmar", "Georgian", "Armenian", "Ethiopic",
    "Hangul", "Han", "Hiragana", "Katakana", "Tibetan", "Oriya",
)  # fmt: skip
"""Scripts that are looked for in a vocabulary, by their names in Unicode."""


class CharacterSet:
    """The characters of a network.

    Raises:
        ConfigError: there is no file, or it has no blank.
    """

    def __init__(self, folder: Path) -> None:
        try:
            content = json.loads((folder / "vocab.json").read_bytes())
            self.columns = {str(token): int(column) for token, column in content.items()}
        except (OSError, ValueError, AttributeError, TypeError) as e:
            raise ConfigError(f"--model {folder}: vocab.json with the numbers of the characters is needed: {e}") from e
        blanks = [self.columns[name] for name in BLANKS if name in self.columns]
        if not blanks:
            raise ConfigError(f"--model {folder}: vocab.json has no blank; it is one of {', '.join(BLANKS)}")
        self.blank = blanks[0]
        self.delimiter = next((self.columns[name] for name in DELIMITERS if name in self.columns), self.blank)
        self.num_columns = max(self.columns.values()) + 1

    @property
    def scripts(self) -> tuple[str, ...]:
        """The scripts of the letters, by their names in Unicode."""
        letters = "".join(token for token in self.columns if len(token) == 1)
        known = (script for script in SCRIPTS if regex.search(rf"\p{{Script={script}}}", letters))
        return tuple(known) or ("Latin",)

    def spelled(self, word: str, lang: str) -> list[int]:
        """Return the columns of the characters of a word; those that the network does not know are left out."""
        word = regex.sub(r"[0-9]+", lambda match: number_words(int(match[0]), lang), word)
        return [column for character in word if (column := self._column(character)) is not None]

    def _column(self, character: str) -> int | None:
        """Return the column of a character, in either case, with or without its accent."""
        plain = unicodedata.normalize("NFKD", character)[0]
        for form in (character, character.lower(), character.upper(), plain.lower(), plain.upper()):
            if (column := self.columns.get(form)) is not None and column not in (self.blank, self.delimiter):
                return column
        return None


class Ctc:
    """A network, which is loaded. See `Model` for its methods.

    Raises:
        EngineError: onnxruntime cannot load the network.
    """

    frame_s = 0.02
    jump_cost = JUMP

    def __init__(self, folder: Path, vocabulary: CharacterSet) -> None:
        onnxruntime = import_onnxruntime()
        try:
            self._session: Any = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        except Exception as e:  # onnxruntime's errors have no class in common
            raise EngineError(f"onnxruntime cannot load {folder / 'model.onnx'}: {e}") from e
        self._vocabulary, self._input = vocabulary, self._session.get_inputs()[0].name
        settings = folder / "preprocessor_config.json"
        self._normalizes = not settings.is_file() or json.loads(settings.read_bytes()).get("do_normalize", True)

    def close(self) -> None:
        """Unload the network."""
        del self._session

    def scores(self, samples: Samples) -> NDArray[np.float32]:
        """Return the logarithms of the probabilities of the characters, and of a pause as the last column."""
        if self._normalizes:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        (logits,) = self._session.run(None, {self._input: samples[None].astype(np.float32)})[:1]
        logits = np.asarray(logits[0], np.float32)
        shifted = logits - logits.max(1, keepdims=True)
        scores = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        quiet = np.maximum(scores[:, self._vocabulary.blank], scores[:, self._vocabulary.delimiter])
        pause = np.maximum(quiet, scores.max(1) - OTHER_SOUND)
        return np.column_stack((scores, pause))

    def units(self, word: str, lang: str) -> list[list[int]]:
        """Return the column of each character of a word as it is written."""
        return [[column] for column in self._vocabulary.spelled(word, lang)]

    def states(self, words: Sequence[list[list[int]]]) -> States:
        """Return the states of a text: a blank between two characters of a word may be left out, unless they are equal.
        So may a pause before a word, except at the beginning."""
        pause, blank = self._vocabulary.num_columns, self._vocabulary.blank
        columns, leaves_out, indices = [pause], [False], [-1]
        for index, units in enumerate(words):
            for position, (column,) in enumerate(units):
                before = columns[-1]
                if position:
                    columns.append(blank)
                    leaves_out.append(False)
                    indices.append(index)
                columns.append(column)
                leaves_out.append(column != before if position else index > 0 and column != columns[-3])
                indices.append(index)
            columns.append(pause)
            leaves_out.append(False)
            indices.append(-1)
        return States(np.array(columns), np.array(leaves_out), np.array(indices))
