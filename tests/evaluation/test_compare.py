"""Comparison of systems: the numbers of the sacreBLEU command, and consistent groups of sentences and words."""

import json
import random
import re
import subprocess
import sys

import pytest

from nmt.errors import DataError
from nmt.evaluation import compare
from nmt.evaluation.compare import System
from nmt.evaluation.metrics import METRICS, Metric, Texts
from tests.evaluation.browser import Browser, Tags, needs_browser

NAMES = ["bleu", "chrf"]  # TER is slow


def make_systems(n_line: int) -> tuple[list[str], list[str], list[str]]:
    """References, and two systems of which the second has fewer wrong words."""
    rng = random.Random(1)
    words = list("abcdefghijklmno")
    references = [" ".join(rng.choices(words, k=rng.randint(3, 45))) + "." for _ in range(n_line)]

    def corrupted(line: str, share: float) -> str:
        return " ".join(rng.choice(words) if rng.random() < share else word for word in line.split(" "))

    return references, [corrupted(line, 0.3) for line in references], [corrupted(line, 0.2) for line in references]


REFERENCES, WORSE, BETTER = make_systems(40)


def systems_of(lines_of: dict[str, list[str]]) -> list[System]:
    return [System(name, Texts(lines, [REFERENCES], trg_lang="en")) for name, lines in lines_of.items()]


@pytest.fixture(scope="module")
def results():
    return compare.compare(systems_of({"worse": WORSE, "better": BETTER, "worse again": WORSE}), NAMES)


def sacrebleu_output(folder, *flags: str) -> str:
    for name, lines in (("ref", REFERENCES), ("worse", WORSE), ("better", BETTER)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-m", *NAMES, *flags]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, encoding="utf-8").stdout


def test_scores_and_p_values_equal_those_of_the_sacrebleu_command(results, tmp_path):
    worse, better, _ = results
    scores = json.loads(sacrebleu_output(tmp_path, "-i", "better", "-w", "12", "--confidence"))
    assert [score["score"] for score in scores] == [round(better.scores[name].value, 12) for name in NAMES]
    assert [score["name"] for score in scores] == ["BLEU", "chrF2"]
    for flag, kind in (("--paired-bs", "bootstrap"), ("--paired-ar", "randomisation")):
        output = sacrebleu_output(tmp_path, "-i", "worse", "better", flag, "-f", "text")
        expected = [f"{getattr(better.p_values[name], kind):.4f}" for name in NAMES]
        assert re.findall(r"\(p = ([\d.]+)\)", output) == expected
    assert worse.p_values == {}


def test_identical_systems_tie_with_a_p_value_of_one(results):
    identical = results[2]
    assert identical.wins == {"won": 0, "tied": 40, "lost": 0}
    assert {p for values in identical.p_values.values() for p in values} == {1.0}


def test_wins_and_losses_swap_with_the_order_of_systems(results):
    worse, better, _ = results
    won, tied, lost = better.wins.values()
    assert [*compare.wins_of(worse.sentences, better.sentences).values()] == [lost, tied, won]
    assert won + tied + lost == 40 and won > lost


def test_a_difference_in_a_single_line_is_not_significant():
    _, other = compare.compare(systems_of({"one": WORSE, "other": [*WORSE[:-1], BETTER[-1]]}), NAMES)
    assert {p.randomisation for p in other.p_values.values()} == {1.0}  # all shuffles differ by as much


def test_a_metric_without_significance_test_has_a_score_but_no_p_value(monkeypatch, results):
    mine = Metric("mine", lambda *args: METRICS["chrf"].measure(*args)._replace(statistics=None))
    monkeypatch.setitem(METRICS, "mine", mine)
    _, found = compare.compare(systems_of({"a": WORSE, "b": BETTER}), ["mine"])
    assert found.scores["mine"].value == results[1].scores["chrf"].value and found.p_values == {}


def test_unequal_numbers_of_lines_are_refused():
    with pytest.raises(DataError, match="translation has 39 lines but the reference has 40"):
        compare.compare(systems_of({"a": WORSE[1:]}), NAMES)


def test_every_sentence_and_word_belongs_to_exactly_one_group(results):
    systems = [*(result.system for result in results), *systems_of({"reference": REFERENCES})]
    lengths = compare.by_length(systems)
    assert sum(group.n for group in lengths) == 40
    frequencies = compare.by_frequency(systems)
    assert sum(group.n for group in frequencies) == sum(len(line[:-1].split()) + 1 for line in REFERENCES)
    for groups in (lengths, frequencies):
        assert all(group.values[-1] == pytest.approx(100) for group in groups)
        assert all(group.values[0] == group.values[2] for group in groups)
    kinds = compare.disagreements([result.system for result in results])
    (_, same) = compare.by_disagreement(results, kinds)
    assert [(group.name, group.n, group.values) for group in same] == [(compare.SAME, 40, [0.0])]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The ship left .", compare.SAME),
        ("the ship left !", compare.STYLE),
        ("left the ship .", compare.ORDER),
        ("the old ship has left .", compare.LENGTH),
        ("the boat left .", compare.WORDS),
    ],
)
def test_a_disagreement_is_named_by_the_first_kind_that_matches(text, kind):
    assert compare.disagreement(text.split(), ["The", "ship", "left", "."]) == kind


# The page.

HOSTILE = "</script><script>alert(1)</script> & <b>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    sources = [f"source {number}" for number in range(len(REFERENCES))]
    sources[0] = HOSTILE
    flags = [["empty"] if number == 3 else [] for number in range(len(REFERENCES))]
    texts = [Texts(lines, [REFERENCES, BETTER], sources, "en") for lines in (WORSE, BETTER, WORSE)]
    systems = list(map(System, ("worse", "better", "日本"), texts, (flags, [[]] * len(BETTER), ())))
    path = tmp_path_factory.mktemp("page") / "compared.html"
    path.write_text(compare.page(compare.compare(systems, NAMES), f"worse & better {HOSTILE}"), encoding="utf-8")
    return path


def test_hostile_text_adds_no_script(page):
    tags = Tags(page.read_text(encoding="utf-8"))
    assert [tag[0] for tag in tags.tags].count("script") == 2


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (380, True)])
def test_the_page_sorts_and_filters(page, width, dark):
    with Browser(width=width, height=900, dark=dark) as browser:
        browser.open(page)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.texts("#scores tbody td:first-child") == ["worse", "better", "日本"]
        assert browser.count("#list > li") == 40

        def choose(name: str, value: str) -> None:
            script = "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
            browser.run(script + "one.dispatchEvent(new Event('input', {bubbles: true}))", name, value)

        choose("order", "file")
        assert browser.texts("#list .head b")[0] == "1"
        choose("flag", "empty")
        assert browser.texts("#list .head b") == ["4"]
        choose("flag", "")
        choose("text", HOSTILE[:20].upper())
        assert browser.texts("#list dd:first-of-type")[0] == HOSTILE
        choose("text", "")
        choose("second", "2")
        choose("kind", compare.SAME)
        assert browser.count("#list > li") == 40 and browser.count("#list .better") == 0
        background = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(20, 25, 31)") == dark
        assert browser.complaints() == []
