"""Show a transcript in a notebook: a player, and its segments with their times. A click on a word plays it, words of
which the engine was unsure are marked, and flags follow the text.

A notebook keeps what it shows in its file, so the page is small: it has a recording if that is short, and of a long
text the begin. It has no style sheet, because it must look like the notebook, light or dark.
"""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Iterator, Sequence
from html import escape

from voxbatch.formats.document import Document
from voxbatch.records import Flag, Transcript, Word, by_stretch

MAX_AUDIO_BYTES = 4 << 20
"""Largest recording that is put into the page."""
MAX_WORDS = 3000
"""Most words that are shown: 20 minutes of speech, 250 kB."""
DOUBTFUL = 0.7
"""Confidence below which a word is marked, as in the report."""
_PLAY = (
    "const at=event.target.dataset.start,player=this.querySelector('audio');"
    "if(at&&player){player.currentTime=at;player.play()}"
)


def notebook_html(transcript: Transcript) -> str:
    """Return the page of a transcript: one `div`, whose texts are escaped."""
    rows, num_shown = list[str](), 0
    for segment, words in Document("", transcript).words_by_segment():
        if num_shown >= MAX_WORDS:
            break
        shown = "".join(_spans(segment.text, words[: MAX_WORDS - num_shown])) if words else escape(segment.text)
        speaker = f"<b>{escape(segment.speaker)}</b> " if segment.speaker else ""
        rows.append(f"<div><small>{_clock(segment.start)}</small> {speaker}{shown}</div>")
        num_shown += len(words)
    if (num_left := len(transcript.words) - MAX_WORDS) > 0:
        rows.append(f"<div><small>… and {num_left:,} more words</small></div>")
    rows += [f"<div><small>⚠ {_flag(flag)}</small></div>" for flag in by_stretch(transcript.flags)]
    rows += [f"<div><small>{escape(warning)}</small></div>" for warning in transcript.warnings]
    return f'<div dir="auto" onclick="{escape(_PLAY)}">{_player(transcript.audio)}{"".join(rows)}</div>'


def _spans(text: str, words: Sequence[Word]) -> Iterator[str]:
    """Yield the words of a segment with what stands between them in its text."""
    end = 0
    for word in words:
        spelled = word.text.strip()
        at = text.find(spelled, end)
        yield " " if at < 0 else escape(text[end:at])
        end = max(end, at + len(spelled)) if at >= 0 else end
        is_sure = word.confidence is None or word.confidence >= DOUBTFUL
        tag = "span" if is_sure else "mark"
        sure = "" if word.confidence is None else f", confidence {word.confidence:.2f}"
        times = f"{word.start:.2f} to {word.end:.2f} s{sure}"
        yield f'<{tag} data-start="{word.start:.2f}" title="{times}">{escape(spelled)}</{tag}>'


def _flag(flag: Flag) -> str:
    place = "" if flag.start is None or flag.end is None else f" at {_clock(flag.start)} to {_clock(flag.end)}"
    return escape(f"{flag.reason}{place}")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _player(audio: str) -> str:
    """Return the player of a recording on this machine; nothing for a long one, or one that no browser plays."""
    kind = mimetypes.guess_type(audio)[0] or ""
    if not kind.startswith(("audio/", "video/")):
        return ""
    try:
        with open(audio, "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_AUDIO_BYTES:
                return ""
            data = base64.b64encode(file.read()).decode()
    except OSError:  # it is at an address, or it is gone
        return ""
    return f'<audio controls preload="none" src="data:{kind};base64,{data}"></audio>'
