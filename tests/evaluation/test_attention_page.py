"""The page of attention: what is in it, and, where there is a browser, what it does when somebody looks at it."""

import json
import re

import numpy as np
import pytest
import torch

from nmt.evaluation.attention_page import KINDS, draw, page
from tests.evaluation.browser import Browser, Tags, needs_browser
from tests.evaluation.made_sentence import N_DEC_LAYER, N_ENC_LAYER, N_HEAD, PAIRS, made_sentence

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@pytest.fixture(scope="module")
def sentences():
    return [made_sentence(*pair, number, seed=number) for number, pair in enumerate(PAIRS, start=1)]


@pytest.fixture(scope="module")
def file(sentences, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "a.html"
    draw(sentences, path, layers="last", heads="mean", langs=("en", "de"))
    return path


@pytest.fixture(scope="module")
def opened():
    with Browser(width=1000, height=900) as one:
        yield one


@pytest.fixture
def shown(opened, file):
    """The page, just opened."""
    opened.open(file)
    yield opened
    assert opened.complaints() == []  # no script failed, and nothing was asked of the network


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def by_words(weights, rows, columns):
    """The written-out rule: summed over the pieces of a key, the mean over those of a query."""
    found = np.zeros((len(rows.texts), len(columns.texts)))
    for q in range(len(found)):
        its = [i for i, word in enumerate(rows.words) if word == q]
        for k in range(found.shape[1]):
            found[q, k] = sum(
                float(weights[i, j]) for i in its for j, word in enumerate(columns.words) if word == k
            ) / len(its)
    return found


def test_the_page_holds_all_layers_heads_and_kinds_right_in_three_digits(sentences, file):
    data = data_of(file.read_text("utf-8"))
    n_layer = {"cross": N_DEC_LAYER, "encoder": N_ENC_LAYER, "decoder": N_DEC_LAYER}
    assert data["kinds"] == {kind: {"layers": n, "heads": N_HEAD} for kind, n in n_layer.items()}
    for one, told in zip(sentences, data["sentences"], strict=True):
        assert told["title"] == one.title and told["src"]["pieces"] == one.src.pieces
        for kind, weights in one.weights.items():
            text = told["weights"][kind]
            assert len(text) == 2 * weights.numel()  # which is what bounds the page
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
def test_the_page_is_titled_by_languages_and_run_and_names_each_kind_of_attention(sentences, langs, run, title):
    text = page(sentences[:1], "cross", "last", "mean", langs, run)
    assert re.findall("<(?:title|h1)>(.*?)</", text) == [title, title]
    assert [name for name in KINDS.values() if f'"{name}"' not in text] == []


@pytest.mark.parametrize("nasty", [text for pair in PAIRS for text in pair])
def test_nothing_in_a_text_is_markup_or_script(nasty):
    text, plain = (
        page([made_sentence(nasty, nasty)], "cross", "last", "mean"),
        Tags(page([made_sentence("a", "a")], "cross", "last", "mean")),
    )
    found = Tags(text)
    assert found.tags == plain.tags  # no text brought a tag along
    assert found.inside["script"][1:] == plain.inside["script"][1:] and found.inside["style"] == plain.inside["style"]
    assert "<!--" not in text and "\u2028" not in text and "\u202e" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.S).group(1)
    assert data.isascii() and not set(data) & set("<>&")
    assert data_of(text)["sentences"][0]["title"] == f"1: {nasty}"


def test_the_page_needs_nothing_from_anywhere_and_lets_no_other_script_in(file):
    text = file.read_text("utf-8")
    assert not re.search(r"\bsrc=|href=|@import|url\(|fetch\(|import\(|XMLHttpRequest", text)
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and policy.count("'sha256-") == 2
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def choose(shown, name, value):
    shown.click(f"input[name={name}][value='{value}']")


def shares(shown, side):
    return [float(text) for text in shown.texts(f".token.shared[data-side={side}] small")]


@needs_browser
@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
@pytest.mark.parametrize("unit", ["words", "pieces"])
def test_hovering_shows_the_weights_of_a_word(shown, sentences, kind, unit):
    choose(shown, "kind", kind)
    choose(shown, "unit", unit)
    choose(shown, "layer", 1)
    for head in ("mean", "all", 2):
        choose(shown, "head", head)
        weights = sentences[0].weights[kind][1]
        mean, axes = weights[2] if head == 2 else weights.mean(0), sentences[0].axes(kind)
        wanted = by_words(mean, *axes) if unit == "words" else mean.numpy()
        shown.hover(".token[data-side=query][data-index='1']")
        assert shares(shown, "key") == pytest.approx(list(wanted[1]), abs=0.0053)
        shown.hover(".token[data-side=key][data-index='0']")  # the other way round: what looks at it
        assert shares(shown, "query") == pytest.approx(list(wanted[:, 0]), abs=0.0053)
        shown.hover("h1")
        assert shares(shown, "key") == shares(shown, "query") == []


@needs_browser
def test_everything_can_be_reached_with_the_keyboard(shown, sentences):
    shown.run("document.querySelector('select').focus()")
    active = "const one = document.activeElement; return [one.name || one.dataset.side || '', one.dataset.index || '']"
    seen = []
    for _ in range(8):
        seen.append(tuple(shown.run(active)))
        shown.press("Tab")
    names = [name for name, _ in seen]
    assert names == ["sentence", "kind", "layer", "head", "unit", "view", "key", "query"]
    shown.run("document.querySelector('.token[data-side=key]').focus()")
    shown.press("Down", "Down", "Right", "Up", "Enter")
    assert shown.run(active) == ["query", "1"]
    assert shown.texts("#details")[0].startswith(f"{sentences[0].trg.texts[1]} looks at ")
    assert shown.count(".token[aria-pressed=true]") == 1
    shown.press("Escape")
    assert shown.count(".token[aria-pressed]") == 0
    shown.run("document.querySelector('input[name=view]').focus()")
    shown.press("Right")
    assert shown.count("table") == 1 and shown.count("path") == 0
