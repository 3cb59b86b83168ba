#!/usr/bin/env bash
# Good guess: a bar of a logarithmic chart ends at its value and begins where the axis begins, range=(1, 1000) being the axis.
# What happens: each bar begins at the smallest value of the chart. The bar of the smallest value has no length, and those
#   of values near it are short, although the axis begins at 1. `zero=1` gives the right bars.
# Date: 2026-11-29. Source: found by running pygal==3.1.3.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pygal==3.1.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import re
import sys
from importlib.metadata import version

import pygal

print("versions:", {"pygal": version("pygal")})


def widths(**options):
    """Return the widths of the bars of 2, 20 and 200 on an axis from 1 to 1,000, in pixels."""
    chart = pygal.HorizontalBar(logarithmic=True, range=(1, 1000), **options)
    chart.add("values", [2, 20, 200])
    drawn = chart.render(is_unicode=True)
    bars = [bar for bar in re.findall("<rect [^>]*>", drawn) if "rect reactive" in bar]
    return [round(float((re.findall(r' width="([\d.]+)"', bar) or ["0"])[0])) for bar in bars]


found, with_zero = widths(), widths(zero=1)
print("bars of 2, 20, 200:", found)
print("with zero=1:", with_zero)
decade = found[1]
expected = [round(decade * power) for power in (0.301, 1.301, 2.301)]
print("log10 of the values, in these pixels:", expected)
same = found[0] == 0 and abs(found[2] - 2 * decade) <= 1
same = same and all(abs(width - right) <= 1 for width, right in zip(with_zero, expected, strict=True))
print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
