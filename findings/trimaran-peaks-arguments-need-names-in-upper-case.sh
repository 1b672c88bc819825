#!/usr/bin/env bash
# The arguments of Trimaran's plugin Peaks are spelled `WatcherAddress` and `NodePowerModel` in a configuration.
#
# Expected by most readers: `watcherAddress`, as the arguments of Trimaran's other plugins and of kube-scheduler. Seen
# with sigs.k8s.io/scheduler-plugins v0.34.7: the two JSON tags of PeaksArgs lack a quotation mark, so Go ignores them
# and the names of the fields count. Kube-scheduler decodes arguments with sigs.k8s.io/json, which distinguishes case,
# unlike encoding/json: it refuses `watcherAddress` as unknown, while TargetLoadPacking refuses `WatcherAddress`.
# Use: write both names of Peaks as in Go. Fails if the behavior changes.
set -euo pipefail
plugins=v0.34.7
kubernetes=v0.34.1
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS=-modcacherw
mkdir "$folder/program"
cd "$folder/program"
echo "installing sigs.k8s.io/scheduler-plugins $plugins"
source=$(go mod download -json "sigs.k8s.io/scheduler-plugins@$plugins" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
mkdir v1
# The file with the types alone: the rest of its package needs all of kube-scheduler.
cp "$source/apis/config/v1/types.go" v1/
cat > main.go << 'END'
package main

import (
	"fmt"

	config "example.org/peaks/v1"
	"sigs.k8s.io/json"
)

func decode(name, text string, into any) {
	strict, err := json.UnmarshalStrict([]byte(text), into)
	fmt.Println(name, text, strict, err)
}

func main() {
	for _, text := range []string{`{"watcherAddress": "http://localhost"}`, `{"WatcherAddress": "http://localhost"}`} {
		decode("Peaks", text, &config.PeaksArgs{})
		decode("TargetLoadPacking", text, &config.TargetLoadPackingArgs{})
	}
}
END
{
  go mod init example.org/peaks
  go get "k8s.io/api@$kubernetes" "k8s.io/apimachinery@$kubernetes" "k8s.io/kube-scheduler@$kubernetes"
  go mod tidy
} > install.log 2>&1 || { cat install.log; exit 1; }
output=$(go run .)
echo "$output"
expect() { if ! grep -Fqx "$1" <<< "$output"; then echo "the behavior has changed"; exit 1; fi; }
expect 'Peaks {"watcherAddress": "http://localhost"} [unknown field "watcherAddress"] <nil>'
expect 'TargetLoadPacking {"watcherAddress": "http://localhost"} [] <nil>'
expect 'Peaks {"WatcherAddress": "http://localhost"} [] <nil>'
expect 'TargetLoadPacking {"WatcherAddress": "http://localhost"} [unknown field "WatcherAddress"] <nil>'
echo "as described: the two plugins accept different spellings of one name"
