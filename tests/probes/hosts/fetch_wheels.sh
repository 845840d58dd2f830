#!/usr/bin/env bash
# Unpacks the released wheels that the contract tests read and partly run (60 MB to fetch, without
# dependencies; a minute), and what verl's training loops import (another 90 MB). Usage: tests/probes/hosts/fetch_wheels.sh [FOLDER]
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
# Of TRL one release of each minor version that hosts/trl.py declares, each in a folder of its own.
for version in 1.7.1 1.8.0 1.9.2 1.10.0 1.11.0 1.12.0 1.13.0 1.14.2 1.15.0 1.16.0; do
  releases="$folder/trl-releases/$version"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$releases" "trl==$version"
  "$python" -m zipfile -e "$releases"/*.whl "$releases"
done
# What verl's training loops import, to run them on the CPU (verl_loops.py). Ray is never started.
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder/verl-needs" \
  ray==2.60.0 tensordict==0.10.0 TransferQueue==0.1.11 omegaconf==2.4.0 hydra-core==1.3.8 \
  antlr4-python3-runtime==4.9.3 codetiming==1.4.0 orjson==3.13.0 torchdata==0.11.0 peft==0.21.2 accelerate==1.15.0 \
  cachetools==8.0.2 cloudpickle==3.1.3 msgspec==0.23.0 msgpack==1.2.4 pyzmq==27.3.0 pyvers==0.2.3 \
  importlib_metadata==10.2.0 zipp==4.1.2
touch "$folder/.ready"
