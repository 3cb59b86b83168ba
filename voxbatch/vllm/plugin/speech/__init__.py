"""Voxtral TTS in one stage of vLLM: text in, samples out.

For vLLM it is a text model whose vocabulary is

    [0, SLOTS)     slots: the running requests, one each
    END            the end of the speech
    FIRST_ROW …    rows of a table: those of all voices, then the tokens of the text

A prompt is the tokens of mistral-common, with the rows of a voice in the place of [AUDIO], and the slot of the request
in the place of the last token, [BEGIN_AUDIO]. Each step gives a request its own slot again, until the end. A slot has
its request's frames on the model's device; so the embedding of a slot at a position is that of the frame before it.

| module | its job |
|---|---|
| `model` | the model for vLLM; the state of the slots |
| `flow_matching` | hidden state → the 37 codes of a frame of 80 ms |
| `fused_ops` | CUDA kernels of the flow matching |
| `row_graphs` | padded batches of the work after the language model, and their CUDA graphs |
| `noise` | random numbers by seed and frame |
| `codec` | the codes of a speech → samples |
"""

from __future__ import annotations

ARCHITECTURE = "VoxbatchSpeech"
"""Name of the model in vLLM's registry and in the config.json that the engine writes for it."""
SLOTS = 1_152
"""Number of requests that the engine may have: MAX_REQUESTS running ones, and those that wait in it."""
MAX_REQUESTS = 1_024
END = SLOTS
"""Token id of the end of a speech."""
FIRST_ROW = SLOTS + 1
"""Token id of the first row of the table."""
BEGIN_AUDIO = 25
"""The last token of a prompt, by the published tekken.json."""
SAMPLING_RATE, FRAME = 24_000, 1_920
"""Samples per second, and in a frame of 80 ms."""
