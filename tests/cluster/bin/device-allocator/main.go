// Prints, for each JSON object with slices, classes, claims, allocated claims and a node, the allocation of
// kube-scheduler's allocator with the feature gates of its release, or its error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type input struct {
	Node      *v1.Node
	Slices    []*resourceapi.ResourceSlice
	Classes   []*resourceapi.DeviceClass
	Claims    []*resourceapi.ResourceClaim
	Allocated []*resourceapi.ResourceClaim
}

type output struct {
	Results []resourceapi.AllocationResult
	Error   string
}

func (i *input) List() ([]*resourceapi.DeviceClass, error) { return i.Classes, nil }

func (i *input) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range i.Classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, errors.New("not found")
}

// state does what the scheduler's plugin does in foreachAllocatedDevice.
func (i *input) state() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range i.Allocated {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}

func allocate(line []byte) (out output) {
	var in input
	if err := json.Unmarshal(line, &in); err != nil {
		return output{Error: err.Error()}
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
		DeviceTaints: true, FractionalCapacityRange: true, PartitionableDevices: true, PrioritizedList: true}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, features, in.state(), &in, in.Slices, cache)
	if err != nil {
		return output{Error: err.Error()}
	}
	out.Results, err = allocator.Allocate(ctx, in.Node, in.Claims)
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func main() {
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(nil, 1<<24)
	encoder := json.NewEncoder(os.Stdout)
	for scanner.Scan() {
		if err := encoder.Encode(allocate(scanner.Bytes())); err != nil {
			panic(err)
		}
	}
}
