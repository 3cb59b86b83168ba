"""Redact the transcripts and recordings of a run: write copies without card numbers, names and other secrets.

rules, rules.yaml    what counts as a secret, by language and country: sequences of words, and kinds of numbers
tokens               a word as digits, spelled letters or a plain word, with the names by which the rules mean it
numbers              chains of digits and letters: cards, telephones, codes
answers              the secrets that a model listed, by `voxbatch ask`
detector             the sequences and the numbers in the words of one item
transcript, sound    the copies
key                  the secret with which ids and digests of the copies are made
steps, products      the run and its files
command              `voxbatch redact`
"""

from voxbatch.work import EVERY_KIND, Work

SETTINGS = EVERY_KIND - {"model", "engine", "engine_options"} | {
    "formats", "report", "max_line", "max_lines", "max_cps", "frame_rate", "min_gap", "decoders", "workers",
    "fail_unreachable",
}  # fmt: skip
"""Settings of a run that hold for this kind."""
REVIEW = "review.csv"
"""The list of what was found where, without the secrets."""
_WITHOUT_REFERENCES = "holds redacted copies without references: give the OUT that they were made from"
WORK = Work(
    name="redact",
    settings=SETTINGS | {"audio_stream"},
    steps="voxbatch.works.redact.steps:Redact",
    outputs=(("transcripts", "transcripts.jsonl"), ("review", REVIEW)),
    products="voxbatch.works.redact.products:PRODUCTS",
    command_tells_all=False,
    example="redact out",
    refused={
        **dict.fromkeys(("calibrate", "compare", "score"), _WITHOUT_REFERENCES),
        "export": "is a data set as it is: transcripts.jsonl names the recordings in flac/, each with its text",
        "beside": "has its recordings inside: leave out --beside",
        "correct": "holds redacted copies: correct the texts of the OUT that they were made from, and redact it again",
        "videos": "holds sound alone, and no video: leave out --mux and --burn",
        "redact": "is redacted already",
    },
)
