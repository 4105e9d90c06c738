"""A real browser for tests: Chromium, driven by playwright (group dev)."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"

# Contrast of every text that is shown, against the colours that lie under it (WCAG 2: 4.5, and 3 for large text).
CONTRAST = """() => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const colour = text => {
    const n = text.match(/[\\d.]+/g).map(Number), scale = text.startsWith("color(") ? 255 : 1;
    return [n[0] * scale, n[1] * scale, n[2] * scale, n.length > 3 ? n[3] : 1];
  };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = c => [0.2126, 0.7152, 0.0722].map((w, i) => {
    const v = c[i] / 255;
    return w * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }).reduce((a, b) => a + b);
  const found = {};
  let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), element = walk.currentNode.parentElement;
    if (!text || element.closest("svg, script, style, noscript, .skip-to-content")) continue;
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    if (!box.width || !box.height || style.visibility === "hidden") continue;
    const layers = [];
    let opacity = 1, covered = false;
    for (let e = element; e; e = e.parentElement) {
      const s = getComputedStyle(e), b = colour(s.backgroundColor);
      opacity *= parseFloat(s.opacity);
      if (!covered && b[3] > 0) layers.push(b);
      covered = covered || b[3] >= 1;
    }
    const under = layers.reverse().reduce((a, b) => over(b, a), [255, 255, 255, 1]);
    const ink = colour(style.color);
    ink[3] *= opacity;
    const [a, b] = [light(over(ink, under)), light(under)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), size = parseFloat(style.fontSize);
    const enough = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700) ? 3 : 4.5;
    seen += 1;
    if (ratio < enough - 0.01) found[`${element.tagName} ${style.color} ${ratio.toFixed(2)}`] = text.slice(0, 40);
  }
  return [seen, found];
}"""


@contextmanager
def chromium():
    """A browser; without one, or without playwright, the test is skipped and says so."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


def listen(page, heard, own=("file:", "data:")):
    """Collect what a page complains about, and what it wants from a network."""
    page.on("console", lambda m: heard.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: heard.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith(own) else heard.append(r.url))
    page.on("requestfailed", lambda r: heard.append(r.url))
