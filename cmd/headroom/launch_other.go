//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// endSignal ends a process: there is no way to ask it.
var endSignal = os.Kill

// apart does nothing where there are no groups of processes.
func apart(*exec.Cmd) {}
