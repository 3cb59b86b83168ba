"""Process that runs the two networks on a GPU for all decoders: it computes what has arrived from them as one batch.

A decoder sends the windows of up to 160 s of its recording, waits for their scores, sends the pieces, and waits for
their vectors. Meanwhile the chunks of the recording are with the engine, and other decoders go on. So the process has
work from as many recordings as there are decoders, and takes the GPU only while some are waiting.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait

import numpy as np

from voxbatch.errors import ConfigError, EngineError, VoxbatchError
from voxbatch.process.child import ChildProcess, handle_stop_signals
from voxbatch.speakers.segmentation import windows
from voxbatch.speakers.weights import SpeakerWeights


@contextlib.contextmanager
def beside_engine(weights: SpeakerWeights, device: str) -> Iterator[SpeakerWeights]:
    """Yield the networks with the address of a process that runs them on a device of PyTorch.

    Raises:
        ConfigError: a file holds another network.
        EngineError: the process does not start.
    """
    with tempfile.TemporaryDirectory(prefix="voxbatch-") as folder:
        weights = replace(weights, address=f"{folder}/networks")
        child = ChildProcess(__name__, captures_output=True, dies_with_parent=True)
        try:
            child.send((weights, device))
            try:
                error = child.connection.recv()
            except (EOFError, OSError) as e:
                child.end(patience_s=5)
                raise EngineError(f"the process of the networks of speakers does not start: {child.exit_reason}") from e
            if error is not None:
                raise ConfigError(error)
            yield weights
        finally:
            child.end()


def main(connection: Connection) -> None:
    """Load the networks, and answer requests until the parent process ends."""
    handle_stop_signals(lambda *_: None)  # the parent ends this process, after the decoders
    weights, device = connection.recv()
    from voxbatch.speakers.torch_networks import TorchNetworks

    try:
        networks = TorchNetworks(weights, device)
    except VoxbatchError as e:
        connection.send(str(e))
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(weights.address)
    listener.listen()
    connection.send(None)
    clients: list[Connection] = []
    while connection not in (ready := wait([connection, listener, *clients])):
        if listener in ready:
            clients.append(Connection(listener.accept()[0].detach()))
        requests = {client: _request(client) for client in clients if client in ready}
        for is_windows, compute in ((True, networks.segment), (False, networks.embed)):
            asked = {client: rows for client, (kind, rows) in requests.items() if kind is is_windows}
            outputs = compute([row for rows in asked.values() for row in rows]) if asked else np.zeros(0, np.float32)
            for client, rows in asked.items():
                with contextlib.suppress(OSError):  # the decoder was killed
                    client.send_bytes(outputs[: len(rows)].data)
                outputs = outputs[len(rows) :]
        clients = [client for client in clients if requests.get(client, (True,))[0] is not None]


def _request(client: Connection) -> tuple[bool | None, list[np.ndarray]]:
    """Return whether windows are requested, and not pieces, and the samples of each; None if the decoder has ended."""
    try:
        request = client.recv()
        samples = np.frombuffer(client.recv_bytes(), np.float32)
    except (EOFError, OSError):
        client.close()
        return None, []
    if isinstance(request, int):
        return True, list(windows(samples, request))
    return False, np.split(samples, np.cumsum(request)[:-1])
