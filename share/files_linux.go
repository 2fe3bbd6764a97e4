package share

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// filesPass says whether files can be passed over a socket.
const filesPass = true

// controlBytes holds the control message of one call: 253 files of 4 bytes
// each, and its header.
const controlBytes = 1032

// rights is the control message that passes the files.
func rights(files []*os.File) []byte {
	if len(files) == 0 {
		return nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return syscall.UnixRights(fds...)
}

// takeFiles gives the files of control messages, also when it returns an error.
func takeFiles(control []byte, flags int) (files []*os.File, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	for i := range messages {
		fds, bad := syscall.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "lent"))
		}
		if !errors.Is(bad, syscall.EINVAL) { // of another type
			err = errors.Join(err, bad)
		}
	}
	if flags&syscall.MSG_CTRUNC != 0 {
		err = errors.Join(err, fmt.Errorf("the system passed only %d files of a message: is there room for more open files (ulimit -n)?", len(files)))
	}
	return files, err
}
