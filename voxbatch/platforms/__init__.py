"""Platforms that run voxbatch: which task this process is, how a run is submitted, and how messages become runs."""
