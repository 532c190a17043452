//go:build linux

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// with starts "onlyone run FLAGS EXTRA NAME -- COMMAND", where extra are whole arguments.
func (j *job) with(flags string, extra []string, command ...string) *proc {
	j.t.Helper()
	args := append(append([]string{onlyone, "run"}, strings.Fields(flags)...), extra...)
	return j.start(append(append(args, j.name, "--"), command...)...)
}

// After a holder that didn't release, the fence command is asked before anything is started.
// If it says no, nothing is, and the lock goes back. The holder's own
// on-loss command runs when its command is dead.
func TestFenceCmd(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		lost := filepath.Join(j.dir, "lost")
		a := j.with(shortDials+" --host web-1", []string{"--on-loss", `echo "$ONLYONE_HOOK: $ONLYONE_LOST" >` + lost + `; kill -0 $(cat pid) 2>/dev/null && echo alive >>` + lost},
			append([]string{"sh", "-c", `echo $$ >pid; exec "$@"`, "sh"}, j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true})...)...)
		first := j.running(1)
		session := j.s.Key(t, j.lockKey()).Session
		if _, err := j.s.Client().Session().Destroy(session, nil); err != nil {
			t.Fatal(err)
		}
		a.wait(79)
		if b, err := os.ReadFile(lost); err != nil || string(b) != "loss: the session was ended (destroyed, expired, or its node was removed)\n" {
			t.Errorf("on-loss wrote %q, %v", b, err)
		}

		fenced := filepath.Join(j.dir, "fenced")
		fence := []string{"--on-acquire", "echo acquired", "--fence-cmd",
			`echo "$ONLYONE_HOOK $ONLYONE_OLD_HOST $ONLYONE_OLD_PID $ONLYONE_OLD_TOKEN $ONLYONE_OLD_SESSION $ONLYONE_OLD_SINCE" >>` + fenced + `; exit $(cat answer)`}
		answer := func(code string) {
			if err := os.WriteFile(filepath.Join(j.dir, "answer"), []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		answer("4")
		b := j.with(shortDials+" --host web-2", fence, "echo", "ran")
		b.wait(80)
		if s := b.stderr(); strings.Contains(s, "ran\n") || strings.Contains(s, "acquired") ||
			!strings.Contains(s, "the last holder did not release, and could not be fenced: exit 4; nothing was started") {
			t.Errorf("it says:\n%s", s)
		}
		if kv := j.s.Key(t, j.lockKey()); kv.Session != "" {
			t.Error("the lock wasn't released")
		}
		f := strings.Fields(strings.TrimSuffix(readFile(t, fenced), "\n"))
		if len(f) != 6 || f[0] != "fence" || f[1] != "web-1" || number(t, f[2]) != a.cmd.Process.Pid || uint64(number(t, f[3])) != first.Token || f[4] != session {
			t.Errorf("the fence command is told %q", f)
		}
		if _, err := time.Parse(time.RFC3339, f[len(f)-1]); err != nil {
			t.Error(err)
		}

		// It is still to be fenced: who comes next is told the same.
		answer("0")
		c := j.with(shortDials+" --host web-3", fence, "echo", "ran")
		c.wait(0)
		if all := strings.Split(readFile(t, fenced), "\n"); len(all) != 3 || all[0] != all[1] {
			t.Errorf("the fence commands were told %q, want the same twice", all)
		}
		if s := c.stderr(); !strings.HasSuffix(s, "acquired\nran\n") {
			t.Errorf("it says:\n%s", s)
		}
		answer("4") // fenced, run and released: nobody is to be fenced any more
		j.with(shortDials, fence, "true").wait(0)
	})
}

// A hook that takes too long is stopped with all that it started, before anything goes on; a
// fence command that does has not fenced.
func TestFenceCmdThatHangs(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	a := j.run(shortDials, j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	if _, err := j.s.Client().Session().Destroy(j.s.Key(t, j.lockKey()).Session, nil); err != nil {
		t.Fatal(err)
	}
	a.wait(79)
	b := j.with(shortDials+" --hook-timeout 300ms", []string{"--fence-cmd", "setsid sleep 1000 & sleep 1001"}, "echo", "ran")
	b.wait(80) // wait looks for what is left
	if s := b.stderr(); strings.Contains(s, "ran\n") || !strings.Contains(s, "could not be fenced: it took longer than 300ms") {
		t.Errorf("it says:\n%s", s)
	}
}

// Who is killed while it fences has fenced nobody: the next one is told of the same holder.
func TestKilledWhileFencing(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	a := j.run(shortDials+" --host web-1", j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	if _, err := j.s.Client().Session().Destroy(j.s.Key(t, j.lockKey()).Session, nil); err != nil {
		t.Fatal(err)
	}
	a.wait(79)
	fenced := filepath.Join(j.dir, "fenced")
	b := j.with(shortDials+" --host web-2", []string{"--fence-cmd", "echo $ONLYONE_OLD_HOST >>" + fenced + "; exec sleep 1000"}, "echo", "ran")
	// The shell makes the file before it writes the line.
	j.await("it fences", func() bool { b, _ := os.ReadFile(fenced); return strings.HasSuffix(string(b), "\n") })
	b.kill()
	<-b.done
	c := j.with(shortDials+" --host web-3", []string{"--fence-cmd", "echo $ONLYONE_OLD_HOST >>" + fenced}, "echo", "ran")
	c.wait(0)
	if s := readFile(t, fenced); s != "web-1\nweb-1\n" {
		t.Errorf("the fence commands were told of %q", s)
	}
	if strings.Contains(b.stderr(), "ran\n") {
		t.Errorf("it says:\n%s", b.stderr())
	}
}

// After a clean end nobody is fenced, and neither after a kill -9: the guard has released.
func TestNoFenceAfterACleanEnd(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	fence := []string{"--fence-cmd", "exit 1"}
	j.with("", fence, "sh", "-c", "exit 3").wait(3)
	a := j.with("", fence, j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	a.kill()
	<-a.done
	j.with("", fence, "true").wait(0)
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
