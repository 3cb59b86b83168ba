"""Divide a book into rows to speak: plain text, Markdown by its headings, and EPUB by its documents.

A chapter is one row with a `title`, or several if it is long; only the first of them has the title then.

    # One                 {"id": "0001", "title": "One", "text": "One\n\nIt rained."}
    It *rained*.      →
"""

from __future__ import annotations

import os
import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote

from voxbatch.manifest.source import Source, manifest_error
from voxbatch.sources.columns import Rows
from voxbatch.speech.pieces import split_paragraphs

TITLE_KEY = "title"
MAX_TEXT_BYTES = 50_000_000
"""Size of the largest file that is read at once: 20 times the Bible."""
ROW_CHARACTERS = 20_000
"""Characters of a row, about: 25 minutes of speech, which is held in memory and lost by a kill."""
MAX_DOCUMENTS = 10_000
"""Most documents of an EPUB."""
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = {*_HEADINGS, "p", "div", "li", "blockquote", "section", "article", "tr", "dt", "dd", "figcaption", "pre"}
_UNSPOKEN = {"head", "script", "style", "nav", "svg", "math", "rt"}


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a book."""

    title: str
    text: str
    """Paragraphs with a blank line between them. The title is the first if the book prints it."""


def chapter_rows(source: Source) -> Rows:
    """Yield the rows of a book.

    Raises:
        ManifestError: the file is damaged, too large, or has no text.
    """
    stem, suffix = os.path.splitext(os.path.basename(source.name.removesuffix(".gz")))
    if suffix.lower() == ".epub":
        chapters = _epub_chapters(source)
    elif suffix.lower() == ".txt":
        chapters = iter([Chapter(stem, whole_text(source))])
    else:
        chapters = _markdown_chapters(whole_text(source), stem)
    number = row_number = 0
    for chapter in chapters:
        if not chapter.text.strip():
            continue
        number += 1
        for part, text in enumerate(_rows_of(chapter.text)):
            row_number += 1
            item_id = f"{number:04d}" if part == 0 else f"{number:04d}-{part + 1:02d}"
            yield row_number, {"id": item_id, **({TITLE_KEY: chapter.title} if part == 0 else {}), "text": text}
    if not number:
        raise manifest_error(source.name, "has no text to speak")


def _rows_of(text: str) -> Iterator[str]:
    """Yield the paragraphs of a chapter, as many together as a row holds."""
    row = ""
    for paragraph in split_paragraphs(text):
        if row and len(row) + len(paragraph) > ROW_CHARACTERS:
            yield row
            row = ""
        row = f"{row}\n\n{paragraph}" if row else paragraph
    if row:
        yield row


def _markdown_chapters(text: str, name: str) -> Iterator[Chapter]:
    """Yield the chapters of a Markdown file: a heading of the first or the second level begins one. Blocks of code are
    left out."""
    from markdown_it import MarkdownIt

    title, paragraphs, heading = name, list[str](), ""
    for token in MarkdownIt().parse(text):
        if token.type == "heading_open":
            heading = token.tag
        if token.type != "inline":
            continue
        spoken = "".join(
            " " if child.type in ("softbreak", "hardbreak") else child.content
            for child in token.children or ()
            if child.type in ("text", "code_inline", "softbreak", "hardbreak")
        )
        if heading in ("h1", "h2"):
            yield Chapter(title, "\n\n".join(paragraphs))
            title, paragraphs = spoken, []
        paragraphs.append(spoken)
        heading = ""
    yield Chapter(title, "\n\n".join(paragraphs))


def whole_text(source: Source) -> str:
    """Return a file as one text, with LF as the line end.

    Raises:
        ManifestError: the file is too large.
    """
    if source.size > MAX_TEXT_BYTES:
        raise manifest_error(source.name, f"has {source.size:,} bytes, at most {MAX_TEXT_BYTES:,} are read; divide it")
    return source.text(b"".join(source.pieces())).replace("\r\n", "\n").replace("\r", "\n")


def _epub_chapters(source: Source) -> Iterator[Chapter]:
    """Yield the documents of an EPUB in the order of its spine, without its table of contents."""
    try:
        with zipfile.ZipFile(source.file) as book:
            container = _Tags(_member(source, book, "META-INF/container.xml"))
            package = next(
                (attributes.get("full-path") or "" for tag, attributes in container.tags if tag == "rootfile"), ""
            )
            tags = _Tags(_member(source, book, package)).tags
            documents = {
                attributes.get("id"): attributes.get("href") or ""
                for tag, attributes in tags
                if tag in ("item", "opf:item") and "nav" not in (attributes.get("properties") or "").split()
            }
            spine = [attributes.get("idref") for tag, attributes in tags if tag in ("itemref", "opf:itemref")]
            for number, reference in enumerate(spine[:MAX_DOCUMENTS], 1):
                if href := documents.get(reference):
                    path = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(href)))
                    page = _Page(_member(source, book, path))
                    yield Chapter(page.title or f"Chapter {number}", "\n\n".join(page.paragraphs))
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, OSError) as e:
        raise manifest_error(source.name, f"cannot be read as EPUB: {e}; create the file again") from e


def _member(source: Source, book: zipfile.ZipFile, name: str) -> str:
    """Return the text of a file in an archive."""
    with book.open(name) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise manifest_error(source.name, f"{name} has more than {MAX_TEXT_BYTES:,} bytes")
    return content.decode("utf-8-sig", "replace")


class _Tags(HTMLParser):
    """The tags of a document in order. XML is read as HTML, so that no entity is expanded."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add a tag."""
        self.tags.append((tag, dict(attrs)))


class _Page(HTMLParser):
    """The paragraphs of a document, and its first heading."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.title = ""
        self.paragraphs: list[str] = []
        self._text = ""
        self._heading = False
        self._unspoken = 0
        """Number of open elements that are not spoken."""
        self.feed(
            re.sub(r"<([\w:]+)([^<>]*)/>", r"<\1\2></\1>", document)
        )  # HTML knows no empty element such as <title/>
        self.close()
        self._end_paragraph()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        self._unspoken += tag in _UNSPOKEN
        if tag in _BLOCKS:
            self._end_paragraph()
            self._heading = tag in _HEADINGS
        elif tag == "br":
            self._text += " "

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        self._unspoken -= tag in _UNSPOKEN and self._unspoken > 0
        if tag in _BLOCKS:
            self._end_paragraph()

    def handle_data(self, data: str) -> None:
        """Add text."""
        if not self._unspoken:
            self._text += data

    def _end_paragraph(self) -> None:
        paragraph = " ".join(self._text.split())
        if paragraph:
            self.paragraphs.append(paragraph)
            if self._heading and not self.title:
                self.title = paragraph
        self._text, self._heading = "", False
