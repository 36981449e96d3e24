"""How nmt-translate writes what it found: as text, as tab-separated columns, as one JSON object a line, or as pairs."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from nmt.cli.translating.windows import Line
from nmt.decoding.evidence import Fields, log_prob_of
from nmt.decoding.retry import Answer
from nmt.decoding.search.beam import Hypothesis
from nmt.decoding.translation import Scored, Translation

_LINE_ENDS = str.maketrans("\n\r", "  ")
_COLUMN_ENDS = str.maketrans("\t\n\r", "   ")


def answer_lines(
    args: argparse.Namespace,
    line: Line,
    number: int,
    answer: Answer,
    evidence: Fields,
    flags: list[str],
    *,
    n_best: int,
) -> list[str]:
    """What is written for one input line in the format that was asked for. evidence, flags: as `json_line` has them."""
    translation = answer.translation
    if args.format == "text":
        return text_lines(translation, number, show_scores=args.show_scores, n_best=n_best)
    if args.format == "moses":
        return moses_lines(translation, number)
    if args.format == "tsv":
        return tsv_lines(translation, number)
    if args.format == "pairs":
        return [pair_line(line, translation, flags)]
    found = {"flags": flags, **({"retry": answer.retry} if args.retry_suspect else {})}
    return [json_line(line, translation, number, evidence=evidence, beside=found)]


def text_lines(translation: Translation, number: int, *, show_scores: bool, n_best: int) -> list[str]:
    """What is written for one input line: one line, or one for each of the n best."""
    if n_best > 1:
        scores = [one.normalised for one in translation.hypotheses] or [0.0]
        texts = [text.translate(_LINE_ENDS) for text in translation.texts]
        return [f"{number} ||| {text} ||| {score:.6f}" for text, score in zip(texts, scores, strict=True)]
    text = translation.text.translate(_LINE_ENDS)
    return [f"{translation.score:.6f}\t{text}" if show_scores else text]


def moses_lines(translation: Translation, number: int) -> list[str]:
    """The n best as Moses and Marian write them: number from 0, text, log-probability as a feature, score."""
    hypotheses: Sequence[Hypothesis | None] = translation.hypotheses or [None]
    return [
        f"{number - 1} ||| {text.translate(_LINE_ENDS).replace('|||', '| | |')} ||| "
        f"F0= {one.score if one else 0.0:.6f} ||| {one.normalised if one else 0.0:.6f}"
        for one, text in zip(hypotheses, translation.texts, strict=True)
    ]


def tsv_lines(translation: Translation, number: int) -> list[str]:
    """number, rank from 1, score, log-probability and translation, in which a tab is written as a space."""
    hypotheses: Sequence[Hypothesis | None] = translation.hypotheses or [None]
    return [
        f"{number}\t{rank}\t{one.normalised if one else 0.0:.6f}\t{one.score if one else 0.0:.6f}\t"
        + text.translate(_COLUMN_ENDS)
        for rank, (one, text) in enumerate(zip(hypotheses, translation.texts, strict=True), start=1)
    ]


def json_line(line: Line, translation: Translation, number: int, *, evidence: Fields, beside: Fields) -> str:
    """Everything that is known of one line. evidence: how the best translation came about; beside: other fields."""
    found: dict[str, Any] = {
        "id": number,
        **line.beside,
        "source": line.text,
        "output": translation.text,
        "score": translation.score,
        "log_prob": log_prob_of(translation, evidence["token_log_probs"]),
        **evidence,
        **beside,
        "n_best": translation.n_best,
    }
    return json.dumps(found, ensure_ascii=False)


def pair_line(line: Line, translation: Translation, flags: Sequence[str]) -> str:
    """A pair to train on: JSON of the line, its best translation, and what looks wrong in it."""
    found = {**line.beside, "source": line.text, "output": translation.text, "flags": list(flags)}
    return json.dumps(found, ensure_ascii=False)


def scored_line(target: str, scored: Scored, number: int, format: str) -> str:
    """A given translation: its log-probability; with columns number, log-probability, tokens."""
    if format == "text":
        return f"{scored.log_prob:.6f}"
    return f"{number}\t{scored.log_prob:.6f}\t{len(scored.token_log_probs)}\t{target.translate(_COLUMN_ENDS)}"


def scored_json(line: Line, target: str, scored: Scored, number: int, evidence: Fields) -> str:
    """A given translation as JSON: its log-probability, and how it would have come about."""
    found = {
        "id": number,
        **line.beside,
        "source": line.text,
        "output": target,
        "log_prob": scored.log_prob,
        **evidence,
    }
    return json.dumps(found, ensure_ascii=False)
