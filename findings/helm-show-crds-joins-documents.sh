#!/usr/bin/env bash
# `helm show crds` prints the files of a chart's folder crds one after the other, without `---` between them.
#
# Expected by most readers: a stream of YAML documents, as `helm template --include-crds` prints it, so that
# `helm show crds CHART | kubectl apply --server-side -f -` upgrades the definitions that `helm upgrade` leaves alone.
# Seen with Helm 3.21.3: two valid files become one document in which every top-level key occurs twice. A parser that
# takes the last of two equal keys reads only the last definition, and no program reports the others as lost.
# Use: begin every file in crds with `---`, as this script shows. Fails if the behavior changes.
set -euo pipefail
version=v3.21.3
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOBIN="$folder/bin" GOFLAGS=-modcacherw
echo "installing helm $version"
go install "helm.sh/helm/v3/cmd/helm@$version"

mkdir -p "$folder/chart/crds"
printf 'apiVersion: v2\nname: chart\nversion: 0.1.0\n' > "$folder/chart/Chart.yaml"
definition() { # a definition of the kind $1
  cat << END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ${1,,}s.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: $1, plural: ${1,,}s}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
END
}
documents() { # the number of YAML documents with content on stdin
  awk '/^---/ {content = 0} /^[a-z]/ && !content {content = 1; count++} END {print count + 0}'
}

definition Apple > "$folder/chart/crds/apples.yaml"
definition Pear > "$folder/chart/crds/pears.yaml"
shown=$("$folder/bin/helm" show crds "$folder/chart")
echo "$shown"
template=$("$folder/bin/helm" template "$folder/chart" --include-crds | documents)
echo "documents of helm template --include-crds: $template, of helm show crds: $(documents <<< "$shown")"
for file in "$folder"/chart/crds/*; do sed -i '1i ---' "$file"; done
separated=$("$folder/bin/helm" show crds "$folder/chart" | documents)
echo "documents of helm show crds, if each file begins with ---: $separated"
[ "$(grep -c '^kind: CustomResourceDefinition' <<< "$shown")" = 2 ]
[ "$template" = 2 ]
[ "$separated" = 2 ]
if [ "$(documents <<< "$shown")" != 1 ]; then echo "the behavior has changed: the definitions are separated"; exit 1; fi
echo "as described: two definitions are one document"
