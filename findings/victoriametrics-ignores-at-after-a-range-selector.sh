#!/usr/bin/env bash
# VictoriaMetrics ignores the @ modifier of a query that is a range selector: `up[2m] @ 1700000000` returns the samples
# of the last two minutes, without an error or a warning.
#
# Expected by most readers: the samples of the two minutes before that time, as in Prometheus, and as VictoriaMetrics
# itself evaluates `last_over_time(up[2m] @ 1700000000)`, `up @ 1700000000` and `up[2m] offset 1h`. Its documentation
# says that @ "can be put anywhere in the query". Seen with VictoriaMetrics 1.151.0: two queries that differ only in @
# return the same. Cause: a lone range selector is answered like an export of raw samples, which applies the window and
# `offset` only (`IsMetricSelectorWithRollup`, app/vmselect/promql/parser.go). Programs that read raw samples of the
# past this way get those of the present. Use: the parameter `time` of the request, or `offset`. Fails if the behavior
# changes.
set -euo pipefail
version=v1.151.0
folder=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || { kill "$server" || true; wait "$server" || true; }
  chmod -R u+w "$folder"
  rm -rf "$folder"
}
trap stop EXIT
export GOPATH="$folder/go" GOBIN="$folder/bin" GOFLAGS=-modcacherw
echo "installing VictoriaMetrics $version"
go install "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics@$version" 2> "$folder/install.log" ||
  { cat "$folder/install.log"; exit 1; }

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
address="127.0.0.1:$port"
"$folder/bin/victoria-metrics" -storageDataPath="$folder/data" -httpListenAddr="$address" -loggerLevel=ERROR &
server=$!
until curl -sf "$address/health" > /dev/null; do kill -0 "$server"; sleep 0.2; done

# a gauge that is its own age in seconds when the samples are written
now=$(date +%s)
for age in 660 630 600 60 30 0; do echo "age_seconds $age $(((now - age) * 1000))"; done |
  curl -sf --data-binary @- "$address/api/v1/import/prometheus"
curl -sf "$address/internal/force_flush"

values() { # the values that a query returns at the time `now`, separated by spaces
  curl -sfG "$address/api/v1/query" -d "time=$now" -d nocache=1 --data-urlencode "query=$1" | python3 -c '
import json, sys
[series] = json.load(sys.stdin)["data"]["result"]
print(*(value for _, value in series.get("values") or [series["value"]]))'
}

before=$((now - 600))
check() { # query, expected values
  local actual
  actual=$(values "$1")
  echo "${1/$before/TEN_MINUTES_AGO}: $actual"
  [ "$actual" = "$2" ] || { echo "the behavior has changed: expected $2"; exit 1; }
}

check "age_seconds[2m]" "60 30 0"
check "age_seconds @ $before" "600"
check "last_over_time(age_seconds[2m] @ $before)" "600"
check "age_seconds[2m] offset 10m" "660 630 600"
check "age_seconds[2m] @ $before" "60 30 0"
echo "as described: the range selector alone returns the same with and without @"
