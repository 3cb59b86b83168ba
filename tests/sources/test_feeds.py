"""Tests for feeds of podcasts as manifests: each episode is an item with its title as the id."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Voxbatch
from web_server import served_folder

from voxbatch.errors import ManifestError
from voxbatch.manifest import items
from voxbatch.sources.opening import open_source
from voxbatch.storage import StoreOptions, Stores

CASES = ROOT.parent / "shared" / "cases" / "2026-11-28"
RSS = """<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/" xmlns:podcast="https://podcastindex.org/namespace/1.0">
<channel><title>Hour</title>
<item><title>News &amp; <![CDATA[more]]></title><guid>d</guid><pubDate>Tue, 03 Mar 2026 08:00:00 GMT</pubDate>
  <enclosure url="https://h.invalid/d.mp3?a=1&amp;b=2" length="9" type="audio/mpeg"/>
  <podcast:transcript url="https://h.invalid/d.vtt" type="text/vtt"/></item>
<item><title>News
  of 1/2</title><media:group><media:content url="https://h.invalid/c.jpg" type="image/jpeg"/>
  <media:content url="https://h.invalid/c.mp4" medium="video"/></media:group></item>
<item><title>Only words</title></item>
<item><title>News &amp; more</title><enclosure url="https://h.invalid/a.mp3"/></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Hour</title>
<entry><title type="html">One</title><id>urn:1</id><published>2026-03-03</published>
<link rel="alternate" href="https://h.invalid/one"/>
<link rel="enclosure" type="audio/ogg" href="audio/one.ogg"/></entry>
</feed>"""


def rows(source: str, **options: Any) -> list[dict[str, Any]]:
    with open_source(source, **options) as opened:
        return [json.loads(line) for _, line in opened.lines()]


@pytest.mark.parametrize("name", ["feed.xml", "feed.rss", "feed"])
def test_rss(tmp_path: Path, name: str) -> None:
    """Each episode with a recording is a row, in the order of the feed; the newer one of two with one title has a
    number, and the entry without a recording is told."""
    (tmp_path / name).write_text(RSS)
    assert rows(str(tmp_path / name)) == [
        {
            "audio_filepath": "https://h.invalid/d.mp3?a=1&b=2", "id": "News & more (2)", "guid": "d",
            "published": "2026-03-03T08:00:00+00:00",
            "transcripts": [{"url": "https://h.invalid/d.vtt", "type": "text/vtt"}],
        },
        {"audio_filepath": "https://h.invalid/c.mp4", "id": "News of 1-2"},
        {"audio_filepath": "https://h.invalid/a.mp3", "id": "News & more"},
    ]  # fmt: skip
    with open_source(str(tmp_path / name)) as source:
        assert source.note == "1 of 4 entries of the feed have no recording"
        assert [item.id for item in items(source)] == ["News & more (2)", "News of 1-2", "News & more"]


def test_atom_at_an_address(tmp_path: Path) -> None:
    """A feed at an address without an extension is read, and its relative addresses are of its folder."""
    (tmp_path / "show").mkdir()
    (tmp_path / "show" / "latest").write_text(ATOM)
    with served_folder(tmp_path) as (url, _):
        episodes = rows(f"{url}/show/latest", stores=Stores(StoreOptions(allow_private_addresses=True)))
        assert episodes == [
            {"audio_filepath": f"{url}/show/audio/one.ogg", "id": "One", "guid": "urn:1", "published": "2026-03-03"}
        ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<rss><channel><item><title>a</title></item></channel></rss>", "has no episode with a recording"),
        ("<TEI><text>a</text></TEI>", r"is XML, and no feed of a podcast \(RSS, Atom\)"),
        ("<rss><channel>", "is no well-formed XML"),
        ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><rss>&b;</rss>', "declares XML entities"),
        ("#EXTM3U\n#EXT-X-TARGETDURATION:9\n1.ts\n", "an HLS playlist has one recording in segments; join them"),
    ],
)
def test_others_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """XML that is no feed and a playlist of segments are refused, and nothing makes items of their lines."""
    path = tmp_path / "in.xml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=reason):
        open_source(str(path))
    with pytest.raises(ManifestError, match=r"give a feed without @|an HLS playlist has one recording"):
        open_source(f"@{path}")


def test_list_of_recordings_in_m3u(tmp_path: Path) -> None:
    """A playlist of whole recordings is still a list."""
    (tmp_path / "list.m3u").write_text("#EXTM3U\n#EXTINF:9,One\na.mp3\n")
    assert [row["audio_filepath"] for row in rows(f"@{tmp_path}/list.m3u")] == ["a.mp3"]


TRANSCRIPTS = {
    "a.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>He has known\n\n00:02.000 --> 00:03.000\n<v Bo>so much\n",
    "b.srt": "1\n00:00:01,000 --> 00:00:02,000\nHe has <i>known</i>\n",
    "c.json": '{"version": "1.0.0", "segments": [{"speaker": "Bo", "startTime": 2, "endTime": 3, "body": "so much"},'
    ' {"startTime": 0.5, "body": "He has known"}]}',
    "d.txt": "He has\n\nknown.",
}
MEDIA_TYPES = {
    "a.vtt": "text/vtt",
    "b.srt": "application/x-subrip",
    "c.json": "application/json",
    "d.txt": "text/plain",
}


def feed(*episodes: list[tuple[str, str]]) -> str:
    """Return a feed of episodes 0, 1, …, each with transcripts of these addresses and media types."""
    items = "".join(
        f'<item><title>{number}</title><enclosure url="{number}.mp3"/>'
        + "".join(f'<podcast:transcript url="{url}" type="{kind}"/>' for url, kind in transcripts)
        + "</item>"
        for number, transcripts in enumerate(episodes)
    )
    return f'<rss xmlns:podcast="https://podcastindex.org/namespace/1.0"><channel>{items}</channel></rss>'


def test_manifest_with_references(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`voxbatch manifest` reads the transcripts of a feed as references, each kind as speech alone, and says which it
    could not read. A feed names no file of this machine."""
    served = tmp_path / "served"
    served.mkdir()
    for name, text in TRANSCRIPTS.items():
        (served / name).write_text(text)
    (served / "page.html").write_text("<html>known</html>")
    (tmp_path / "secret.txt").write_text("secret")
    episodes = [[(name, kind)] for name, kind in MEDIA_TYPES.items()]
    episodes += [
        [("d.txt", "text/plain"), ("a.vtt", "text/vtt; charset=utf-8")], [], [("page.html", "text/html")],
        [("none.vtt", "text/vtt")], [("d.txt", "application/json")], [(f"file://{tmp_path}/secret.txt", "text/plain")],
    ]  # fmt: skip
    (served / "feed.xml").write_text(feed(*episodes))
    with served_folder(served) as (url, _):
        done = voxbatch("manifest", f"{url}/feed.xml", "--allow-private-addresses")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    speech = "He has known so much"
    assert [line.get("text") for line in lines] == [
        speech, "He has known", speech, "He has known.", speech, None, None, None, None, None,
    ]  # fmt: skip
    assert [line["audio_filepath"] for line in lines] == [f"{url}/{number}.mp3" for number in range(10)]
    problems = ("of these kinds are not read: text/html", "none.vtt", "is no application/json", "is no address")
    for problem, note in zip(problems, done.stderr.splitlines(), strict=True):
        assert problem in note


