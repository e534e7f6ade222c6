#!/usr/bin/env bash
# Measures one H200, or two, in stages, each small enough for a machine that is lent by the minute:
#
#     bench/h200.sh STAGE...          # or without a stage: the list, with what each takes at most
#
# Needs vLLM 0.32.0 with CUDA on PYTHONPATH (or in $PYTHON's environment) and no network. Every stage is a
# command of its own with its own limit: one that fails or runs out of time leaves what it had measured, and
# the next stage starts. Results (*.json) and logs go to $OUT; a short table of the results comes last.
#
#     OUT      where to, bench/out          PYTHON   python3
#     SCALE    multiplies requests and limits, as 0.5; for a trial run     FAKE=1   fake engines, no GPU
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-bench/out}
PYTHON=${PYTHON:-python3}
SCALE=${SCALE:-1}
mkdir -p "$OUT"
export HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 TOKENIZERS_PARALLELISM=false
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# On several GPUs, multicast over NVLink stays off in every mode, standard too, unless the shell says otherwise:
# a process that uses it can leave the GPUs of a host that others share unusable.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} TORCH_SYMM_MEM_DISABLE_MULTICAST=${TORCH_SYMM_MEM_DISABLE_MULTICAST:-1}
export VLLM_ALLREDUCE_USE_SYMM_MEM=${VLLM_ALLREDUCE_USE_SYMM_MEM:-0}
export VLLM_ALLREDUCE_USE_FLASHINFER=${VLLM_ALLREDUCE_USE_FLASHINFER:-0}

#: Blocks of 16 tokens, the smallest that FlashAttention takes. Fake engines need neither GPU nor vLLM.
COMMON=(--block-tokens 16)
[[ -n ${FAKE:-} ]] && COMMON+=(--fake)
MODES=standard,batch-invariant,isolated,packed,hybrid

results=()
summary=()

scaled() { awk -v n="$1" -v s="$SCALE" 'BEGIN { m = int(n * s + 0.5); print (m < 4 ? 4 : m) }'; }

# step NAME LIMIT RESULT... -- ARGUMENTS...: one `corun-pd` command. RESULTs are the files that it writes.
step() {
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  while [[ $1 != -- ]]; do results+=("$OUT/$1"); rm -f "$OUT/$1"; shift; done
  shift
  echo "== $name, at most $limit s: corun-pd $*"
  timeout -k 15 "$limit" "$PYTHON" -m corun_pd.cli.main "$@" >"$OUT/$name.log" 2>&1
  code=$?
  summary+=("$(printf '%-28s exit %3d  %4d s of %4d' "$name" "$code" "$((SECONDS - began))" "$limit")")
  if ((code)); then tail -n 5 "$OUT/$name.log"; fi
}

# same NAME LIMIT SHAPE MODES REQUESTS OTHERS ALONE LONGEST [MORE]...: one check of the contract.
same() {
  local name=determinism-$1-h200 limit=$2 shape=$3 modes=$4 requests others
  requests=$(scaled "$5") others=$(scaled "$6")
  step "$name" "$limit" "$name.json" -- bench determinism "${COMMON[@]}" --shape "$shape" --modes "$modes" \
    --requests "$requests" --others "$others" --alone "$7" --longest "$8" --output 32 \
    --budget "$((limit - 12))" --out "$OUT/$name.json" "${@:9}"
}

# Determinism -------------------------------------------------------------------------------------------------

# 2,048 prompts are 1.8 million tokens: about 75 s a pass at 36 layers, 25-30 s at 12.
stage_d1() { same qwen3-8b-packed 570 qwen3-8b packed 2048 256 16 8000; }
stage_d2s() { same qwen3-8b-12-layers-standard 105 qwen3-8b standard 2048 128 8 8000 --layers 12; }
stage_d2i() { same qwen3-8b-12-layers-isolated 230 qwen3-8b isolated 2048 128 8 8000 --layers 12; }
stage_d2h() { same qwen3-8b-12-layers-hybrid 235 qwen3-8b hybrid 2048 128 8 8000 --layers 12; }
stage_d2p() { same qwen3-8b-12-layers-packed 230 qwen3-8b packed 2048 128 8 8000 --layers 12; }
stage_d2t() { same qwen3-8b-12-layers-triton 230 qwen3-8b packed+triton 512 128 8 8000 --layers 12; }
stage_d2() { stage_d2s; stage_d2i; stage_d2h; }
# A pair of engines shares the GPU: 24 of 48 layers let each have its weights.
stage_moe() { same qwen3-30b-a3b-24-layers 230 qwen3-30b-a3b packed,standard 256 64 8 8000 --layers 24; }
stage_mla() { same deepseek-v3-4-layers 150 deepseek-v3-4l packed,standard 256 64 8 8000; }
stage_hy3() { same hy3-4-layers 170 hy3-4l packed,standard 256 64 8 8000; }
stage_shapes() { stage_moe; stage_mla; stage_hy3; }

