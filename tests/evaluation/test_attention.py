import re
from html.parser import HTMLParser

import pytest
import torch
from matplotlib.image import imread

from nmt.errors import NmtError
from nmt.evaluation.attention import draw
from nmt.evaluation.attention_html import page
from nmt.evaluation.attention_panels import Alignment, panels

SRC = ["▁Das", "▁<b>", "&", "$x$", "日本", "</s>"]
TRG = ["▁The", '▁"q"', "<0A>", "</s>"]


def alignment(n_layer: int = 3, n_head: int = 4, title: str = "1: a & <b>") -> Alignment:
    weights = torch.randn(n_layer, n_head, len(TRG), len(SRC), generator=torch.Generator().manual_seed(0)).softmax(-1)
    return Alignment(weights, SRC, TRG, title)


def names(layers, heads) -> list[list[str]]:
    return [[panel.name for panel in row] for row in panels(alignment(), layers, heads)]


def test_layers_are_rows_and_heads_columns_counted_from_one():
    assert names([1, 3], [2]) == [["layer 1, head 2"], ["layer 3, head 2"]]
    assert names("last", "mean") == [["layer 3, mean of 4 heads"]]
    assert [len(row) for row in names("all", "all")] == [4, 4, 4]


def test_panels_show_the_weights_of_their_layer_and_head():
    one = alignment()
    assert torch.equal(panels(one, [2], [3])[0][0].weights, one.weights[1, 2])
    assert torch.allclose(panels(one, [2], "mean")[0][0].weights, one.weights[1].mean(0))


@pytest.mark.parametrize(
    ("layers", "heads", "message"), [([4], "mean", "no layer 4.*1 to 3"), ([1], [0, 9], "no head 0, 9")]
)
def test_a_layer_or_head_that_is_not_there_is_named(layers, heads, message):
    with pytest.raises(NmtError, match=message):
        panels(alignment(), layers, heads)


def test_a_png_is_an_image_that_grows_with_what_it_shows(tmp_path):
    sizes = []
    for n, (layers, heads) in enumerate([("last", "mean"), ("all", "all")]):
        path = tmp_path / f"{n}.png"
        draw([alignment(), alignment(title="")][: n + 1], path, layers=layers, heads=heads)
        image = imread(path)
        assert image[..., :3].min() < 0.3 < image[..., :3].max()  # dark cells on a light ground
        sizes.append(image.shape[0] * image.shape[1])
    assert sizes[0] < sizes[1]


def test_a_very_long_sentence_is_still_drawn(tmp_path):
    weights = torch.full((1, 1, 60, 500), 1 / 500)
    draw([Alignment(weights, ["x"] * 500, ["y"] * 60)], tmp_path / "a.png", layers="all", heads="all")
    assert max(imread(tmp_path / "a.png").shape) < 2**14


def test_a_page_needs_nothing_and_escapes_what_is_in_the_texts(tmp_path):
    draw([alignment(), alignment(title="2: Übung")], tmp_path / "a.html", layers="all", heads=[1])
    text = (tmp_path / "a.html").read_bytes().decode("utf-8")
    assert not re.search(r"<script|src=|href=|https?:|@import|url\(", text)
    assert "▁&lt;b&gt;" in text and "▁<b>" not in text
    assert "1: a &amp; &lt;b&gt;" in text and "2: Übung" in text and "日本" in text


def test_a_page_is_well_formed_and_has_one_cell_for_each_weight():
    class Checker(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.titles = [], []

        def handle_starttag(self, tag, attrs):
            if tag != "meta":
                self.open.append(tag)
            if tag == "td" and "title" in dict(attrs):
                self.titles.append(dict(attrs)["title"])

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    one, checker = alignment(), Checker()
    checker.feed(page([(one, panels(one, "all", "all"))]))
    assert checker.open == []
    assert len(checker.titles) == 3 * 4 * len(TRG) * len(SRC)
    assert checker.titles[0] == f"▁The → ▁Das: {one.weights[0, 0, 0, 0]:.3f}"


@pytest.mark.parametrize("name", ["a.pdf", "a", "missing/a.png"])
def test_a_name_that_cannot_be_drawn_to_is_refused(tmp_path, name):
    with pytest.raises(NmtError):
        draw([alignment()], tmp_path / name)


def test_a_picture_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    with pytest.raises(NmtError):
        draw([alignment()], path, layers=[9])
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.png"]
