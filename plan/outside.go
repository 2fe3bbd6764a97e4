package plan

import "github.com/headroom-go/headroom/device"

// timeline is a step on three lanes, each of which does one thing after the
// other while the others go on:
//
//	device   forward and backward ····|
//	copies         gradients out ·········|           weights back ·········|
//	host                                  | norm and update ··········|
//
// A gradient goes out when backward has completed it. The host begins when all
// are there, and what it has updated goes back while it updates the rest. With
// the optimizer on the device there is but one lane.
type timeline struct {
	device float64 // seconds, until what was launched so far is done
	copies float64 // … until the gradients have gone
	host   float64 // seconds of the update
	back   float64 // seconds of copies of what it has updated
}

// copy adds one to or from the device.
func (t *timeline) copy(seconds float64) {
	if t.host > 0 {
		t.back += seconds
		return
	}
	t.copies = max(t.copies, t.device) + seconds
}

// seconds is the time of the step.
func (t *timeline) seconds() float64 { return max(t.device, t.copies) + max(t.host, t.back) }

// openOutside opens the device of the memory outside the task's, which computes as
// a host does. Copies to it and back take what Away says.
func (k task) openOutside(time *timeline, count func(l *device.Launch)) (device.Device, error) {
	rates, a, tier := k.rates(k.info), k.Away, k.Away.state()
	if k.info.Kind == device.CUDA {
		rates = a.hostRates()
	}
	return device.OpenNull(device.NullOptions{Capacity: unlimited, Granularity: k.info.Granularity,
		OnLaunch: func(l *device.Launch) {
			count(l)
			if l.Kernel.Name == "copy" && tier.Bytes > 0 { // as many go as come
				time.copy(float64(l.Bytes) / 4 * tier.seconds())
				return
			}
			time.host += rates.seconds(l)
		}})
}

// fed is how many cores the memory of a host keeps busy with updates, which
// read and write 28 bytes a weight for little arithmetic.
const fed = 8

// hostRates are those of the host beside a GPU.
func (a Away) hostRates() Rates {
	r := HostRates(max(a.Workers, 1))
	r.BytesPerSecond *= float64(min(max(a.Workers, 1), fed))
	return r
}
