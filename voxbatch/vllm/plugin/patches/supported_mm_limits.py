"""Replace VoxtralProcessingInfo.get_supported_mm_limits: allow more than vLLM's five recordings in a request.

vLLM limits the number for the quality of the answers; the model and its context set no such limit. Only the process
that makes requests checks the number. The engine's process profiles one recording, whatever the limit is.
"""

from __future__ import annotations

from collections.abc import Mapping


def raise_limits(limits: Mapping[str, int]) -> None:
    """Allow as many inputs of each kind in a request to Voxtral as wanted, if that is more than vLLM allows.

    Args:
        limits: vLLM's limit_mm_per_prompt.
    """
    if limits.get("audio", 0) <= 1:
        return
    from vllm.model_executor.models.voxtral import VoxtralProcessingInfo

    def get_supported_mm_limits(info: object) -> dict[str, int | None]:
        return {"audio": limits["audio"]}

    VoxtralProcessingInfo.get_supported_mm_limits = get_supported_mm_limits
