"""Choose the variables that child processes get, so that a secret reaches no process without a use for it.

| process | secrets |
|---|---|
| worker, and the process of an engine | all: they read the model, the recordings and OUT |
| decoder | credentials of stores, unless requests are anonymous |
| counter of errors, ffmpeg | none |

This keeps secrets out of core dumps and logs of code that parses untrusted files. It is no sandbox: a process of the
same user can read the files and the memory of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(
    r"^AZURE_|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CONNECTION_STRING|WEBHOOK"
    r"|(^|_)(TOKENS?|KEYS?|APIKEY|PAT|AUTH|AUTHORIZATION)(_|$)"
)
"""Names of variables that hold secrets: HF_TOKEN, WANDB_API_KEY, PGPASSWORD, …"""
_STORES = ("AWS_", "GOOGLE_", "CLOUDSDK_")
"""Prefixes of the variables from which the clients of Cloud Storage and S3 take credentials."""
_ANY_PROGRAM = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD")
"""Names of variables that a program may need to start. ffmpeg takes all settings from its arguments."""


def without_secrets(environ: Mapping[str, str], keeps_stores: bool = False) -> dict[str, str]:
    """Return the variables without those that hold secrets.

    Args:
        environ: the variables of this process.
        keeps_stores: keep the credentials of Cloud Storage and S3.
    """
    return {
        name: value
        for name, value in environ.items()
        if not _SECRET.search(name.upper()) or (keeps_stores and name.startswith(_STORES))
    }


def for_program(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program such as ffmpeg may need, and no others."""
    return {name: value for name, value in environ.items() if _ANY_PROGRAM.fullmatch(name)}
