"""Decode chunks with faster-whisper, window by window.

Whisper's encoder takes windows of 30 s. As in openai/whisper, the next window begins at the last timestamp of the text
before, so that no word is cut, and the decoder gets that text as context. faster-whisper's own loop does the same, but
a batch run needs three things otherwise: no sampling after a bad decode, because two runs would differ; a look at each
text (`suspect_text`) before it becomes context; and word times that do not move the windows. (faster-whisper moves a
window to the end of the last word if word times are asked for. This costs 0.7 points of WER with tiny.en on 27 minutes
of English.) So the loop is here, and its steps are faster-whisper's.

Whisper was trained on windows that are padded to 30 s, and the encoder's work grows faster than the window. A short
window is padded by 5 s only, which more than halves the work on a clip of 6 s. Without the silence up to 30 s, a text
repeats itself more often. Such a text is suspect, or has timestamps after the end of the audio. Then the window is
decoded again with the encoder's output for silence in place of the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from voxbatch.engines.language_switch import POSITIONS_PER_SECOND, find_switch
from voxbatch.engines.suspect_text import PieceText, Suspicion, flags, reasons, suspicions, weight
from voxbatch.engines.whisper_input import (
    FRAMES_PER_SECOND,
    WINDOW_FRAMES,
    encoded_text,
    encoded_window,
    fitting_hotwords,
    spectrogram,
)
from voxbatch.records import (
    CUT_OFF,
    SAMPLING_RATE,
    SPEAKING_RATE,
    TRANSCRIBE,
    Flag,
    Samples,
    Word,
)
from voxbatch.text.chunking import quietest_position
from voxbatch.voice import SPEECH_PROBABILITY, VOICE_WINDOW, is_silent, speech_probabilities

MAX_OVERRUN_S = 1.0
"""Time after the end of the audio that the last timestamp of a text may name."""
MIN_STEP_FRAMES = FRAMES_PER_SECOND
"""Distance by which the window moves at least: 1 s. Without it, a text whose last timestamp is 0 would repeat the
window for ever."""
NO_SPEECH_PROBABILITY, NO_SPEECH_LOG_PROBABILITY = 0.6, -1.0
"""A window holds no speech if Whisper gives silence more than this probability and the text at most this mean log
probability (openai/whisper, transcribe.py: no_speech_threshold, logprob_threshold)."""
TIMESTAMPS_PER_SECOND = 50
"""Timestamps of Whisper, which are the tokens with the largest numbers, in steps of 20 ms."""
MAX_INITIAL_TIMESTAMP = 50
"""Latest first timestamp of a text: 1 s in steps of 20 ms (openai/whisper, decoding.py: max_initial_timestamp)."""
PUNCTUATION_BEFORE, PUNCTUATION_AFTER = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word after it, and to the word before it (openai/whisper, transcribe.py)."""
LANGUAGE_PROBABILITY = 0.5
"""Probability from which a detected language is certain: no other language is as probable then."""
LANGUAGE_FRAMES = 10 * FRAMES_PER_SECOND
"""Length of a window from which LANGUAGE_PROBABILITY changes the language: 10 s. A few words are too little to detect
it from."""
SHORT_LANGUAGE_PROBABILITY = 0.9
"""Probability that changes the language at a shorter window. With Whisper base, 8 of 111 windows of 1 to 10 s in five
languages had more than 0.5 for a wrong one, and none had more than 0.9."""
BORDER_SEARCH = 2 * SAMPLING_RATE
"""Samples before and after the end of a language in which the pause before the other language is looked for: 2 s. With
Whisper base, 35 of 38 borders in 24 talks are within 0.3 s of the truth; with 1 s, 31 are."""

MAX_TOKENS = 448
"""Number of positions of the prompt and the text together (openai/whisper, n_text_ctx)."""
TOKENS_A_SECOND, MANY_TOKENS_A_SECOND, MORE_TOKENS = 10, 40, 20
"""Largest number of tokens per second of audio, of an English-only and of a multilingual model, and the tokens that may
be added: 3 s cannot have more than 50 in English. MOST_CHARACTERS_A_SECOND of `suspect_text` are 7 tokens of English,
and 40 in scripts whose letters take several tokens."""

