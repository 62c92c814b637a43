"""A reader of the explorer's pages."""

from __future__ import annotations

from html.parser import HTMLParser

from browser import browser as browser

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


class Elements(HTMLParser):
    """The names of a page's elements, its text, and every address it refers to."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.addresses: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.addresses += [
            value or "" for name, value in attributes if name in ("src", "href", "xlink:href")
        ]

    def handle_data(self, data):
        self.text += data
