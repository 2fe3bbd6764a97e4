package device

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/headroom-go/headroom/internal/cuda"
)

// SharedCUDA is a GPU whose handles can be mapped by other processes that see
// the same GPU. Each handle is exported as a file of its own, at offset 0.
type SharedCUDA struct {
	*CUDADevice
	sharing
}

// OpenSharedCUDA opens a GPU with memory that can be shared. It fails where the
// driver cannot pass it on: that takes virtual memory and, as a rule, Linux on
// the machine itself.
func OpenSharedCUDA(o CUDAOptions) (*SharedCUDA, error) {
	if o.Plain {
		return nil, errors.New("shared GPU without virtual memory: only handles can be shared")
	}
	o.shared = true
	d, err := OpenCUDA(o)
	if err != nil {
		return nil, err
	}
	return &SharedCUDA{d, sharing{&d.memory, d.memory.virtual.(*cudaMemory)}}, nil
}

// Unwrap gives the GPU.
func (d *SharedCUDA) Unwrap() Device { return d.CUDADevice }

// allowExport lets memory that is created from now on be exported.
func (d *CUDADevice) allowExport(virtual bool) error {
	c := d.context
	files, err := c.Attribute(c.Device, cuda.FileHandles)
	if err != nil {
		return err
	}
	if !virtual || files == 0 || !c.Has("cuMemExportToShareableHandle") || !c.Has("cuMemImportFromShareableHandle") {
		return fmt.Errorf("the driver gives no files for this GPU's memory, so that it cannot be shared: open it without \"shared\": %w", errors.ErrUnsupported)
	}
	c.Exportable = true
	return nil
}

// cudaImport is memory that somebody else created. The driver exports no such
// memory again: the file that stands for it stays open for that.
type cudaImport struct {
	memory cuda.Handle
	file   *os.File
}

func (m *cudaMemory) export(h Handle) (*os.File, int64, error) {
	if h >= firstImport {
		f, err := openAgain(m.imports[h].file)
		return f, 0, err
	}
	syscall.ForkLock.RLock() // the driver may give a file that a child would inherit
	defer syscall.ForkLock.RUnlock()
	fd, err := m.context.Export(m.handle(h))
	if err != nil {
		return nil, 0, err
	}
	closeOnExec(fd)
	return os.NewFile(uintptr(fd), "headroom"), 0, nil
}

// admit leaves it to the driver to say whether it made the file, and to Map
// whether this GPU reaches the memory, and a granule of it.
func (m *cudaMemory) admit(h Handle, f *os.File, offset int64) error {
	if offset != 0 {
		return errors.New("memory of a GPU is at offset 0 of its file")
	}
	own, err := openAgain(f)
	if err != nil {
		return err
	}
	memory, err := m.context.Import(int(own.Fd()))
	if err != nil {
		return errors.Join(fmt.Errorf("the file must stand for memory of a GPU that this process sees: %w", err), own.Close())
	}
	m.imports[h] = cudaImport{memory, own}
	return nil
}

// openAgain gives f with a descriptor of its own.
func openAgain(f *os.File) (*os.File, error) {
	fd, err := duplicateFile(f)
	return os.NewFile(uintptr(fd), "headroom"), err
}