INVENTED_WORDS = 8
"""Number of words up to which the voice detector checks a window: Whisper answers noise and music with "you" or "Thank
you.", seldom with more words."""

_SILENCE: WeakKeyDictionary[Any, NDArray[np.float32]] = WeakKeyDictionary()
"""The encoder's output for a window of padding alone, by model. Threads that compute it together get the same."""


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """The options with which a window is decoded."""

    beam_size: int = 5
    context_tokens: int = 223
    """Largest number of tokens of the text before that the decoder gets. 223 is half of Whisper's text length, less
    one (openai/whisper, decoding.py)."""
    timestamps: bool = True
    """True to let the model write timestamps, which say where the next window begins."""
    no_repeat_ngram: int = 0
    """Number of tokens in a row that the text may not have twice. 0 means that it may repeat itself."""
    task: str = TRANSCRIBE
    """One of TASKS."""
    hotwords: str = ""
    """Words that may be spoken, divided by commas. They stand before the text before."""

    def for_suspect_text(self, text_suspicions: Sequence[Suspicion]) -> DecodingOptions:
        """Return the options of a second attempt.

        Without context, timestamps and repetitions, the model leaves nearly all loops. A temperature would do the same
        with a text that differs from run to run. Repetitions are allowed if the text is not longer than anybody speaks:
        people do repeat themselves.

        Args:
            text_suspicions: the suspicions that hold for the first text.
        """
        is_too_long = any(suspicion.flag.kind in (SPEAKING_RATE, CUT_OFF) for suspicion in text_suspicions)
        return replace(self, context_tokens=0, timestamps=False, no_repeat_ngram=3 if is_too_long else 0)


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
    flags: tuple[Flag, ...] = ()
    """Reasons to distrust the text, with times that count from the start of the stretch."""
    truncated: bool = False
    """True if the text ended because no more tokens were allowed."""
    overruns: bool = False
    """True if a timestamp of the text lies more than MAX_OVERRUN_S after the end of the audio."""


