"""The browser is one for the whole session."""

from tests.explore.browser import browser, watched

__all__ = ["browser", "watched"]
