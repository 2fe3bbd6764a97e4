package cuda

import "path/filepath"

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
