"""Run one shard of a manifest, alone or with one worker process for each GPU."""
