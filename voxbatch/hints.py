"""The words that people bring from other programs, and what voxbatch has in their place: one table.

An option is compared in lower case, with hyphens, so that --Batch_Size is --batch-size.
"""

from __future__ import annotations

OPTION, COMMAND, SETTING, FORMAT, KEYWORD = "option", "command", "setting", "format", "keyword"
VALUE, SOURCE, FURTHER = "value", "source", "further"
"""Kinds of words: --translate, `failures`, NeMo's pretrained_name=…, a name in --formats, a keyword argument of Python
whose answer is not that of the option, --task=diarize for a value of an option, a word in the place of SOURCE, and a
command that gets more arguments than it takes."""

_SPEAKERS = "Speakers are told apart by --speakers, their number by --speakers 2-4"
_CHANNELS = "Each channel is transcribed alone by --channels split"
_ASK = "Summaries and other answers: voxbatch ask SOURCE --prompt TEXT, with a Voxtral model on a GPU"
_REDACT = "Secrets are removed from copies: `voxbatch redact OUT`, or `voxbatch run SOURCE --redact FOLDER`"
_WRITTEN = "Punctuation, capitals and numbers are written as the model gives them"
_HOTWORDS = "Names and terms are given by --hotwords FILE"
_FIND = "Where something was said: voxbatch find OUT TEXT"
_STATUS = "A run goes on until all is done; `voxbatch status OUT` shows it"
_NO_ACCOUNT = "No account is needed, everything runs on this machine; the hub's token is a variable: export HF_TOKEN=…"
_DETECTED = "The language is given by --language, or detected by a multilingual model: `voxbatch language SOURCE`"
_REFERENCES = "References are given by an option: voxbatch score HYP --ref REF"
_ERRORS = "The error rate of a run with references: voxbatch score OUT"
_FORMATS = "Formats are given by --formats srt,vtt"
_LANGUAGE = "The language is given by --language"
_MODEL = "The model is given by --model; `voxbatch models` lists them"
_GPU = "GPUs are used automatically; `voxbatch doctor` shows them"
_CPU = "A machine without a GPU uses its CPU automatically; for faster-whisper: --engine-option device=cpu"
_BATCH = "The engine fills its batches by itself"
_OUT = "The folder of the outputs is given by -o"
_WORDS = "Each line of transcripts.jsonl has the times of words; --formats vtt-words shows them as they are spoken"
_LINES = "The shape of subtitles is given by --max-line 42, --max-lines 2 and --max-cps 20"
_SILENCE = "Pauses and noise are found and left out automatically, and `voxbatch flags OUT` lists doubtful texts"
_DECODING = "The engine's own thresholds are used; a doubtful text is flagged: `voxbatch flags OUT`"
_TRANSLATE = (
    "For English: --task translate --model small; for other languages: voxbatch ask SOURCE --translate-to de, with a "
    "Voxtral model on a GPU"
)
_ALIGN = "Words have times already; for a text that is known: `voxbatch align SOURCE`"
_AUDIO = "Recordings in any format, rate and number of channels are converted automatically"
_PART = 'For a part of a recording, a line of a manifest: {"audio_filepath": "talk.mp3", "offset": 60, "duration": 30}'
_SOURCE = "SOURCE is given without an option: voxbatch run talk.mp3"
_RESUME = "The same command again continues a run"
_ANEW = "The same command again continues a run; a new one goes to another folder: -o OTHER"
_QUALITY = "The model is chosen by --quality fast, balanced or best; `voxbatch models` shows them"
_STYLES = "Styles are those of an .ass file by --formats ass; edit it; then: voxbatch correct OUT"
_SHIFT = "Cues are shifted in the subtitle file, by any editor of subtitles; then: voxbatch correct OUT"
_LOG = "The log has everything already"
_CACHE = (
    "Models of the hub are kept in the folder that the variable HF_HOME names; a folder is given by --model ./model"
)

