package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// mostFile bounds the size of a plan that is read.
const mostFile = 64 << 20

// Write writes the plan to a file, as JSON.
func (p *Plan) Write(path string) error {
	return atomicfile.Write(path, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(p)
	})
}

// Read reads a plan that Write wrote.
func Read(path string) (*Plan, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	if err == nil && len(text) > mostFile {
		err = fmt.Errorf("more than %s are no plan", size.Format(mostFile))
	}
	p := &Plan{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err == nil {
		err = d.Decode(p)
	}
	if err == nil && p.Step == "" {
		err = errors.New("it names no step")
	}
	if err != nil {
		return nil, fmt.Errorf("%s holds no plan, or not all of one: %w: write it again with headroom plan --out", path, err)
	}
	return p, nil
}

// For says why the plan is not one for a step of c on a device with info's
// properties: it was made for another step, or the device is too small.
func (p *Plan) For(info device.Info, c train.Config) error {
	if p.Step != c.Fingerprint() && p.Precision != c.Precision {
		return fmt.Errorf("the plan is of steps in %s, not in %s", p.Precision, c.Precision)
	}
	if p.Step != c.Fingerprint() {
		return fmt.Errorf("the plan is of another step: it was made for %s, not for %s: give the flags that it was made with, or make one for this step", p.Step, c.Fingerprint())
	}
	if p.Chosen.ReservedBytes > info.Capacity {
		return fmt.Errorf("the plan reserves %s: %s has %s", size.Format(p.Chosen.ReservedBytes), info.Name, size.Format(info.Capacity))
	}
	if err := c.Allows(p.Chosen.Strategy); err != nil {
		return fmt.Errorf("the plan can't be followed, and may have been changed since it was made: make it again: %w", err)
	}
	return nil
}
