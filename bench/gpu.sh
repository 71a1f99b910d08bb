#!/bin/sh
# Everything that needs a CUDA device, in one go (less than 8 minutes): the tests marked `gpu`, the time of a step in
# half precision with the share of the device's matrix peak, the same compiled, and loading.
#   bench/gpu.sh [python]
cd "$(dirname "$0")/.." || exit 1
python=${1:-.venv/bin/python}
status=0
run() {
    echo "== $*"
    timeout 200 "$@" || status=1
}
run "$python" -m pytest -q -m gpu tests/memory
run "$python" bench/step.py --device cuda --dtype bfloat16 --size sd15 sdxl flux --repeat 10
run "$python" bench/step.py --device cuda --dtype float16 --size sd15 --repeat 10 --compile
run "$python" bench/memory.py --gb 24
exit $status
