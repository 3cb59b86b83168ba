"""Dagster: the transcripts of a folder as an asset, made on this machine. A retry continues."""

import dagster as dg

import voxbatch

SOURCE, OUT = "/data/calls", "/data/calls.voxbatch"


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=3, delay=300))
def transcripts(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    committed = -1

    def log(progress: voxbatch.Progress) -> None:
        nonlocal committed
        if progress.committed > committed:
            committed = progress.committed
            context.log.info("%d of %d recordings", committed, progress.items)

    summary = voxbatch.run(SOURCE, OUT, update=True, on_progress=log)
    facts = {"done": summary.done, "failed": summary.failed, "hours": summary.audio_s / 3600}
    return dg.MaterializeResult(metadata={"out": OUT, **facts})


defs = dg.Definitions(assets=[transcripts])
