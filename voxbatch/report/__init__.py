"""The report of a run: one HTML file that shows how good the transcripts are, and where to look.

    report = Report(RunTitle("calls", …), keys=("speaker",))
    report.add_transcript(0, line, stored)           # or add_failure
    report.render(summary, parts)                    # the bytes of the page

The package opens no file and reads no clock, so the same run gives the same page everywhere. `figures` adds up the
charts and tables, `selection` bounds the items that are shown, `cells` aligns a reference with a transcript word by
word, `charts` draws, and `page` fills the template; `comparison` fills that of two runs. The template's script shows
the items: it writes text only, never markup, and the page's policy forbids every request except for the recordings. It
also draws the waveforms, because the package hears no audio.
"""

from voxbatch.report.page import Report, RunTitle

__all__ = ["Report", "RunTitle"]
