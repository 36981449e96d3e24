"""What looks wrong is tried again: which translation wins, and that no line has a say in another."""

from fake_model import HashModel
from small_search import subwords_of

from nmt.decoding.beam import Hypothesis
from nmt.decoding.request import Request
from nmt.decoding.suspicion import complaints, mend, tries
from nmt.decoding.translation import Translation
from nmt.decoding.translator import Translator
from nmt.recipe.decode_options import DecodeConfig


def answer(text: str) -> Translation:
    return Translation(text, [text], [Hypothesis([3], -0.1, -0.1, True)] if text else [], [3])


class Parrot:
    """Says what it was told to say to a line, and remembers what it was asked."""

    def __init__(self, samples: int = 0, **says: str) -> None:
        self.says, self.asked, self.config = says, [], DecodeConfig(samples=samples)

    def translate(self, requests):
        lines = [request.source for request in requests]
        self.asked += lines
        return [answer(self.says[line]) for line in lines]


def marks(line: str, translation: Translation) -> list[str]:
    """As many reasons as the translation has question marks."""
    return ["?"] * translation.text.count("?")


def test_a_try_that_ends_in_a_loop_has_mended_nothing():
    def why(request, translation):
        return complaints(request.source, translation, 4.0, 0.0)

    again = {"beam": Parrot(anderer="other other other."), "mbr": Parrot(anderer="other other")}
    (found,) = mend([Request("anderer")], [answer("other " * 9)], again, why)
    assert found.outcome == "better" and found.reasons == ["repeated"]


# What the search says to each line, and each try; then the answer, the try that it is from, and the outcome.
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


def test_fewer_reasons_win_and_the_first_stays_among_equals():
    first, *tried = ({line: told[n] for line, told in ANSWERS.items()} for n in range(3))
    beam, mbr = (Parrot(**says) for says in tried)
    answers = mend(list(map(Request, first)), list(map(answer, first.values())), {"beam": beam, "mbr": mbr}, marks)
    told = [(one.translation.text, one.retry, one.outcome) for one in answers]
    assert told == [wanted for *_, wanted in ANSWERS.values()]
    assert beam.asked == ["mended", "drawn", "later", "worse", "less", "half"]  # who looks right is not asked about,
    assert mbr.asked == ["drawn", "later", "worse", "less", "half"]  # nor who has come to


def test_the_answer_to_a_line_does_not_depend_on_the_others():
    subwords = subwords_of("the old ship left in May")
    model = HashModel(subwords.trg.n_vocab, sharpness=3.0).eval()
    config = DecodeConfig(beam=1, max_len_a=1.0, max_len_b=4)
    translator = Translator(model, subwords, config)
    again = {name: Translator(model, subwords, one) for name, one in tries(config).items()}

    def why(line, translation):
        return ["?"] * (sum(map(ord, translation.text)) % 4)

    def mended(lines):
        found = mend(list(map(Request, lines)), list(translator.translate(lines)), again, why)
        return [(one.translation.text, one.reasons, one.retry) for one in found]

    lines = ["the ship", "", "May", "the old ship left", "in", "left in May", "old", "ship", "a", "b", "c d", "e", "f"]
    together = mended(lines)
    assert {retry for _, _, retry in together} >= {None, "first", "beam", "mbr"}  # or nothing is tested here
    assert together[::-1] == mended(lines[::-1])
    assert together == [one for line in lines for one in mended([line])]
