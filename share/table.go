package share

import (
	"fmt"
	"math"
	"os"

	"github.com/headroom-go/headroom/device"
)

// table says where a block's granules lie: in which files, and where in them.
// Granules that lie side by side are one extent.
type table struct {
	granularity uint64
	files       []*os.File // each once
	infos       []os.FileInfo
	extents     []extent
}

// export adds the handle's place.
func (t *table) export(s device.Sharer, h device.Handle) error {
	f, offset, err := s.Export(h)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	i := t.find(info)
	if i < len(t.files) {
		_ = f.Close() // a second descriptor of a file that the table holds
	} else {
		t.files, t.infos = append(t.files, f), append(t.infos, info)
	}
	if i == maxFiles {
		return fmt.Errorf("the block lies in more than %d files, which is all that can be passed", maxFiles)
	}
	t.extend(uint32(i), uint64(offset))
	return nil
}

// find gives the number of the file, or that of the next one. What tells
// regular files apart, the inode, is the same for all files of a device.
func (t *table) find(info os.FileInfo) int {
	for i, known := range t.infos {
		if info.Mode().IsRegular() && os.SameFile(known, info) {
			return i
		}
	}
	return len(t.files)
}

// extend adds a granule.
func (t *table) extend(file uint32, offset uint64) {
	if n := len(t.extents); n > 0 {
		last := &t.extents[n-1]
		if last.file == file && last.offset+uint64(last.granules)*t.granularity == offset && last.granules < math.MaxUint32 {
			last.granules++
			return
		}
	}
	t.extents = append(t.extents, extent{file, 1, offset})
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing was written to it
	}
}
