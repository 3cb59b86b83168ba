"""The second half of a steady step: what the model has said is added to the requests, and nothing else is done with
those that go on. A request's tokens leave for the front end when it has ended, all at once, which is when they are
wanted: so neither process handles hundreds of messages a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import RequestStatus


def go_on(requests: Mapping[str, Any], step: Any, output: Any, stops: set[int]) -> dict[str, int]:
    """Add the tokens of `output`, which is plain, to the requests that go on after it. Those of the step that are left
    over, with their number of tokens: what ends, begins, has ended or was thrown out meanwhile is vLLM's to see to.

    Args:
        stops: tokens that may end a request.
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
    """Of the outputs for the front end: nothing of the plain requests that go on, the whole text of those that ended.
    A message is sent in any case, for the front end takes in new work, and knows that the engine lives, by each.

    Args:
        outputs: by client; those of plain requests are the first one's.
        requests: the plain ones of the step, by id.
    """
    message = outputs.setdefault(0, EngineCoreOutputs())
    message.outputs = [each for each in message.outputs if each.finished or each.request_id not in requests]
    for each in message.outputs:
        if each.request_id in requests:
            each.new_token_ids = list(requests[each.request_id].output_token_ids)
    return outputs
