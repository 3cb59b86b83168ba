"""Decode one stretch of audio with faster-whisper, window by window.

Whisper's encoder takes windows of 30 s. As in openai/whisper, the next window begins at the last timestamp of the text
before, so that no word is cut, and the decoder gets that text as context. faster-whisper's own loop does the same, but
a batch run needs three things otherwise: no sampling after a bad decode, because two runs would differ; a look at each
text before it becomes context; and word times that do not move the windows. (faster-whisper moves a window to the end
of the last word if word times are asked for. This costs 0.7 points of WER with tiny.en on 27 minutes of English.) So
the loop is here, and its steps are faster-whisper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.chunking import is_silent
from voxbatch.records import SAMPLING_RATE, Samples, Word

FRAMES_PER_SECOND = 100
"""Frames of Whisper's spectrogram (openai/whisper, audio.py: FRAMES_PER_SECOND)."""
WINDOW_FRAMES = 30 * FRAMES_PER_SECOND
"""Length of the audio that Whisper's encoder always takes (openai/whisper, audio.py: CHUNK_LENGTH)."""
EDGE_FRAMES = 2
"""Frames at the edge of a block whose spectrum the block's end distorts: a frame's spectrum is of 400 samples around
its start, which is 200 samples, or 1.25 frames, beyond the edge."""
MIN_STEP_FRAMES = FRAMES_PER_SECOND
"""Distance by which the window moves at least: 1 s. Without it, a text whose last timestamp is 0 would repeat the
window for ever."""
NO_SPEECH_PROBABILITY, NO_SPEECH_LOG_PROBABILITY = 0.6, -1.0
"""A window holds no speech if Whisper gives silence more than this probability and the text at most this mean log
probability (openai/whisper, transcribe.py: no_speech_threshold, logprob_threshold)."""
MAX_INITIAL_TIMESTAMP = 50
"""Latest first timestamp of a text: 1 s in steps of 20 ms (openai/whisper, decoding.py: max_initial_timestamp)."""
PUNCTUATION_BEFORE, PUNCTUATION_AFTER = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word after it, and to the word before it (openai/whisper, transcribe.py)."""
LANGUAGE_PROBABILITY = 0.5
"""Probability from which a detected language is certain: no other language is as probable then."""
LANGUAGE_FRAMES = 10 * FRAMES_PER_SECOND
"""Length from which a window can change the language: 10 s. A few words are too little to detect it from."""

INVENTED_WORDS = 8
"""Number of words up to which the voice detector checks a window: Whisper answers noise and music with "you" or "Thank
you.", seldom with more words."""
SPEECH_PROBABILITY = 0.4
"""Speech probability that at least one window of 32 ms must reach in Silero VAD; otherwise the audio holds no voice. On
460 chunks of real speech in five languages, with telephone speech and single digits among them, the highest window was
never below 0.63. On white noise it was 0.25."""


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """The options with which a window is decoded."""

    beam_size: int = 5
    context_tokens: int = 223
    """Largest number of tokens of the text before that the decoder gets. 223 is half of Whisper's text length, less
    one (openai/whisper, decoding.py)."""


@dataclass(frozen=True, slots=True)
class Window:
    """The text of one window, which reaches to the start of the next window."""

    start: float
    end: float
    """The window is [start, end), in seconds from the start of the stretch."""
    language: str | None = None
    """Whisper's code of the language that was given, or that was detected with enough certainty. None without words."""
    words: tuple[Word, ...] = ()
    """Words with times that count from the start of the stretch."""
    tokens: tuple[int, ...] = ()
    """Tokens of the text with its timestamps: the context of the next window."""
    warnings: tuple[str, ...] = ()


class WindowDecoder:
    """Decodes windows of one stretch of audio. It keeps nothing from one window to the next."""

    def __init__(self, model: Any, samples: Samples):
        self._model, self._samples = model, samples
        self._features = spectrogram(model, samples)
        self.num_frames: int = self._features.shape[-1] - 1

    def encode(self, start: int) -> Any:
        """Return the encoder's output for the window that starts at a frame; None if the window is certainly silent."""
        from faster_whisper.audio import pad_or_trim

        end = start + WINDOW_FRAMES
        step = SAMPLING_RATE // FRAMES_PER_SECOND
        if is_silent(self._samples[start * step : end * step]):
            return None
        return self._model.encode(pad_or_trim(self._features[:, start : min(end, self.num_frames)]))

    def detect_language(self, encoded: Any) -> tuple[str, float]:
        """Return Whisper's code of the most probable language, and its probability."""
        if not self._model.model.is_multilingual:
            return "en", 1.0
        token, probability = self._model.model.detect_language(encoded)[0][0]
        return token[2:-2], probability

    def decode(
        self,
        encoded: Any,
        start: int,
        language: str,
        context: Sequence[int],
        speech_end: float,
        options: DecodingOptions,
    ) -> Window:
        """Return the text of the window that starts at a frame.

        Args:
            encoded: the encoder's output for the window.
            start: position of the window in frames.
            language: Whisper's code of the language.
            context: tokens of the text before.
            speech_end: end of the last word before, in seconds.
            options: the options of this attempt.
        """
        from faster_whisper.tokenizer import Tokenizer
        from faster_whisper.transcribe import get_suppressed_tokens

        model = self._model
        size = min(WINDOW_FRAMES, self.num_frames - start)
        start_s, size_s = start / FRAMES_PER_SECOND, size / FRAMES_PER_SECOND
        tokenizer = Tokenizer(model.hf_tokenizer, model.model.is_multilingual, "transcribe", language)
        prompt = model.get_prompt(tokenizer, list(context[-options.context_tokens :]) if options.context_tokens else [])
        (result,) = model.model.generate(
            encoded,
            [prompt],
            beam_size=options.beam_size,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_tokens=get_suppressed_tokens(tokenizer, [-1]),
            max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP,
        )
        tokens = result.sequences_ids[0]
        log_probability = result.scores[0] * len(tokens) / (len(tokens) + 1)  # with the token that ends the text
        if result.no_speech_prob > NO_SPEECH_PROBABILITY and log_probability <= NO_SPEECH_LOG_PROBABILITY:
            return Window(start_s, start_s + size_s)
        segments, following, _ = model._split_segments_by_timestamps(tokenizer, tokens, start_s, size, size_s, start)
        segments = [
            each for each in segments if each["start"] != each["end"] and tokenizer.decode(each["tokens"]).strip()
        ]
        end_s = min(max(following, start + MIN_STEP_FRAMES), self.num_frames) / FRAMES_PER_SECOND
        if not segments:
            return Window(start_s, end_s)
        model.add_word_timestamps(
            [segments], tokenizer, encoded, size, PUNCTUATION_BEFORE, PUNCTUATION_AFTER, speech_end
        )
        return Window(
            start_s,
            end_s,
            language,
            tuple(
                Word(word["word"], round(word["start"], 3), round(word["end"], 3), round(word["probability"], 3))
                for segment in segments
                for word in segment["words"]
            ),
            tuple(token for segment in segments for token in segment["tokens"]),
        )


