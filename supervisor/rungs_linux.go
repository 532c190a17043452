package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rungs tries each way here and now, and gives back what it got.
func Rungs() []Rung {
	return []Rung{
		{Name: "subreaper", Use: "what the command leaves behind becomes a child of onlyone's, and is killed until none is left",
			Needed: true, Err: trySubreaper()},
		cgroupRung(),
		{Name: "children", Use: "the kernel lists the children of a process",
			Err: tryChildrenFile(), Lack: "they are looked for in all of /proc, which is slower against fork bombs"},
		{Name: "real-time", Use: "a kill isn't late on a machine full of more important work",
			Err: tryRealtime(), Lack: "on a machine full of nice -20 work a kill may be late by up to 0.4s", Hint: "as root; or CAP_SYS_NICE; under systemd: AmbientCapabilities=CAP_SYS_NICE"},
		{Name: "memory", Use: "the guard isn't swapped out",
			Err: tryLockMemory(), Lack: "a guard that was swapped out may be late", Hint: "under systemd: LimitMEMLOCK=infinity"},
		{Name: "pid-namespace", Use: "--pid-namespace works",
			Err: tryPIDNamespace(), Hint: "as root"},
	}
}

// cgroupRung: root can kill everything in any case. Nothing else is needed, either, where no
// program can gain rights, as in a container with no-new-privileges (prctl(2)).
func cgroupRung() Rung {
	r := Rung{Name: "cgroup", Use: "all of the command is killed at once", Err: tryCgroup(), Hint: "under systemd: Delegate=pids"}
	if !capable(unix.CAP_KILL) && !noNewPrivs() {
		r.Lack = "a setuid-root program that the command starts can't be killed; then the lock isn't released"
	}
	return r
}

func noNewPrivs() bool {
	on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && on == 1
}

func tryCgroup() error {
	c, err := newCgroup(os.Getpid())
	if err != nil {
		return err
	}
	c.remove()
	if _, err := os.Stat(c.dir); err == nil {
		return fmt.Errorf("cannot remove %s", c.dir)
	}
	return nil
}

func trySubreaper() error {
	var was int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&was)), 0, 0, 0); err != nil {
		return fmt.Errorf("cannot ask for child subreapers: %w", err)
	}
	if err := becomeSubreaper(); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(was), 0, 0, 0)
}

func tryChildrenFile() error {
	_, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	return err
}

// tryRealtime asks as the guard does, on a thread that ends with it.
func tryRealtime() error {
	c := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not used again
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 1}
		err := unix.SchedSetAttr(0, &attr, 0)
		if err == nil {
			attr = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Nice: int32(niceness())}
			err = unix.SchedSetAttr(0, &attr, 0)
		}
		c <- err
	}()
	return <-c
}

// tryLockMemory asks under the condition that lockMemory has.
func tryLockMemory() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	if limit.Cur != unix.RLIM_INFINITY && !capable(unix.CAP_IPC_LOCK) {
		return fmt.Errorf("RLIMIT_MEMLOCK is %d KiB", limit.Cur/1024)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return err
	}
	return unix.Munlockall()
}

func tryPIDNamespace() error {
	if !capable(unix.CAP_SYS_ADMIN) {
		return errors.New("there is no CAP_SYS_ADMIN")
	}
	_, err := os.Stat("/proc/self/ns/pid")
	return err
}
