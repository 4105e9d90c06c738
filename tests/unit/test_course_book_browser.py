"""The book in a real browser, as files and without a network.  Slow: it looks at every page, light and dark.

Needs playwright (group dev) and a Chromium on the path; run with `-m slow`.
"""

import warnings

import pytest

from course.book import command
from course.catalogue import Course
from tests.browser import CONTRAST, chromium, listen

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The book's folder, the names of its pages, and a browser."""
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("book") / "site"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert command.build(Course(), folder) == []
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.html"))
    with chromium() as browser:
        yield folder, names, browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_quiet_and_readable(site, scheme):
    folder, names, browser = site
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme=scheme, offline=True)
    for name in names:
        page, heard = context.new_page(), []
        listen(page, heard)
        page.goto((folder / name).as_uri())
        seen, faint = page.evaluate(CONTRAST)
        assert heard == [] and faint == {} and seen > 10, name
        page.close()
    context.close()


@pytest.mark.parametrize("width", [375, 1024])
def test_no_page_is_wider_than_its_screen(site, width):
    folder, names, browser = site
    context = browser.new_context(viewport={"width": width, "height": 800}, offline=True)
    page = context.new_page()
    for name in names:
        page.goto((folder / name).as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()


def test_search_and_folds_work_by_keyboard(site):
    folder, _, browser = site
    page = browser.new_context(offline=True).new_page()
    page.goto((folder / "index.html").as_uri())
    page.keyboard.press("Tab")
    assert "skip" in page.evaluate("document.activeElement.className")
    page.focus("input[name=q]")
    page.keyboard.type("rewind")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert "05 " in page.inner_text("#search-results")
    page.goto((folder / "chapters" / "05_the_loop_and_the_cache.html").as_uri())
    fold = page.locator("details.hint").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.get_attribute("open") is not None
    page.context.close()
