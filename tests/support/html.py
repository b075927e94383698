"""Pages as a browser parses them, without running anything."""

from html.parser import HTMLParser


class ParsedPage(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes), tuple(self._open)))
        if tag not in ("meta", "img", "br", "line", "circle", "rect", "polyline", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        self.text.append(data)
