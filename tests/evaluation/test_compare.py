"""Comparison of systems: the numbers of sacreBLEU's command, and what the groups of sentences and words promise."""

import json
import random
import re
import subprocess
import sys

import pytest

from nmt.errors import DataError
from nmt.evaluation import compare
from nmt.evaluation.compare import System, Wins
from nmt.evaluation.metrics import METRICS, Metric
from tests.evaluation.browser import Browser, Tags, needs_browser

NAMES = ["bleu", "chrf"]  # TER takes its time


def made_lines(n_line: int) -> tuple[list[str], list[str], list[str]]:
    """References, and two systems of which the second has fewer wrong words."""
    draw = random.Random(1)
    words = list("abcdefghijklmno")
    references = [" ".join(draw.choices(words, k=draw.randint(3, 45))) + "." for _ in range(n_line)]

    def wrong(line: str, share: float) -> str:
        return " ".join(draw.choice(words) if draw.random() < share else word for word in line.split(" "))

    return references, [wrong(line, 0.3) for line in references], [wrong(line, 0.2) for line in references]


REFERENCES, WORSE, BETTER = made_lines(40)


@pytest.fixture(scope="module")
def results():
    systems = [System("worse", WORSE), System("better", BETTER), System("worse again", WORSE)]
    return compare.compare(systems, [REFERENCES], metrics=NAMES, trg_lang="en")


def of_sacrebleu(folder, *flags: str) -> str:
    for name, lines in (("ref", REFERENCES), ("worse", WORSE), ("better", BETTER)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-m", *NAMES, *flags]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, encoding="utf-8").stdout


def test_scores_and_p_values_are_those_of_sacrebleus_command(results, tmp_path):
    worse, better, _ = results
    alone = json.loads(of_sacrebleu(tmp_path, "-i", "better", "-w", "12", "--confidence"))
    assert [one["score"] for one in alone] == [round(better.scores[name].value, 12) for name in NAMES]
    assert [one["name"] for one in alone] == ["BLEU", "chrF2"]
    for flag, kind in (("--paired-bs", "bootstrap"), ("--paired-ar", "randomisation")):
        told = of_sacrebleu(tmp_path, "-i", "worse", "better", flag, "-f", "text")
        ours = [f"{getattr(better.p_values[name], kind):.4f}" for name in NAMES]
        assert re.findall(r"\(p = ([\d.]+)\)", told) == ours
    assert worse.p_values == {}


def test_what_is_no_difference_is_no_evidence(results):
    again = results[2]
    assert again.wins == Wins(0, 40, 0)
    assert {p for found in again.p_values.values() for p in found} == {1.0}


def test_wins_are_losses_the_other_way_round(results):
    worse, better, _ = results
    won, tied, lost = better.wins
    assert compare.wins_of(worse.sentences, better.sentences) == (lost, tied, won)
    assert won + tied + lost == 40 and won > lost


def test_what_one_line_decides_may_be_chance():
    systems = [System("one", WORSE), System("other", [*WORSE[:-1], BETTER[-1]])]
    _, other = compare.compare(systems, [REFERENCES], metrics=NAMES, trg_lang="en")
    assert {p.randomisation for p in other.p_values.values()} == {1.0}  # all shuffles differ by as much


def test_a_metric_without_a_test_has_a_score_and_no_p_value(monkeypatch, results):
    monkeypatch.setitem(METRICS, "mine", Metric("mine", METRICS["chrf"].measure))
    _, found = compare.compare([System("a", WORSE), System("b", BETTER)], [REFERENCES], metrics=["mine"])
    assert found.scores["mine"].value == results[1].scores["chrf"].value and found.p_values == {}


def test_another_number_of_lines_is_refused():
    with pytest.raises(DataError, match="39 translations but 40 references"):
        compare.compare([System("a", WORSE[1:])], [REFERENCES], metrics=NAMES)


def test_every_sentence_and_every_word_is_in_one_group(results):
    systems = [one.system for one in results]
    perfect = System("reference", REFERENCES)
    lengths = compare.by_length([*systems, perfect], [REFERENCES], "en")
    assert sum(one.n for one in lengths) == 40
    frequencies = compare.by_frequency([*systems, perfect], [REFERENCES], "en")
    assert sum(one.n for one in frequencies) == sum(len(line[:-1].split()) + 1 for line in REFERENCES)
    for groups in (lengths, frequencies):
        assert all(one.values[-1] == pytest.approx(100) for one in groups)
        assert all(one.values[0] == one.values[2] for one in groups)
    kinds = compare.disagreements(results, "en")
    (_, same) = compare.by_disagreement(results, kinds)
    assert [(one.name, one.n, one.values) for one in same] == [(compare.SAME, 40, [0.0])]


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
def test_a_disagreement_has_the_first_name_that_holds(text, kind):
    assert compare.disagreement(text.split(), ["The", "ship", "left", "."]) == kind


# The page.

EVIL = "</script><script>alert(1)</script> & <b>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    sources = [f"source {number}" for number in range(len(REFERENCES))]
    sources[0] = EVIL
    flags = [["empty"] if number == 3 else [] for number in range(len(REFERENCES))]
    systems = [System("worse", WORSE, flags), System("better", BETTER, [[]] * len(BETTER)), System("日本", WORSE)]
    found = compare.compare(systems, [REFERENCES, BETTER], metrics=NAMES, trg_lang="en")
    path = tmp_path_factory.mktemp("page") / "compared.html"
    path.write_text(
        compare.page(found, [REFERENCES, BETTER], sources, "en", f"worse & better {EVIL}"), encoding="utf-8"
    )
    return path


def test_no_text_gets_out_of_its_place(page):
    tags = Tags(page.read_text(encoding="utf-8"))
    assert [one[0] for one in tags.tags].count("script") == 2


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (380, True)])
def test_the_page_shows_sorts_and_filters(page, width, dark):
    with Browser(width=width, height=900, dark=dark) as shown:
        shown.open(page)
        assert shown.run("return document.documentElement.scrollWidth <= innerWidth")
        assert shown.texts("#scores tbody td:first-child") == ["worse", "better", "日本"]
        shown.click("#scores th:nth-child(2) button")
        assert shown.texts("#scores tbody td:first-child")[0] == "better"
        assert shown.count("#list > li") == 40

        def choose(name: str, value: str) -> None:
            script = "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
            shown.run(script + "one.dispatchEvent(new Event('input', {bubbles: true}))", name, value)

        choose("flag", "empty")
        assert shown.texts("#list .head b") == ["4"]
        choose("flag", "")
        choose("text", EVIL[:20].upper())
        assert shown.texts("#list dd:first-of-type")[0] == EVIL
        choose("text", "")
        choose("second", "2")
        choose("kind", compare.SAME)
        assert shown.count("#list > li") == 40 and shown.count("#list .better") == 0
        ground = shown.run("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 25, 31)") == dark
        assert shown.complaints() == []
