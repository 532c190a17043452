//go:build freebsd && !386 && !arm

// (With 32 bits procctl's id takes two registers.)

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// descendants on FreeBSD: a reaper (procctl(2)) is what a child subreaper is on Linux, and
// the kernel itself signals all that descends from it, nested reapers and theirs included.
//
// What FreeBSD doesn't give: a command name of the guard's own (killall onlyone hits keeper
// and guard), a cgroup, real-time priority and locked memory (not asked for).
type descendants struct {
	except map[int]bool // not needed: what was there before the reaper isn't the reaper's
	more   bool         // reapPass leaves none of the dead
}

func (*descendants) started(int) {}

// The commands and structures of <sys/procctl.h>.
const (
	procReapAcquire  = 2
	procReapStatus   = 4
	procReapGetPids  = 5
	procReapKill     = 6
	procPdeathsigCtl = 11
)

type reaperStatus struct {
	flags, children, descendants uint32
	reaper, pid                  int32
	_                            [15]uint32
}

type reaperPidInfo struct {
	pid, subtree int32
	flags        uint32
	_            [15]uint32
}

type reaperPids struct {
	count uint32
	_     [15]uint32
	pids  *reaperPidInfo
}

type reaperKill struct {
	sig     int32
	flags   uint32 // 0: all descendants
	subtree int32
	killed  uint32
	failed  int32
	_       [15]uint32
}

func procctl(command uintptr, data unsafe.Pointer) error {
	const pPid = 0 // P_PID of <sys/wait.h>
	_, _, errno := unix.Syscall6(unix.SYS_PROCCTL, pPid, uintptr(os.Getpid()), command, uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (d *descendants) killPass() {
	// ESRCH: nobody is left. EPERM shows as "never empty".
	_ = procctl(procReapKill, unsafe.Pointer(&reaperKill{sig: int32(unix.SIGKILL)}))
}

// reapPass asks the reaper, not wait4, whether nothing is left: a process that was made by
// pdfork(2) isn't reported to wait4(-1).
func (d *descendants) reapPass(ended func(pid int, status syscall.WaitStatus)) (empty bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case errors.Is(err, syscall.ECHILD), err == nil && pid == 0:
			var s reaperStatus
			return procctl(procReapStatus, unsafe.Pointer(&s)) == nil && s.descendants == 0
		case err != nil:
			return false
		default:
			ended(pid, status)
		}
	}
}

// termAll is best effort: between the list and the signal a pid may become another's.
func (d *descendants) termAll(but int) {
	for _, pid := range d.pids() {
		if pid != but {
			_ = unix.Kill(pid, unix.SIGTERM)
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
}

// pids lists our descendants, at most 4096, without those of nested reapers.
func (d *descendants) pids() []int {
	list := make([]reaperPidInfo, 4096)
	err := procctl(procReapGetPids, unsafe.Pointer(&reaperPids{count: uint32(len(list)), pids: &list[0]}))
	runtime.KeepAlive(list)
	if err != nil {
		return nil
	}
	var pids []int
	for _, p := range list {
		if p.pid > 0 {
			pids = append(pids, int(p.pid))
		}
	}
	return pids
}

func (d *descendants) names() []string {
	var names []string
	pids := d.pids()
	for i, pid := range pids {
		if i == mostNames {
			return append(names, fmt.Sprintf("and %d more", len(pids)-i))
		}
		names = append(names, fmt.Sprintf("pid %d", pid))
	}
	return names
}

// childrenOf: see except.
func childrenOf(int) []int { return nil }

func becomeSubreaper() error {
	if err := procctl(procReapAcquire, nil); err != nil && err != unix.EBUSY { // it is one already
		return fmt.Errorf("cannot become a reaper: %w", err)
	}
	return nil
}

// setParentDeathSignal has the kernel send SIGKILL to this process when its parent ends.
func setParentDeathSignal() error {
	sig := int32(unix.SIGKILL)
	return procctl(procPdeathsigCtl, unsafe.Pointer(&sig))
}

// PlatformLimit says what this system can't promise; "" if the promise holds.
func PlatformLimit() string {
	return "on FreeBSD onlyone is built, but no test has run there: don't rely on it yet"
}

// ownExecutable: a binary that is replaced while it runs is found in its new form.
func ownExecutable() (string, error) { return os.Executable() }

// commandAttr puts the command into the keeper's process group, so that a terminal treats
// both as one, and has it die with the guard.
func commandAttr(pgid int, sameGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: !sameGroup, Pgid: pgid}
}
