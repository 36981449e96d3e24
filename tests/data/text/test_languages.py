"""Filter by language identification with the optional package py3langid."""

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
    ("src", "trg", "expected"),
    [(DE, EN, None), (EN, DE, "another language"), (DE, NL, "another language"), ("New York, 1995", "Bob Dylan", None)],
)
def test_a_side_in_another_language_drops_the_pair(src, trg, expected):
    filters = filters_of(CorpusFacts(FilterConfig(max_other_language=0.9), 256, ("de", "en_US")))
    assert reason_to_drop(src, trg, filters) == expected


@needs_package
def test_short_uncertain_or_closely_related_text_is_kept():
    dutch, (_, probability) = languages_like("nl"), identifier().classify(EN)
    assert is_in_another_language(EN, dutch, probability - 0.001)
    assert not is_in_another_language(EN, dutch, probability)
    assert not is_in_another_language(EN[:26] + " 1234567890", dutch, 0.0), "19 letters"
    assert not is_in_another_language("En mand i en blå skjorte står på en stige.", languages_like("no"), 0.0), "Danish"


@needs_package
def test_an_unknown_language_is_refused_with_the_known_ones():
    assert {"no", "da", "zxx"} <= languages_like("nb-NO") and "de" not in languages_like("nb-NO")
    with pytest.raises(DataError, match=r"py3langid does not know the language 'tgt'.*data\.src_lang.*de, "):
        filters_of(CorpusFacts(FilterConfig(max_other_language=0.9), 256, ("de", "tgt")))


def test_a_missing_extra_is_named(monkeypatch):
    identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(MachineError, match=r"^data\.max_other_language: .* pip install 'py3langid>=.*', or set the"):
        filters_of(CorpusFacts(FilterConfig(max_other_language=0.9), 256, ("de", "en")))
    identifier.cache_clear()