class WindowDecoder:
    """Decodes windows of one stretch of audio. It keeps nothing from one window to the next."""

    def __init__(self, model: Any, samples: Samples):
        self._model, self._samples = model, samples
        self._voice = speech_probabilities(samples)
        self._features = spectrogram(model, samples)
        self.num_frames: int = self._features.shape[-1] - 1

    def until(self, end: int) -> WindowDecoder:
        """Return a decoder of the stretch up to a frame. Its windows do not reach beyond it."""
        decoder = copy(self)
        decoder.num_frames = end
        return decoder

    def encode(self, start: int) -> Any:
        """Return the encoder's output for the window that starts at a frame; None if the window is certainly silent."""
        end = start + WINDOW_FRAMES
        step = SAMPLING_RATE // FRAMES_PER_SECOND
        if is_silent(self._samples[start * step : end * step]):
            return None
        return encoded_window(self._model, self._features[:, start : min(end, self.num_frames)])

    def with_silence(self, encoded: Any) -> Any:
        """Return the encoder's output for a short window with that for silence up to 30 s."""
        begin = np.array(encoded)
        if (silence := _SILENCE.get(self._model)) is None:
            padding = np.zeros((self._model.model.n_mels, WINDOW_FRAMES), np.float32)
            silence = _SILENCE[self._model] = np.array(self._model.encode(padding))
        return type(encoded).from_array(np.concatenate([begin, silence[:, begin.shape[1] :]], axis=1))

    def detect_language(self, encoded: Any, start: int) -> tuple[str, float, int]:
        """Return Whisper's code of the first language of the window that starts at a frame, its probability, and the
        frame at which it ends: in a pause before another language, or at the end of the stretch."""
        model = self._model.model
        if not model.is_multilingual:
            return "en", 1.0, self.num_frames
        probabilities = {token[2:-2]: probability for token, probability in model.detect_language(encoded)[0]}
        size = min(WINDOW_FRAMES, self.num_frames - start)
        num_positions = size * POSITIONS_PER_SECOND // FRAMES_PER_SECOND
        if size >= LANGUAGE_FRAMES and (switch := find_switch(model, encoded, num_positions, probabilities)):
            at = round((start / FRAMES_PER_SECOND + switch.end_s) * SAMPLING_RATE)
            pause, _ = quietest_position(self._samples, max(0, at - BORDER_SEARCH), at + BORDER_SEARCH)
            return switch.language, 1.0, min(pause * FRAMES_PER_SECOND // SAMPLING_RATE, self.num_frames)
        language = max(probabilities, key=lambda code: probabilities[code])
        return language, probabilities[language], self.num_frames

    def decode_watched(
        self,
        encoded: Any,
        start: int,
        language: str,
        context: Sequence[int],
        speech_end: float,
        options: DecodingOptions,
    ) -> Window:
        """Return the text of the window that starts at a frame, decoded a second time if the first text is suspect.

        The window is first decoded again with silence up to 30 s, which mends most texts. Of the text that is still
        suspect and of the second one, the text with the smaller weight of suspicions is kept. The args are those of
        `decode`.
        """
        first = self.decode(encoded, start, language, context, speech_end, options)
        first_suspicions = self._suspicions(first)
        if (first_suspicions or first.overruns) and encoded.shape[1] < WINDOW_FRAMES // 2:
            encoded = self.with_silence(encoded)
            first = self.decode(encoded, start, language, context, speech_end, options)
            first_suspicions = self._suspicions(first)
        if not first_suspicions:
            return self._without_invented(first, first_suspicions)
        second = self.decode(encoded, start, language, (), speech_end, options.for_suspect_text(first_suspicions))
        second_suspicions = self._suspicions(second)
        window, window_suspicions, ordinal = (
            (second, second_suspicions, "second")
            if weight(second_suspicions) < weight(first_suspicions)
            else (first, first_suspicions, "first")
        )
        warning = f"{reasons(first_suspicions)}: decoded again without context, and the {ordinal} text was kept"
        # A text that is still suspect is no context: the next window would repeat its mistakes.
        window = replace(
            window,
            warnings=(warning,),
            flags=flags(window_suspicions),
            tokens=() if window_suspicions else window.tokens,
        )
        return self._without_invented(window, window_suspicions)

    def _suspicions(self, window: Window) -> list[Suspicion]:
        first, last = (round(at * SAMPLING_RATE / VOICE_WINDOW) for at in (window.start, window.end))
        text = PieceText("".join(word.text for word in window.words), window.words, truncated=window.truncated)
        return suspicions(self._samples_of(window), text, self._voice[first:last], window.start)

    def _without_invented(self, window: Window, window_suspicions: Sequence[Suspicion]) -> Window:
        """Drop a text that is short or suspect, with a warning, if nobody speaks in the window."""
        if not window.words or (len(window.words) > INVENTED_WORDS and not window_suspicions):
            return window
        # The window alone: in the whole stretch, the detector still hears the voice before the window at its start.
        if (speech := float(speech_probabilities(self._samples_of(window)).max())) >= SPEECH_PROBABILITY:
            return window
        text = "".join(word.text for word in window.words).strip()
        place = f"from {window.start:.2f} to {window.end:.2f} s of this chunk"
        reason = f"no voice {place} (Silero VAD gives a speech probability of at most {speech:.2f})"
        return Window(window.start, window.end, warnings=(*window.warnings, f"dropped {text[:80]!r}: {reason}"))

    def _samples_of(self, window: Window) -> Samples:
        return self._samples[round(window.start * SAMPLING_RATE) : round(window.end * SAMPLING_RATE)]

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
        tokenizer = Tokenizer(model.hf_tokenizer, model.model.is_multilingual, options.task, language)
        hotwords = options.hotwords or None
        room = options.context_tokens - (len(encoded_text(model, hotwords)) if hotwords else 0)
        used = list(context[-room:]) if room > 0 else []
        prompt = model.get_prompt(tokenizer, used, without_timestamps=not options.timestamps, hotwords=hotwords)
        per_second = MANY_TOKENS_A_SECOND if model.model.is_multilingual else TOKENS_A_SECOND
        max_tokens = min(MORE_TOKENS + round(per_second * size_s), MAX_TOKENS - len(prompt))
        max_length = len(prompt) + max_tokens
        (result,) = model.model.generate(
            encoded,
            [prompt],
            beam_size=options.beam_size,
            no_repeat_ngram_size=options.no_repeat_ngram,
            max_length=max_length,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_tokens=get_suppressed_tokens(tokenizer, [-1]),
            max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP,
        )
        tokens = result.sequences_ids[0]
        last_timestamp_s = (max(tokens, default=0) - tokenizer.timestamp_begin) / TIMESTAMPS_PER_SECOND
        log_probability = result.scores[0] * len(tokens) / (len(tokens) + 1)  # with the token that ends the text
        if result.no_speech_prob > NO_SPEECH_PROBABILITY and log_probability <= NO_SPEECH_LOG_PROBABILITY:
            return Window(start_s, start_s + size_s)
        segments, following, _ = model._split_segments_by_timestamps(tokenizer, tokens, start_s, size, size_s, start)
        segments = [
            segment
            for segment in segments
            if segment["start"] != segment["end"] and tokenizer.decode(segment["tokens"]).strip()
        ]
        end_s = min(max(following, start + MIN_STEP_FRAMES), self.num_frames) / FRAMES_PER_SECOND
        if not segments:
            return Window(start_s, end_s)
        model.add_word_timestamps(
            [segments], tokenizer, encoded, size, PUNCTUATION_BEFORE, PUNCTUATION_AFTER, speech_end
        )
        timed = [word for segment in segments for word in segment["words"]]
        if timed and not options.timestamps and start + size < self.num_frames:  # no timestamp says where to go on
            end_s = max(round(timed[-1]["end"], 3), start_s + MIN_STEP_FRAMES / FRAMES_PER_SECOND)
        return Window(
            start_s,
            end_s,
            language,
            tuple(_word_until(word, end_s) for word in timed),
            tuple(token for segment in segments for token in segment["tokens"]),
            truncated=len(tokens) >= min(max_length // 2, max_tokens),  # as CTranslate2 limits it (whisper.cc)
            overruns=last_timestamp_s > size_s + MAX_OVERRUN_S,
        )


def _word_until(word: Mapping[str, Any], end_s: float) -> Word:
    """Return a word of faster-whisper. It may have placed the last ones where the next window has other words."""
    start, end = (round(min(word[name], end_s), 3) for name in ("start", "end"))
    return Word(word["word"], start, end, round(word["probability"], 3))


def windows(
    model: Any, samples: Samples, language: str | None, options: DecodingOptions, prompt: str = ""
) -> Iterator[Window]:
    """Decode a stretch of audio, window after window.

    Args:
        model: a faster_whisper.WhisperModel.
        samples: the audio, of shape (num_samples,).
        language: Whisper's code of the language. None means that the language of each window is detected. A window in
            which the language changes ends there.
        prompt: a text that could stand before the audio.

    Yields:
        The windows in order. Together they are the whole stretch.
    """
    decoder = WindowDecoder(model, samples)
    context = encoded_text(model, prompt) if prompt else ()
    hotwords, warning = fitting_hotwords(functools.partial(encoded_text, model), options.hotwords)
    options = replace(options, hotwords=hotwords)
    heard, certain = language or "", language is not None
    speech_end, frame, stretch = 0.0, 0, decoder
    while frame < decoder.num_frames:
        if frame >= stretch.num_frames:
            stretch, certain = decoder, False
        encoded = stretch.encode(frame)
        if encoded is None:
            end = min(frame + WINDOW_FRAMES, stretch.num_frames)
            window = Window(frame / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND)
        else:
            if stretch is decoder and language is None:
                detected, probability, end = decoder.detect_language(encoded, frame)
                is_long = decoder.num_frames - frame >= LANGUAGE_FRAMES
                threshold = LANGUAGE_PROBABILITY if is_long else SHORT_LANGUAGE_PROBABILITY
                if detected != heard and (not certain or probability >= threshold):
                    heard, context = detected, () if heard else context
                certain = certain or probability >= LANGUAGE_PROBABILITY
                if end < decoder.num_frames:  # another language follows, and is detected when its turn comes
                    stretch = decoder.until(end)
                    continue
            window = stretch.decode_watched(encoded, frame, heard, context, speech_end, options)
            window = window if certain else replace(window, language=None)
        if warning:
            window, warning = replace(window, warnings=(warning, *window.warnings)), None
        yield window
        context = (*context, *window.tokens)[-options.context_tokens :]
        speech_end = window.words[-1].end if window.words else speech_end
        frame = round(window.end * FRAMES_PER_SECOND)
