"""An upload becomes transcripts, exactly once, whatever befalls the message and who works on it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pubsub
import pytest
import servers

pytestmark = pytest.mark.slow


def test_the_post(letters: Callable[..., pubsub.Post]) -> None:
    """What the other tests see with: an upload is told of, a message that somebody holds is seen, one lost five times
    dies."""
    post = letters()
    with servers.google_server(servers.Events(post.host, post.project, "uploads", "in/")) as store:
        store.make("calls")
        store.put("calls", "in/a b.wav", b"x")
        store.put("calls", "out/a.wav", b"x")
        while not (held := post.pull()):
            time.sleep(0.02)
    assert [(each.attributes["objectId"], each.attempt) for each in held] == [("in/a b.wav", 1)]
    assert not post.pull()
    assert [each.attempt for each in post.unacked()] == [2]
    for _ in range(4):
        post.break_leases()
        post.pull()
    assert not post.unacked()
    assert [each.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] for each in post.dead()] == ["5"]
