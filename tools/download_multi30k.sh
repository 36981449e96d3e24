#!/usr/bin/env bash
# Download Multi30k (29,000 + 1,014 + 1,000 raw sentences, de en fr): bash tools/download_multi30k.sh [FOLDER]
set -euo pipefail

folder=${1:-multi30k}
site=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw

# SHA-256 of the unpacked files: detects a changed corpus, an error page and an incomplete download.
known="
2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72  train.de
460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6  train.en
5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d  train.fr
660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660  val.de
1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227  val.en
5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc  val.fr
4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16  test_2016_flickr.de
399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182  test_2016_flickr.en
cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6  test_2016_flickr.fr
"

sum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1; }

mkdir -p "$folder"
while read -r expected name; do
  if [ -z "$name" ]; then continue; fi
  file=$folder/multi30k.$name.gz
  if [ -e "$file" ]; then
    echo "$file already exists" >&2
    continue
  fi
  echo "downloading $file" >&2
  curl --fail --location --silent --show-error --retry 3 --output "$file.part" "$site/$name.gz"
  actual=$(gzip -dc "$file.part" | sum)
  if [ "$actual" != "$expected" ]; then
    echo "$file.part has SHA-256 $actual, expected $expected: the corpus has changed, or the download is incomplete" >&2
    exit 1
  fi
  mv "$file.part" "$file"
done <<<"$known"
echo "Done. For non-commercial research and education (see github.com/multi30k/dataset). Set NMT_DATA to its folder:" >&2
printf 'export NMT_DATA=%q\n' "$(cd "$folder" && pwd)"
