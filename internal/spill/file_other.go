//go:build !unix

package spill

import "errors"

// File is not there on this system.
func File(dir string, capacity uint64) (*Place, error) {
	return nil, errors.New("values can wait in a file on unix systems alone: use memory of the host")
}
