"""Parts of the site beyond the options of mkdocs: search words of the pages, and a search without a server.

mkdocs calls the functions; see `hooks` in mkdocs.yml.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

WORDS = Path(__file__).parent / "search_words.yml"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Put the search words of a page into the index, where the theme's search weighs them above headings."""
    words = yaml.safe_load(WORDS.read_text())
    page.meta["tags"] = words.get(page.file.src_uri, [])


def on_post_build(config: MkDocsConfig) -> None:
    """Write the index as a script, which a page that was opened from a file may load."""
    search = Path(config.site_dir) / "search"
    (search / "search_index.js").write_text(f"var __index = {(search / 'search_index.json').read_text()}")
