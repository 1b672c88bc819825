#!/usr/bin/env bash
# A ValidatingAdmissionPolicy evaluates each `messageExpression` for requests that it admits, too.
#
# Expected by most readers: the text of a refusal is computed when a rule fails, since the API reference describes it as
# the message "that is returned when this rule fails". Seen with k8s.io/apiserver v0.37.2: the admission of a ConfigMap
# with 200 labels, whose rule is true, allocates 27 times with `message`, and half a million times with a
# `messageExpression` that lists the labels in pairs. Cause: all message expressions are evaluated before the results of
# the rules are read (`Validate`, pkg/admission/plugin/policy/validating/validator.go). So a helpful text can take more
# time of each request that matches the policy than its rules do.
# Use: `message` where it is enough, and short message expressions. Fails if the behavior changes.
set -euo pipefail
version=v0.37.2
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS=-modcacherw
mkdir "$folder/program"
cd "$folder/program"
cat > main.go << 'END'
package main

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	budget "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// validator is what kube-apiserver makes of a policy with one validation.
func validator(message, messageExpression string) validating.Validator {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		panic(err)
	}
	compile := func(expressions ...cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(expressions, cel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	}
	condition := &validating.ValidationCondition{Expression: `object.metadata.name != ""`, Message: message}
	var messages []cel.ExpressionAccessor
	if messageExpression != "" {
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: messageExpression})
	}
	fail := v1.Fail
	return validating.NewValidator(compile(condition), nil, compile(), compile(messages...), &fail, nil)
}

// admit returns the decision on a new ConfigMap with 200 labels, and the number of allocations that it takes.
func admit(v validating.Validator) (validating.PolicyDecisionAction, float64) {
	labels := map[string]string{}
	for number := range 200 {
		labels[fmt.Sprint("label-", number)] = "x"
	}
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "settings", Namespace: "default", Labels: labels}}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	attributes := admission.NewAttributesRecord(object, nil, kind, "default", "settings", resource, "", admission.Create,
		nil, false, &user.DefaultInfo{Name: "tester"})
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind}
	versioned.VersionedObject.Set(object)
	var decision validating.PolicyDecision
	allocations := testing.AllocsPerRun(3, func() {
		result := v.Validate(context.Background(), resource, versioned, nil, nil, budget.RuntimeCELCostBudget, nil)
		decision = result.Decisions[0]
	})
	return decision.Action, allocations
}

func main() {
	text := `object.metadata.labels.map(a, object.metadata.labels.map(b, a + b).join()).join()`
	action, plain := admit(validator("no name", ""))
	fmt.Printf("message: %s, %.0f allocations\n", action, plain)
	action, computed := admit(validator("", text))
	fmt.Printf("messageExpression: %s, %.0f allocations\n", action, computed)
	if action != validating.ActionAdmit || computed < 100*plain {
		panic("the behavior has changed")
	}
}
END
go mod init example.org/policy > /dev/null 2>&1
for module in api apimachinery apiserver; do go mod edit -require "k8s.io/$module@$version"; done
echo "installing k8s.io/apiserver $version"
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run .
