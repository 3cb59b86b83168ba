"""Platforms that run voxbatch: which task this process is, how a run is submitted, and how messages become runs."""

GOOGLE_PROJECT = "GOOGLE_CLOUD_PROJECT"
"""Environment variable of the project, which all of Google's clients read."""
