package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/internal/library"
	"github.com/headroom-go/headroom/internal/size"
)

// cudaFolders is where CUDA's libraries may be: where the user tells the loader
// to look, in the virtual environment, in conda's, in the home folder, and where the
// python3 of the path has its packages.
func cudaFolders() []string {
	var roots []string
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := os.Getenv(name); dir != "" {
			roots = append(roots, dir)
		}
	}
	if python, err := exec.LookPath("python3"); err == nil {
		roots = append(roots, filepath.Dir(filepath.Dir(python)))
	}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	return append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), cuda.Folders(roots...)...)
}

// openDevice opens a device by its name for one of so many that compute here at a time.
func openDevice(name string, users int) (device.Device, error) {
	dev, err := device.OpenShare(name, users, cudaFolders()...)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, advise(err))
	}
	return dev, nil
}

// examineCUDA says which GPUs and libraries there are, and how to get what is
// missing.
func examineCUDA() []finding {
	folders := cudaFolders()
	driver, err := cuda.OpenDriver(folders)
	if err != nil {
		return []finding{{"device", "cuda", false, err.Error() + advise(err)}}
	}
	found := []finding{describeDriver(driver)}
	n, err := driver.Devices()
	if err != nil || n == 0 {
		return append(found, finding{"device", "cuda", false, fmt.Sprintf("no GPU is visible (%v)", err)})
	}
	for i := range n {
		found = append(found, examineGPU(i, folders))
	}
	return append(found, examineLibraries(driver, folders)...)
}

// advise adds what to do where the driver's library is missing.
func advise(err error) string {
	if errors.Is(err, library.ErrUnavailable) {
		return ". Install the NVIDIA driver (on Debian: apt-get install nvidia-driver); in a container, start it with --gpus all"
	}
	return ""
}

func describeDriver(d *cuda.Driver) finding {
	v, err := d.Version()
	f := finding{"library", d.Name, err == nil, fmt.Sprintf("knows CUDA %d.%d", v/1000, v%1000/10)}
	if err != nil {
		f.Detail = err.Error()
	} else if missing := d.Missing(); len(missing) > 0 {
		f.Detail += fmt.Sprintf("; a newer driver has %d calls more that are used: %s …", len(missing), missing[0])
	}
	return f
}

// examineGPU opens a GPU for a moment.
func examineGPU(i int, folders []string) finding {
	name := fmt.Sprintf("cuda:%d", i)
	dev, err := device.OpenCUDA(device.CUDAOptions{Number: i, Folders: folders})
	if err != nil {
		return finding{"device", name, false, err.Error()}
	}
	info := dev.Info()
	f := finding{"device", name, true, fmt.Sprintf("%s, %s free, of which the program's own context and workspace have taken %s already",
		info.Model, size.Format(info.Capacity), size.Format(info.Overhead))}
	if !info.Virtual {
		f.Detail += "; no virtual memory: blocks can fragment"
	}
	if err := dev.Close(); err != nil {
		return finding{"device", name, false, err.Error()}
	}
	return f
}

// examineLibraries looks for what makes GPUs faster, and for NVML.
func examineLibraries(driver *cuda.Driver, folders []string) []finding {
	found := []finding{{Part: "library", Name: "libcublasLt"}, {Part: "library", Name: "libcudnn"}}
	var context *cuda.Context
	gpu, err := driver.Device(0)
	if err == nil {
		context, err = driver.Retain(gpu)
	}
	if err != nil {
		found[0].Detail, found[1].Detail = err.Error(), err.Error()
		return append(found, examineNVML(folders))
	}
	defer context.Release()
	if lt, err := cuda.OpenBLAS(context, folders); err != nil {
		found[0].Detail = fmt.Sprintf("%v. Products of matrices are slower without it: pip install nvidia-cublas", err)
	} else {
		defer lt.Close()
		found[0].Found, found[0].Detail = true, fmt.Sprintf("version %d, %s", lt.Version(), lt.Place())
	}
	if dnn, err := cuda.OpenDNN(context, folders); err != nil {
		found[1].Detail = fmt.Sprintf("%v. Convolutions and attention are slower without it: pip install nvidia-cudnn-cu13", err)
	} else {
		defer dnn.Close()
		found[1].Found, found[1].Detail = true, fmt.Sprintf("version %d, %s%s", dnn.Version(), dnn.Place(), examineAttention(dnn))
	}
	return append(found, examineNVML(folders))
}

// examineAttention says why attention is not cuDNN's, where it isn't.
func examineAttention(dnn *cuda.DNN) string {
	if dnn.Version() < device.OldestDNNAttention {
		return fmt.Sprintf("; attention is faster with version %d or newer: pip install -U nvidia-cudnn-cu13", device.OldestDNNAttention)
	}
	heads := [3]int{2 * 128 * 64, 128 * 64, 64}
	plan, err := dnn.PlanAttention(&cuda.Attention{Batch: 1, Heads: 2, T: 128, S: 128, D: 64, Causal: true, Scale: 1, Type: cuda.DNNBFloat16,
		Q: heads, K: heads, V: heads, O: heads}, 32<<20)
	if err != nil {
		return fmt.Sprintf("; attention is slower without it: %v", err)
	}
	_ = plan.Close() // it was never run
	return ""
}

func examineNVML(folders []string) finding {
	f := finding{Part: "library", Name: "libnvidia-ml.so.1"}
	nvml, err := cuda.OpenNVML(folders)
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	defer nvml.Close()
	version, err := nvml.DriverVersion()
	f.Found, f.Detail = err == nil, "driver "+version
	if err != nil {
		f.Detail = err.Error()
	}
	return f
}
