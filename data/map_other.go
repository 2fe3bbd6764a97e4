//go:build !unix

package data

import (
	"errors"
	"io"
	"os"
)

// mapFile maps nothing here; the file is read in the ordinary way.
func mapFile(*os.File, int64) (interface {
	io.ReaderAt
	io.Closer
}, error) {
	return nil, errors.ErrUnsupported
}
