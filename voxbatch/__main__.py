"""Entry point of `python -m voxbatch`."""

from voxbatch.cli import main

main()
