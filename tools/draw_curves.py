"""Draw the learning curves of some runs: python tools/draw_curves.py OUT.png RUN [RUN ...]

Validation BLEU and loss over the time spent training, from the runs' log.jsonl.
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PANELS = (("bleu", "validation BLEU (greedy)"), ("loss", "validation loss (nats a token)"))


def read_log(run: Path) -> tuple[dict[int, float], list[dict[str, Any]]]:
    """Seconds of training at each logged update, and the validations."""
    try:
        lines = [json.loads(line) for line in (run / "log.jsonl").read_bytes().split(b"\n") if line]
    except (OSError, ValueError) as error:
        sys.exit(f"draw_curves: error: {run} is no run folder with a log.jsonl ({error})")
    seconds = {line["update"]: line["seconds"] for line in lines if line["kind"] == "train"}
    return seconds, [line for line in lines if line["kind"] == "valid"]


def main() -> None:
    """Draw what the command line names."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, *runs = map(Path, sys.argv[1:])
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, (quantity, title) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for run in runs:
            seconds, validations = read_log(run)
            shown = [line for line in validations if line["update"] in seconds and quantity in line]
            minutes = [seconds[line["update"]] / 60 for line in shown]
            axes.plot(minutes, [line[quantity] for line in shown], marker="o", markersize=3, label=run.name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("minutes of training")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(out, dpi=110)
    print(out)


if __name__ == "__main__":
    main()