def test_manifest_of_a_local_feed(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A feed in a file names its transcripts by address; other files and --include are refused."""
    with served_folder(tmp_path) as (url, _):
        (tmp_path / "b.srt").write_text(TRANSCRIPTS["b.srt"])
        (tmp_path / "feed").write_text(feed([(f"{url}/b.srt", "application/srt")], [("b.srt", "text/srt")]))
        done = voxbatch("manifest", "feed", "--allow-private-addresses")
    assert [json.loads(line).get("text") for line in done.stdout.splitlines()] == ["He has known", None]
    assert "'b.srt' is no address" in done.stderr
    assert "not the episodes of a feed" in voxbatch("manifest", "feed", "--include", "*.mp3").stderr
    (tmp_path / "m.jsonl").write_text("{}\n")
    refused = voxbatch("manifest", "m.jsonl")
    assert refused.returncode == 2
    assert "is neither a folder nor a feed (RSS, Atom)" in refused.stderr


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases in {CASES}")
def test_case(tmp_path: Path) -> None:
    """The feed of the cases has two episodes, and is no list of lines."""
    shutil.copy(CASES / "rss_feed" / "feed.xml", tmp_path)
    episodes = [(row["id"], row["audio_filepath"]) for row in rows(f"{tmp_path}/feed.xml")]
    assert episodes == [("Two", "https://podcast.invalid/two.mp3"), ("One", "https://podcast.invalid/one.mp3")]
    with pytest.raises(ManifestError, match="give a feed without @"):
        open_source(f"@{tmp_path}/feed.xml")
