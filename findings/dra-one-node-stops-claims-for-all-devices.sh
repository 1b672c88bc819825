#!/usr/bin/env bash
# One node whose devices differ keeps a claim with `allocationMode: All` and `matchAttribute` from every node. So does
# a node with more than 32 matching devices, with or without a constraint.
#
# Expected by most readers: such a node does not fit, as with `count: 2` and the same constraint, and the pod is
# placed on another node. Seen with k8s.io/dynamic-resource-allocation v0.37.2: on the node with the models X and X
# the claim gets both devices; for the node with X and Y the allocator returns an error, also if `firstAvailable` has
# an alternative that the node meets. It is not an ErrFailedAllocationOnNode, the error that, unlike others, does
# "only affect the one node and not the entire scheduling attempt". With the first two nodes, kube-scheduler v1.37.2
# ended the attempt with the reason SchedulerError, and the pod stayed Pending although the first node was free.
# Cause: "It does not make sense to declare a claim where a constraint prevents getting all devices"
# (`allocateDevice`); the limit of 32 results is checked with the devices of each node (`Allocate`). Use: a selector
# for the value, such as X, in place of the constraint. Fails if the behavior changes.
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
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	exact = resource.DeviceAllocationModeExactCount
	all   = resource.DeviceAllocationModeAll
)

type classes struct{}

var class = &resource.DeviceClass{ObjectMeta: meta.ObjectMeta{Name: "any"}}

func (classes) List() ([]*resource.DeviceClass, error)    { return []*resource.DeviceClass{class}, nil }
func (classes) Get(string) (*resource.DeviceClass, error) { return class, nil }

// slice has devices of these models on a node.
func slice(node string, models ...string) *resource.ResourceSlice {
	pool := resource.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}
	spec := resource.ResourceSliceSpec{Driver: "example.org", Pool: pool, NodeName: &node}
	for index, model := range models {
		attributes := map[resource.QualifiedName]resource.DeviceAttribute{"model": {StringValue: &model}}
		spec.Devices = append(spec.Devices, resource.Device{Name: fmt.Sprintf("gpu-%d", index), Attributes: attributes})
	}
	return &resource.ResourceSlice{ObjectMeta: meta.ObjectMeta{Name: node}, Spec: spec}
}

var slices = []*resource.ResourceSlice{
	slice("uniform", "X", "X"), slice("mixed", "X", "Y"), slice("large", make([]string, 33)...),
}

func request(mode resource.DeviceAllocationMode, count int64) resource.DeviceRequest {
	return resource.DeviceRequest{Name: "gpu", Exactly: &resource.ExactDeviceRequest{
		DeviceClassName: "any", AllocationMode: mode, Count: count}}
}

// allocate prints what a claim for devices of one model gets on each node.
func allocate(name string, request resource.DeviceRequest) {
	model := resource.FullyQualifiedName("example.org/model")
	claim := &resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: "claim", Namespace: "default", UID: "1"}}
	claim.Spec.Devices = resource.DeviceClaim{Requests: []resource.DeviceRequest{request},
		Constraints: []resource.DeviceConstraint{{MatchAttribute: &model}}}
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, structured.Features{PrioritizedList: true}, structured.AllocatedState{},
		classes{}, slices, cel.NewCache(10, cel.Features{}))
	if err != nil {
		panic(err)
	}
	for _, slice := range slices {
		node := &v1.Node{ObjectMeta: meta.ObjectMeta{Name: slice.Name}}
		results, err := allocator.Allocate(ctx, node, []*resource.ResourceClaim{claim})
		switch {
		case errors.Is(err, structured.ErrFailedAllocationOnNode):
			fmt.Println(name, node.Name, "error of this node:", err)
		case err != nil:
			fmt.Println(name, node.Name, "error of all nodes:", err)
		case len(results) == 0:
			fmt.Println(name, node.Name, "not suitable")
		default:
			fmt.Println(name, node.Name, len(results[0].Devices.Results), "devices")
		}
	}
}

func main() {
	allocate("count", request(exact, 2))
	allocate("all", request(all, 0))
	allocate("list", resource.DeviceRequest{Name: "gpu", FirstAvailable: []resource.DeviceSubRequest{
		{Name: "all", DeviceClassName: "any", AllocationMode: all},
		{Name: "one", DeviceClassName: "any", AllocationMode: exact, Count: 1},
	}})
}
END
go mod init example.org/allocator > /dev/null 2>&1
for module in api apimachinery dynamic-resource-allocation; do go mod edit -require "k8s.io/$module@$version"; done
echo "installing k8s.io/dynamic-resource-allocation $version"
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
constraint="cannot add device example.org/mixed/gpu-1 because a claim constraint would not be satisfied"
limit="adding 33 devices exceeds the claim limit of 32, with 0 already accounted for"
[ "$(cat seen.txt)" = "count uniform 2 devices
count mixed not suitable
count large 2 devices
all uniform 2 devices
all mixed error of all nodes: claim default/claim, request gpu: $constraint
all large error of all nodes: claim default/claim, request gpu: $limit
list uniform 2 devices
list mixed error of all nodes: claim default/claim, request all: $constraint
list large 1 devices" ] || { echo "the behavior has changed"; exit 1; }
