#!/usr/bin/env bash
# Download IWSLT 2014 German-English (TED talks), raw and cased, for its recipe: bash tools/download_iwslt14.sh [FOLDER]
#
# The split is that of the literature: every 23rd pair of the training file is for validation; the test set is dev2010,
# dev2012, tst2010, tst2011 and tst2012. IWSLT14_URL: another URL of de-en.tgz, such as file:///data/de-en.tgz.
set -euo pipefail

folder=${1:-iwslt14}
url=${IWSLT14_URL:-https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz}

mkdir -p "$folder"
if [ -e "$folder/iwslt14.test.en.gz" ]; then
  echo "$folder/iwslt14.test.en.gz already exists" >&2
  exit
fi
raw=$(mktemp -d "$folder/.raw.XXXXXX")
trap 'rm -r "$raw"' EXIT
echo "downloading $url" >&2
curl --fail --location --silent --show-error --retry 3 --output "$raw/de-en.tgz" "$url"
tar -xzf "$raw/de-en.tgz" -C "$raw"
find "$raw" -name 'train.tags.de-en.de' | grep -q . || {
  echo "$url: it has no file train.tags.de-en.de, so it is not the expected archive" >&2
  exit 1
}
from=$(dirname "$(find "$raw" -name 'train.tags.de-en.de')")

talk() { # the sentences of talks, with titles and descriptions, one sentence a line
  grep -Ev '<(url|talkid|keywords|speaker|reviewer|translator)' "$1" | sed -E 's/<[^>]*>//g; s/^[[:space:]]+//; s/[[:space:]]+$//'
}

segments() { # the sentences of a test set
  sed -nE 's/.*<seg id="[0-9]+">[[:space:]]*(.*[^[:space:]])[[:space:]]*<\/seg>.*/\1/p' "$1"
}

for lang in de en; do
  talk "$from/train.tags.de-en.$lang" >"$raw/all.$lang"
  awk 'NR % 23 != 0' "$raw/all.$lang" | gzip >"$raw/iwslt14.train.$lang.gz"
  awk 'NR % 23 == 0' "$raw/all.$lang" | gzip >"$raw/iwslt14.valid.$lang.gz"
  for set in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
    segments "$from/IWSLT14.$set.de-en.$lang.xml"
  done | gzip >"$raw/iwslt14.test.$lang.gz"
done
if [ "$(wc -l <"$raw/all.de")" != "$(wc -l <"$raw/all.en")" ]; then
  echo "$url: the German and the English side differ in their number of lines" >&2
  exit 1
fi
mv "$raw"/iwslt14.train.* "$raw"/iwslt14.valid.* "$raw"/iwslt14.test.de.gz "$folder"
mv "$raw"/iwslt14.test.en.gz "$folder"  # last: this file marks a complete download
echo "Done. TED talks are under CC BY-NC-ND. Set NMT_DATA to their folder:" >&2
printf 'export NMT_DATA=%q\n' "$(cd "$folder" && pwd)"
