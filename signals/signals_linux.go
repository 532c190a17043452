package signals

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// received lists what Receive takes at once.
func received() []syscall.Signal {
	return []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGWINCH, unix.SIGIO, unix.SIGPWR}
}

// realtime lists what it takes a moment later.
func realtime() (s []syscall.Signal) {
	// SIGRTMIN+1 to SIGRTMAX: 32 and 33 are the C library's, 34 is musl's, and Go's os/signal
	// can't receive 34: it ends us, and the guard stops the command and releases.
	for n := syscall.Signal(35); n <= 64; n++ {
		s = append(s, n)
	}
	return s
}

// Die ends this process by s, so that its parent sees a death by that signal (a shell
// shows 128 + s, systemd a clean stop for TERM). It returns if that can't be: as PID 1
// signals with their default action are ignored. No core file is written: the command's
// own core, if any, is the one of interest.
func Die(s syscall.Signal) {
	if os.Getpid() == 1 {
		return
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	// os/signal.Reset isn't enough: for SEGV, QUIT and others Go's own handler stays and
	// ends the process with status 2. So the kernel is asked directly (struct
	// kernel_sigaction; all zero is SIG_DFL).
	var act [32]byte
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), s)
	if s != unix.SIGKILL && s != unix.SIGSTOP {
		// Delivery to another thread takes a moment.
		_, _ = unix.Poll(nil, 1000)
	}
}
