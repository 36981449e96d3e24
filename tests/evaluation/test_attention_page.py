"""Attention page: its content and, if a browser is installed, its behaviour."""

import json
import re

import numpy as np
import pytest
import torch

from nmt.evaluation.attention_page import KINDS, draw, page
from tests.evaluation.browser import Browser, Tags, needs_browser
from tests.evaluation.made_sentence import N_DEC_LAYER, N_ENC_LAYER, N_HEAD, PAIRS, make_sentence

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@pytest.fixture(scope="module")
def sentences():
    return [make_sentence(*pair, number, seed=number) for number, pair in enumerate(PAIRS, start=1)]


@pytest.fixture(scope="module")
def page_file(sentences, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "a.html"
    draw(sentences, path, layers="last", heads="mean", langs=("en", "de"))
    return path


@pytest.fixture(scope="module")
def shared_browser():
    with Browser(width=1000, height=900) as browser:
        yield browser


@pytest.fixture
def browser(shared_browser, page_file):
    """A browser with the page just opened."""
    shared_browser.open(page_file)
    yield shared_browser
    assert shared_browser.complaints() == []  # no script failed, and the page requested nothing from the network


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def by_words(weights, rows, columns):
    """Reference for words: sums over the pieces of a key, means over those of a query."""
    found = np.zeros((len(rows.texts), len(columns.texts)))
    for q in range(len(found)):
        pieces = [i for i, word in enumerate(rows.words) if word == q]
        for k in range(found.shape[1]):
            found[q, k] = sum(
                float(weights[i, j]) for i in pieces for j, word in enumerate(columns.words) if word == k
            ) / len(pieces)
    return found


def test_the_page_holds_all_weights_in_three_digits(sentences, page_file):
    data = data_of(page_file.read_text("utf-8"))
    n_layer = {"cross": N_DEC_LAYER, "encoder": N_ENC_LAYER, "decoder": N_DEC_LAYER}
    assert data["kinds"] == {kind: {"layers": n, "heads": N_HEAD} for kind, n in n_layer.items()}
    for sentence, stored in zip(sentences, data["sentences"], strict=True):
        assert stored["title"] == sentence.title and stored["src"]["pieces"] == sentence.src.pieces
        for kind, weights in sentence.weights.items():
            text = stored["weights"][kind]
            assert len(text) == 2 * weights.numel()  # this bounds the size of the page
            numbers = [64 * ALPHABET.index(a) + ALPHABET.index(b) for a, b in zip(text[::2], text[1::2], strict=True)]
            read = torch.tensor(numbers).view(weights.shape) / 4095
            assert (read - weights).abs().max() <= 0.5 / 4095 + 1e-6


@pytest.mark.parametrize(
    ("langs", "run", "title"),
    [
        (("en", "de"), "<1>", "Attention: en → de, &lt;1&gt;"),
        (("", ""), "mine", "Attention: mine"),
        (("", ""), "", "Attention"),
    ],
)
def test_the_title_names_languages_and_run_and_the_page_each_attention(sentences, langs, run, title):
    text = page(sentences[:1], "cross", "last", "mean", langs, run)
    assert re.findall("<(?:title|h1)>(.*?)</", text) == [title, title]
    assert [name for name in KINDS.values() if f'"{name}"' not in text] == []


@pytest.mark.parametrize("hostile", [text for pair in PAIRS for text in pair])
def test_hostile_text_never_becomes_markup_or_script(hostile):
    text, plain = (
        page([make_sentence(hostile, hostile)], "cross", "last", "mean", ("", ""), ""),
        Tags(page([make_sentence("a", "a")], "cross", "last", "mean", ("", ""), "")),
    )
    found = Tags(text)
    assert found.tags == plain.tags  # no text added a tag
    assert found.inside["script"][1:] == plain.inside["script"][1:] and found.inside["style"] == plain.inside["style"]
    assert "<!--" not in text and "\u2028" not in text and "\u202e" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.S).group(1)
    assert data.isascii() and not set(data) & set("<>&")
    assert data_of(text)["sentences"][0]["title"] == f"1: {hostile}"


def test_the_page_loads_nothing_and_allows_no_other_script(page_file):
    text = page_file.read_text("utf-8")
    assert not re.search(r"\bsrc=|href=|@import|url\(|fetch\(|import\(|XMLHttpRequest", text)
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and policy.count("'sha256-") == 2
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def choose(browser, name, value):
    browser.click(f"input[name={name}][value='{value}']")


def shares(browser, side):
    return [float(text) for text in browser.texts(f".token.shared[data-side={side}] small")]


@needs_browser
@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
@pytest.mark.parametrize("unit", ["words", "pieces"])
def test_hovering_shows_the_weights_of_a_word(browser, sentences, kind, unit):
    choose(browser, "kind", kind)
    choose(browser, "unit", unit)
    choose(browser, "layer", 1)
    for head in ("mean", "all", 2):
        choose(browser, "head", head)
        weights = sentences[0].weights[kind][1]
        mean, sentence = weights[2] if head == 2 else weights.mean(0), sentences[0]
        axes = sentence.src if kind == "encoder" else sentence.trg, sentence.read if kind == "decoder" else sentence.src
        expected = by_words(mean, *axes) if unit == "words" else mean.numpy()
        browser.hover(".token[data-side=query][data-index='1']")
        assert shares(browser, "key") == pytest.approx(list(expected[1]), abs=0.0053)
        browser.hover(".token[data-side=key][data-index='0']")  # the reverse: the queries that attend to it
        assert shares(browser, "query") == pytest.approx(list(expected[:, 0]), abs=0.0053)
        browser.hover("h1")
        assert shares(browser, "key") == shares(browser, "query") == []


@needs_browser
def test_all_controls_work_by_keyboard(browser, sentences):
    browser.run("document.querySelector('select').focus()")
    active = "const one = document.activeElement; return [one.name || one.dataset.side || '', one.dataset.index || '']"
    focused = []
    for _ in range(8):
        focused.append(tuple(browser.run(active)))
        browser.press("Tab")
    names = [name for name, _ in focused]
    assert names == ["sentence", "kind", "layer", "head", "unit", "view", "key", "query"]
    browser.run("document.querySelector('.token[data-side=key]').focus()")
    browser.press("Down", "Down", "Right", "Up", "Enter")
    assert browser.run(active) == ["query", "1"]
    assert browser.texts("#details")[0].startswith(f"{sentences[0].trg.texts[1]} looks at ")
    assert browser.count(".token[aria-pressed=true]") == 1
    browser.press("Escape")
    assert browser.count(".token[aria-pressed]") == 0
    browser.run("document.querySelector('input[name=view]').focus()")
    browser.press("Right")
    assert browser.count("table") == 1 and browser.count("path") == 0
