"""Looks at a built book: every link leads to a page and a place in it, and no page loads anything from a network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}


class _Page(HTMLParser):
    """The anchors of a page, where it leads to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element is called and what it points to."""
        given = {key: value for key, value in attrs if value is not None}
        if "id" in given:
            self.anchors.append(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given and given.get("rel") not in ("canonical", "author", "license"):
            self.loads.append(given[LOADS[tag]])


def broken(folder: Path) -> list[str]:
    """What is wrong with the links of a built book, one line each.

    Parameters
    ----------
    folder : Path
        Holds its index.html.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        doubles = {anchor for anchor in page.anchors if page.anchors.count(anchor) > 1}
        found += [f"{name}: two places are called #{anchor}" for anchor in sorted(doubles)]
        found += [f"{name}: loads {url} from elsewhere" for url in page.loads if _outside(url)]
        inside = [url for url in dict.fromkeys(page.links + page.loads) if not _outside(url)]
        found += [f"{name}: {why}" for url in inside if (why := _leads_nowhere(url, path, pages))]
    return found


def _outside(url: str) -> bool:
    return bool(urlsplit(url).scheme or urlsplit(url).netloc) and not url.startswith("data:")


def _leads_nowhere(url: str, path: Path, pages: dict[Path, _Page]) -> str:
    """Why a link inside the book does not work; empty where it does."""
    if url.startswith("data:"):
        return ""
    parts = urlsplit(url)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    if not target.is_file():
        return f"{url} leads to no file"
    page = pages.get(target)
    anchor = unquote(parts.fragment)
    if anchor and page is not None and anchor not in page.anchors:
        return f"{url} leads to a page without #{anchor}"
    return ""
