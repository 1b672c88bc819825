#!/usr/bin/env bash
# Kube-scheduler starts with a configuration that disables a plugin, or sets arguments of a plugin, that does not
# exist.
#
# Expected by most readers: an error, since kube-scheduler reads KubeSchedulerConfiguration strictly: it refuses
# unknown fields, and unknown plugins in `enabled`. Seen with Kubernetes v1.37.2: with ImageLocalityPriority in
# `disabled`, it starts without a warning and ImageLocality still scores nodes. With `pluginConfig` for
# NodeResourceFit, which lacks an s, it starts and NodeResourcesFit keeps its strategy; the arguments may then have
# any fields, because they are decoded by the name of the plugin. An upgrade that renames or removes a plugin has the
# same effect. Cause: only enabled plugins are looked up (`NewFramework`,
# pkg/scheduler/framework/runtime/framework.go). Use: `kube-scheduler --config FILE --write-config-to OUT` writes the
# plugins and arguments that are in effect, and ends. Fails if the behavior changes.
set -euo pipefail
version=37.2
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS="-modcacherw -trimpath"
mkdir "$folder/program"
cd "$folder/program"
cat > main.go << 'END'
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() { os.Exit(cli.Run(app.NewSchedulerCommand())) }
END
go mod init example.org/scheduler > /dev/null 2>&1
echo "installing k8s.io/kubernetes v1.$version"
# The module names its libraries by folder; they are published as modules of the same release.
module=$(go mod download -json "k8s.io/kubernetes@v1.$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
go mod edit -require "k8s.io/kubernetes@v1.$version"
for library in $(sed -n 's|^\s*\(k8s.io/.*\) => ./staging/.*|\1|p' "$module"); do
  go mod edit -replace "$library=$library@v0.$version"
done
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go build -o kube-scheduler .

cat > kubeconfig << 'END'
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none}}]
current-context: none
END

start() { # what kube-scheduler does with the profile $1; it connects to no server
  cat > configuration.yaml << END
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: kubeconfig}
leaderElection: {leaderElect: false}
profiles: [$1]
END
  echo "$1"
  if ./kube-scheduler --config configuration.yaml --write-config-to effective.yaml > kube-scheduler.log 2>&1; then
    if grep -E 'ImageLocalityPriority|NodeResourceFit' kube-scheduler.log; then exit 1; fi # a warning
    # enabled plugins have a weight here, disabled ones have 0
    scores=$(grep -A1 'name: ImageLocality$' effective.yaml | sed -n 's/.*weight: 1$/, ImageLocality/p')
    echo "  accepted: $(sed -n 's/.*type: \(.*Allocated\)$/\1/p' effective.yaml)$scores"
  else
    echo "  refused: $(sed -n 's/.*err="\(.*\)"$/\1/p' kube-scheduler.log)"
  fi
}

{
  start '{plugins: {multiPoint: {enabled: [{name: ImageLocalityPriority}]}}}'
  start '{plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}}'
  start '{plugins: {multiPoint: {disabled: [{name: ImageLocalityPriority}]}}}'
  start '{pluginConfig: [{name: NodeResourcesFit, args: {strategy: MostAllocated}}]}'
  start '{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}'
  start '{pluginConfig: [{name: NodeResourceFit, args: {strategy: MostAllocated}}]}'
} | tee seen.txt
[ "$(sed -n 's/\(refused\):.*/\1/; s/^  //p' seen.txt)" = "refused
accepted: LeastAllocated
accepted: LeastAllocated, ImageLocality
refused
accepted: MostAllocated, ImageLocality
accepted: LeastAllocated, ImageLocality" ] || { echo "the behavior has changed"; exit 1; }
