//go:build linux

package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// asPID1 starts "onlyone run FLAGS NAME -- COMMAND" as PID 1 of a PID namespace, as it is in
// a container. With leader it leads a session, as container engines have it; else its process
// group is one that can't be named in the namespace (getpgrp() is 0).
func (j *job) asPID1(leader bool, flags string, command ...string) *proc {
	j.t.Helper()
	args := append([]string{onlyone, "run"}, strings.Fields(flags)...)
	args = append(append(args, j.name, "--"), command...)
	if leader {
		args = append([]string{"setsid"}, args...)
	}
	return j.start(append(unshare(), args...)...)
}

func unshare() []string {
	return []string{"unshare", "--fork", "--kill-child=KILL", "--pid", "--mount-proc"}
}

func needPID1(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a PID namespace needs root")
	}
	u := unshare()
	if out, err := exec.Command(u[0], append(u[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no PID namespace can be made here: %v: %s", err, out)
	}
}

// pid1 is the pid, outside, of the onlyone that p has started as PID 1.
func (p *proc) pid1() int {
	p.j.t.Helper()
	var pid int
	p.j.await("onlyone is PID 1", func() bool {
		for _, c := range consultest.Children(p.cmd.Process.Pid) {
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c)); strings.TrimSpace(string(comm)) == "onlyone" {
				pid = c
			}
		}
		return pid != 0
	})
	return pid
}

// TestPID1Exit: PID 1 can't end by a signal, so it ends with 128 + n; all else is as ever.
func TestPID1Exit(t *testing.T) {
	t.Parallel()
	needPID1(t)
	for script, want := range map[string]int{
		"exit 0":         0,
		"exit 7":         7,
		"kill -TERM $$":  143,
		"kill -KILL $$":  137,
		"kill -SEGV $$":  139,
		"exec /no/such":  127,
		"sleep 300 & :":  0, // left behind: it is stopped before the release
		"test $$ != 1":   0, // the guard is between
		"onlyone verify": 0,
	} {
		for _, leader := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/leader=%v", script, leader), func(t *testing.T) {
				t.Parallel()
				j := newJob(t, shared(t, consultest.Version()))
				j.asPID1(leader, "", "env", "PATH="+filepath.Dir(onlyone)+":"+os.Getenv("PATH"), "sh", "-c", script).wait(want)
			})
		}
	}
}

// TestPID1Signals: those that an engine sends (docker stop, kubelet, docker kill -s) arrive,
// although PID 1 has no default actions.
func TestPID1Signals(t *testing.T) {
	t.Parallel()
	needPID1(t)
	for _, leader := range []bool{true, false} {
		for name, c := range map[string]struct {
			script string
			send   syscall.Signal
			want   int
		}{
			"TERM":         {"echo ready; exec sleep 300", unix.SIGTERM, 143},
			"TERM, caught": {"trap 'exit 5' TERM; echo ready; sleep 300 & wait", unix.SIGTERM, 5},
			"INT":          {"echo ready; exec sleep 300", unix.SIGINT, 143}, // --signal decides: TERM
			"USR1":         {"trap 'exit 6' USR1; echo ready; sleep 300 & wait", unix.SIGUSR1, 6},
			"QUIT":         {"trap 'exit 8' QUIT; echo ready; sleep 300 & wait", unix.SIGQUIT, 8},
		} {
			t.Run(fmt.Sprintf("%s/leader=%v", name, leader), func(t *testing.T) {
				t.Parallel()
				j := newJob(t, shared(t, consultest.Version()))
				p := j.asPID1(leader, "", "sh", "-c", c.script)
				j.await("the command is ready", func() bool { return strings.Contains(p.stderr(), "ready\n") })
				if err := syscall.Kill(p.pid1(), c.send); err != nil {
					t.Fatal(err)
				}
				p.wait(c.want)
			})
		}
	}
}

// TestForeignProc: where /proc shows another PID namespace, what the command leaves behind can't be
// found, and the numbers there are other processes' here. Nothing is started.
func TestForeignProc(t *testing.T) {
	t.Parallel()
	needPID1(t)
	j := newJob(t, shared(t, consultest.Version()))
	p := j.start("unshare", "--fork", "--kill-child=KILL", "--pid", onlyone, "run", j.name, "--", "echo", "started")
	p.wait(70)
	if says := p.stderr(); !strings.Contains(says, "/proc shows another PID namespace") || strings.Contains(says, "started") {
		t.Errorf("it says:\n%s", says)
	}
}

