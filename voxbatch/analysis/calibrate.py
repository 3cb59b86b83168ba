"""Make a calibration from a run with references, and write its file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from voxbatch.analysis import open_target
from voxbatch.errors import ConfigError
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.lines import parse_line, word_confidences
from voxbatch.output.stored_json import json_bytes
from voxbatch.scoring.calibration import Calibration, ScoredItem, calibrate
from voxbatch.scoring.units import error_unit, scored_language
from voxbatch.scoring.word_errors import word_errors
from voxbatch.storage import DEFAULT_STORES, Store, Stores


def calibrate_run(store: Store, cluster_key: str | None = None) -> Calibration:
    """Return a calibration from the transcripts of the run in OUT that have references, also of an unfinished run.

    Items in languages that are counted in characters are left out: their words depend on the segmenter.

    Args:
        cluster_key: key of the manifest whose values name the clusters, for example "speaker". None means that each
            item is a cluster of its own.

    Raises:
        ConfigError: there is no run in OUT, or one of a kind that is refused; its engine gives no confidences; no item
            has the key; or there are too few references or errors.
        CheckpointError: run.json or a part is damaged.
        StorageError: OUT cannot be read.
    """
    run = run_file.read_existing(store)
    run.check_reader("calibrate", store.place)
    items: list[ScoredItem] = []
    languages, seen = Counter[str](), Counter[str]()
    for entry in Entries(store, run):
        if entry.kind != "transcript":
            continue
        line = parse_line(store, entry)
        lang, cluster = line.get("lang") or run.language, line.get(cluster_key) if cluster_key else None
        item = scored_item(line, lang, json.dumps(cluster) if cluster is not None else f"item {line['id']}")
        seen["references"] += line.get("text") is not None
        if item is not None:
            seen["with confidence"] += bool(item.confidences)
            seen["with cluster"] += cluster is not None
            languages[scored_language(lang)] += 1
            items.append(item)
    if not seen["references"]:
        raise ConfigError(
            f"{store.place}: no transcript has a reference; run a manifest whose lines have `text`, and calibrate that"
        )
    engine = run.facts.engine
    if not seen["with confidence"]:
        raise ConfigError(
            f"{store.place}: no transcript with a reference in words has word confidences, so there is nothing to "
            f"calibrate (engine {engine.name}, model {engine.model})"
        )
    if cluster_key and not seen["with cluster"]:
        raise ConfigError(
            f"{store.place}: no item has the key {cluster_key!r}; leave out --cluster, or give another key"
        )
    try:
        return calibrate(items, engine.name, engine.model, engine.decoding, list(languages))
    except ConfigError as e:
        raise ConfigError(f"{store.place}: {e}") from e


def scored_item(line: Mapping[str, Any], lang: str | None, cluster: str) -> ScoredItem | None:
    """Return the words of an output line with the truth about them.

    None without a reference, without word confidences, and in languages that are counted in characters.
    """
    confidences = word_confidences(line)
    if line.get("text") is None or error_unit(lang) == "character" or confidences is None:
        return None
    truth = word_errors(line["text"], [word["word"] for word in line["words"]], lang)
    return ScoredItem(tuple(confidences), truth.right, truth.counts.errors, truth.counts.reference_length, cluster)


def write_calibration(calibration: Calibration, path: str, stores: Stores = DEFAULT_STORES) -> None:
    """Write a calibration to a file, or to an address in a bucket. It appears at once and replaces an earlier one.

    Raises:
        ConfigError, StorageError: nothing can be written there.
    """
    target, name = open_target(path, stores)
    target.write(name, [json_bytes(calibration.to_dict()) + b"\n"])
