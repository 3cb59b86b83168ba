"""Parts of the site beyond the options of mkdocs.

They are the search words of the pages, a search without a server, the changelog, the version, a list of a long page's
headings for phones, and what the style sheet must know about tables and code. mkdocs calls the functions `on_…`; see
`hooks` in mkdocs.yml.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

import yaml
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from voxbatch import __version__

WORDS = Path(__file__).parent / "search_words.yml"
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
LONG_PAGE = 6
"""Headings from which a page has a list of them for phones, which show no table of contents."""
LONG_WORD = 24
"""Characters from which a word of code may break anywhere; a shorter one breaks nowhere, not even after a hyphen."""
SHORT_CELL = 18
"""Characters up to which the cells of a column stay on one line: dates, prices with their range, licences."""
HYPHENATED = re.compile(r'(<span class="[wo]">[^<]*</span>)((?=[^<\s]{2,28}(?:[<\s]|$))[^<\s]*-[^<\s]+)')
"""A word of a command with a hyphen, such as an option, behind the mark of the white space or sign before it. It fits a
phone."""
PERCENTAGE = re.compile(r"(\d) %(?![^<]*</code>)")
"""A number and its sign, which stay on one line. Code stays as it is, because people copy it."""
LONG_COLUMNS = 3
"""Columns of longer texts from which a table is too wide for a phone, whose columns would be of three words."""
PHONE, CHARACTER, PADDING = 358, 7.6, 21
"""Pixels that a table has on a phone, and that a character and a cell's padding take of them."""


def on_config(config: MkDocsConfig) -> None:
    """Name the version in the footer of each page, and add the extension below."""
    config.copyright = f'voxbatch {__version__} · Apache License 2.0 · <a href="changelog.html">Changelog</a>'
    config.markdown_extensions.append(Shape())  # type: ignore[arg-type]  # mkdocs hands it to Markdown as it is


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the changelog, whose links start at the repository's folder."""
    files.append(File.generated(config, "changelog.md", content=CHANGELOG.read_text().replace("](docs/", "](")))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Put the search words of a page into the index, where the theme's search weighs them above headings."""
    words = yaml.safe_load(WORDS.read_text())
    page.meta["tags"] = words.get(page.file.src_uri, [])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with whole words and percentages and, if it is long, with a folded list of its headings."""
    html = HYPHENATED.sub(r'\1<span class="whole">\2</span>', html)
    html = PERCENTAGE.sub(r"\1&nbsp;%", html)
    headings = [heading for title in page.toc for heading in title.children]
    if len(headings) < LONG_PAGE:
        return html
    links = "".join(
        f'<li><a href="{heading.url}">{escape(heading.title, quote=False)}</a></li>' for heading in headings
    )
    contents = (
        f'<details class="contents" data-search-exclude><summary>On this page</summary><ul>{links}</ul></details>'
    )
    return html.replace("</h1>", f"</h1>{contents}", 1)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the index as a script, which a page that was opened from a file may load."""
    search = Path(config.site_dir) / "search"
    (search / "search_index.js").write_text(f"var __index = {(search / 'search_index.json').read_text()}")


class Shape(Extension):
    """The Markdown extension that marks tables and code for docs/site/pages.css."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the method's name is Markdown's
        """Mark the tree of a page when all else is done, the table of contents included."""
        md.treeprocessors.register(_Marks(md), "shape", 1)


class _Marks(Treeprocessor):
    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            mark_table(table)
        for code in root.iter("code"):
            mark_words(code)


def mark_table(table: Element) -> None:
    """Name the column in each cell, and mark columns of short cells and a table that is too wide for a phone.

    A row whose first cell is empty continues the row above, so its first cell gets the name of that row.
    """
    name = ""
    for row in table.iterfind("tbody/tr"):
        name = "".join(row[0].itertext()) or name
        row[0].set("data-row", name)
    width, texts_of_length = 0.0, 0
    for column in zip(*table.iter("tr"), strict=True):
        title, *texts = ["".join(cell.itertext()) for cell in column]
        short = all(len(text) <= SHORT_CELL for text in texts)
        unbroken = [*title.split(), *(texts if short else " ".join(texts).split())]
        texts_of_length += not short
        width += CHARACTER * min(LONG_WORD, max(map(len, unbroken), default=0)) + PADDING
        for cell in column[1:]:
            cell.set("data-title", title)
            if short:
                cell.set("data-short", "")
    if width > PHONE or texts_of_length >= LONG_COLUMNS:
        table.set("data-stacked", "")


def mark_words(code: Element) -> None:
    """Put each word of inline code that would break badly into an element of its own."""
    text, code.text = code.text or "", ""
    for part in re.split(rf"(\S*-\S*|\S{{{LONG_WORD},}})", text):
        if len(part) >= LONG_WORD or "-" in part:
            SubElement(code, "span", {"class": "long" if len(part) >= LONG_WORD else "whole"}).text = part
        elif len(code):
            code[-1].tail = part
        else:
            code.text = part
