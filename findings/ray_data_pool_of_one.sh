#!/usr/bin/env bash
# Good guess: a pool of 1 to 3 actors with one call at a time each (`max_tasks_in_flight_per_actor=1`) grows to 3 while blocks
#   wait and CPUs are free.
# What happens: one actor does all of the work. Ray Data adds an actor at 175 % utilization, and with one call in flight the
#   utilization is 100 % at most. A warning in the log says so; the documentation of the argument does not.
# Date: 2026-11-29. Source: found by running ray[data]==2.60.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile 'ray[data]==2.60.0'
cd "$folder"
RAY_USAGE_STATS_ENABLED=0 RAY_raylet_start_wait_time_s=120 "$folder/venv/bin/python" - <<'PYTHON' || exit 1
import os
import sys
import time
from importlib.metadata import version

import ray

print("versions:", {"ray": version("ray")})


class Slow:
    def __call__(self, batch):
        time.sleep(4)
        return {"pid": [os.getpid()] * len(batch["id"])}


def actors(in_flight):
    pool = ray.data.ActorPoolStrategy(min_size=1, max_size=3, max_tasks_in_flight_per_actor=in_flight)
    data = ray.data.range(12, override_num_blocks=12).map_batches(Slow, batch_size=1, num_cpus=1, compute=pool)
    return len({row["pid"] for row in data.take_all()})


ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR", log_to_driver=False)
one, four = actors(1), actors(4)
print(f"actors at work: {one} with one call in flight, {four} with four; 12 blocks of 4 seconds, 4 CPUs")
same = one == 1 and four > 1

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
