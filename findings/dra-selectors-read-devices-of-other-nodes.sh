#!/usr/bin/env bash
# In a ResourceSlice with `perDeviceNodeSelection`, a claim's selector is evaluated for devices of other nodes as well,
# and its error there prevents the allocation on a node whose own device matches.
#
# Expected by most readers: a device that the node cannot reach does not count, as with a slice of one node
# (`nodeName`), which the allocator leaves out before it looks at a device.
# Seen with k8s.io/dynamic-resource-allocation v0.37.2: for the node a,
# `device.attributes["example.org"].model == "X"` fails with "no such key: model" because of a device of the node b
# without this attribute; with the two devices in two slices, the same claim gets its device. Kube-scheduler uses
# this allocator, so one driver that publishes a mixed pool in one slice makes pods Pending on all of its nodes.
# Cause: the selectors of a device are checked before its node (`isSelectable`, then the node selector of the device).
# Use: write `device.attributes["example.org"].?model.orValue("") == "X"`. Fails if the behavior changes.
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

	v1 "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type classes struct{}

var class = &resource.DeviceClass{ObjectMeta: meta.ObjectMeta{Name: "any"}}

func (classes) List() ([]*resource.DeviceClass, error)    { return []*resource.DeviceClass{class}, nil }
func (classes) Get(string) (*resource.DeviceClass, error) { return class, nil }

func slice(name, node string, count int64, devices ...resource.Device) *resource.ResourceSlice {
	pool := resource.ResourcePool{Name: "pool", Generation: 1, ResourceSliceCount: count}
	spec := resource.ResourceSliceSpec{Driver: "example.org", Pool: pool, Devices: devices}
	if node == "" {
		yes := true
		spec.PerDeviceNodeSelection = &yes
	} else {
		spec.NodeName = &node
	}
	return &resource.ResourceSlice{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: spec}
}

// allocate prints the device that a claim for the model X gets on the node a.
func allocate(selector string, slices ...*resource.ResourceSlice) {
	request := resource.DeviceRequest{Name: "gpu", Exactly: &resource.ExactDeviceRequest{
		DeviceClassName: "any", AllocationMode: resource.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resource.DeviceSelector{{CEL: &resource.CELDeviceSelector{Expression: selector}}},
	}}
	claim := &resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: "claim", Namespace: "default", UID: "1"},
		Spec: resource.ResourceClaimSpec{Devices: resource.DeviceClaim{Requests: []resource.DeviceRequest{request}}}}
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, structured.Features{PartitionableDevices: true},
		structured.AllocatedState{}, classes{}, slices, cel.NewCache(10, cel.Features{}))
	if err != nil {
		panic(err)
	}
	node := &v1.Node{ObjectMeta: meta.ObjectMeta{Name: "a"}}
	results, err := allocator.Allocate(ctx, node, []*resource.ResourceClaim{claim})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	for _, result := range results {
		fmt.Println("device:", result.Devices.Results[0].Device)
	}
}

func main() {
	a, b, x := "a", "b", "X"
	model := map[resource.QualifiedName]resource.DeviceAttribute{"model": {StringValue: &x}}
	plain := `device.attributes["example.org"].model == "X"`
	own := resource.Device{Name: "of-a", Attributes: model}
	other := resource.Device{Name: "of-b"}
	allocate(plain, slice("1", b, 2, other), slice("2", a, 2, own))
	own.NodeName, other.NodeName = &a, &b
	allocate(plain, slice("1", "", 1, other, own))
	allocate(`device.attributes["example.org"].?model.orValue("") == "X"`, slice("1", "", 1, other, own))
}
END
go mod init example.org/allocator > /dev/null 2>&1
for module in api apimachinery dynamic-resource-allocation; do go mod edit -require "k8s.io/$module@$version"; done
echo "installing k8s.io/dynamic-resource-allocation $version"
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
[ "$(sed 's/^error:.*no such key: model.*/error/' seen.txt | tr '\n' ' ')" = "device: of-a error device: of-a " ] ||
  { echo "the behavior has changed"; exit 1; }
