"""Draw the learning curves of some runs: python tools/draw_curves.py OUT.png RUN [RUN ...]

Validation BLEU and loss over the updates, from the runs' log.jsonl. Losses can be compared where the subwords are the
same.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PANELS = (("bleu", "validation BLEU (greedy)"), ("loss", "validation loss (nats a token)"))


def validations(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log that a validation wrote."""
    try:
        lines = [json.loads(line) for line in (run / "log.jsonl").read_bytes().split(b"\n") if line]
    except (OSError, ValueError) as error:
        sys.exit(f"draw_curves: error: {run} is no run folder with a log.jsonl ({error})")
    found = [line for line in lines if line["kind"] == "valid"]
    if not found:
        sys.exit(f"draw_curves: error: {run} has no validation yet: its log.jsonl has nothing to draw")
    return found


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the picture: .png, .svg or .pdf")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run folder that nmt-train wrote")
    args = parser.parse_args()
    out, runs = args.out, args.runs
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    if out.is_dir() or out.suffix.lower()[1:] not in figure.canvas.get_supported_filetypes():
        sys.exit(
            f"draw_curves: error: {out} is no name for a picture (.png, .svg, .pdf): first the picture, then the runs: "
            "draw_curves.py OUT.png RUN [RUN ...]"
        )
    for axes, (quantity, title) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for run in runs:
            shown = [(line["update"], line[quantity]) for line in validations(run) if quantity in line]
            axes.plot(*zip(*shown, strict=True), marker="o", markersize=3, label=run.name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("updates")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(out, dpi=110)
    print(out)


if __name__ == "__main__":
    main()
