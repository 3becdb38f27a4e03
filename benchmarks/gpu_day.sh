#!/usr/bin/env bash
# Checks and measures a commit on a machine with a CUDA device, in at most 25 minutes.
#
#     pip install --editable '.[cuda,learn,test]' && bash benchmarks/gpu_day.sh
#
# Steps: the GPU tests, closed-loop benchmarks of seven systems (pendulum, car and cartpole on chip,
# quadrotor, linear, quadrotor_obstacles and humanoid staged), converged solutions by the
# interior-point method, the published run of `warpmpc learn`, and compute-sanitizer on small cases
# where it is installed.  Every step has a time limit.  A finished step leaves a stamp in ./gpu_day
# and is skipped by the next run; delete ./gpu_day to start again.  If $OUT is a folder, results and
# stamps are copied there after every step, and stamps that it already holds count as well.
#
# Results: rows.jsonl (rows of `warpmpc bench`), summary.txt (steps, and each rate beside that of the
# committed row in benchmarks/results/*_h200.jsonl), converge.jsonl (rows of converge_mpc.py),
# steps.log (everything the steps printed).
#
# Settings by environment variables:
#   BUDGET_S          seconds for this run (default 1500); what does not fit waits for the next run
#   TESTS_S           seconds after which test steps are cut short (default 720)
#   PYTHON            interpreter (default python3)
#   GPU_DAY           folder of results and stamps (default ./gpu_day)
#   GPU_DAY_SYSTEMS   systems to measure, separated by blanks (default: all seven)
#   GPU_DAY_BATCHES   batch sizes (default 1,1000,10000,100000; humanoid 512,4096,10000,30000)
#   GPU_DAY_STEPS     steps of the timed loops (default: those of the committed rows)
#   GPU_DAY_OPTIONS   further options of `warpmpc bench`
#   GPU_DAY_DRY=1     rehearsal without a GPU: GPU tests may be skipped, sizes are tiny
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
ROOT=$PWD
STARTED=$SECONDS

if [ "${GPU_DAY_DRY:-0}" = 1 ]; then
  : "${GPU_DAY_SYSTEMS:=pendulum}" "${GPU_DAY_BATCHES:=1,3}" "${GPU_DAY_STEPS:=2}"
  LARGE_BATCHES=$GPU_DAY_BATCHES
  : "${GPU_DAY_OPTIONS:=--horizon 6 --sample 2 --repeats 1 --no-full-loops --no-profile}"
  REQUIRE=0
else
  REQUIRE=1
