#!/usr/bin/env bash
# Unpacks the released wheels that the contract tests read and partly run (50 MB to fetch, without
# dependencies; half a minute). Usage: tests/probes/hosts/fetch_wheels.sh [FOLDER]
set -euo pipefail
here="$(cd "$(dirname "$0")/../../.." && pwd)"
folder="${1:-$here/.cache/wheels}"
python="${PYTHON:-python3}"
mkdir -p "$folder"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder" \
  verl==0.9.1 openrlhf==0.11.2 skyrl==0.3.0 areal==1.0.4 sglang==0.5.23 torchtitan==0.3.0
for file in "$folder"/*.whl; do
  "$python" -m zipfile -e "$file" "$folder/$(basename "${file%%-*}")"
done
touch "$folder/.ready"
