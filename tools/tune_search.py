"""Choose the settings of search on the validation set: python tools/tune_search.py RUN [--help]

Prints BLEU and its brevity penalty for every pair of beam and length penalty, best last. Put the winner into the
recipe's `decode` section; the test set stays out of it.
"""

import argparse
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from nmt.data.corpus import Prepared
from nmt.decoding.translator import Translator
from nmt.errors import NmtError
from nmt.evaluation.metrics import score
from nmt.run import Run


def main() -> None:
    """Try every combination that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, help="prepared folder; default: the one the run was trained on")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--penalties", nargs="+", default=["wu"], choices=["wu", "average", "none"])
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.6, 1.0, 1.4])
    args = parser.parse_args()
    try:
        run = Run(args.run)
        recipe = run.recipe()
        model, _ = run.load_model(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        src, trg = Prepared.open(args.data or recipe.data_folder).valid.texts()
    except NmtError as error:
        sys.exit(f"tune_search: error: {error}")
    found = []
    combinations = [(b, p, a) for b in args.beams for p in args.penalties for a in args.alphas]
    for beam, penalty, alpha in tqdm(combinations, unit="setting"):
        decode = recipe.decode.searching().model_copy(
            update={"beam": beam, "length_penalty": penalty, "alpha": alpha, "n_best": 1, "window": len(src)}
        )
        output = [translation.text for translation in Translator(model, run.subwords(), decode).translate(src)]
        bleu = score(output, trg, ("bleu",), trg_lang=recipe.data.trg_lang)["bleu"]
        found.append((bleu.value, f"beam {beam}  {penalty} {alpha:<4}  BLEU {bleu.value:.2f}  {bleu.details}"))
    for _, line in sorted(found):
        print(line)


if __name__ == "__main__":
    main()
