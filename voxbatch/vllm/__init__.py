"""vLLM: the engine that runs it, and the plugin that runs within it. The core names this folder only in its tables."""
