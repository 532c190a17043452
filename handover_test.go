//go:build linux

package main_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// order starts another command of onlyone about this job's lock.
func (j *job) order(command, flags string) *proc {
	j.t.Helper()
	return j.start(append(append([]string{onlyone, command}, strings.Fields(flags)...), j.name)...)
}

// TestStepDown: the holder stops its command in order, the next one's starts at once, and
// who stepped down contends again ten seconds later. Not parallel, for the sake of the
// figure. https://github.com/hashicorp/consul/issues/1276
func TestStepDown(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			j := newJob(t, shared(t, version))
			gate, open := j.gate("gate")
			a := j.run("--host a", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
			first := j.running(1)
			death := consultest.Death(t, first.Pid)
			b := j.run("--host b", j.child(consultest.ChildOptions{Tag: "b", Until: gate})...)
			j.queued(1)
			asked := consultest.BootNow()
			o := j.order("step-down", "--wait --reason kernel")
			died := j.dies(death)
			next := j.running(2)
			o.wait(0)
			measured(t, "step-down until the command has ended", died-asked, "it has to be noticed: a watch, or --poll 2s")
			measured(t, "the command's end until the next one's start", next.Start-died, "goal: 100ms on an idle machine")
			if next.Start < died || next.Start-died > slack {
				t.Errorf("the next command started %s after the end of the first", next.Start-died)
			}
			for _, w := range []string{"asked a (pid ", "a (pid ", "has released it after ", "b (pid ", "took over (token "} {
				if !strings.Contains(o.stderr(), w) {
					t.Errorf("step-down doesn't say %q:\n%s", w, o.stderr())
				}
			}
			if r := j.lastRun(); r.Outcome != "stopped" || r.Exit != 143 || r.Host != "a" {
				t.Errorf("the record of runs says %+v", r)
			}
			// The first one is back in the queue after its pause, behind the holder's own entry.
			j.queued(1)
			j.queued(2)
			if back := consultest.BootNow() - died; back < 10*time.Second {
				t.Errorf("it contends again after %s, want 10s", back)
			} else {
				measured(t, "it contends again after", back, "10s")
			}
			// b's watch has begun meanwhile.
			death = consultest.Death(t, next.Pid)
			bell := j.s.Key(t, "onlyone/"+j.name+"/.lock-bell").ModifyIndex
			asked = consultest.BootNow()
			o = j.order("step-down", "--wait")
			died = j.dies(death)
			third := j.running(3)
			if third.Tag != "a" {
				t.Errorf("after the second step-down %s runs", third)
			}
			o.wait(0)
			// Consul takes the same value again for no change, and wakes nobody.
			if now := j.s.Key(t, "onlyone/"+j.name+"/.lock-bell").ModifyIndex; now <= bell {
				t.Errorf("the second order rang no bell: its index is %d, it was %d", now, bell)
			}
			measured(t, "step-down until the command has ended, later", died-asked, "a watch")
			measured(t, "the command's end until the next one's start", third.Start-died, "goal: 100ms on an idle machine")
			open()
			a.wait(0)
			b.signal(syscall.SIGTERM) // in its pause
			b.wait(-int(syscall.SIGTERM))
			consultest.NoOverlap(t, j.intervals())
		})
	}
}

// versions are those that consultest.Each would run.
func versions() []string {
	if v := os.Getenv("ONLYONE_TEST_CONSUL"); v != "" {
		return []string{v}
	}
	return consultest.Versions[:1]
}

// With -n there is no second time: who was asked to step down ends.
func TestStepDownNoWait(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	a := j.run("-n", j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	o := j.order("step-down", "--wait --reason kernel")
	a.wait(75)
	if !strings.Contains(a.stderr(), "the command was stopped: asked to step down by ") || !strings.Contains(a.stderr(), "(kernel); not waiting (-n)") {
		t.Errorf("it says:\n%s", a.stderr())
	}
	o.wait(0)
	j.run("", "true").wait(0) // what was asked of another holder is gone with the next
	if kv := j.s.Key(t, "onlyone/"+j.name+"/.step-down"); kv != nil {
		t.Errorf("the request is still there: %s", kv.Value)
	}
}

// A holder that is cut off doesn't see the request. It isn't reported as having obeyed, not
// even when its lease has ended.
func TestStepDownOfOneThatIsCutOff(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		j.slowLeave = true
		proxy := consultest.NewProxy(t, j.s)
		a := j.run(shortDials+" --host a --http-addr "+proxy.Addr, j.child(consultest.ChildOptions{Tag: "a"})...)
		j.running(1)
		proxy.Set(consultest.Hang)
		o := j.order("step-down", "--wait --timeout 1s")
		o.wait(124)
		if s := o.stderr(); strings.Contains(s, "released") || !strings.Contains(s, "has not stopped within 1s, and isn't asked to any more") {
			t.Errorf("it says:\n%s", s)
		}
		if kv := j.s.Key(t, "onlyone/"+j.name+"/.step-down"); kv != nil {
			t.Errorf("the request is still there: %s", kv.Value)
		}
		o = j.order("step-down", "--wait --timeout 90s")
		a.wait(79)
		if _, err := j.s.Client().Session().Destroy(j.s.Key(t, j.lockKey()).Session, nil); err != nil { // as its TTL would
			t.Fatal(err)
		}
		o.wait(79)
		if s := o.stderr(); strings.Contains(s, "has released it") || !strings.Contains(s, "isn't known to have obeyed") {
			t.Errorf("it says:\n%s", s)
		}
		// The order was about that session: the next holder isn't meant.
		j.run(shortDials+" -w 1m", "true").wait(0)
	})
}