// TestPID1Waiting: a standby ends at once, too, when its container is stopped.
func TestPID1Waiting(t *testing.T) {
	t.Parallel()
	needPID1(t)
	j := newJob(t, shared(t, consultest.Version()))
	file, open := j.gate("open")
	holder := j.run("", j.child(consultest.ChildOptions{Tag: "a", Until: file})...)
	j.running(1)
	waiter := j.asPID1(true, "", "true")
	j.queued(1)
	if err := syscall.Kill(waiter.pid1(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waiter.wait(143)
	open()
	holder.wait(0)
}

// TestPID1Reaps: whatever is orphaned in the namespace becomes PID 1's child, also what the
// command didn't start (docker exec). No zombie stays.
func TestPID1Reaps(t *testing.T) {
	t.Parallel()
	needPID1(t)
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip("nsenter is missing (Debian's util-linux)")
	}
	j := newJob(t, shared(t, consultest.Version()))
	// Three orphans of the command: the guard adopts them.
	p := j.asPID1(true, "", "sh", "-c", "for i in 1 2 3; do (sh -c 'sleep 0.1; exit 3' &); done; echo ready; exec sleep 300")
	j.await("the command is ready", func() bool { return strings.Contains(p.stderr(), "ready\n") })
	pid := p.pid1()
	orphan(t, pid)
	j.await("only guard and command are left, and no zombie", func() bool {
		guards := consultest.Children(pid)
		return len(guards) == 1 && len(consultest.Children(guards[0])) == 1
	})
	if err := syscall.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait(143)
}

// orphan leaves PID 1 a process that was never the command's, as after docker exec.
func orphan(t *testing.T, pid1 int) {
	t.Helper()
	if out, err := exec.Command("nsenter", "-t", strconv.Itoa(pid1), "-p", "-m", "sh", "-c", "sh -c 'sleep 0.1; exit 3' >/dev/null 2>&1 &").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestPID1ReapsWhileItWaits: a standby has no guard, and probes of its container leave orphans for
// months. What comes after the guard is reaped, too.
func TestPID1ReapsWhileItWaits(t *testing.T) {
	t.Parallel()
	needPID1(t)
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip("nsenter is missing (Debian's util-linux)")
	}
	j := newJob(t, shared(t, consultest.Version()))
	file, open := j.gate("open")
	holder := j.run("", j.child(consultest.ChildOptions{Tag: "a", Until: file})...)
	j.running(1)
	waiter := j.asPID1(true, "", "sh", "-c", "echo ready; exec sleep 300")
	j.queued(1)
	pid := waiter.pid1()
	orphan(t, pid)
	time.Sleep(200 * time.Millisecond) // it is orphaned by now, and has most likely ended
	j.await("no zombie is left", func() bool { return len(consultest.Children(pid)) == 0 })
	open()
	holder.wait(0)
	j.await("the command is ready", func() bool { return strings.Contains(waiter.stderr(), "ready\n") })
	orphan(t, pid)
	j.await("only the guard is left", func() bool { return len(consultest.Children(pid)) == 1 })
	j.order("step-down", "--wait").wait(0)
	j.await("it waits again, without a guard", func() bool { return len(consultest.Children(pid)) == 0 })
	orphan(t, pid)
	time.Sleep(200 * time.Millisecond)
	j.await("no zombie is left", func() bool { return len(consultest.Children(pid)) == 0 })
	if err := syscall.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waiter.wait(143)
	j.run("", "true").wait(0) // the request goes with the next holder
}

// TestPID1Terminal: Ctrl-C at "docker run -it", and where the foreground group can't be named
// in the namespace ("unshare -pf" at a prompt).
func TestPID1Terminal(t *testing.T) {
	t.Parallel()
	needPID1(t)
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("script is missing (Debian's bsdutils)")
	}
	for _, leader := range []bool{true, false} {
		t.Run(fmt.Sprintf("leader=%v", leader), func(t *testing.T) {
			t.Parallel()
			j := newJob(t, shared(t, consultest.Version()))
			// script hands the line to $SHELL, or sh. One that stays (dash, not bash) gets the terminal's
			// SIGINT, too, and dies of it: 130, whatever the command ends with.
			line := append([]string{"exec"}, unshare()...)
			if leader {
				line = append(line, "setsid", "--ctty")
			}
			// The terminal tells the command, or onlyone does.
			line = append(line, onlyone, "run", j.name, "--", "sh", "-c",
				`"trap 'echo INT; exit 9' INT; trap 'echo TERM; exit 9' TERM; echo ready; sleep 300 & wait; echo waited $?"`)
			in, keys, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer keys.Close()
			p := j.startWith(func(c *exec.Cmd) { c.Stdin = in }, "script", "-q", "-e", "-c", strings.Join(line, " "), filepath.Join(j.dir, "typescript"))
			in.Close()
			j.await("the command is ready", func() bool { return strings.Contains(p.stderr(), "ready\r\n") })
			if _, err := keys.WriteString("\x03"); err != nil {
				t.Fatal(err)
			}
			p.wait(9)
		})
	}
}

