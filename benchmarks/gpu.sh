#!/usr/bin/env bash
# Runs all GPU tests and benchmarks with one command: no network, at most nine minutes on one GPU.
#
#   benchmarks/gpu.sh OUT             tests, loaders, training step, variants, ZeRO and a real pre-training; results in OUT
#   benchmarks/gpu.sh --smoke OUT     the same parts for a few seconds with a tiny model, also on a machine without a GPU
#
# Each part has a time limit. A part that fails or is skipped for lack of time does not stop the others; it is listed in the
# table at the end, and the exit status is 1. OUT receives a JSON file for each benchmark, and log.txt with all output; earlier
# files of the same names are replaced.
#
#   PYTHON=python3                    Python interpreter, with PyTorch 2.11 or newer
#   DATASET=DIR                       dataset to load from; by default a cohort is simulated and built
#   BUDGET_SECONDS=540                time limit for everything
#   SKIP_TESTS=1                      omit the tests
set -uo pipefail

smoke=false
if [ "${1:-}" = --smoke ]; then smoke=true; shift; fi
if [ $# -ne 1 ]; then echo "usage: benchmarks/gpu.sh [--smoke] OUT" >&2; exit 2; fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.." || exit 2
export PYTHON=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$out/log.txt
parts=$scratch/parts.tsv
: >"$log"
rm -f "$out"/{variants,train-step,pretraining,loader,scaling}-*.json
printf 'part\tstatus\tseconds\tlimit\n' >"$parts"
seconds_left() { echo $((${BUDGET_SECONDS:-540} - SECONDS)); }

# part NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds, or as long as the budget allows.
part() {
  local name=$1 limit=$(($2 * slack)) status=0 began=$SECONDS left
  shift 2
  left=$(seconds_left)
  if [ "$limit" -gt "$left" ]; then limit=$left; fi
  if [ "$limit" -lt 1 ]; then
    status=skipped
  else
    printf '\n===== %s (at most %s s): %s\n' "$name" "$limit" "$*" | tee -a "$log"
    timeout --kill-after=50 "$limit" "$@" >>"$log" 2>&1 || status=$?
  fi
  printf '%s\t%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" "$limit" >>"$parts"
  if [ "$status" != 0 ]; then echo "part $name: status $status" | tee -a "$log"; fi
}

slack=1
if $smoke; then
  slack=4 # the machine may be small and busy, and results do not matter
  export OMP_NUM_THREADS=1
  tiny=(model.feature_channels=16 model.width=32 model.depth=2 model.num_heads=2 model.mlp_width=64 model.pos_kernel=16
    model.pos_groups=4 objective.w2v.num_codes=20 objective.w2v.code_width=32 objective.w2v.num_negatives=20
    objective.w2v.final_width=32)
  pairs=(4 2) largest=4 patients=12 load_seconds=0.05 load_repeats=1 load_batch=4 repeats=1 train_seconds=1
  compile=() ranks=(--ranks 2 --zero 0 3) threads=2 precision=fp32
else
  tiny=() pairs=(512 256 128 64) largest=512 patients=1415 load_seconds=0.5 load_repeats=3 load_batch=64 repeats=5
  train_seconds=120 compile=(compute.compile=blocks) ranks=() threads=$(nproc) precision=bf16
fi
device=cpu
if $PYTHON -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then device=cuda; fi
if [ $device = cpu ] && ! $smoke; then echo "PyTorch sees no GPU: use --smoke to run all parts on the CPU" >&2; exit 2; fi

# Checkpoints record the package's version; if only the source is there, its metadata is generated.
if ! $PYTHON -c 'import importlib.metadata as m; m.version("ecg-engine")' 2>/dev/null; then
  mkdir "$scratch/site"
  part metadata 60 "$PYTHON" -c \
    'import sys, setuptools.build_meta as build; build.prepare_metadata_for_build_wheel(sys.argv[1])' "$scratch/site"
  export PYTHONPATH=$PYTHONPATH:$scratch/site
fi

dataset=${DATASET:-$scratch/dataset}
ecg_data='import sys; from data_tools.cli import main; sys.exit(main())'
if [ -z "${DATASET:-}" ]; then
  part cohort 60 "$PYTHON" -c "$ecg_data" synth "$scratch/cohort" --patients "$patients" --workers "$threads"
  # One worker: the cohort is too small for several.
  part dataset 60 "$PYTHON" -c "$ecg_data" build physionet2021 "$scratch/cohort" "$dataset" --workers 1
fi
# Without pyproject.toml, which requires a plugin and turns warnings into errors: this host has its own versions.
if [ -z "${SKIP_TESTS:-}" ]; then
  part tests 200 env PYTHONPATH="$PWD/tests:$PYTHONPATH" "$PYTHON" -m pytest -q -ra -m gpu -c /dev/null --rootdir "$PWD" \
    --import-mode=importlib -p no:cacheprovider tests/gpu tests/contracts
fi
part variants 60 "$PYTHON" benchmarks/variants.py "${tiny[@]}" --pairs "$largest" --repeats "$repeats" \
  --json "$out/variants-$device.json"
part train-step 120 "$PYTHON" benchmarks/train_step.py "${tiny[@]}" "${compile[@]}" --pairs "${pairs[@]}" --precision bf16 \
  --repeats "$repeats" --breakdown --dataset "$dataset" --json "$out/train-step-$device.json"
part pretraining $((train_seconds + 70)) "$PYTHON" benchmarks/pretraining.py "${tiny[@]}" "${compile[@]}" \
  train.batch_size="$largest" train.precision="$precision" --dataset "$dataset" --seconds "$train_seconds" \
  --json "$out/pretraining-$device.json"
part loader 75 "$PYTHON" benchmarks/loader.py --dataset "$dataset" --device "$device" --threads "$threads" \
  --batch-size "$load_batch" --repeats "$load_repeats" --seconds "$load_seconds" --json "$out/loader-$device.json"
part zero 60 "$PYTHON" benchmarks/scaling.py "${tiny[@]}" "${ranks[@]}" --pairs "$largest" \
  --precision "$precision" --repeats "$repeats" --json "$out/scaling-$device.json"
if [ $device = cuda ]; then
  part loader-on-cpu 40 "$PYTHON" benchmarks/loader.py --dataset "$dataset" --device cpu --threads "$threads" \
    --batch-size "$load_batch" --repeats "$load_repeats" --seconds "$load_seconds" --json "$out/loader-on-cpu.json"
  part not-compiled 60 "$PYTHON" benchmarks/train_step.py --pairs "$largest" --precision bf16 --repeats "$repeats" \
    --json "$out/train-step-not-compiled-$device.json"
  part checkpointing 60 "$PYTHON" benchmarks/train_step.py "${compile[@]}" compute.activation_checkpointing=true \
    --pairs "$largest" --precision bf16 --repeats "$repeats" --json "$out/train-step-checkpointing-$device.json"
  part whole-model 120 "$PYTHON" benchmarks/train_step.py compute.compile=model --pairs "$largest" --precision bf16 \
    --repeats "$repeats" --json "$out/train-step-whole-model-$device.json"
fi

$PYTHON benchmarks/gpu_summary.py "$out" "$parts" | tee -a "$log"
exit "${PIPESTATUS[0]}"
