package supervisor

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unlistedEnv makes this binary, which has a child before it becomes a keeper and one of a command,
// look for what is left where it can open nothing (ENFILE, an unmounted /proc).
const unlistedEnv = "ONLYONE_TEST_UNLISTED"

func unlistedMain() int {
	child := func() int {
		pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2},
			Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}})
		if err != nil {
			os.Exit(3)
		}
		return pid
	}
	before, ours := child(), child()
	defer func() { _ = unix.Kill(before, unix.SIGKILL); _ = unix.Kill(ours, unix.SIGKILL) }()
	d := descendants{except: map[int]bool{before: true}}
	none := func(int, syscall.WaitStatus) {}
	if d.reapPass(none) {
		return 4
	}
	var was unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &was)
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max})
	empty := d.reapPass(none)
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	if empty {
		return 5
	}
	d.killPass()
	for !d.reapPass(none) { // and with all to be seen, what was there before doesn't count
	}
	return 0
}

// stormEnv makes this binary a parent whose children die as fast as it reaps them.
const stormEnv = "ONLYONE_TEST_STORM"

func stormMain() int {
	var d descendants
	reaped := 0
	die := func() {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		if err != nil {
			os.Exit(3)
		}
		_ = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	die()
	start := time.Now()
	if d.reapPass(func(int, syscall.WaitStatus) { reaped++; die() }) || !d.more {
		return 4
	}
	if took := time.Since(start); took > margin {
		return 5
	}
	if d.reapPass(func(int, syscall.WaitStatus) {}); d.more || reaped == 0 {
		return 6
	}
	return 0
}

// TestReapingIsBounded: a command that forks as fast as the guard gets to reap (a storm of daemons on
// a busy machine) doesn't keep it from its deadlines.
func TestReapingIsBounded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), stormEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// threadsEnv makes this binary use threads where its user may have no more of them.
const threadsEnv = "ONLYONE_TEST_THREADS"

func threadsMain() int {
	reserveThreads()
	if os.Getuid() == 0 { // the limit isn't root's
		if err := syscall.Setuid(65534); err != nil {
			return 3
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{}); err != nil {
		return 4
	}
	if pid, err := syscall.ForkExec("/bin/true", nil, nil); err == nil {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		return 5 // there is no limit here
	}
	var wg sync.WaitGroup
	for range reservedThreads - mostProcs { // each blocks one
		wg.Go(func() { _, _ = unix.Poll(nil, 300) })
	}
	runtime.GC()
	wg.Wait()
	return 0
}

// TestReservedThreads: Go's runtime ends a process that can't have one more thread. A command that
// fills its limit of processes (ulimit -u, TasksMax=) would so end the guard that is about to kill it,
// and then the keeper, and live on.
func TestReservedThreads(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), threadsEnv+"=1")
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() == 5 {
		t.Skip("RLIMIT_NPROC limits nothing here")
	} else if err != nil {
		t.Errorf("%v\n%.200s", err, out)
	}
}

// TestUnlistedChildren: that the children can't be listed is no proof that only those are left that
// were there before (a shell's job beside "exec onlyone"): the lock would be released beside them.
func TestUnlistedChildren(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), unlistedEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v (5: it says that nothing is left)\n%s", err, out)
	}
}