def spectrogram(model: Any, samples: Samples) -> NDArray[np.float32]:
    """Return the log-mel spectrogram that the model takes, of shape (mels, frames + 1).

    It equals the result of the model's own feature extractor, which gets one block of 30 s after the other, because it
    takes many times the memory of its result. The extractor raises all values to a floor: 2 below the maximum. The
    floor of a block is never above that of the whole.
    """
    extractor, hop = model.feature_extractor, SAMPLING_RATE // FRAMES_PER_SECOND
    num_frames = len(samples) // hop
    blocks = []
    for start in range(0, max(num_frames, 1), WINDOW_FRAMES):
        begin, end = max(0, start - EDGE_FRAMES), start + WINDOW_FRAMES
        if end < num_frames:
            block = extractor(samples[begin * hop : (end + EDGE_FRAMES) * hop], padding=0)
            blocks.append(block[:, start - begin : end - begin])
        else:
            blocks.append(extractor(samples[begin * hop :])[:, start - begin :])
    features = np.concatenate(blocks, axis=1)
    floored: NDArray[np.float32] = np.maximum(features, features.max() - 2)
    return floored


def windows(model: Any, samples: Samples, language: str | None, options: DecodingOptions) -> Iterator[Window]:
    """Decode a stretch of audio, window after window.

    Args:
        model: a faster_whisper.WhisperModel.
        samples: the audio, of shape (num_samples,).
        language: Whisper's code of the language. None means that the language of each window is detected.
        options: the options of every window.

    Yields:
        The windows in order. Together they are the whole stretch.
    """
    decoder = WindowDecoder(model, samples)
    context: tuple[int, ...] = ()
    heard, certain = language or "", language is not None
    speech_end, frame = 0.0, 0
    while frame < decoder.num_frames:
        encoded = decoder.encode(frame)
        if encoded is None:
            end = min(frame + WINDOW_FRAMES, decoder.num_frames)
            window = Window(frame / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND)
        else:
            if not certain or (language is None and decoder.num_frames - frame >= LANGUAGE_FRAMES):
                detected, probability = decoder.detect_language(encoded)
                if detected != heard and (not certain or probability >= LANGUAGE_PROBABILITY):
                    heard, context = detected, ()
                certain = certain or probability >= LANGUAGE_PROBABILITY
            window = _without_invented(decoder.decode(encoded, frame, heard, context, speech_end, options), samples)
            window = window if certain else replace(window, language=None)
        yield window
        context = (*context, *window.tokens)[-options.context_tokens :]
        speech_end = window.words[-1].end if window.words else speech_end
        frame = round(window.end * FRAMES_PER_SECOND)


def _without_invented(window: Window, samples: Samples) -> Window:
    """Drop a short text, with a warning, if nobody speaks in the window."""
    if not 0 < len(window.words) <= INVENTED_WORDS:
        return window
    audio = samples[round(window.start * SAMPLING_RATE) : round(window.end * SAMPLING_RATE)]
    if (speech := speech_probability(audio)) >= SPEECH_PROBABILITY:
        return window
    text = "".join(word.text for word in window.words).strip()
    where = f"from {window.start:.2f} to {window.end:.2f} s of this chunk"
    reason = f"no voice {where} (Silero VAD gives a speech probability of at most {speech:.2f})"
    warning = f"dropped {text[:80]!r}: {reason}"
    return replace(window, language=None, words=(), tokens=(), warnings=(warning,))


def speech_probability(samples: Samples) -> float:
    """Return the highest speech probability that Silero VAD gives to 32 ms of the audio.

    Silero VAD is part of faster-whisper's wheel.
    """
    from faster_whisper.vad import get_vad_model

    step = 512
    return float(get_vad_model()(np.pad(samples, (0, -len(samples) % step))).max())
