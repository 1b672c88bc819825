#!/usr/bin/env bash
# The order of a list in the ApplyConfiguration of a MutatingAdmissionPolicy moves existing elements, and decides where
# a new one is inserted: `[new]` appends it, `[new, a]` inserts it before the existing element `a`.
#
# Expected by most readers: elements are merged by their key where they are, and new ones are appended, so an init
# container that must run first needs a JSONPatch. Seen with k8s.io/apiserver v0.37.2: of init containers a, b and c,
# `[c, a]`, meant to set fields of both, makes b, c and a, although no element is new. The same holds for environment
# variables, of which one may only refer to earlier ones. Cause: a merge keeps the order of the applied list, and the
# elements that are in both lists are its fixed points (`visitListItems`, typed/merge.go of structured-merge-diff).
# Use: name existing elements in their own order, and an existing one after the new one to insert it before that. Fails
# if the behavior changes.
set -euo pipefail
version=v0.37.2
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS="-modcacherw -trimpath"
mkdir "$folder/program"
cd "$folder/program"
cat > main.go << 'END'
package main

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	budget "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	apply "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

// mutate prints the init containers of a pod that has a, b and c, after a policy with these in its ApplyConfiguration.
func mutate(names ...string) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		panic(err)
	}
	var elements []string
	for _, name := range names {
		elements = append(elements, fmt.Sprintf(`Object.spec.initContainers{name: %q, image: "example.org/x"}`, name))
	}
	expression := "Object{spec: Object.spec{initContainers: [" + strings.Join(elements, ", ") + "]}}"
	evaluator := compiler.CompileMutatingEvaluator(&patch.ApplyConfigurationCondition{Expression: expression},
		cel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.StoredExpressions)

	pod := &v1.Pod{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	for _, name := range []string{"a", "b", "c"} {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{Name: name, Image: "example.org/image"})
	}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	resource := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	attributes := admission.NewAttributesRecord(pod, nil, kind, "default", "pod", resource, "", admission.Create,
		&meta.CreateOptions{}, false, &user.DefaultInfo{Name: "tester"})
	request := patch.Request{
		MatchedResource: resource,
		VersionedAttributes: &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind,
			VersionedObject: admission.NewLazyObject(pod)},
		ObjectInterfaces: admission.NewObjectInterfacesFromScheme(scheme.Scheme),
		TypeConverter:    apply.NewTypeConverter(scheme.Scheme),
	}
	patcher := patch.NewApplyConfigurationPatcher(evaluator)
	object, err := patcher.Patch(context.Background(), request, budget.RuntimeCELCostBudget)
	if err != nil {
		panic(err)
	}
	containers, _, err := unstructured.NestedSlice(object.(*unstructured.Unstructured).Object, "spec", "initContainers")
	if err != nil {
		panic(err)
	}
	var order []any
	for _, container := range containers {
		order = append(order, container.(map[string]any)["name"])
	}
	fmt.Println(names, "makes", order)
}

func main() {
	mutate("new")
	mutate("new", "a")
	mutate("new", "c")
	mutate("a", "c")
	mutate("c", "a")
}
END
go mod init example.org/policy > /dev/null 2>&1
for module in api apimachinery apiserver client-go; do go mod edit -require "k8s.io/$module@$version"; done
echo "installing k8s.io/apiserver $version"
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
[ "$(cat seen.txt)" = "[new] makes [a b c new]
[new a] makes [new a b c]
[new c] makes [a b new c]
[a c] makes [a b c]
[c a] makes [b c a]" ] || { echo "the behavior has changed"; exit 1; }
