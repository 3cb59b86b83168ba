"""The second half of a step on the scheduler fast path: the tokens of the model are added to the requests.

Nothing else is done with the requests that continue. The tokens of a request are sent to the front end all at once when
the request has ended, because they are not needed before. So neither process handles hundreds of messages per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import RequestStatus


def go_on(requests: Mapping[str, Any], step: Any, output: Any, stops: set[int]) -> dict[str, int]:
    """Add the tokens of a plain output to the requests that continue after it.

    Args:
        requests: the scheduler's requests, by id.
        step: the scheduler's output for the step.
        output: the model's output for the step. It must be plain.
        stops: ids of the tokens that may end a request.

    Returns:
        The other requests of the step, with their number of scheduled tokens. They begin or end in this step, have
        ended, or were preempted. vLLM's own code handles them.
    """
    said, places, running = output.sampled_token_ids, output.req_id_to_index, RequestStatus.RUNNING
    left = {}
    for name, scheduled in step.num_scheduled_tokens.items():
        request = requests.get(name)
        if request is None or scheduled != 1 or request.status is not running or request.num_preemptions:
            left[name] = scheduled
            continue
        tokens, text = said[places[name]], request._output_token_ids
        if len(tokens) != 1 or tokens[0] in stops or len(text) + 1 >= request.max_tokens:
            left[name] = scheduled
            continue
        text.append(tokens[0])
        request._all_token_ids.append(tokens[0])
        request.num_in_flight_tokens -= 1
        request.num_output_placeholders -= 1
    return left


def whole_texts(outputs: dict[int, Any], requests: Mapping[str, Any]) -> dict[int, Any]:
    """Remove the plain requests that continue from the outputs for the front end, and complete those that ended.

    A plain request that has ended gets its whole text. The first client gets a message in any case, because with each
    message the front end accepts new work, and knows that the engine is alive.

    Args:
        outputs: vLLM's outputs by client. Plain requests belong to the first client.
        requests: the plain requests of the step, by id.

    Returns:
        `outputs`, changed in place.
    """
    message = outputs.setdefault(0, EngineCoreOutputs())
    message.outputs = [each for each in message.outputs if each.finished or each.request_id not in requests]
    for each in message.outputs:
        if each.request_id in requests:
            each.new_token_ids = list(requests[each.request_id].output_token_ids)
    return outputs
