package consultest

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the process if we die before it.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// awaitStop returns when each thread of a child that was sent SIGSTOP has stopped.
func awaitStop(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