_TABLE = {
    # openai-whisper, whisper-ctranslate2, faster-whisper-xxl, insanely-fast-whisper, whisperX, whisper.cpp
    OPTION: {
        "--translate": _TRANSLATE,
        "--diarize --diarize-model --diarization-model --min-speakers --max-speakers --num-speakers --speaker-labels "
        "--show-speaker-labels --max-speaker-labels --speakers-expected --speaker-embeddings --tinydiarize -tdrz "
        "-di": _SPEAKERS,
        "--format --output-format --output-formats -f --output-type --output-srt --output-vtt --output-txt "
        "--output-json --output-csv --output-lrc -osrt -ovtt -otxt -oj -ojf -ocsv -olrc": _FORMATS,
        "--output-dir --output --output-name --outdir --transcript-path --output-path --output-filename "
        "--output-file "
        "--transcription-job-name --job-name -of": _OUT,
        "--output-bucket-name --output-bucket": "OUT may be in a bucket: -o s3://bucket/calls",
        "--multichannel --dual-channel --channel-identification": _CHANNELS,
        "--summarize --summary --chapters --auto-chapters --topics --topic-detection --sentiment "
        "--sentiment-analysis "
        "--entity-detection --auto-highlights": _ASK,
        "--content-redaction --redact-pii --content-moderation": _REDACT,
        "--suppress-numerals --prepend-punctuations --append-punctuations --punctuate --punctuation "
        "--smart-format --format-text --paragraphs --numerals": _WRITTEN,
        "--profanity-filter --filter-profanity --disfluencies": "Nothing is left out of a text; edit it, then: "
        "voxbatch correct OUT",
        "--search": _FIND,
        "--reference --references --hyp --hypothesis --hypotheses": _REFERENCES,
        "--poll --wait": _STATUS,
        "--api-key": _NO_ACCOUNT,
        "--multilingual --compute-langs --language-detection-threshold --detect-language --language-detection "
        "--identify-language -dl": _DETECTED,
        "--chunk-level --batch-timestamps --print-confidence --word-timestamps --timestamp --timestamps "
        "--highlight-words --one-word --return-timestamps --utterances "
        "--include-word-time-offsets --return-char-alignments": _WORDS,
        "--chunk-batch-size --batch-size --batch --batched --batched-inference -b": _BATCH,
        "--gpu --gpus --cuda --device-index --device-id --num-gpus": _GPU,
        "--cpu --no-gpu -ng": _CPU,
        "--device": "GPUs are used automatically, else the CPU; for faster-whisper: --engine-option device=cpu or cuda",
        "--beam-size --best-of -bs -bo": "With faster-whisper: --engine-option beam_size=5",
        "--compute-type --fp16 --fp32 --bf16 --int8": "With faster-whisper: --engine-option compute_type=int8",
        "--threads --cpu-threads": "With faster-whisper: --engine-option threads=4",
        "--hf-token --token": "The hub's token is a variable: export HF_TOKEN=…",
        "--lang -l --language-code --source-language": _LANGUAGE,
        "--pretrained-name --model-name --model-size --model-id -m": _MODEL,
        "--model-dir --model-directory --model-cache-dir --cache-dir --download-root": _CACHE,
        "--local-files-only": "Without a network: export HF_HUB_OFFLINE=1",
        "--hotword --hotwords-file --vocabulary --glossary --vocabulary-name --keywords --keyterm --keyterms "
        "--word-boost --boost": _HOTWORDS,
        "--initial-prompt --carry-initial-prompt": 'Names and style are given by --prompt "…" and --hotwords FILE',
        "--max-sentence-words --max-line-width --max-line-count --max-words-per-line --standard --sentence "
        "--max-line-length --line-length "
        "--cps --max-len --split-on-word --segment-resolution -ml -sow": _LINES,
        "--vad-model --vad-threshold --vad-min-silence-duration-ms --overlap-duration --silence-gap "
        "--local-attention "
        "--vad --vad-filter --vad-method --vad-onset --vad-offset --no-vad --chunk-size --chunk-length": _SILENCE,
        "--nbest --decoding --max-new-tokens --temperature-increment-on-fallback --temperature --patience "
        "--length-penalty --no-speech-threshold --logprob-threshold "
        "--compression-ratio-threshold --suppress-tokens --repetition-penalty "
        "--hallucination-silence-threshold": _DECODING,
        "--condition-on-previous-text": "Whisper always gets the text before, within five minutes; repeated text is "
        "flagged: `voxbatch flags OUT`",
        "--align-model --no-align --interpolate-method": _ALIGN,
        "--batch-recursive --recursive -r": "A folder is given as SOURCE and is read with all folders in it",
        "--skip --skip-existing --resume-from --continue": _RESUME,
        "--force --restart --no-resume --from-scratch": _ANEW,
        "--best --accuracy --preset --fast": _QUALITY,
        "--file --file-name --input --audio --audio-file -i --media --media-file-uri --audio-url": _SOURCE,
        "--start --end --from --to --clip-timestamps --ss --start-time --end-time -s -t -ss -to -ot": _PART,
        "--sample-rate --sampling-rate --media-format --media-sample-rate-hertz --encoding -a -c -ac -ar -acodec "
        "-vn -af --filter-complex --audio-filters": _AUDIO,
        "-map": "Audio streams are chosen by --audio-stream 1",
        "--flash": "vLLM takes the fastest attention that the GPU has",
        "--num-workers --processors --jobs -j": "Processes are given by --workers, decoders by --decoders",
        "--json": "transcripts.jsonl is always written; one JSON file for each recording: --formats json",
        "--srt --subtitles --subtitle --subs --subtitle-format": "Subtitles are given by --formats srt",
        "--burn-subtitles --burn-in --hardsub --hardsubs -vf": "Subtitles in the picture: `voxbatch run SOURCE --burn`",
        "--embed --embed-subs --softsub --softsubs": "Subtitles as a track of the video: `voxbatch run SOURCE --mux`",
        "--fps --framerate": "Subtitles take the frame rate of each video; --frame-rate 25 is for all",
        "--style --font --font-size --fontsize --font-name --color --force-style": _STYLES,
        "--shift --delay --itsoffset": _SHIFT,
        "--exclude --ignore": "Only some files of a folder: --include '*.mp4'",
        "--txt --text --print-text --no-timestamps": "Texts are given by --formats txt",
        "--yes -y": "No question is asked",
        "--log-progress --progress --verbose --debug --print-progress --print-colors --loglevel --log-level": _LOG,
        "--list --list-models": "The models are listed by `voxbatch models`",
        "--version": "The version is shown by voxbatch --version",
    },
    COMMAND: {
        "transcribe transcription start-transcription-job recognize recognise prerecorded convert process": "voxbatch "
        "run SOURCE transcribes recordings in any format",
        "get-transcription-job list-transcription-jobs progress": "voxbatch status OUT shows a run",
        "summarize summarise summary chapters question": _ASK,
        "detect-language langid lid": "voxbatch language SOURCE detects languages",
        "search grep": _FIND,
        "login auth": _NO_ACCOUNT,
        "cancel stop": "Ctrl-C stops a run, and the same command continues it; rm -r OUT removes its outputs",
        "delete erase rm": "voxbatch forget OUT ID erases an item; rm -r OUT removes all outputs of a run",
        "help": "Try voxbatch --help",
        "version": "Try voxbatch --version",
        "failures errors failed": "OUT/failures.jsonl lists them, voxbatch status OUT counts them; to do them again: "
        "voxbatch run SOURCE --retry-failed",
        "resume retry continue": "Run the same command again: voxbatch run SOURCE continues",
        "translate": "voxbatch run SOURCE --task translate --model small writes English",
        "diarize": "voxbatch run SOURCE --speakers tells speakers apart",
        "burn mux": "voxbatch run SOURCE --burn writes videos with subtitles; later: voxbatch merge OUT --burn",
        "subtitle subtitles srt vtt": "voxbatch run SOURCE --formats srt,vtt writes subtitles",
        "tts say": "voxbatch speak FILE speaks a text",
        "wer evaluate eval": "voxbatch score OUT gives the word error rate",
        "download pull install": "The first run downloads its model; voxbatch models NAME explains one",
        "info check": "voxbatch doctor shows what is installed; voxbatch status OUT shows a run",
        "edit fix": "Edit the files in OUT or beside the recordings; then: voxbatch correct OUT",
        "shift sync": _SHIFT,
        "server": "voxbatch serve starts a server",
        "update upgrade": "In its environment: pip install '.[cpu]' in a new checkout, or the new wheel",
        "uninstall": "docs/quickstart.md says how to remove everything; the program: rm -r ~/voxbatch-env",
        "remove": "voxbatch forget OUT ID erases an item, rm -r OUT all outputs, and rm -r ~/voxbatch-env the program",
        "config configure settings": "Each option is a variable, too, and a profile has several: voxbatch profiles",
        "gui ui web": "The report of a run opens in a browser: OUT/report.html",
        "list ls": "voxbatch models lists the models; voxbatch status OUT shows a run",
    },
    # the arguments of NeMo's transcribe_speech.py, which Hydra reads
    SETTING: {
        "pretrained-name model-path": "Give --model parakeet; `voxbatch models` lists the models",
        "dataset-manifest": "A manifest is given without a name: voxbatch run calls.jsonl",
        "audio-dir audio-type": "A folder is given without a name: voxbatch run recordings/",
        "output-filename output-dir": _OUT,
        "batch-size": _BATCH,
        "cuda amp compute-dtype": _GPU,
        "timestamps": _WORDS,
        "langid": _LANGUAGE,
        "compute-timestamps return-hypotheses compute-langs": _WORDS,
        "calculate-wer use-cer clean-groundtruth-text": _ERRORS,
        "chunk-len-in-secs total-buffer-in-secs": _SILENCE,
        "decoder-type rnnt-decoding.strategy ctc-decoding.strategy": _DECODING,
    },
    VALUE: {
        "--task=diarize --task=diarise --task=diarization": _SPEAKERS,
        "--task=summarize --task=summary --task=qa": _ASK,
        "--task=detect-language --task=langid --task=lid": "voxbatch language SOURCE detects languages",
        "--task=automatic-speech-recognition --task=asr --task=transcription --task=stt": "This is the default: leave "
        "--task out",
    },
    # Whisper's programs take --verbose False and --fp16 True
    FURTHER: {"score": _REFERENCES, "compare": _REFERENCES},
    SOURCE: {"true false": "A switch such as --verbose has no value: leave it out to switch it off"},
    # faster-whisper, openai-whisper, whisperX and the pipelines of transformers
    KEYWORD: {
        "format formats output-format output-formats response-format": "A Transcript has to_srt(), to_vtt(), to_json() "
        'and save("talk.srt"); files of a run: voxbatch.run(source, out, formats="srt,vtt")',
        "out output output-dir outdir output-path": 'transcript.save("talk.srt") writes a file; '
        "voxbatch.run(source, out) writes a folder",
        "word-timestamps timestamps return-timestamps return-word-timestamps": "transcript.words has the times of "
        "words, and those of each segment are in segment.words",
        "start end from to start-time end-time clip-timestamps": "A part of a recording is given by offset=60, "
        "duration=30",
        "verbose debug quiet log-level loglevel print-progress": "Messages go to the logger voxbatch: "
        'logging.basicConfig(level="INFO") shows them',
        "progress progress-callback progress-function callback show-progress log-progress progress-bar": "Progress is "
        "given by voxbatch.run(source, out, on_progress=function); voxbatch.stream gives segments as they come",
        "sample-rate sr": "The rate of an array is given by sampling_rate=16000; a file tells its own",
        "chunk-length-s stride-length-s chunk-length": "Recordings are cut in pauses automatically",
        "torch-dtype dtype": "With faster-whisper: --engine-option compute_type=int8",
        "num-beams": "With faster-whisper: --engine-option beam_size=5",
        "use-auth-token api-key": "The hub's token is a variable: export HF_TOKEN=…",
        "resume skip-existing continue": "The same call again continues a run",
        "version": "The version is voxbatch.__version__",
        "num-threads": "With faster-whisper: --engine-option threads=4",
        "dry-run stdout mux burn shard shards tasks": "Only the command has this: voxbatch run --help-all",
    },
    FORMAT: {
        "karaoke": "Words as they are spoken are given by --formats vtt-words",
        "parquet csv": "A table of all items: voxbatch report OUT --export items.csv, or items.parquet",
        "jsonl": "transcripts.jsonl is always written; one JSON file for each recording: --formats json",
        "all": "The formats are named: --formats srt,vtt,txt,json",
        "dfxp imsc": "Timed text is given by --formats ttml",
        "text plain": "Texts are given by --formats txt",
        "webvtt subrip": "Subtitles are given by --formats vtt or --formats srt",
        "docx doc odt pdf html md": "Documents are made from --formats txt; the page of a run is OUT/report.html",
        "ssa": "SubStation subtitles are given by --formats ass",
    },
}
HINTS = {
    kind: {word: answer for words, answer in rows.items() for word in words.split()} for kind, rows in _TABLE.items()
}
"""The answer to each word, by the kind of the word."""


def hint(kind: str, word: str) -> str:
    """Return the answer to a word, or "".

    OPTION, "--Output_Dir"    →    "The folder of the outputs is given by -o"
    """
    return HINTS[kind].get(word.lower().replace("_", "-"), "")
