"""A second and a third try for translations that look wrong, with other settings of the search.

What comes out for a line follows from the line alone: other lines, and the batch, have no say in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nmt.decoding.request import Request
from nmt.decoding.translation import Translation
from nmt.decoding.translator import Translator
from nmt.recipe.decode_options import DecodeConfig

N_SAMPLES, EPSILON = 16, 0.02  # enough to leave a loop behind; what is unlikelier than this is never drawn

FIRST = "first"  # the name of the translation that there was before any try
MENDED, BETTER, KEPT = "mended", "better", "kept"

Why = Callable[[Request, Translation], list[str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The translation of a line after all tries."""

    translation: Translation
    reasons: list[str]  # why it still looks wrong
    retry: str | None = None  # the try it is from, FIRST if none was better, None if it looked right at once

    @property
    def outcome(self) -> str | None:
        """Outcome of trying again: MENDED, BETTER but not right, or KEPT; None where nothing was tried."""
        if self.retry in (None, FIRST):
            return KEPT if self.retry else None
        return BETTER if self.reasons else MENDED


def tries(config: DecodeConfig) -> dict[str, DecodeConfig]:
    """The settings of each try by its name, in order: a beam twice as wide, which finds what the search missed; then
    minimum Bayes risk over samples, which leave loops."""
    beam = config.searching().model_copy(
        update={
            "beam": 2 * config.beam,
            "n_best": min(config.n_best, 2 * config.beam),
            "precision": config.precision,
        }
    )
    n_sample = max(N_SAMPLES, config.n_best, config.samples)
    drawn = {
        "samples": n_sample,
        "mbr": "chrf",
        "epsilon": EPSILON,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "diversity": 0.0,
        "coverage": 0.0,
    }
    # A seed of its own, or samples that looked wrong would be drawn again.
    return {"beam": beam, "mbr": config.model_copy(update={**drawn, "seed": config.seed + 1})}


def mend(
    requests: Sequence[Request], found: Sequence[Translation], again: Mapping[str, Translator], why: Why
) -> list[Answer]:
    """Translate the lines again that look wrong, one try after another while they do; fewer reasons win.

    again: what translates, by name of the try. why: the reasons against a translation of a line. Samples are not drawn
    where phrases are required.
    """
    answers = [Answer(one, why(request, one)) for request, one in zip(requests, found, strict=True)]
    for name, translator in again.items():
        wrong = [number for number, answer in enumerate(answers) if answer.reasons]
        wrong = [number for number in wrong if not (translator.config.samples and requests[number].requires)]
        for number, other in zip(wrong, translator.translate([requests[number] for number in wrong]), strict=True):
            answer, reasons = answers[number], why(requests[number], other)
            if len(reasons) < len(answer.reasons):
                answers[number] = Answer(other, reasons, name)
            else:
                answers[number] = Answer(answer.translation, answer.reasons, answer.retry or FIRST)
    return answers
