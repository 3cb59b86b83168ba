"""The kinds of work, a folder each. `voxbatch.work` names them; nothing else of the core does."""
