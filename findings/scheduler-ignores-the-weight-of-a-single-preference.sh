#!/usr/bin/env bash
# In kube-scheduler the weight of the only term of a preferred node affinity has no effect: 1 counts as much as 100.
#
# Expected by most readers: against the scores of other plugins, such as those for free resources, a term of weight
# 100 counts more than one of weight 1. Seen with Kubernetes v1.37.2: NodeAffinity adds 200 to the node that meets the
# term, with either weight. It scales its sums for each pod, so that the best feasible node has 100, times 2, which is
# the weight of the plugin. So weights only order the terms of one pod, and their effect depends on other nodes:
# beside a second term of weight 100 that another node meets, the node with weight 1 gets 2, and again 200 when the
# other node is full. A webhook that adds a term to pods changes how much their own terms count. Cause:
# `NormalizeScore` of the plugin (`DefaultNormalizeScore`, pkg/scheduler/framework/plugins/helper). Use: the weight of
# the plugin NodeAffinity in a profile of kube-scheduler. Fails if the behavior changes.
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
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// The plugin for affinity with its default weight, and the plugins without which kube-scheduler does not start.
const configuration = `{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
	"profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [
		{"name": "PrioritySort"}, {"name": "DefaultBinder"}, {"name": "NodeAffinity", "weight": 2}]}}}]}`

func node(name string) fwk.NodeInfo {
	info := framework.NewNodeInfo()
	info.SetNode(&v1.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}})
	return info
}

// term prefers the node with this name.
func term(weight int32, name string) v1.PreferredSchedulingTerm {
	expression := v1.NodeSelectorRequirement{Key: "name", Operator: v1.NodeSelectorOpIn, Values: []string{name}}
	return v1.PreferredSchedulingTerm{Weight: weight,
		Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{expression}}}
}

func main() {
	klog.LogToStderr(false)
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "localhost"})
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	recorder := func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(nil, name) }
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration), nil, nil)
	if err != nil {
		panic(err)
	}
	instance, err := scheduler.New(ctx, client, informers.NewSharedInformerFactory(client, 0), nil, recorder,
		scheduler.WithProfiles(object.(*config.KubeSchedulerConfiguration).Profiles...))
	if err != nil {
		panic(err)
	}
	profile := instance.Profiles["default-scheduler"]

	// score prints what NodeAffinity adds to the score of each feasible node, with the weight of the plugin.
	score := func(name string, nodes []fwk.NodeInfo, terms ...v1.PreferredSchedulingTerm) {
		pod := &v1.Pod{ObjectMeta: meta.ObjectMeta{Name: "pod", Namespace: "default"}}
		affinity := &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: affinity}
		state := framework.NewCycleState()
		if status := profile.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
			panic(status.AsError())
		}
		scores, status := profile.RunScorePlugins(ctx, state, pod, nodes)
		if !status.IsSuccess() {
			panic(status.AsError())
		}
		fmt.Print(name)
		for _, node := range scores {
			for _, plugin := range node.Scores {
				if plugin.Name == "NodeAffinity" {
					fmt.Printf(" %s=%d", node.Name, plugin.Score)
				}
			}
		}
		fmt.Println()
	}
	a, b, c := node("a"), node("b"), node("c")
	score("weight-100", []fwk.NodeInfo{a, b, c}, term(100, "a"))
	score("weight-1", []fwk.NodeInfo{a, b, c}, term(1, "a"))
	score("weights-1-and-100", []fwk.NodeInfo{a, b, c}, term(1, "a"), term(100, "b"))
	score("without-the-best-node", []fwk.NodeInfo{a, c}, term(1, "a"), term(100, "b"))
}
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
go run . | tee seen.txt
[ "$(cat seen.txt)" = "weight-100 a=200 b=0 c=0
weight-1 a=200 b=0 c=0
weights-1-and-100 a=2 b=200 c=0
without-the-best-node a=200 c=0" ] || { echo "the behavior has changed"; exit 1; }
