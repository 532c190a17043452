package consultest

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the process if we die before it.
//
// In a group of its own: a server that is stopped in ours (Pause) would bring a SIGHUP on all of
// the group, up to the shell that runs the tests, when in it a command ends whose parent is in
// another group, as a guard is. The kernel does so to a group that has no parent in its session
// (setsid, cron, CI) and somebody who is stopped.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// awaitStop returns when each thread of a child that was sent SIGSTOP has stopped.
func awaitStop(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
