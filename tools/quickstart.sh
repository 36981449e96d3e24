#!/usr/bin/env bash
# A translation model trained and scored on a corpus made on the spot: bash tools/quickstart.sh
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment ""
cd "$ROOT"

recipe=recipes/dates.yaml
corpus=corpora/dates
data=prepared/quickstart
run=runs/quickstart
out=$run/translated

# Starting over is the point of a demonstration: these two folders are its own, and nothing else is touched.
rm -rf "${ROOT:?}/$run" "${ROOT:?}/$data"

say "Making the corpus, dates in many shapes -> $corpus"
"$BIN/python" tools/make_dates.py "$corpus"

say "Preparing data: learning subwords -> $data"
"$BIN/nmt-preprocess" "$recipe" --data.out "$data"

say "Training a small Transformer on them -> $run"
"$BIN/nmt-train" "$recipe" --data.out "$data" --train.out "$run"

say "Translating the test set, none of whose dates occurs in training, and scoring the answers"
mkdir -p "$out"
"$BIN/nmt-translate" "$run" --input "$corpus/test.src" --output "$out/test.iso" --ref "$corpus/test.trg" \
  --scores "$out/scores.json" --attention "$out/attention.html" --lines 1
cat <<EOF

attention page      $out/attention.html
run folder          $run
translate a date    echo 'the 3rd of May 1999' | $(basename "$(dirname "$BIN")")/$(basename "$BIN")/nmt-translate $run
your own corpus     see README.md
EOF
