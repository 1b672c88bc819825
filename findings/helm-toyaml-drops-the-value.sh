#!/usr/bin/env bash
# Helm's template function toYaml renders an EMPTY text, without an error, if one string anywhere in its argument has a
# character that YAML does not permit unescaped, such as U+007F (delete) or U+FFFF.
#
# Expected by most readers: an error, or an escaped character. Seen with Helm 3.21.3: exit code 0, and the whole map is
# gone, so a ConfigMap that a chart fills with `toYaml .Values.settings` is empty, with all of its other settings.
# Cause: toYaml returns "" if the marshaller fails ("Swallow errors inside of a template", pkg/engine/funcs.go).
# Use: a schema with a pattern for strings, or `toYaml | required`. Fails if the behavior changes.
set -euo pipefail
version=v3.21.3
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOBIN="$folder/bin" GOFLAGS=-modcacherw
echo "installing helm $version"
go install "helm.sh/helm/v3/cmd/helm@$version"

mkdir -p "$folder/chart/templates"
printf 'apiVersion: v2\nname: chart\nversion: 0.1.0\n' > "$folder/chart/Chart.yaml"
printf 'settings: {replicas: 2, title: a}\n' > "$folder/chart/values.yaml"
printf 'settings:\n{{ toYaml .Values.settings | indent 2 }}\nend: true\n' > "$folder/chart/templates/settings.yaml"

render() { # the rendered settings, with the title that a JSON text gives
  printf '{"settings": {"title": %s}}' "$1" > "$folder/values.json"
  "$folder/bin/helm" template "$folder/chart" --values "$folder/values.json" | sed -n '/^settings:/,/^end:/p'
}

ordinary=$(render '"a"')
echo "title a:"; echo "$ordinary"
delete=$(render '"a\u007f"')
echo "title a and U+007F, exit code 0:"; echo "$delete"
grep -q 'replicas: 2' <<< "$ordinary"
if grep -q 'replicas' <<< "$delete"; then echo "the behavior has changed: the settings are rendered"; exit 1; fi
echo "as described: with one such character, all settings are gone without an error"
