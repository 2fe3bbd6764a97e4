package cuda

import (
	"os"
	"path/filepath"
	"sort"
)

// candidate is a library to try.
type candidate struct{ name, path string }

// candidates lists what to try for a library with the names, the best first:
// each name as the loader finds it, then in the folders, in their order.
func candidates(names, folders []string) []candidate {
	var list []candidate
	for _, n := range names {
		list = append(list, candidate{n, n})
	}
	for _, dir := range expand(folders) {
		for _, n := range names {
			path := filepath.Join(dir, n)
			if _, err := os.Stat(path); err == nil {
				list = append(list, candidate{n, path})
			}
		}
	}
	return list
}

// expand replaces the patterns among folders by the folders that exist, those
// with the greatest names, which have the newest versions, first.
func expand(folders []string) []string {
	var dirs []string
	for _, pattern := range folders {
		found, _ := filepath.Glob(pattern)
		sort.Sort(sort.Reverse(sort.StringSlice(found)))
		dirs = append(dirs, found...)
	}
	return dirs
}

// Folders lists patterns of the folders where CUDA's libraries usually are
// beside those of the loader, for the functions that open libraries: those of
// pip's packages in the site-packages folders below the roots (virtual
// environments, conda, home), of Python as the system has it, of conda, and of
// CUDA's own installation.
func Folders(roots ...string) []string {
	var dirs []string
	for _, root := range append(roots, "/usr", "/usr/local") {
		for _, python := range []string{"python3*/site-packages", "python3*/dist-packages", "python3/dist-packages"} {
			dirs = append(dirs, filepath.Join(root, "lib", python, "nvidia/*/lib"))
		}
	}
	for _, root := range roots {
		dirs = append(dirs, filepath.Join(root, "lib"))
	}
	dirs = append(dirs, "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib")
	return append(append(dirs, systemFolders()...), "/usr/lib/wsl/lib", "/run/opengl-driver/lib")
}

// systemFolders are where the loader looks by itself, after all that a user
// tells it.
func systemFolders() []string {
	return []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"}
}