# Speed -------------------------------------------------------------------------------------------------------

stage_t1() {
  local limit=565 name label=qwen3-8b-h200 files=()
  for name in throughput timeline latency concurrency padding; do files+=("$name-$label.json"); done
  step t1 "$limit" "${files[@]}" -- bench all "${COMMON[@]}" --shape qwen3-8b --modes "$MODES" \
    --experiments throughput,timeline,latency,concurrency,padding --mode-limit 110 \
    --workloads "256/64:$(scaled 300),1024/128:$(scaled 200),4096/128:$(scaled 48)" \
    --workload 512/128 --requests "$(scaled 400)" --in-flight 1,16,64,256 \
    --out-dir "$OUT" --label "$label"
}

# Long answers take thousands of steps. At 12 layers all workloads of the paper fit one call.
stage_long() {
  local limit=570 label=qwen3-8b-12-layers-h200 workloads
  workloads="256/64:$(scaled 300),1024/128:$(scaled 200),4096/128:$(scaled 64),1024/2048:$(scaled 128)"
  workloads+=",4096/2048:$(scaled 64),burstgpt:$(scaled 300),blazedit:$(scaled 64)"
  step long "$limit" "throughput-$label.json" -- bench throughput "${COMMON[@]}" --shape qwen3-8b --layers 12 \
    --modes standard,batch-invariant,isolated,packed --mode-limit 140 --workloads "$workloads" --out "$OUT/throughput-$label.json"
}

stage_dstep() {
  step dstep 375 decode-step-qwen3-8b-h200.json -- bench decode-step "${COMMON[@]}" --shape qwen3-8b \
    --modes standard,packed,packed+triton --mode-limit 120 --kv-tokens 512,1024,1536 --out "$OUT/decode-step-qwen3-8b-h200.json"
}

stage_abl() {
  step abl 300 ablation-qwen3-8b-12-layers-h200.json -- bench ablation "${COMMON[@]}" --shape qwen3-8b \
    --layers 12 --mode-limit 60 --workload 1024/128 --requests "$(scaled 128)" --bits "$(scaled 96)" \
    --out "$OUT/ablation-qwen3-8b-12-layers-h200.json"
}

# One request alone on N rows, for several N.
stage_sizes() {
  step sizes 150 padding-sizes-qwen3-8b-12-layers-h200.json -- bench padding "${COMMON[@]}" --shape qwen3-8b \
    --layers 12 --modes packed --sizes 32,64,128,256,512 --mode-limit 40 --workloads "256/64:$(scaled 64)" \
    --out "$OUT/padding-sizes-qwen3-8b-12-layers-h200.json"
}

stage_xfer() {
  step xfer 200 transfer-qwen3-8b-h200.json -- bench transfer "${COMMON[@]}" --shape qwen3-8b \
    --lengths 1024,8192,32768 --out "$OUT/transfer-qwen3-8b-h200.json"
}

# With and without the compiler, and whether two cold processes compile the same bits.
stage_compile() {
  local name=throughput-compiled-qwen3-8b-12-layers-h200.json
  step compile 260 "$name" -- bench throughput "${COMMON[@]}" --shape qwen3-8b --layers 12 \
    --modes "standard,packed,standard+compiled,packed+compiled" --mode-limit 90 \
    --workloads "256/64:$(scaled 300),1024/128:$(scaled 200)" --out "$OUT/$name"
  same compiled-qwen3-8b-12-layers 270 qwen3-8b packed+compiled 512 64 8 8000 --layers 12
}

stage_ops() {
  step ops 240 operators-qwen3-8b-h200.json -- verify --operators --shape qwen3-8b \
    --json "$OUT/operators-qwen3-8b-h200.json"
}

stage_prof() {
  local mode
  for mode in packed isolated; do
    step "prof-$mode" 200 -- profile --shape qwen3-8b --mode "$mode" --slots 256 --longest 8192 \
      --block-tokens 16 ${FAKE:+--fake} --logs "$OUT" --out "$OUT/profile-qwen3-8b-$mode-h200.json"
  done
}

# Two GPUs ----------------------------------------------------------------------------------------------------

