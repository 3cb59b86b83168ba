"""Scores of the phones of English by pocketsphinx's acoustic model, which comes in its package.

pocketsphinx writes the scores of its senones, the states of its hidden Markov models, for each frame to a file if it is
asked to. Its own aligner is not used, because it has no way to leave text out. A phone has the senones of its context
inside its word, and those beside a pause at the ends of the word: hesitations stand between pauses, and the contexts of
fluent speech place them up to 2.7 s off (benchmarks/RESULTS.md).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxbatch.engines.align import english
from voxbatch.engines.align.trellis import States
from voxbatch.errors import EngineError
from voxbatch.process.child import ChildProcess, for_voxbatch, handle_stop_signals
from voxbatch.records import SAMPLING_RATE, Samples

FRAME_S = 0.01
_INSIDE, _BEGIN, _END, _SINGLE = range(4)
"""Positions of a phone in its word, as pocketsphinx numbers them."""
_PHONE = np.dtype([("sequence", "<i4"), ("transitions", "<i4"), ("context", "u1", 4)])
"""A phone: the number of its sequence of senones, and its position, its number, and those of the phones beside it."""
MIN_SAMPLES = SAMPLING_RATE // 20
"""Length of the shortest audio that is scored: 50 ms, two frames."""
STATES = 3
"""Emitting states of a phone."""
_LOG_BASE = 1024 * np.log(1.0001)
"""Natural logarithm of a step of a senone's score: pocketsphinx counts in powers of 1.0001, and scores are stored
without their lowest 10 bits (SENSCR_SHIFT in its hmm.h)."""
OTHER_SOUND = 8.0
"""Costs of a frame of sound that the text lacks, beside the likeliest phone."""
JUMP = 200.0
"""Costs of text that is left out, however much: as much as half a second of speech that fits badly. With 100, right
words in a hoarse voice are left out; with 200, a wrong sentence of 28 words is still left out as a whole."""


class Pocketsphinx:
    """The acoustic model in a child process. See `Model` for its methods.

    pocketsphinx holds Python's lock while it decodes, for seconds of each window.
    """

    frame_s = FRAME_S
    jump_cost = JUMP

    def __init__(self) -> None:
        folder = model_folder()
        self._senones = _Senones(os.path.join(folder, "en-us", "mdef"))
        with open(os.path.join(folder, "cmudict-en-us.dict"), encoding="utf-8") as file:
            self._dictionary = dict(line.rstrip("\n").split(" ", 1) for line in file)
        self._folder = tempfile.TemporaryDirectory(prefix="voxbatch-align-")
        self._child = ChildProcess(__name__, inherited=for_voxbatch(os.environ), dies_with_parent=True)
        self._child.send(self._folder.name)

    def close(self) -> None:
        """End the child process, and delete its files."""
        self._child.end()
        self._folder.cleanup()

    def scores(self, samples: Samples) -> NDArray[np.float32]:
        """Return the scores of all senones, and of a pause as the last column.

        Raises:
            EngineError: the child process has ended.
        """
        if len(samples) < MIN_SAMPLES:
            return np.zeros((0, self._senones.num_senones + 1), np.float32)
        try:
            self._child.connection.send_bytes((samples.clip(-1, 1) * 32_767).astype("<i2").tobytes())
            data = self._child.connection.recv_bytes()
        except (EOFError, OSError) as e:
            self._child.end()
            raise EngineError(f"the process of pocketsphinx ended: {self._child.exit_reason}") from e
        if not data:
            pause = np.full(self._senones.num_senones + 1, -JUMP, np.float32)
            pause[-1] = 0
            return np.tile(pause, (round(len(samples) / SAMPLING_RATE / FRAME_S), 1))
        scores = _read_scores(data, self._senones.num_senones)
        silence, sound = (scores[:, senones].max(1) for senones in (self._senones.silence, self._senones.plain))
        scores[:, -1] = np.maximum(silence, sound - OTHER_SOUND)
        return scores

    def units(self, word: str, lang: str) -> list[list[int]]:
        """Return the columns of the states of each phone of a word as it is written."""
        phones = [phone for part in english.spoken(word) for phone in english.phones(part, self._dictionary.get)]
        return self._senones.of_word(phones)

    def states(self, words: Sequence[list[list[int]]]) -> States:
        """Return the states of a text. A pause before a word may be left out, except at the beginning."""
        pause = self._senones.num_senones
        columns, leaves_out, indices = [pause], [False], [-1]
        for index, phones in enumerate(words):
            states = [column for phone in phones for column in phone]
            columns += [*states, pause]
            leaves_out += [index > 0, *[False] * len(states)]
            indices += [index] * len(states) + [-1]
        return States(np.array(columns), np.array(leaves_out), np.array(indices))


class _Senones:
    """The senones of each phone in its context, from pocketsphinx's binary file of definitions.

    The file begins with "BMDF", a version, the length of a description in bytes, and the description. Ten numbers
    follow, then the names of the phones without context, each ended by a zero byte and all together filled up to a
    multiple of four bytes, a tree that is not used here, the phones, and the sequences of senones that they share
    (pocketsphinx, bin_mdef.c and bin_mdef.h).
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            data = file.read()
        begin = 12 + int.from_bytes(data[8:12], "little")
        num_plain, num_phones, _, _, self.num_senones, _, num_sequences, _, num_nodes, _ = (
            int(number) for number in np.frombuffer(data, "<i4", 10, begin)
        )
        begin += 40
        names = data[begin:].split(b"\0", num_plain)[:num_plain]
        begin += -(-sum(len(name) + 1 for name in names) // 4) * 4 + 8 * num_nodes
        phones = np.frombuffer(data, _PHONE, num_phones, begin)
        begin += phones.nbytes + 4
        self._sequences = np.frombuffer(data, "<u2", num_sequences * STATES, begin).reshape(-1, STATES)
        self._numbers = {name.decode(): number for number, name in enumerate(names)}
        self._plain = phones["sequence"][:num_plain].tolist()
        contexts = phones[num_plain:]
        self._in_context = dict(
            zip(map(tuple, contexts["context"].tolist()), contexts["sequence"].tolist(), strict=True)
        )
        self.silence = self._of(self._plain[self._numbers["SIL"]])
        self.plain = [senone for sequence in self._plain for senone in self._of(sequence)]
        """The senones of all phones without context."""

    def of_word(self, phones: Sequence[str]) -> list[list[int]]:
        """Return the senones of each phone of a word that stands between pauses."""
        numbers = [self._numbers[phone] for phone in ("SIL", *phones, "SIL")]
        senones = []
        for index in range(1, len(numbers) - 1):
            left, phone, right = numbers[index - 1 : index + 2]
            is_first, is_last = index == 1, index == len(numbers) - 2
            position = _SINGLE if is_first and is_last else _BEGIN if is_first else _END if is_last else _INSIDE
            known = (
                self._in_context[place, phone, left, right]
                for place in (position, _INSIDE, _BEGIN, _END, _SINGLE)
                if (place, phone, left, right) in self._in_context
            )
            senones.append(self._of(next(known, self._plain[phone])))
        return senones

    def _of(self, sequence: int) -> list[int]:
        return [int(senone) for senone in self._sequences[sequence]]


def _read_scores(data: bytes, num_senones: int) -> NDArray[np.float32]:
    """Return the scores of a file of scores, shape (num_frames, num_senones + 1). The last column is empty.

    The file has a text that ends with "endhdr", a number that tells the byte order, and for each frame the number of
    senones and their scores, as 16-bit numbers (pocketsphinx, acmod.c). A lower score is a likelier one.
    """
    values = np.frombuffer(data, "<i2", offset=data.index(b"endhdr\n") + 7 + 4)
    frames = values[: len(values) // (num_senones + 1) * (num_senones + 1)].reshape(-1, num_senones + 1)
    scores = np.zeros(frames.shape, np.float32)
    np.multiply(frames[:, 1:], -_LOG_BASE, out=scores[:, :-1], casting="unsafe")
    return scores


def model_folder() -> str:
    """Return the folder of the package that has the model of English."""
    import pocketsphinx

    return str(pocketsphinx.get_model_path("en-us"))


def main(connection: Connection) -> None:
    """Send the file of scores of each window that arrives after the name of a folder, until the parent process ends.
    Of a window of digital silence nothing is sent: pocketsphinx would leave the scores of the window before."""
    import pocketsphinx

    handle_stop_signals(lambda *_: None)
    model = model_folder()
    with contextlib.suppress(EOFError, OSError):
        folder: str = connection.recv()
        decoder = pocketsphinx.Decoder(
            hmm=os.path.join(model, "en-us"),
            dict=os.path.join(model, "cmudict-en-us.dict"),
            lm=None,
            senlogdir=folder,
            compallsen=True,
            cmn="batch",  # the mean of the window itself, whatever came before
            loglevel="FATAL",
        )
        decoder.set_align_text("a")  # a search must run; its result is not used
        while True:
            samples = connection.recv_bytes()
            decoder.reinit_feat()  # otherwise the scores depend on the audio before
            decoder.start_utt()
            decoder.process_raw(samples, False, True)
            decoder.end_utt()
            (path,) = Path(folder).glob("*.sen")
            has_sound = "nan" not in decoder.get_cmn(False)  # the mean is taken over the frames with energy
            connection.send_bytes(path.read_bytes() if has_sound else b"")
            path.unlink()
