"""Read the references that lie beside recordings, and NIST's stm.

talk 1 ann 0.00 2.50 <o,f0> the cat sat      →   the cat sat      (.stm)
0 46797 the cat sat                          →   the cat sat      (.txt of TIMIT)
0.500000	1.700000	the cat sat      →   the cat sat      (.txt, labels of Audacity)
"""

from __future__ import annotations

import os
import re

from voxbatch.manifest.encoding import TextDecoder
from voxbatch.sources.transcripts import READERS, joined, kind_of_text, read_transcript
from voxbatch.sources.transcripts.timed_text import TimedText

IGNORED_SEGMENT = "ignore_time_segment_in_scoring"
"""Text of a segment of an stm that is left out of the score, in any case of letters."""
_STM_LABELS = re.compile(r"<[^<>\s]*>")
_TIMIT = re.compile(r"0 \d{4,7} (\S.*)")


def reference_text(data: bytes, name: str, decoder: TextDecoder) -> str:
    """Return the text of a reference: what was said in a transcript, else the text of the file as it is.

    Args:
        data: the bytes of the file.
        name: path of the file. Its extension tells the kind; that of a .txt, its content does.

    Raises:
        ValueError: the transcript cannot be read; see `read_transcript`.
    """
    kind = os.path.splitext(name)[1].removeprefix(".").lower()
    if kind not in READERS:
        text = decoder.decode(data, name).strip()
        if match := _TIMIT.fullmatch(text):  # the first and the last sample come first
            return match[1]
        content_kind = kind_of_text(text.splitlines())
        if content_kind is None:
            return text
        kind = content_kind
    return joined(read_transcript(data, kind, name, decoder))


def stm_texts(stm: str) -> list[TimedText]:
    """Return the scored segments of an stm.

    Raises:
        ValueError: a line has too few fields.
    """
    texts = []
    for number, line in enumerate(stm.splitlines(), 1):
        if not line.strip() or line.startswith(";;"):
            continue
        fields = line.split(None, 5)
        try:
            start, end = float(fields[3]), float(fields[4])
        except (ValueError, IndexError) as error:
            raise ValueError(f"line {number} has no start and end in its fields 4 and 5; write an stm") from error
        text = without_labels(fields[5]) if len(fields) > 5 else ""
        if IGNORED_SEGMENT not in text.casefold():
            texts.append(TimedText(text, start, end, fields[2]))
    return texts


def without_labels(text: str) -> str:
    """Return the text of a segment of an stm without its labels: "<o,f0> the cat" → "the cat"."""
    label, _, rest = text.partition(" ")
    return rest if _STM_LABELS.fullmatch(label) else text
