#!/usr/bin/env bash
# Runs a batch job on a cluster that Ray places, from a node of the Ray cluster; ends with the job's exit code,
# or with that of the cluster when it ends first. Run again, it goes on with what is missing.
#   deploy/ray/batch.sh deploy/cluster.yaml jobs/in.jsonl jobs/out.jsonl
set -euo pipefail

config=$1 input=$2 output=$3
said=$(mktemp)
corun-pd up --ray --config "$config" > "$said" &
up=$!
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -f "$said"' EXIT

router=
until [ -n "$router" ]; do
  kill -0 "$up" 2>/dev/null || wait "$up"
  sleep 1
  router=$(sed -n 's/^ready: router at \([^,]*\),.*/\1/p' "$said")
done
corun-pd run-batch --router "$router" -i "$input" -o "$output" &
job=$!
code=0
wait -n "$up" "$job" || code=$?
# A cluster that was told to end has no failure to tell of, but the job has not ended.
if [ "$code" -eq 0 ] && kill -0 "$job" 2>/dev/null; then code=2; fi
exit "$code"
