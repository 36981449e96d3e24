"""What nmt-translate draws of attention, and what it cannot, which is said before the work."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from nmt.decoding.translation import MOST_SHOWN, Translation, is_too_wide
from nmt.decoding.translator import NOWHERE, Translator
from nmt.errors import NmtError
from nmt.evaluation.attention.drawing import draw
from nmt.evaluation.attention.panels import Alignment, panels
from nmt.evaluation.attention.sentence import sentence_of
from nmt.recipe.model_options import Attention, ModelConfig

# Flags that need a model whose words look at the source.
_OF_ATTENTION = ("attention", "with_attention", "alignments")


def check_attention(args: argparse.Namespace, model: ModelConfig, *, attends: bool) -> None:
    """Raise NmtError for what is asked of attention and is not there: none, no such kind, no such layer or head."""
    asked = [flag for flag in _OF_ATTENTION if getattr(args, flag)]
    if asked and not attends:
        flag = asked[0].replace("_", "-")
        raise NmtError(f"--{flag}: {NOWHERE}, so there is no attention to show: leave it out.")
    drawn = [_drawn(args)] if args.attention else []
    written: list[Attention] = ["cross"] if args.with_attention else []
    for kind in (*drawn, *written):
        if kind not in model.attention_grids:
            known = ", ".join(model.attention_grids)
            raise NmtError(f"--attention-of {kind}: this model has no such attention, only {known}.")
        panels(Alignment(torch.empty(*model.attention_grids[kind], 0, 0), [], []), args.layer, args.head)


def _drawn(args: argparse.Namespace) -> Attention:
    return args.attention_of or "cross"


def draw_attention(
    args: argparse.Namespace,
    translator: Translator,
    drawn: Mapping[int, tuple[str, Translation]],
    langs: tuple[str, str],
    source: str,
    n_line: int,
    warn: Callable[[str], object],
) -> None:
    """Write --attention. drawn: the lines to draw and their translations, by number; source: the name of the input.

    warn: told of lines that have more attention than can be drawn.
    Raises NmtError if a line of --lines is blank or not there, or no line can be drawn.
    """
    if not n_line:
        raise NmtError(f"{source}: the input is empty: no line to draw the attention of.")
    if missing := [str(number) for number in args.lines or () if number not in drawn]:
        raise NmtError(
            f"--lines {','.join(missing)}: nothing to draw there: the input has {n_line:,} lines, and a blank line has "
            "no attention."
        )
    if not drawn:
        raise NmtError(f"{source}: no line to draw the attention of: all {n_line:,} are blank.")
    kind, sentences = _drawn(args), []
    for number, (line, one) in sorted(drawn.items()):
        if is_too_wide(one):
            warn(
                f"{source}:{number}: not drawn, as its {len(one.parts):,} pieces have more than {MOST_SHOWN:,} subwords"
            )
            continue
        attns, trg_ids = translator.attention(one), one.hypotheses[0].ids
        title = f"{number}: {line if kind == 'encoder' else one.text}"  # what looks
        sentences.append(sentence_of(attns, one.src_ids, trg_ids, translator.subwords, title))
    if not sentences:
        raise NmtError(f"{source}: no line that can be drawn: name shorter ones with --lines.")
    draw(
        sentences,
        Path(args.attention),
        kind=kind,
        layers=args.layer,
        heads=args.head,
        langs=langs,
        run=Path(args.run[0]).resolve().name,
    )
