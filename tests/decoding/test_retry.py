"""Retries of suspicious translations: which translation wins, independently of all other lines."""

from fake_model import HashModel
from small_search import subwords_of

from nmt.decoding.beam import Hypothesis
from nmt.decoding.evidence import Evidence
from nmt.decoding.request import Request
from nmt.decoding.suspicion import mend, tries
from nmt.decoding.translator import Translation, Translator
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.options import Recipe


def answer(text: str) -> Translation:
    return Translation(text, [text], [Hypothesis([3], -0.1, -0.1, True)] if text else [], [3])


class Scripted:
    """Translator with scripted answers that records the requested lines."""

    def __init__(self, samples: int = 0, **answers: str) -> None:
        self.answers, self.lines, self.config = answers, [], DecodeConfig(samples=samples)

    def translate(self, requests):
        lines = [request.source for request in requests]
        self.lines += lines
        return [answer(self.answers[line]) for line in lines]


def marks(line: str, translation: Translation) -> list[str]:
    """One reason for each question mark of the translation."""
    return ["?"] * translation.text.count("?")


def test_retry_that_still_repeats_is_better_but_not_mended():
    retries = {"beam": Scripted(anderer="other other other."), "mbr": Scripted(anderer="other other")}
    reasons_of = Evidence(None, Recipe(name="x"), {}).reasons
    (found,) = mend([Request("anderer")], [answer("other " * 9)], retries, reasons_of)
    assert found.outcome == "better" and found.reasons == ["repeated"]


# For each line: the first translation and both retries; then the chosen text, its origin and the outcome.
ANSWERS = {
    "right": ("good", "", "", ("good", None, None)),
    "mended": ("a?", "A", "", ("A", "beam", "mended")),
    "drawn": ("b?", "B?", "BB?", ("b?", "first", "kept")),
    "later": ("c??", "C??", "CC", ("CC", "mbr", "mended")),
    "worse": ("d?", "D??", "DD?", ("d?", "first", "kept")),
    "blank": ("", "", "", ("", None, None)),
    "less": ("e???", "E??", "EE?", ("EE?", "mbr", "better")),
    "half": ("f???", "F?", "FF??", ("F?", "beam", "better")),
}


def test_fewest_reasons_win_and_ties_keep_the_first():
    first, *retried = ({line: texts[n] for line, texts in ANSWERS.items()} for n in range(3))
    beam, mbr = (Scripted(**script) for script in retried)
    results = mend(list(map(Request, first)), list(map(answer, first.values())), {"beam": beam, "mbr": mbr}, marks)
    found = [(result.translation.text, result.retry, result.outcome) for result in results]
    assert found == [expected for *_, expected in ANSWERS.values()]
    assert beam.lines == ["mended", "drawn", "later", "worse", "less", "half"]  # lines without reasons are not retried,
    assert mbr.lines == ["drawn", "later", "worse", "less", "half"]  # nor are lines already mended


def test_retry_of_a_line_does_not_depend_on_other_lines():
    subwords = subwords_of("the old ship left in May")
    model = HashModel(subwords.trg.n_vocab, sharpness=3.0).eval()
    config = DecodeConfig(beam=1, max_len_a=1.0, max_len_b=4)
    translator = Translator(model, subwords, config)
    retries = {name: Translator(model, subwords, settings) for name, settings in tries(config).items()}

    def find_reasons(line, translation):
        return ["?"] * (sum(map(ord, translation.text)) % 4)

    def mended_lines(lines):
        found = mend(list(map(Request, lines)), list(translator.translate(lines)), retries, find_reasons)
        return [(result.translation.text, result.reasons, result.retry) for result in found]

    lines = ["the ship", "", "May", "the old ship left", "in", "left in May", "old", "ship", "a", "b", "c d", "e", "f"]
    batched = mended_lines(lines)
    assert {retry for _, _, retry in batched} >= {None, "first", "beam", "mbr"}  # else nothing is tested
    assert batched[::-1] == mended_lines(lines[::-1])
    assert batched == [result for line in lines for result in mended_lines([line])]