# Every engine over both: two ranks, which add in a fixed tree. A pair of engines shares the two GPUs.
stage_tp2() {
  same tp2-qwen3-8b 570 qwen3-8b packed,isolated 512 128 16 8000 --tensor-parallel 2 --gpus 0,1
}

# A pair with a GPU each, the KV cache over NVLink. The reference is an engine on the first GPU.
stage_pd2() {
  same pd2-qwen3-8b-isolated 280 qwen3-8b isolated 512 64 8 8000 --gpus 0,1 --pair-memory 0.85 --no-restart
  same pd2-qwen3-8b-packed 280 qwen3-8b packed 512 64 8 8000 --gpus 0,1 --pair-memory 0.85 --no-restart
}

stage_fleet2() {
  local name=fleet-2-gpus-qwen3-8b-h200.json
  step fleet2 570 "$name" -- bench fleet "${COMMON[@]}" --shape qwen3-8b --modes packed --gpus 0,1 \
    --layouts 1P+1D,2C,2S --layout-limit 180 --out "$OUT/$name" \
    --workloads "256/64:$(scaled 1000),1024/128:$(scaled 400),1024/512:$(scaled 400)"
}

# One instance over two GPUs against two instances of one: what the fixed tree costs, beside vLLM's all-reduces.
stage_tpcost() {
  local name=throughput-tp2-qwen3-8b-h200.json
  step tpcost 300 "$name" -- bench throughput "${COMMON[@]}" --shape qwen3-8b --tensor-parallel 2 --gpus 0,1 \
    --modes standard,batch-invariant,packed --mode-limit 95 --out "$OUT/$name" \
    --workloads "256/64:$(scaled 300),1024/128:$(scaled 200)"
}

stage_xfer2() {
  local name=transfer-2-gpus-qwen3-8b-h200.json
  step xfer2 200 "$name" -- bench transfer "${COMMON[@]}" --shape qwen3-8b --gpus 0,1 --memory 0.85 \
    --lengths 1024,8192,32768 --out "$OUT/$name"
}

# Four ranks on four GPUs: with two, every order of additions gives the same bits.
stage_ops4() {
  local name=operators-tp4-qwen3-8b-h200.json
  step ops4 280 "$name" -- verify --operators --shape qwen3-8b --tensor-parallel 4 --json "$OUT/$name"
}

list() {
  cat <<'TEXT'
stage     seconds  what
d1            570  2,048 prompts, Qwen3-8B's shape, packed: alone, reversed, crowd, p/d, restart
d2            570  the same at 12 layers: d2s standard (105), d2i isolated (230), d2h hybrid (235)
d2p           230  the same at 12 layers, packed
d2t           230  512 prompts at 12 layers, packed with Triton's attention, which splits each KV cache by its length
shapes        550  256 prompts: moe Qwen3-30B-A3B (230), mla DeepSeek-V3 (150), hy3 Hunyuan 3 (170)
t1            565  throughput, timeline, latency, concurrency, padding; five modes
long          570  throughput of every workload of the paper at 12 layers; four modes
dstep         375  a decode step at 256 rows, standard against ours without Split-KV and with Triton's
abl           300  one mechanism after the other, 12 layers
sizes         150  one request alone on N rows, N = 32 to 512, 12 layers
xfer          200  KV caches over NIXL between two engines on this GPU, 1k, 8k and 32k tokens
compile       530  with and without the compiler, and its bits after a restart, 12 layers
ops           240  operators one by one
prof          400  cost profiles for the planner, packed and isolated

on two GPUs
tp2           570  512 prompts, two ranks an engine: alone, reversed, crowd, p/d, restart
pd2           560  512 prompts, prefill on GPU 0 and decode on GPU 1, isolated and packed
fleet2        570  throughput behind a router: 1 prefill + 1 decode, 2 colocated, 2 standard
tpcost        300  throughput of one engine over two GPUs; three modes
xfer2         200  KV caches from GPU to GPU, 1k, 8k and 32k tokens
on four GPUs
ops4          280  operators one by one, all-reduces over four ranks among them
TEXT
}

if (($# == 0)); then
  list
  exit 2
fi
for name in "$@"; do
  declare -F "stage_$name" >/dev/null || { echo "no stage $name" >&2; list >&2; exit 2; }
done
began=$SECONDS
for name in "$@"; do "stage_$name"; done

echo "== results"
for result in "${results[@]}"; do
  [[ -f $result ]] || { echo "none: $result"; continue; }
  "$PYTHON" -m corun_pd.cli.main bench show --short "$result" 2>&1 | head -n 60
done
echo "== stages, $((SECONDS - began)) s"
printf '%s\n' "${summary[@]}"
