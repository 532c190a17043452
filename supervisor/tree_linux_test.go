package supervisor

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

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

// TestUnlistedChildren: that the children can't be listed is no proof that only those are left that
// were there before (a shell's job beside "exec onlyone"): the lock would be released beside them.
func TestUnlistedChildren(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), unlistedEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v (5: it says that nothing is left)\n%s", err, out)
	}
}
