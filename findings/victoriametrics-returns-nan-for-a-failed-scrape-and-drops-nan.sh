#!/usr/bin/env bash
# In VictoriaMetrics, "NaN" in the samples of a range selector never comes from the exporter: it is the marker of a
# failed scrape or an ended series. A NaN that an exporter reports is not stored.
#
# Expected by most readers: the reverse, as in Prometheus, whose API returns the NaN of an exporter as a sample, and
# leaves markers out. Seen with VictoriaMetrics 1.151.0: after one failed scrape `temperature[1m]` ends with "NaN"
# although the exporter reported 41 each time, `count_over_time(temperature[1m])` does not count that sample, and a
# gauge that is NaN at every scrape has no sample until a scrape fails. A program that takes the newest sample of a
# range for the value of a sensor, as it may with Prometheus, sees an invalid value after each missed scrape, and cannot
# see a sensor that reports NaN. Cause: range selectors are answered like exports, with the markers
# (`IsMetricSelectorWithRollup`, app/vmselect/promql/parser.go); other NaN are dropped when they are written. Use: treat
# "NaN" after a number as no sample, and rely on no NaN of an exporter. Fails if the behavior changes.
set -euo pipefail
version=v1.151.0
folder=$(mktemp -d)
processes=()
stop() {
  for process in "${processes[@]}"; do kill "$process" || true; wait "$process" || true; done
  chmod -R u+w "$folder"
  rm -rf "$folder"
}
trap stop EXIT
export GOPATH="$folder/go" GOBIN="$folder/bin" GOFLAGS=-modcacherw
echo "installing VictoriaMetrics $version"
go install "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics@$version" 2> "$folder/install.log" ||
  { cat "$folder/install.log"; exit 1; }

cat > "$folder/exporter.py" <<'PYTHON'
import http.server, os, sys

class Exporter(http.server.BaseHTTPRequestHandler):
    """Reports two gauges. The scrape fails while the file `broken` exists, which creates `failed`."""

    def do_GET(self):
        if os.path.exists("broken"):
            open("failed", "w").close()
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"temperature 41\nhumidity NaN\n")

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Exporter)
with open("port.part", "w") as file:
    file.write(str(server.server_port))
os.rename("port.part", "port")
server.serve_forever()
PYTHON
cd "$folder"
python3 exporter.py &
processes+=($!)
until [ -e port ]; do kill -0 "${processes[0]}"; sleep 0.1; done
cat > scrape.yml << END
scrape_configs:
- job_name: sensors
  scrape_interval: 2s
  static_configs: [{targets: ["127.0.0.1:$(cat port)"]}]
END

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
address="127.0.0.1:$port"
bin/victoria-metrics -storageDataPath=data -httpListenAddr="$address" -promscrape.config=scrape.yml -loggerLevel=FATAL &
processes+=($!)
until curl -sf "$address/health" > /dev/null; do kill -0 "${processes[1]}"; sleep 0.2; done

values() { # the values that a query returns now, separated by spaces; empty for no series
  curl -sf "$address/internal/force_flush"
  curl -sfG "$address/api/v1/query" -d nocache=1 --data-urlencode "query=$1" | python3 -c '
import json, sys
for series in json.load(sys.stdin)["data"]["result"]:
    print(*(value for _, value in series.get("values") or [series["value"]]))'
}
wait_for() { # query, pattern of its values
  until [[ $(values "$1") =~ $2 ]]; do kill -0 "${processes[1]}"; sleep 0.2; done
}

wait_for 'temperature[1m]' '41 41 41$'
reported=$(values 'humidity[1m]')
touch broken
until [ -e failed ]; do sleep 0.1; done
wait_for 'up' '^0$'
samples=$(values 'temperature[1m]')
count=$(values 'count_over_time(temperature[1m])')
newest=$(values 'last_over_time(temperature[1m])')
marker=$(values 'humidity[1m]')
echo "temperature[1m] after a failed scrape: $samples"
echo "count_over_time: $count, last_over_time: $newest"
echo "humidity[1m], NaN at each scrape: ${reported:-no series}, after the failed one: $marker"
[[ $samples =~ ^(41 )+NaN$ ]] || { echo "the behavior has changed: expected 41 and one NaN"; exit 1; }
[ "$count" = "$(($(wc -w <<< "$samples") - 1))" ] || { echo "the behavior has changed: NaN counts"; exit 1; }
[ "$newest" = 41 ] || { echo "the behavior has changed: expected 41"; exit 1; }
[ -z "$reported" ] || { echo "the behavior has changed: the NaN of the exporter is stored"; exit 1; }
[ "$marker" = NaN ] || { echo "the behavior has changed: the failed scrape stored no NaN"; exit 1; }
echo "as described: NaN stands for a failed scrape, and never for the NaN of an exporter"
