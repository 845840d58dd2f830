#!/usr/bin/env bash
# Unpacks the released wheels that the contract tests read and partly run (a few MB, no
# dependencies). Usage: tests/probes/hosts/fetch_wheels.sh [FOLDER]
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
folder="${1:-$here/wheels}"
python="${PYTHON:-python3}"
mkdir -p "$folder"
for wheel in verl==0.9.1 openrlhf==0.11.2 skyrl==0.3.0 areal==1.0.4 sglang==0.5.23; do
  "$python" -m pip download --quiet --no-deps --dest "$folder" "$wheel"
done
for file in "$folder"/*.whl; do
  "$python" -m zipfile -e "$file" "$folder/$(basename "${file%%-*}")"
done
