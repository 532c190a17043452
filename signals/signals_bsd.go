//go:build darwin || freebsd

package signals

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// received lists what Receive takes. Go's runtime knows no real-time signals here: one ends
// us, and the guard stops the command and releases.
func received() []syscall.Signal {
	return []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGWINCH, unix.SIGIO}
}

func realtime() []syscall.Signal { return nil }

// Die ends this process by s, if s is one of the signals that Go's runtime ends a process
// by. Else it returns: Go's own handler stays, and drops the others (USR1, ALRM) or makes a
// dump and status 2 of them (QUIT, ABRT, faults).
func Die(s syscall.Signal) {
	switch s {
	case unix.SIGKILL, unix.SIGTERM, unix.SIGINT, unix.SIGHUP:
	default:
		return
	}
	if os.Getpid() == 1 {
		return
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	signal.Reset(s)
	_ = unix.Kill(os.Getpid(), s)
	_, _ = unix.Poll(nil, 1000) // delivery to another thread takes a moment
}
