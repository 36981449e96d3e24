"""The language of a side, told by the package of the extra."""

import importlib.util
import sys

import pytest

from nmt.data.filters import CorpusFacts, filters_of, reason_to_drop
from nmt.data.scripts import identifier, is_in_another_language, languages_like
from nmt.errors import DataError, MachineError
from nmt.recipe.data_options import FilterConfig

needs_package = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="the extra is not installed")

DE, EN = "Ein Mann in einem blauen Hemd steht auf einer Leiter.", "A man in a blue shirt is standing on a ladder."
NL = "Een man in een blauw shirt staat op een ladder tegen de muur."


@needs_package
@pytest.mark.parametrize(
    ("src", "trg", "found"),
    [(DE, EN, None), (EN, DE, "another language"), (DE, NL, "another language"), ("New York, 1995", "Bob Dylan", None)],
)
def test_a_side_in_another_language_drops_the_pair(src, trg, found):
    filters = filters_of(CorpusFacts(FilterConfig(max_other_language=0.9), 256, ("de", "en_US")))
    assert reason_to_drop(src, trg, filters) == found


@needs_package
def test_few_letters_little_certainty_and_languages_much_alike_are_no_reason():
    own, (_, probability) = languages_like("nl"), identifier().classify(EN)
    assert is_in_another_language(EN, own, probability - 0.001)
    assert not is_in_another_language(EN, own, probability)
    assert not is_in_another_language(EN[:26] + " 1234567890", own, 0.0), "19 letters"
    assert not is_in_another_language("En mand i en blå skjorte står på en stige.", languages_like("no"), 0.0), "Danish"


@needs_package
def test_a_language_that_the_package_does_not_know_is_refused_with_those_it_does():
    assert {"no", "da", "zxx"} <= languages_like("nb-NO") and "de" not in languages_like("nb-NO")
    with pytest.raises(DataError, match=r"py3langid does not know the language 'tgt'.*data\.src_lang.*de, "):
        filters_of(CorpusFacts(FilterConfig(max_other_language=0.9), 256, ("de", "tgt")))


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(MachineError, match=r"^data\.max_other_language: .* pip install 'py3langid>=.*', or set the"):
        filters_of(CorpusFacts(FilterConfig(max_other_language=0.9), 256, ("de", "en")))
    identifier.cache_clear()
