"""Text tokenised by the Moses scripts is detected, counted and undone."""

import pytest

from nmt.data.corpus import show_pairs
from nmt.data.text import dress_of, undo_moses
from nmt.recipe.data_options import TrainingCorpus
from tests.data.reporting.test_report import report_of


@pytest.mark.parametrize(
    ("line", "language", "plain"),
    [
        ("Tom isn &apos;t old enough .", "en", "Tom isn't old enough."),
        ("a well @-@ known &quot; fact &quot; , he said ( once ) !", "en", 'a well-known "fact", he said (once)!'),
        ("R &amp; D &lt; 5 &#124; x &amp;lt;", "en", "R & D < 5 | x &lt;"),
        ("l&apos; homme n&apos; est pas là !", "fr", "l'homme n'est pas là !"),
        ("the dogs &apos; tails", "en", "the dogs ' tails"),
        ('5 " long', "en", '5 " long'),
        ("Nothing to do here, is there?", "en", "Nothing to do here, is there?"),
    ],
)
def test_moses_tokenisation_is_undone(line, language, plain):
    assert undo_moses(line, language) == plain


def test_entities_and_detached_full_stops_are_counted():
    assert dress_of(["isn &apos;t it .", "a @-@ b", "Yes."]) == (3, 2, 2, 1)


def test_moses_tokenisation_of_a_dataset_is_undone(at):
    (at.folder / "folder").mkdir()
    at.write("folder/train.parquet", [{"de": "Das ist alt .", "en": "That isn &apos;t old ."}])
    corpus = {"dataset": "folder", "split": "train", "src_column": "de", "trg_column": "en", "unescape": True}
    at.prepare(corpus, valid=corpus, src_lang="de", trg_lang="en")
    assert at.texts() == (["Das ist alt."], ["That isn't old."])


def test_moses_tokenised_training_raises_an_alarm_and_can_be_undone(tmp_path):
    de = [f"Das ist nicht alt genug , Nummer {n} ." for n in range(40)]
    en = [f"That isn &apos;t old enough , number {n} ." for n in range(40)]
    valid = [f"Ein Satz mit {n}." for n in range(20)], [f"A line that isn't {n}." for n in range(20)]
    report = report_of(tmp_path, de, en, valid=valid)
    assert report["dress"]["train"]["trg"] == {"lines": 40, "entities": 40, "ends": 40, "apart": 40}
    alarms = [alarm["found"] for alarm in report["alarms"] if "written differently" in alarm["found"]]
    assert len(alarms) == 2 and "40 entities in 40 lines" in alarms[1]
    plain = TrainingCorpus(src=str(tmp_path / "t.de"), trg=str(tmp_path / "t.en"), unescape=True)
    report_of(tmp_path / "plain", valid=valid, train=[plain], alarms="stop")
    assert any(line.endswith("That isn't old enough, number 7.") for line in show_pairs(tmp_path / "plain/out", 40))
