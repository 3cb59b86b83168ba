"""Speak texts with vllm-omni's engine in float32, with the noise of `omni_on_cpu`:

    python omni_speaking.py MODEL REQUESTS FRAMES < PIECES > SAMPLES

PIECES are JSON lines of [text, voice, seed], SAMPLES the number of samples of each piece. REQUESTS is the largest
number of requests at a time, FRAMES that of the frames of a speech.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    from mistral_common.protocol.speech.request import SpeechRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from vllm import SamplingParams
    from vllm_omni.entrypoints.omni import Omni

    model, requests, frames = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    results, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)  # vLLM logs on standard output
    tokenizer = MistralTokenizer.from_file(str(Path(model, "tekken.json"))).instruct_tokenizer
    prompts = [
        {
            "prompt_token_ids": tokenizer.encode_speech_request(SpeechRequest(input=text, voice=voice)).tokens,
            "additional_information": {"voice": [voice], "noise_seed": [seed]},
        }
        for text, voice, seed in map(json.loads, sys.stdin)
    ]
    stage = {"max_num_seqs": requests, "enforce_eager": True, "max_model_len": 1_024, "dtype": "float32"}
    engine = Omni(model=model, stage_overrides={"0": stage, "1": {"max_num_seqs": requests}}, stage_init_timeout=300)
    limits = [SamplingParams(max_tokens=frames, temperature=0.0), SamplingParams(max_tokens=65_536, temperature=0.0)]
    for output in engine.generate(prompts, limits):
        audio = output.multimodal_output["audio"]
        print(sum(map(len, audio)) if isinstance(audio, list) else audio.numel(), file=results, flush=True)


if __name__ == "__main__":
    main()