fi
: "${BUDGET_S:=1500}" "${TESTS_S:=720}" "${GPU_DAY:=gpu_day}" "${GPU_DAY_OPTIONS:=}" "${GPU_DAY_STEPS:=}"
: "${GPU_DAY_SYSTEMS:=cartpole pendulum car quadrotor linear quadrotor_obstacles humanoid}"
: "${LARGE_BATCHES:=${GPU_DAY_BATCHES:-512,4096,10000,30000}}"
: "${GPU_DAY_BATCHES:=1,1000,10000,100000}"
PYTHON=$(command -v "${PYTHON:-python3}") || { echo "gpu_day: no Python found; set PYTHON."; exit 2; }
case $PYTHON in /*) ;; *) PYTHON=$ROOT/$PYTHON ;; esac
mkdir -p "$GPU_DAY/scratch" && GPU_DAY=$(cd "$GPU_DAY" && pwd) || exit 2
FAILED=()

# A run on a fresh machine continues from the results that $OUT holds.
if [ -n "${OUT:-}" ] && [ -f "$OUT/stamps" ] && [ ! -f "$GPU_DAY/stamps" ]; then
  cp "$OUT"/stamps "$GPU_DAY/"
  for name in rows.jsonl converge.jsonl steps.log; do [ -f "$OUT/$name" ] && cp "$OUT/$name" "$GPU_DAY/"; done
fi
touch "$GPU_DAY/stamps"

remaining() { echo $((BUDGET_S - (SECONDS - STARTED))); }

# Copies single files: a device machine returns at most eight.
publish() {
  [ -n "${OUT:-}" ] || return 0
  for name in stamps rows.jsonl converge.jsonl summary.txt steps.log; do
    [ -f "$GPU_DAY/$name" ] && cp "$GPU_DAY/$name" "$OUT/"
  done
  return 0
}

summarise() {
  JAX_PLATFORMS=cpu "$PYTHON" benchmarks/compare_rows.py --rows "$GPU_DAY/rows.jsonl" \
    --stamps "$GPU_DAY/stamps" --committed benchmarks/results/*_h200.jsonl \
    > "$GPU_DAY/summary.txt" 2>> "$GPU_DAY/steps.log" || echo "gpu_day: no summary, see steps.log"
  publish
}

# step NAME LIMIT_S COMMAND...: runs a command within its limit and the budget.
step() {
  local name=$1 limit=$2 left begun code
  shift 2
  if grep -q "^$name done" "$GPU_DAY/stamps"; then
    echo "$name: finished in an earlier run"
    return 0
  fi
  left=$(remaining)
  if [ "$left" -lt 20 ]; then
    echo "$name: no time left in this run; run again"
    FAILED+=("$name")
    return 0
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  echo "$name: at most $limit s"
  echo "=== $name: $* ($(date -u +%FT%TZ))" >> "$GPU_DAY/steps.log"
  begun=$SECONDS
  timeout --kill-after=10 "$limit" "$@" >> "$GPU_DAY/steps.log" 2>&1
  code=$?
  sed -i "/^$name /d" "$GPU_DAY/stamps"
  if [ $code -eq 0 ]; then
    echo "$name done in $((SECONDS - begun)) s" >> "$GPU_DAY/stamps"
  else
    [ $code -eq 124 ] && reason="stopped at its limit of $limit s" || reason="failed with exit code $code"
    echo "$name $reason" >> "$GPU_DAY/stamps"
    FAILED+=("$name")
    tail -n 15 "$GPU_DAY/steps.log"
  fi
  tail -n 1 "$GPU_DAY/stamps"
  publish
}

# Only files with GPU tests are collected: others need packages that the machine may lack, and
# options of absent plugins (pytest-timeout) would be errors.
gpu_tests() {
  local file left
  for file in $(grep -rl 'mark\.gpu' tests --include='test_*.py' | grep -v 'tests/test_conftest\.py' | sort); do
    left=$((TESTS_S - (SECONDS - STARTED)))
    [ "$left" -lt 420 ] || left=420
    [ "$left" -gt 30 ] || left=30
    step "$(basename "$file" .py)" "$left" env WARPMPC_REQUIRE_GPU=$REQUIRE "$PYTHON" -m pytest -q \
      -m gpu -o addopts="--import-mode=importlib --strict-markers -ra" -p no:cacheprovider \
      -W 'ignore:Unknown config option:pytest.PytestConfigWarning' "$file"
  done
}

# benchmark SYSTEM VARIANT STEPS [LIMIT_S BATCHES OPTIONS...]
benchmark() {
  local name=$1 variant=$2 steps=${GPU_DAY_STEPS:-$3} limit=${4:-200} batches=${5:-$GPU_DAY_BATCHES}
  # shellcheck disable=SC2086  # the options are separate words
  step "bench_$name" "$limit" env -C "$GPU_DAY/scratch" "$PYTHON" -m warpmpc_bench bench "$name" \
    --batch "$batches" --steps "$steps" --variants "$variant" \
    --json "$GPU_DAY/rows.jsonl" "${@:6}" $GPU_DAY_OPTIONS
}

sanitizer() {
  local name=$1 tool=$2
  shift 2
  step "sanitize_${name}_$tool" 150 env JAX_PLATFORMS=cpu compute-sanitizer --tool "$tool" \
    --error-exitcode 1 "$PYTHON" "benchmarks/sanitize_$name.py" "$@"
}

trap 'summarise; exit 143' INT TERM
gpu_tests
for system in $GPU_DAY_SYSTEMS; do
  case $system in
    cartpole | pendulum) benchmark "$system" onchip 100 ;;
    car) benchmark "$system" onchip 120 ;;
    quadrotor) benchmark "$system" staged 10 ;;
    quadrotor_obstacles) benchmark "$system" staged 20 ;;
    linear) benchmark "$system" staged 50 ;;
    # Its kernels take minutes to compile, here and in float64.
    humanoid) benchmark "$system" default 20 900 "$LARGE_BATCHES" --sample 32 ;;
    *) benchmark "$system" default 20 ;;
  esac
done
if [ "$REQUIRE" = 1 ]; then converge=(pendulum,quadrotor,cartpole 1024); else converge=(pendulum 2); fi
step converge 240 env -C "$GPU_DAY/scratch" "$PYTHON" "$ROOT/benchmarks/converge_mpc.py" \
  --systems "${converge[0]}" --batch "${converge[1]}" --methods interior_point,sqp --rounds 3 \
  --json "$GPU_DAY/converge.jsonl"
# The published approximate MPC: 20 M pairs, 100 epochs.  The report in steps.log has all times.
if [ "$REQUIRE" = 1 ] && "$PYTHON" -c 'import flax, optax, pyarrow' 2> /dev/null; then
  step learn_quadrotor 600 "$PYTHON" -m warpmpc.cli.main learn quadrotor --full --json \
    --out "$GPU_DAY/scratch/quadrotor_policy"
else
  echo "learn_quadrotor: flax, optax or pyarrow is not installed, or this is a rehearsal; left out"
fi
if command -v compute-sanitizer > /dev/null && [ "$REQUIRE" = 1 ]; then
  for tool in memcheck racecheck; do
    sanitizer ldl "$tool"
    sanitizer qp "$tool"
    sanitizer mpc "$tool" 1 2 # fused iterations by two threads, and a solve on chip
  done
else
  echo "sanitizer: compute-sanitizer is not installed, or this is a rehearsal; left out"
fi
summarise
cat "$GPU_DAY/summary.txt"
if [ ${#FAILED[@]} -gt 0 ]; then
  echo "gpu_day: not finished: ${FAILED[*]}"
  exit 1
fi
echo "gpu_day: all steps finished"
