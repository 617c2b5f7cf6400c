"""The page: whole in itself, well-formed, and with everything that there is to say about a layer."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from tests.schedules import build
from uniep_compiler.pictures.page import page
from uniep_compiler.source import Source

SOURCE = Source(name="a.uniep", text="uniep 1\nmoe a<b>&c\n")
VOID = {"meta", "br", "path", "rect", "polygon"}


class Reader(HTMLParser):
    """Texts of a page, and whether its elements nest."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID or tag in ("path", "rect", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def make(**options):
    given = {"title": "moe <a>", "source": SOURCE, "options": {"fuse": "layer", "workers": None}, **options}
    return page(build(2), **given)


def test_nothing_comes_from_elsewhere():
    html = make()
    assert read(html).links == []
    assert "@import" not in html
    assert "url(" not in html
    assert "<script" not in html
    assert [part.partition('"')[0] for part in html.split("http")[1:]] == ["://www.w3.org/2000/svg"] * 2


def test_it_names_everything():
    texts = "\n".join(read(make()).texts)
    graph = build(2).graph
    for thing in (*graph.families, *graph.signals, *graph.buffers):
        assert texts.count(thing.name) >= 2
    for word in ("fuse = layer", "moe <a>", "moe a<b>&c", "tile < num_tiles", "[tile] ≥ 1, fence"):
        assert word in texts
    assert "workers" not in texts


def test_tasks_are_shown_where_there_are_any():
    assert "Single tasks" not in make()
    assert "Single tasks" in make(tasks="<svg></svg>")


def test_a_layer_without_signals_has_no_table_of_them():
    pair = build(2)
    assert "<h2>Signals" in page(pair, title="a", source=SOURCE, options={})
    serial = build(2, fuse="none")
    assert not serial.graph.signals
    assert "<h2>Signals" not in page(serial, title="a", source=SOURCE, options={})


def test_the_same_layer_gives_the_same_page():
    assert make() == make()


@pytest.mark.parametrize("name", ["gemm_a", "reduce_out"])
def test_the_whole_text_of_a_family_is_there(name):
    assert f"family {name} : " in "".join(read(make()).texts)
