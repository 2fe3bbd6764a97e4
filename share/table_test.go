package share

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
)

const page = 2 << 20 // granularity of small devices

// places is a sharer whose handle i is the granule at offsets[i] of the file
// at paths[i].
type places struct {
	paths   []string
	offsets []int64
}

func (p *places) Export(h device.Handle) (*os.File, int64, error) {
	f, err := os.Open(p.paths[h])
	return f, p.offsets[h], err
}

func (p *places) Import(*os.File, int64) (device.Handle, error) { return 0, errors.ErrUnsupported }

// exportAll gives the table of all handles.
func (p *places) exportAll(t *testing.T) (table, error) {
	t.Helper()
	all := table{granularity: page}
	t.Cleanup(func() { closeFiles(all.files) })
	for h := range p.paths {
		if err := all.export(p, device.Handle(h)); err != nil {
			return all, err
		}
	}
	return all, nil
}

// TestTable joins granules that are neighbours in one file, and those alone.
func TestTable(t *testing.T) {
	x, y := filepath.Join(t.TempDir(), "x"), filepath.Join(t.TempDir(), "y")
	for _, path := range []string{x, y} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := places{[]string{x, x, y, y, x, x, x}, []int64{page, 2 * page, 3 * page, 4 * page, 5 * page, 5 * page, 4 * page}}
	all, err := p.exportAll(t)
	if err != nil {
		t.Fatal(err)
	}
	want := []extent{{0, 2, page}, {1, 2, 3 * page}, {0, 1, 5 * page}, {0, 1, 5 * page}, {0, 1, 4 * page}}
	if !slices.Equal(all.extents, want) || len(all.files) != 2 {
		t.Errorf("%d files, extents %v, want %v", len(all.files), all.extents, want)
	}
}

// TestDeviceFilesAreNotJoined exports granules that are device files, as those
// of CUDA are: one inode says nothing about them.
func TestDeviceFilesAreNotJoined(t *testing.T) {
	p := places{slices.Repeat([]string{os.DevNull}, 3), []int64{0, page, 0}}
	all, err := p.exportAll(t)
	if want := []extent{{0, 1, 0}, {1, 1, page}, {2, 1, 0}}; err != nil || !slices.Equal(all.extents, want) {
		t.Errorf("extents %v, %v, want %v", all.extents, err, want)
	}
}

// TestTableIsBounded exports more files than can be passed.
func TestTableIsBounded(t *testing.T) {
	p := places{slices.Repeat([]string{os.DevNull}, maxFiles+1), make([]int64, maxFiles+1)}
	all, err := p.exportAll(t)
	if err == nil || !strings.Contains(err.Error(), "more than 1024 files") || len(all.extents) != maxFiles {
		t.Errorf("%d extents, %v", len(all.extents), err)
	}
}
