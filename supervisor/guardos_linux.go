package supervisor

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// What the guard asks of Linux and of no other system.

// PlatformLimit says what this system can't promise; "" if the promise holds.
func PlatformLimit() string { return "" }

// ownExecutable is the file that runs, even after it was replaced by a newer one.
func ownExecutable() (string, error) { return "/proc/self/exe", nil }

// commandAttr puts the command into the keeper's process group, so that a terminal treats
// both as one, and has it die with the guard.
func commandAttr(pgid int, sameGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: !sameGroup, Pgid: pgid}
}

// guardAttr gives the guard a process group of its own, or a PID namespace.
func guardAttr(pidns bool) (*syscall.SysProcAttr, error) {
	if pidns {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}, nil
	}
	return &syscall.SysProcAttr{Setpgid: true}, nil
}

// realtime asks for SCHED_FIFO 1 for this thread, or gives it back. It is for the wait
// before a kill and for the kill itself: without it a machine full of nice -20 work delays
// that by up to 0.4 s. Never for looking at processes or reaping them: there the kernel may
// wait for a dying task by spinning (shrink_dcache_parent), and a real-time spinner on its
// processor lets it finish only when real-time throttling sets in, a second later. Only
// after the fork: the reset that keeps it from the command would also reset its niceness.
func (t *procTree) realtime(on bool) {
	if on == t.isRealtime || t.launch != nil || t.pid == 0 && on {
		return
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 1}
	if on {
		t.nice = niceness()
	} else {
		attr = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Nice: int32(t.nice)}
	}
	t.isRealtime = unix.SchedSetAttr(0, &attr, 0) == nil && on
}

// niceness of this thread, -20 to 19.
func niceness() int {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - n // the system call returns 1 to 40
}

// lockMemory keeps the guard's pages in memory, where that is allowed without a limit: page
// faults of a guard that was swapped out are late kills. MCL_ONFAULT: without it the whole
// address space of a Go program would be made resident (80 MB). Under a limit
// (RLIMIT_MEMLOCK) it isn't tried: a later mapping would fail, and with it the guard.
func lockMemory() {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return
	}
	if limit.Cur == unix.RLIM_INFINITY || capable(unix.CAP_IPC_LOCK) {
		_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	}
}

// capable reports whether this process has the capability (one of the first 32).
func capable(c uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<c) != 0
}

// mountProc gives a guard in its own PID namespace a /proc of that namespace.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot mount /proc for the PID namespace: %w", err)
	}
	return nil
}
