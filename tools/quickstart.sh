#!/usr/bin/env bash
# Train and score a translation model on a generated corpus: bash tools/quickstart.sh
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

# A demonstration starts from scratch. Only these two folders, its own, are deleted.
rm -rf "${ROOT:?}/$run" "${ROOT:?}/$data"

say "Generating the corpus: dates in many formats -> $corpus"
"$BIN/python" tools/make_dates.py "$corpus"

say "Preparing data: learning subwords -> $data"
"$BIN/nmt-preprocess" "$recipe" --data.out "$data"

say "Training a small Transformer -> $run"
"$BIN/nmt-train" "$recipe" --data.out "$data" --train.out "$run"

say "Translating and scoring the test set, whose dates do not occur in training"
mkdir -p "$out"
"$BIN/nmt-translate" "$run" --input "$corpus/test.src" --output "$out/test.iso" --ref "$corpus/test.trg" \
  --scores "$out/scores.json" --attention "$out/attention.html" --lines 1
cat <<EOF

attention page      $out/attention.html
run folder          $run
translate a date    echo 'the 3rd of May 1999' | $(basename "$(dirname "$BIN")")/$(basename "$BIN")/nmt-translate $run
your own corpus     see README.md
EOF
