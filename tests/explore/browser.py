"""A real browser for the tests of the page, which notices every error and every request to somewhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest

from clearhead import shipped
from clearhead.explore.page_file import PAGE

SHIPPED = Path(shipped.__file__).parent / "fonts"
CHROMIUM = Path("/usr/bin/chromium")
SEEN_TOUR = "try { localStorage.setItem('clearhead-tour', 'seen') } catch { /* about:blank has no storage */ }"
PATIENCE = 30_000  # milliseconds: the machine may be busy
SIZE = {"width": 1280, "height": 820}
# The page waits 40 to 220 ms until pointer and keys are quiet. In the tests it waits an eighth of that, and counts the
# answers that are under way.
HURRY = """(() => {
  const later = window.setTimeout;
  window.unhurried = (call, wait) => later(call, wait);
  window.setTimeout = (call, wait = 0, ...rest) => later(call, wait > 20 && wait <= 260 ? wait / 8 : wait, ...rest);
  window.underWay = 0;
  const count = (owner, name) => {
    const method = owner[name];
    owner[name] = function (...values) {
      window.underWay++;
      const result = method.apply(this, values);
      const done = () => window.underWay--;
      result.then(done, done);
      return result;
    };
  };
  count(window, "fetch");
  for (const name of ["arrayBuffer", "json"]) count(Response.prototype, name);
})()"""
SETTLE = """async (wait) => {
  for (let round = 0; round < 12; round++) {
    await new Promise((done) => (window.unhurried ?? setTimeout)(done, wait));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    if (!window.underWay) return;
  }
}"""
# One character is a text, too, since most Chinese words are one or two; and large letters are as dark as small ones.
AUDIT = """async () => {
  const options = { ignoreUnicode: false, ignoreLength: true, ignorePseudo: false, boldValue: 700, boldTextPt: 14,
    largeTextPt: 18, contrastRatio: { normal: { expected: 4.5 }, large: { expected: 4.5 } }, pseudoSizeThreshold: 0.25,
    shadowOutlineEmMax: 0.1 };
  axe.configure({ checks: [{ id: "color-contrast", options }] });
  const rules = { "target-size": { enabled: true } };
  const { violations } = await axe.run(document, { rules, resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) => nodes.map((one) => `${id}: ${one.html}: ${one.failureSummary}`));
}"""
MISSING = (
    "the tests of the page need Chromium and Playwright: apt-get install chromium && .venv/bin/pip install playwright"
)


def absent() -> str | None:
    """What to install, if there is no browser."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return MISSING
    return None if CHROMIUM.exists() else MISSING


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.allowed: list[str] = []  # parts of messages that a test provokes
        self.pause = 260  # milliseconds: all timers of the page are shorter
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: said.type in ("error", "warning") and self._note(f"console: {said.text}"))
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on("dialog", lambda dialog: (self._note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._heard(request.url))
        page.on("popup", lambda _: self._note("a window opened"))

    def _note(self, problem: str) -> None:
        if not any(part in problem for part in self.allowed):
            self.problems.append(problem)

    def _heard(self, url: str) -> None:
        address = urlsplit(url)
        if address.scheme not in ("file", "data", "blob") and address.hostname != "127.0.0.1":
            self._note(f"request: {url}")

    def open(self, url: str, fragment: str = "") -> None:
        """Goes there, and waits until the map is painted."""
        self.page.goto("about:blank")  # the same address with another fragment would not load anew
        self.page.goto(url + (f"#{fragment}" if fragment else ""))
        self.page.wait_for_selector("html[data-ready='map'][data-shown]", state="attached")

    def offer_modules(self) -> None:
        """Lets a test import single modules of the page, which the server sends as one script."""
        self.page.route(
            re.compile(r"/(?:data|draw|panes|state|words)/\w+\.js$"),
            lambda route: route.fulfill(path=PAGE.joinpath(*urlsplit(route.request.url).path.split("/")[-2:])),
        )

    def settle(self) -> None:
        """Waits until what was done is drawn."""
        self.page.evaluate(SETTLE, self.pause)

    def leave(self) -> None:
        """Checks that nothing went wrong, and makes the page ready for the next test."""
        self.settle()
        self.page.evaluate("() => { try { sessionStorage.clear() } catch { /* about:blank has none */ } }")
        self.page.unroute_all()
        self.page.context.set_offline(False)
        self.page.goto("about:blank")
        self.page.set_viewport_size(SIZE)
        problems, self.problems, self.allowed = self.problems, [], []
        assert not problems, problems

    @property
    def fragment(self) -> str:
        self.settle()
        return self.page.evaluate("() => { dispatchEvent(new Event('pagehide')); return location.hash }")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def audit(self) -> list[str]:
        """What axe finds: too small, too pale, without a name, headings out of order, and the like."""
        self.settle()  # colours fade in
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
        return self.page.evaluate(AUDIT)

    def until(self, selector: str, text: str) -> None:
        """Waits until an element shows this text."""
        self.page.locator(selector, has_text=text).first.wait_for()


FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include><dir>{folder}</dir><cachedir>{cache}</cachedir>
</fontconfig>"""


@contextmanager
def started() -> Iterator:
    """The browser, for a whole session. Where the machine has no Chinese font it takes the one of the figures."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        fonts = Path(folder) / "fonts.conf"
        fonts.write_text(FONTS.format(folder=SHIPPED, cache=Path(folder) / "cache"), encoding="utf-8")
        environment = {**os.environ, "FONTCONFIG_FILE": str(fonts)}
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"], env=environment)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browser() -> Iterator:
    if missing := absent():
        if os.environ.get("CI_RUN") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with started() as browser:
        yield browser


@contextmanager
def visiting(browser, first_visit: bool = False, hurried: bool = True, **wanted) -> Iterator[Watched]:
    """A fresh page of somebody who has been here before; at a first visit the tour starts."""
    options = {"viewport": SIZE, "color_scheme": "light", "locale": "en-GB", "reduced_motion": "reduce"}
    context = browser.new_context(**options | wanted)
    if not first_visit:
        context.add_init_script(SEEN_TOUR)
    page = Watched(context.new_page())
    if hurried:
        context.add_init_script(HURRY)
        page.pause = 40
    yield page
    page.leave()
    context.close()


@pytest.fixture(scope="module")
def visitor(browser) -> Iterator[Watched]:
    """The page that the tests of a module share."""
    with visiting(browser) as page:
        yield page


@pytest.fixture
def watched(browser, request) -> Iterator[Watched]:
    """A page as at its start; the test fails if anything went wrong in it. With other options it is a fresh one."""
    if hasattr(request, "param"):
        with visiting(browser, **request.param) as page:
            yield page
        return
    visitor = request.getfixturevalue("visitor")
    yield visitor
    visitor.leave()


@pytest.fixture
def another(browser) -> Iterator[Watched]:
    """The page of another browser."""
    with visiting(browser) as page:
        yield page
