//go:build !unix

package atomicfile

// syncDir does nothing: the system has no call to flush a folder.
func syncDir(string) error { return nil }
