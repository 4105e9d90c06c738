"""The page at `/`: what it is sent with, and, in a real browser, what one can do with it.

The tests in a browser are slow ones: they need playwright (group dev) and a Chromium on the path; run with `-m slow`.
"""

import base64
import hashlib
import re
from html.parser import HTMLParser
from time import sleep

import pytest

import fucina
from fucina.serve import Rules
from fucina.serve.page import page, page_headers
from tests.browser import CONTRAST, chromium, listen
from tests.chat_model import CHATML, write_chat_model
from tests.serving import app_of, asked, served


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(str(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", CHATML)))
    yield model
    model.close()


class Elements(HTMLParser):
    """Every element with its attributes, and whether each that is opened is closed."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_comes_without_a_key_and_may_run_its_own_script_alone(model):
    with app_of(model) as app:
        found = asked(app, "GET", "/")
        assert found.status_code == 200 and found.content == page()
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(part.split(" ", 1) for part in found.headers["content-security-policy"].split("; "))
        for kind in ("script", "style"):
            (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", found.text, re.DOTALL)
            assert (
                policy[f"{kind}-src"]
                == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
            )
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert asked(app, "POST", "/", {}).status_code == 404
        app.rules = Rules(keys=("secret",), hosts=frozenset(["localhost"]))
        assert asked(app, "GET", "/").status_code == 200
        assert asked(app, "GET", "/", headers={"host": "elsewhere"}).status_code == 403


def test_the_page_needs_nothing_from_elsewhere_and_names_every_control():
    text = page().decode()
    assert "://" not in text and "innerHTML" not in text and "eval(" not in text
    parser = Elements()
    parser.feed(re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL))
    assert parser.open == []
    ids = [a["id"] for _, a in parser.found if "id" in a]
    assert len(ids) == len(set(ids))
    assert not [a for _, a in parser.found if "src" in a or "style" in a or any(name.startswith("on") for name in a)]
    labelled = [a["for"] for tag, a in parser.found if tag == "label" and "for" in a]
    inside = re.findall(r"<label[^>]*>[^<]*[^<\s][^<]*<(?:input|select|textarea) id=\"(\w+)\"", text.replace("\n", " "))
    controls = [a["id"] for tag, a in parser.found if tag in ("input", "select", "textarea")]
    assert sorted(controls) == sorted(labelled + inside)
    assert set(re.findall(r"\$\(\"(\w+)\"\)", text)) <= set(ids)
    assert page_headers() == page_headers()


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser, model):
    """Opens the page of a server with some options; at the end nothing was complained about or asked elsewhere."""
    contexts, servers = [], []

    def opened(rules=None, **options):
        with_server = served(model, rules, speculation=True)
        server = with_server.__enter__()
        servers.append(with_server)
        context = browser.new_context(**options)
        contexts.append(context)
        tab, heard = context.new_page(), []
        listen(tab, heard, (server.address, "data:"))
        tab.goto(server.address)
        tab.locator("#model option").first.wait_for(state="attached")
        tab.click("#settings")
        tab.fill("#temperature", "0")
        tab.fill("#max_tokens", "12")
        tab.click("#settings")
        return tab, heard

    yield opened
    for context in contexts:
        context.close()
    for server in servers:
        server.__exit__(None, None, None)


def send(tab, text):
    tab.fill("#prompt", text)
    tab.keyboard.press("Enter")


def texts(tab):
    """The texts that are shown, once no reply is being written."""
    from playwright.sync_api import expect

    expect(tab.locator("#stop")).to_be_hidden(timeout=60_000)
    return [item.inner_text() for item in tab.locator(".message .text").all()]


@pytest.mark.slow
def test_a_chat_its_edits_and_its_branches(open_page):
    tab, heard = open_page()
    send(tab, "hello")
    first = texts(tab)
    assert first[0] == "hello" and len(first) == 2
    stats = tab.locator(".stats").inner_text()
    assert "12 tokens" in stats and "tokens/s" in stats and "prompt tokens cached" in stats
    send(tab, "and more")
    assert texts(tab)[:3] == [*first, "and more"]
    tab.get_by_label("Edit this message").first.click()
    tab.get_by_label("Edit your message").fill("<b>bye</b>")
    tab.keyboard.press("Enter")
    other = texts(tab)
    assert other[0] == "<b>bye</b>" and len(other) == 2  # not read as markup
    tab.get_by_label("Earlier version").click()
    assert texts(tab)[:3] == [*first, "and more"]
    tab.get_by_label("Another reply to the same message").first.click()
    assert texts(tab) == first  # the same question, greedy: the same reply, on a branch of its own
    tab.reload()
    assert texts(tab) == first
    assert tab.get_by_label("Earlier version").count() == 2
    tab.click("#new")
    assert texts(tab) == [] and tab.locator("#empty").is_visible()
    assert heard == []


@pytest.mark.slow
def test_a_reply_is_stopped_by_the_keyboard_and_said_to_a_screen_reader(open_page, model, monkeypatch):
    forward_rows = model.forward_rows
    monkeypatch.setattr(model, "forward_rows", lambda *a, **k: (sleep(0.05), forward_rows(*a, **k))[1])
    tab, heard = open_page()
    tab.click("#settings")
    tab.fill("#max_tokens", "400")
    tab.click("#settings")
    send(tab, "hello")
    tab.locator(".message.assistant .text p").first.wait_for()
    tab.keyboard.press("Escape")
    shown = texts(tab)
    assert "stopped" in tab.locator(".stats").inner_text()
    assert tab.locator("#said").inner_text().strip() == f"Stopped. {shown[1]}".strip()
    reached = set()
    for _ in range(20):  # every control can be reached, and the focus is seen
        tab.keyboard.press("Tab")
        at = "document.activeElement"
        name, outline = tab.evaluate(f"() => [{at}.textContent || {at}.id, getComputedStyle({at}).outlineStyle]")
        if tab.evaluate(f"() => {at} !== document.body"):
            assert outline != "none", name
            reached.add(name)
    assert {"New chat", "Settings", "Edit", "Copy", "Try again", "prompt", "Send"} <= reached
    assert [url for url in heard if not url.endswith("/v1/chat/completions")] == []  # that one was given up


@pytest.mark.slow
def test_a_missing_key_and_an_error_are_told(browser, model):
    with served(model, Rules(keys=("secret",))) as server:
        tab = browser.new_context().new_page()
        tab.goto(server.address)
        tab.locator("#notice").wait_for()
        assert "API key" in tab.locator("#notice").inner_text()
        tab.fill("#key", "secret")
        tab.keyboard.press("Tab")
        tab.locator("#model option").first.wait_for(state="attached")
        tab.fill("#max_tokens", "0")
        send(tab, "hello")
        tab.locator(".message .problem").wait_for()
        assert "max_tokens" in tab.locator(".message .problem").inner_text()
        tab.fill("#max_tokens", "3")
        send(tab, "again")
        assert len(texts(tab)) == 4
        tab.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(open_page, scheme):
    tab, heard = open_page(color_scheme=scheme, viewport={"width": 380, "height": 800})
    send(tab, "```\ncode\n```\nand text")
    texts(tab)
    tab.click("#settings")
    seen, faint = tab.evaluate(CONTRAST)
    assert faint == {} and seen > 10 and heard == []
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 380
