"""The browser is one for the whole session."""

from tests.explore.browser import another, browser, visitor, watched

__all__ = ["another", "browser", "visitor", "watched"]
