//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// endSignal asks a process to end.
const endSignal = syscall.SIGTERM

// apart keeps signals of the terminal from a process: it gets them from the one
// that started it, once.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
