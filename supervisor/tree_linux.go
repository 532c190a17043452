package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// descendants finds and kills what descends from this process, which must be a
// child subreaper. It is used by the guard (after cgroup.kill, where there is a cgroup)
// and, when that failed, by the keeper.
//
// The direct-children loop: SIGKILL to each un-reaped direct child, reap, again until
// wait4 says ECHILD. Killing a parent makes its children ours, so each round peels one
// layer; only un-reaped direct children are signalled, so no pid can have been reused;
// and for a subreaper ECHILD proves that no descendant is left. Not by process group or
// session (5-6 of 13 hostile processes survive), and never freeze-first (a vfork parent
// never stops).
type descendants struct {
	except map[int]bool // children that were there before us (the keeper was exec'ed over a shell)
	more   bool         // the last reapPass has left some of the dead
}

// started: a subreaper needs no list of what it has started.
func (*descendants) started(int) {}

// killPass sends SIGKILL to each direct child.
func (d *descendants) killPass() {
	for _, pid := range childrenOf(os.Getpid()) {
		if !d.except[pid] {
			// EPERM (a setuid child of an unprivileged onlyone) shows as "never empty".
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// reapLimit bounds one pass: a command can fork as fast as we get to reap, and then a pass would
// never end, nor a deadline be looked at. It is small beside enforceAfter.
const reapLimit = 20 * time.Millisecond

// reapPass collects the dead without waiting, for reapLimit at most, and calls ended for each. It
// reports whether no child is left.
func (d *descendants) reapPass(ended func(pid int, status syscall.WaitStatus)) (empty bool) {
	d.more = false
	for start := bootNow(); ; {
		if d.more = bootNow()-start > reapLimit; d.more {
			return false
		}
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|unix.WALL, nil)
		switch {
		case err == syscall.EINTR:
		case errors.Is(err, syscall.ECHILD):
			return true
		case err != nil:
			return false
		case pid == 0:
			return len(d.except) > 0 && d.onlyExcepted()
		default:
			delete(d.except, pid)
			ended(pid, status)
		}
	}
}

// onlyExcepted reports whether the children, of which there are some, are all excepted. Without a
// list that isn't known.
func (d *descendants) onlyExcepted() bool {
	children := childrenOf(os.Getpid())
	return len(children) > 0 && !slices.ContainsFunc(children, func(pid int) bool { return !d.except[pid] })
}

// termAll sends SIGTERM and SIGCONT to every descendant but one, best effort: each
// through a pidfd whose parent is looked at again after it was opened.
func (d *descendants) termAll(but int) {
	d.walk(func(pid int) {
		if pid == but {
			return
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		if !d.ours(pid) {
			return
		}
		_ = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
	})
}

// ours reports whether pid descends from us now.
func (d *descendants) ours(pid int) bool {
	self := os.Getpid()
	for range 64 { // deeper trees are cut off: TERM is best effort
		parent := parentOf(pid)
		if parent == self {
			return !d.except[pid]
		}
		if parent <= 1 {
			return false
		}
		pid = parent
	}
	return false
}

// walk calls visit for each descendant, parents first. Number and time are bounded, so that a
// fork bomb can't hold us here.
func (d *descendants) walk(visit func(pid int)) {
	const most, limit = 4096, 100 * time.Millisecond
	queue := childrenOf(os.Getpid())
	start := bootNow()
	for i := 0; i < len(queue) && i < most && bootNow()-start < limit; i++ {
		if d.except[queue[i]] {
			continue
		}
		visit(queue[i])
		queue = append(queue, childrenOf(queue[i])...)
	}
}

// names lists living descendants as "NAME (pid N)", at most mostNames, and the dead that a
// debugger outside of the tree keeps from being reaped.
func (d *descendants) names() []string {
	var names []string
	more := 0
	d.walk(func(pid int) {
		comm, state, _, ok := procStat(pid)
		if !ok {
			return
		}
		held := ""
		if state == 'Z' {
			tracer := tracerOf(pid)
			if tracer == 0 {
				return
			}
			held = fmt.Sprintf(", dead but held by its debugger, pid %d", tracer)
		}
		if len(names) == mostNames {
			more++
			return
		}
		names = append(names, fmt.Sprintf("%s (pid %d%s)", comm, pid, held))
	})
	if more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return names
}

// childrenOf lists the direct children of pid, from /proc/PID/task/*/children
// (CONFIG_PROC_CHILDREN) or, where that file is missing, by parent over all of /proc.
func childrenOf(pid int) []int {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	var pids []int
	found := false
	for _, t := range tasks {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue
		}
		found = true
		for f := range bytes.FieldsSeq(list) {
			if n, err := strconv.Atoi(string(f)); err == nil {
				pids = append(pids, n)
			}
		}
	}
	if found {
		return pids
	}
	return childrenByScan(pid)
}

func childrenByScan(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parentOf(pid) == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

func parentOf(pid int) int {
	_, _, ppid, _ := procStat(pid)
	return ppid
}

// tracerOf is the process that debugs pid; 0 if none does.
func tracerOf(pid int) (tracer int) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	if _, rest, ok := strings.Cut(string(b), "\nTracerPid:"); ok {
		line, _, _ := strings.Cut(rest, "\n")
		tracer, _ = strconv.Atoi(strings.TrimSpace(line))
	}
	return tracer
}

// procStat reads name, state and parent from /proc/PID/stat.
func procStat(pid int) (comm string, state byte, ppid int, ok bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, 0, false
	}
	s := string(b)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')') // a name may hold both
	if open < 0 || end < open {
		return "", 0, 0, false
	}
	f := strings.Fields(s[end+1:])
	if len(f) < 2 {
		return "", 0, 0, false
	}
	ppid, err = strconv.Atoi(f[1])
	return s[open+1 : end], f[0][0], ppid, err == nil
}

// becomeSubreaper has what is orphaned below this process become its child, and sees to it that
// such a child can be found: a pid out of another namespace's /proc is somebody else's here.
func becomeSubreaper() error {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return fmt.Errorf("cannot find processes without /proc: %w", err)
	}
	if self != strconv.Itoa(os.Getpid()) {
		return errors.New("cannot find processes: /proc shows another PID namespace (unshare has --mount-proc)")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become a child subreaper: %w", err)
	}
	return nil
}

// setParentDeathSignal has the kernel send SIGKILL to this process when the thread that
// forked it ends.
func setParentDeathSignal() error {
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}
