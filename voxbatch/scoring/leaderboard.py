"""Read the rules by which the Open ASR Leaderboard scores English, from a checkout of its repository.

The leaderboard began with Whisper's English rules. Since April 2026 it has more of its own: spellings of names,
acronyms, compounds, further fillers; and two words that are one word in the other text ("white paper", "whitepaper")
are no error. The rules change often and are in no package, so they are read from the user's copy and named by its
checksum. kaldialign counts the errors, as for the leaderboard.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys

from voxbatch.errors import ConfigError
from voxbatch.scoring.normalize import Leaderboard

_PACKAGE = "normalizer"
_FILES = ("normalizer.py", "english_abbreviations.py")
"""Files of the package that have the rules for English."""


def read_leaderboard(folder: str) -> Leaderboard:
    """Load the rules from a copy of the leaderboard's repository. This runs the code of its package `normalizer`.

    Raises:
        ConfigError: the folder is no such copy, or a package that the rules need is not installed.
    """
    package = os.path.join(folder, _PACKAGE)
    digest = hashlib.sha256()
    try:
        for name in _FILES:
            with open(os.path.join(package, name), "rb") as file:
                digest.update(file.read())
    except OSError as error:
        reason = f"{error.filename} cannot be read: {error.strerror}"
        raise ConfigError(
            f"--leaderboard {folder}: {reason}; give a copy of the repository huggingface/open_asr_leaderboard"
        ) from error
    if importlib.util.find_spec("kaldialign") is None:
        raise ConfigError(f"--leaderboard {folder}: kaldialign is not installed: pip install 'voxbatch[score]'")
    # A name of our own, so that another package called "normalizer" stays what it is.
    module_name = f"voxbatch_leaderboard_{digest.hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(
        module_name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    try:
        if spec is None or spec.loader is None:
            raise ImportError(f"{package} is no package")
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        normalize = module.EnglishTextNormalizer()
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        reason = f"its normaliser cannot be loaded: {error}"
        raise ConfigError(f"--leaderboard {folder}: {reason}; install what its requirements name") from error
    return Leaderboard(digest.hexdigest()[:12], normalize)
