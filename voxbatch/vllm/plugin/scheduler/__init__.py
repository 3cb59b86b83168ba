"""Scheduler classes that vLLM loads by its own setting, scheduler_cls. They derive from vLLM's schedulers.

- `batch_scheduler`: the classes. They admit every request that fits into the memory.
- `question_scheduler`: those for questions about recordings, which need no larger encoder cache.
- `speech_scheduler`: those of a model that speaks, which share the K/V of a voice and never that of a speech.
- `serving_scheduler`: those of a server. They have a larger encoder cache, and end texts with their audio.
- `admission`: reserve the K/V blocks of a request before it runs; size of a burst and of the encoder cache.
- `fast_path`: schedule the steps in which all requests only continue.

vLLM's methods that are replaced on an object, and not in a derived class, are in `voxbatch.vllm.plugin.patches`.
"""
