#!/usr/bin/env bash
# Fetch Multi30k (29,000 + 1,014 + 1,000 raw sentences, de en fr) for the recipes: bash tools/download_multi30k.sh [FOLDER]
set -euo pipefail

folder=${1:-multi30k}
# The commit is named, so that the files are the same tomorrow.
site=https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b/data/task1/raw

mkdir -p "$folder"
for split in train val test_2016_flickr; do
  for lang in de en fr; do
    file=$folder/multi30k.$split.$lang.gz
    if [ -e "$file" ]; then
      echo "$file is there" >&2
      continue
    fi
    echo "fetching $file" >&2
    curl --fail --location --silent --show-error --retry 3 --output "$file.part" "$site/$split.$lang.gz"
    gzip --test "$file.part"  # an error page or half a file must not get the final name
    mv "$file.part" "$file"
  done
done
echo "Done. For non-commercial research and education (see github.com/multi30k/dataset). Now tell the tools where it is:" >&2
echo "export NMT_DATA=$(cd "$folder" && pwd)"