// A pause stops who runs in order, holds off who waits and who comes, and ends by itself or by
// resume.
func TestPause(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		gate, open := j.gate("gate")
		a := j.run("--host a", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
		j.running(1)
		b := j.run("--host b", j.child(consultest.ChildOptions{Tag: "b", Until: gate})...)
		j.queued(1)
		o := j.order("pause", "--for 1h --reason audit")
		o.wait(0)
		j.await("both wait", func() bool {
			return j.s.Key(t, j.lockKey()).Session == "" && len(j.s.Keys(t, "onlyone/"+j.name+"/~queue/")) == 2
		})
		n := j.run("-n", "echo", "ran")
		n.wait(75)
		oneLine(t, n.stderr(), "the lock is paused by ", "(audit); not waiting (-n)", "onlyone resume "+j.name)
		c := j.run("", j.child(consultest.ChildOptions{Tag: "c", For: time.Millisecond})...)
		j.queued(3)
		time.Sleep(300 * time.Millisecond)
		if all := j.intervals(); len(all) != 1 {
			t.Errorf("something runs while it is paused: %+v", all)
		}
		j.order("resume", "").wait(0)
		j.running(2)
		open()
		a.wait(0)
		b.wait(0)
		c.wait(0)
		if all := j.intervals(); len(all) != 4 || all[1].Tag != "b" { // it has waited for longest
			t.Errorf("after resume there ran: %+v", all)
		}
		consultest.NoOverlap(t, j.intervals())
		if r := j.lastRun(); r.Outcome != "exited" {
			t.Errorf("the record of runs says %+v", r)
		}

		// It ends by itself, also for those who have waited all the time.
		begin := consultest.BootNow()
		j.order("pause", "--for 2s").wait(0)
		j.run("", j.child(consultest.ChildOptions{Tag: "d", For: time.Millisecond})...).wait(0)
		all := j.intervals()
		took := all[len(all)-1].Start - begin
		measured(t, "from a pause of 2s to the next start", took, "2s to 3s and what the next needs")
		if took < 2*time.Second {
			t.Errorf("a pause of 2s ended after %s", took)
		}
		j.order("pause", "--for none").wait(0)
		n = j.run("-n -E 0 -v", "echo", "ran")
		n.wait(0)
		oneLine(t, n.stderr(), "paused by ")
		j.order("resume", "").wait(0)
	})
}

// A drained host begins nothing: who waits leaves the queue, who runs is stopped in order, or
// comes to its end with --finish. Others take over.
func TestDrain(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		for _, finish := range []bool{false, true} {
			name := "stop"
			if finish {
				name = "finish"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				j := newJob(t, shared(t, version))
				here := filepath.Join(j.dir, "here")
				gate, open := j.gate("gate")
				host := "--runtime-dir " + here + " --host "
				// Each looks once a second, and w half a second after a: it is the next in the queue
				// when a has been stopped, and hasn't looked yet.
				begin := time.Now()
				a := j.run(host+"a", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
				j.running(1)
				time.Sleep(time.Until(begin.Add(500 * time.Millisecond)))
				w := j.run(host+"w", j.child(consultest.ChildOptions{Tag: "w", For: time.Millisecond})...)
				j.queued(1)
				b := j.run("--host b", j.child(consultest.ChildOptions{Tag: "b", Until: gate})...)
				j.queued(2)
				args := []string{onlyone, "drain", "--runtime-dir", here, "--reason", "reboot"}
				if finish {
					args = append(args, "--finish")
				}
				time.Sleep(time.Until(begin.Add(time.Until(begin).Truncate(time.Second).Abs() + 1800*time.Millisecond)))
				j.start(args...).wait(0)
				j.await("it has left the queue", func() bool { return len(j.s.Keys(t, "onlyone/"+j.name+"/~queue/")) < 2 })
				n := j.run(host+"n -n", "echo", "ran")
				n.wait(75)
				oneLine(t, n.stderr(), "this host is drained", "(reboot)", "onlyone undrain")
				if finish {
					time.Sleep(1500 * time.Millisecond) // it looks each second
					if all := j.intervals(); len(all) != 1 || all[0].Term != 0 || consultest.Marked(a.mark)[all[0].Pid] == "" {
						t.Errorf("what runs wasn't let finish: %+v", all)
					}
					open()
					a.wait(0)
				}
				if next := j.running(2); next.Tag != "b" {
					t.Errorf("the next one is %s, want b", next)
				}
				open()
				b.wait(0)
				time.Sleep(100 * time.Millisecond)
				if all := j.intervals(); len(all) != 2 {
					t.Errorf("the drained host begins something: %+v", all)
				}
				j.start(onlyone, "undrain", "--runtime-dir", here).wait(0)
				w.wait(0)
				if !finish {
					a.wait(0)
				}
				consultest.NoOverlap(t, j.intervals())
			})
		}
	})
}

// A pause in the moment of a start: each command that runs has acquired before the pause.
func TestPauseWhileItStarts(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	const races = 40
	ran := 0
	for i := range races {
		a := j.run("-n", j.child(consultest.ChildOptions{Tag: strconv.Itoa(i), For: 5 * time.Millisecond})...)
		time.Sleep(rand.N(60 * time.Millisecond))
		j.order("pause", "").wait(0)
		paused := j.s.Key(t, "onlyone/"+j.name+"/.paused")
		<-a.done
		for _, c := range j.intervals()[ran:] {
			ran++
			if c.Token > paused.ModifyIndex {
				t.Errorf("race %d: a command started with token %d, paused since %d", i, c.Token, paused.ModifyIndex)
			}
		}
		j.order("resume", "").wait(0)
	}
	t.Logf("%d of %d commands were started", ran, races)
}