// TestPID1KilledGuard: PID 1 kills what the guard should have, also what has daemonized, and
// releases: the next host starts at once.
func TestPID1KilledGuard(t *testing.T) {
	t.Parallel()
	needPID1(t)
	j := newJob(t, shared(t, consultest.Version()))
	p := j.asPID1(true, "", "sh", "-c", "trap '' TERM; (setsid sleep 300 &); echo ready; sleep 300; exit 1")
	j.await("the command is ready", func() bool { return strings.Contains(p.stderr(), "ready\n") })
	next := j.run("", "true")
	j.queued(1)
	guard := consultest.Children(p.pid1())
	if len(guard) != 1 {
		t.Fatalf("PID 1 has the children %v, want one, the guard", guard)
	}
	if err := syscall.Kill(guard[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.wait(70)
	next.wait(0)
}

// TestPID1Killed: SIGKILL to PID 1 (docker kill, a grace period that is too short) ends the
// whole namespace, so nothing lives on. Nobody is left to release: the session's end frees
// the lock.
func TestPID1Killed(t *testing.T) {
	t.Parallel()
	needPID1(t)
	if testing.Short() {
		t.Skip("waits for the end of a session (20 s); -short leaves that out")
	}
	j := newJob(t, shared(t, consultest.Version()))
	j.slowLeave = true
	p := j.asPID1(true, "", "sh", "-c", "trap '' TERM; (setsid sleep 300 &); echo ready; sleep 300; exit 1")
	j.await("the command is ready", func() bool { return strings.Contains(p.stderr(), "ready\n") })
	removeCgroup := j.cgroupOfPID1(p.pid1())
	if err := syscall.Kill(p.pid1(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select { // not wait: unshare can't end by the same signal everywhere
	case <-p.done:
	case <-time.After(patience):
		t.Fatal("the namespace doesn't end")
	}
	for _, left := range consultest.Marked(p.mark) {
		t.Errorf("this lives on: %s", left)
	}
	removeCgroup()
}

// cgroupOfPID1 returns what removes the cgroup of the command of an onlyone that is PID 1, when
// that has been killed. An engine removes the cgroups of a container; here that is the test's
// affair, unless another PID 1 with this parent was faster.
func (j *job) cgroupOfPID1(pid int) (remove func()) {
	j.t.Helper()
	command := consultest.Children(consultest.Children(pid)[0])[0]
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", command))
	if err != nil {
		j.t.Fatal(err)
	}
	_, path, _ := strings.Cut("\n"+string(own), "\n0::")
	base := filepath.Base(strings.TrimSpace(path))
	return func() {
		if cgroup == "" || !strings.HasPrefix(base, "onlyone-1-") {
			return
		}
		if !soon(patience, func() bool {
			err := os.Remove(filepath.Join(cgroup, base))
			return err == nil || errors.Is(err, fs.ErrNotExist)
		}) {
			j.t.Errorf("the cgroup %s isn't empty", base)
		}
	}
}
