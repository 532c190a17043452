//go:build linux

package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// lastRun is the newest entry of .runs.
func (j *job) lastRun() consulsession.Run {
	j.t.Helper()
	var r consulsession.Runs
	kv := j.s.Key(j.t, "onlyone/"+j.name+"/.runs")
	if kv == nil {
		j.t.Fatal("there is no record of runs")
	}
	if err := json.Unmarshal(kv.Value, &r); err != nil || len(r.Runs) == 0 {
		j.t.Fatalf("%v: %s", err, kv.Value)
	}
	return r.Runs[len(r.Runs)-1]
}

// --max-runtime: SIGTERM, after --kill-after SIGKILL; 124 or 137 as timeout(1) ends with.
func TestMaxRuntime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		ignore bool
		exit   int
	}{{"TERM is enough", false, 124}, {"KILL is needed", true, 137}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			consultest.Each(t, func(t *testing.T, version string) {
				j := newJob(t, shared(t, version))
				begin := consultest.BootNow() // the child says that it has started a moment after it was
				a := j.run("--max-runtime 3s -k 500ms", j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: c.ignore})...)
				death := consultest.Death(t, j.running(1).Pid)
				b := j.run("", j.child(consultest.ChildOptions{Tag: "b", For: time.Millisecond})...)
				took := j.dies(death) - begin
				least := 3 * time.Second
				if c.ignore {
					least += 500 * time.Millisecond
				}
				measured(t, "from the call to the command's death", took, "--max-runtime 3s -k 500ms")
				if took < least || took > least+slack {
					t.Errorf("it died after %s, want %s", took, least)
				}
				a.wait(c.exit)
				if !strings.Contains(a.stderr(), "its time of 3s is over") {
					t.Errorf("it doesn't say why:\n%s", a.stderr())
				}
				b.wait(0)
				all := j.intervals()
				consultest.NoOverlap(t, all)
				if c.ignore && all[0].Term == 0 {
					t.Error("there was no SIGTERM")
				}
				var runs consulsession.Runs
				if err := json.Unmarshal(j.s.Key(t, "onlyone/"+j.name+"/.runs").Value, &runs); err != nil || runs.Runs[0].Exit != c.exit || runs.Runs[0].Outcome != "timeout" {
					t.Errorf("%v: the record of runs says %+v", err, runs.Runs)
				}
			})
		})
	}
	t.Run("it ends before that", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		j.run("--max-runtime 1h", "sh", "-c", "exit 3").wait(3)
	})
}

// --min-hold: a short job keeps the lock for a while, also if it fails; a stop signal ends that.
func TestMinHold(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		begin := consultest.BootNow()
		a := j.run("--min-hold 2s", j.child(consultest.ChildOptions{Tag: "a", For: time.Millisecond, Exit: 7})...)
		j.running(1)
		n := j.run("-n", "true")
		b := j.run("", j.child(consultest.ChildOptions{Tag: "b", For: time.Millisecond})...)
		n.wait(75)
		a.wait(7)
		b.wait(0)
		all := j.intervals()
		consultest.NoOverlap(t, all)
		measured(t, "from the call of a short job to the next one's start", all[1].Start-begin, "--min-hold 2s")
		if all[1].Start-begin < 2*time.Second {
			t.Errorf("the next one ran %s after the first was called, want 2s at least", all[1].Start-begin)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		a := j.run("--min-hold 1h", j.child(consultest.ChildOptions{Tag: "a", For: time.Millisecond})...)
		j.await("the command has ended", func() bool { all := j.intervals(); return len(all) == 1 && all[0].End > 0 })
		j.await("it is gone", func() bool { return syscall.Kill(j.intervals()[0].Pid, 0) != nil })
		a.signal(syscall.SIGTERM)
		a.wait(0)
	})
}

// --restart keeps the lock; --max-restarts lets the next host have it.
func TestRestart(t *testing.T) {
	t.Parallel()
	t.Run("on-failure", func(t *testing.T) {
		t.Parallel()
		consultest.Each(t, func(t *testing.T, version string) {
			j := newJob(t, shared(t, version))
			// It fails twice and then succeeds.
			command := append([]string{"sh", "-c", `"$@" || exit; test $(grep -c end ` + j.file + `) -ge 3`, "sh"}, j.child(consultest.ChildOptions{Tag: "a", For: time.Millisecond})...)
			a := j.run("--restart on-failure --restart-delay 200ms", command...)
			j.running(1)
			b := j.run("", j.child(consultest.ChildOptions{Tag: "b", For: time.Millisecond})...)
			a.wait(0)
			b.wait(0)
			all := j.intervals()
			if len(all) != 4 || all[2].Tag != "a" || all[3].Tag != "b" || all[0].Token != all[2].Token || all[3].Token <= all[0].Token {
				t.Fatalf("want three runs of a under one token, then b: %+v", all)
			}
			// Half of the delay at least, then half of twice as much.
			for i, least := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond} {
				if gap := all[i+1].Start - all[i].Start; gap < least {
					t.Errorf("restart %d came after %s, want %s at least", i+1, gap, least)
				}
			}
			if n := strings.Count(a.stderr(), "the command ended (exit 1): starting it again in"); n != 2 {
				t.Errorf("it says:\n%s", a.stderr())
			}
		})
	})
	t.Run("max-restarts", func(t *testing.T) {
		t.Parallel()
		consultest.Each(t, func(t *testing.T, version string) {
			j := newJob(t, shared(t, version))
			gate, open := j.gate("gate")
			a := j.run("--restart on-failure --restart-delay 10ms --max-restarts 2", j.child(consultest.ChildOptions{Tag: "a", Until: gate, Exit: 4})...)
			j.running(1)
			b := j.run("", j.child(consultest.ChildOptions{Tag: "b", For: time.Millisecond})...)
			j.queued(1)
			open()
			a.wait(4)
			if !strings.Contains(a.stderr(), "the command ended (exit 4) after 2 restarts: leaving the lock to others") {
				t.Errorf("it says:\n%s", a.stderr())
			}
			b.wait(0)
			if all := j.intervals(); len(all) != 4 || all[2].Tag != "a" || all[3].Tag != "b" {
				t.Errorf("want three runs of a, then b: %+v", all)
			}
		})
	})
	t.Run("always, until it is told to stop", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		gate, open := j.gate("gate")
		a := j.run("--restart always --restart-delay 10ms", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
		j.running(1)
		open()
		j.running(3)
		if err := os.Remove(gate); err != nil {
			t.Fatal(err)
		}
		// It may be between two of them.
		time.Sleep(100 * time.Millisecond)
		a.signal(syscall.SIGTERM)
		a.wait(-int(syscall.SIGTERM))
	})
	t.Run("stopped while it waits for a restart", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		a := j.run("--restart always --restart-delay 1h", j.child(consultest.ChildOptions{Tag: "a", For: time.Millisecond})...)
		j.await("it will be restarted", func() bool { return strings.Contains(a.stderr(), "starting it again") })
		a.signal(syscall.SIGTERM)
		a.wait(-int(syscall.SIGTERM))
	})
}

// --on-lost wait: back into the queue after a loss, and another term with a higher token.
func TestOnLostWait(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		gate, open := j.gate("gate")
		a := j.run(shortDials+" --on-lost wait", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
		j.running(1)
		b := j.run(shortDials, j.child(consultest.ChildOptions{Tag: "b", For: 50 * time.Millisecond})...)
		j.queued(1)
		if _, err := j.s.Client().Session().Destroy(j.s.Key(t, j.lockKey()).Session, nil); err != nil {
			t.Fatal(err)
		}
		j.running(3)
		open()
		a.wait(0)
		b.wait(0)
		all := j.intervals()
		consultest.NoOverlap(t, all)
		if len(all) != 3 || all[0].Tag != "a" || all[1].Tag != "b" || all[2].Tag != "a" {
			t.Errorf("want a, b, a: %+v", all)
		}
		if !strings.Contains(a.stderr(), "the lock is lost: stopping the command") {
			t.Errorf("it says:\n%s", a.stderr())
		}
	})
}

// A command that was stopped half-way, and that this onlyone can't start again, is neither a conflict
// that one may call a success nor a period that is done.
func TestStoppedHalfWay(t *testing.T) {
	t.Parallel()
	lose := func(j *job) {
		if _, err := j.s.Client().Session().Destroy(j.s.Key(j.t, j.lockKey()).Session, nil); err != nil {
			j.t.Fatal(err)
		}
	}
	pause := func(j *job) { j.order("pause", "--for none").wait(0) }
	for name, c := range map[string]struct {
		flags   string
		end     func(*job)
		exit    int
		outcome string
		says    string
	}{
		"lost, never again":        {"--once-per id:x --retry never --on-lost wait", lose, 79, "lost", "the lock was lost and the command stopped; and then: "},
		"lost, not waiting":        {"-n -E 0 --on-lost wait", lose, 79, "lost", "the lock was lost and the command stopped; and then: the lock is free soon"},
		"lost, the wait is over":   {"-w 1s -q --on-lost wait", lose, 79, "lost", "the lock was lost and the command stopped; and then: the wait of 1s is over"},
		"paused, never again":      {"--once-per id:x --retry never", pause, 75, "stopped", "the command was stopped: period x was begun by "},
		"paused, the wait is over": {"--once-per id:x -E 7 -w 1s", pause, 7, "stopped", "the wait of 1s is over"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, shared(t, consultest.Version()))
			t.Cleanup(func() { j.order("resume", "").wait(0) })
			result := filepath.Join(j.dir, "result.json")
			a := j.run(shortDials+" --result-file "+result+" "+c.flags, j.child(consultest.ChildOptions{Tag: "a"})...)
			j.running(1)
			c.end(j)
			a.wait(c.exit)
			if s := a.stderr(); !strings.Contains(s, c.says) {
				t.Errorf("it says:\n%s", s)
			}
			if s := readFile(t, result); !strings.Contains(s, `"outcome": "`+c.outcome+`"`) {
				t.Errorf("the result is %s", s)
			}
		})
	}
}

// --copies: N at once, each with its own number and token.
func TestCopies(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		t.Cleanup(func() { j.forget() })
		gate, open := j.gate("gate")
		show := func(tag string) []string {
			return []string{"sh", "-c", `echo $1 $ONLYONE_COPY $ONLYONE_COPIES $ONLYONE_NAME $ONLYONE_KEY $FENCE_TOKEN $IDEMPOTENCY_KEY >>` + filepath.Join(j.dir, "copies") + `; until test -e ` + gate + `; do sleep 0.01; done`, "sh", tag}
		}
		lines := func(n int) (all [][]string) {
			j.await(fmt.Sprintf("%d copies run", n), func() bool {
				b, _ := os.ReadFile(filepath.Join(j.dir, "copies"))
				all = nil
				for line := range strings.Lines(string(b)) {
					all = append(all, strings.Fields(line))
				}
				return len(all) >= n
			})
			return all
		}
		a := j.run("--copies 2", show("a")...)
		lines(1)
		b := j.run("--copies 2", show("b")...)
		lines(2)
		n := j.run("-n --copies 2", "echo", "ran")
		n.wait(75)
		oneLine(t, n.stderr(), "all of its 2 copies run", "not waiting (-n)")
		other := j.run("--copies 3", "echo", "ran")
		other.wait(78)
		oneLine(t, other.stderr(), j.name+" is used with 2 copies (since ", "not with 3 copies", "use --copies 2, or change it for all: onlyone resize "+j.name+" --copies 3")
		c := j.run("--copies 2", show("c")...)
		j.queued(1)
		b.kill() // its guard gives its copy back
		b.wait(-int(syscall.SIGKILL))
		all := lines(3)
		open()
		a.wait(0)
		c.wait(0)
		if all[0][1] == all[1][1] || all[2][1] != all[1][1] || all[2][0] != "c" {
			t.Errorf("want two copies, and c in the place of b: %q", all)
		}
		tokens := map[string]bool{}
		for _, l := range all {
			tokens[l[5]] = true
			if l[2] != "2" || l[3] != j.name || l[4] != "onlyone/"+j.name+"/"+l[1]+"/.lock" || l[1] != "0" && l[1] != "1" || len(l) != 6 {
				t.Errorf("a copy's environment is %q", l)
			}
		}
		if len(tokens) != 3 {
			t.Errorf("want three tokens: %q", all)
		}
	})
}

// With --once-per each copy is run once in the period, under a key of its own.
func TestCopiesOncePer(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		t.Cleanup(func() { j.forget() })
		notes := filepath.Join(j.dir, "notes")
		command := []string{"sh", "-c", `echo $ONLYONE_COPY $ONLYONE_PERIOD $IDEMPOTENCY_KEY >>` + notes + `; sleep 0.3`}
		var all []*proc
		for i := range 5 {
			all = append(all, j.run(fmt.Sprintf("--copies 3 --once-per id:x --host web-%d", i), command...))
		}
		for _, p := range all {
			p.wait(0)
		}
		p := j.run("-v -n --copies 3 --once-per id:x", "echo", "ran")
		p.wait(0)
		oneLine(t, p.stderr(), "period x already done by web-")
		keys := map[string]int{}
		for _, line := range j.notes() {
			keys[line]++
		}
		for i := range 3 {
			want := fmt.Sprintf("%d x %s/%d/x", i, j.name, i)
			if keys[want] != 1 {
				t.Errorf("want %q once: %v", want, keys)
			}
		}
		if len(keys) != 3 {
			t.Errorf("want three runs: %v", keys)
		}
	})
}

// forget deletes what copies leave, which nothingLeft doesn't know.
func (j *job) forget() {
	if _, err := j.s.Client().KV().DeleteTree("onlyone/"+j.name+"/", nil); err != nil {
		j.t.Error(err)
	}
}

// --drop-consul-token: the command doesn't see the token with which its lock was acquired,
// however that was given.
func TestDropConsulToken(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(consultest.RootToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const show = `echo token=$CONSUL_HTTP_TOKEN file=$CONSUL_HTTP_TOKEN_FILE`
	for _, c := range []struct{ name, env, flags, with string }{
		{"variable", "CONSUL_HTTP_TOKEN=" + consultest.RootToken, "", "token=" + consultest.RootToken + " file=\n"},
		{"variable with a file", "CONSUL_HTTP_TOKEN_FILE=" + file, "", "token= file=" + file + "\n"},
		{"flag", "X=", "--token " + consultest.RootToken, "token=" + consultest.RootToken + " file=\n"},
		{"flag with a file", "X=", "--token-file " + file, "token= file=" + file + "\n"},
		// A file in the environment counts more than a token there, and would win over the flag.
		{"flag, and a variable with a file", "CONSUL_HTTP_TOKEN_FILE=/another", "--token " + consultest.RootToken, "token=" + consultest.RootToken + " file=\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, s)
			for _, drop := range []bool{false, true} {
				args, want := []string{"env", c.env, onlyone, "run"}, c.with
				if drop {
					args, want = append(args, "--drop-consul-token"), "token= file=\n"
				}
				args = append(append(args, strings.Fields(c.flags)...), j.name, "--", "sh", "-c", show)
				p := j.start(args...)
				p.wait(0)
				if p.stderr() != want {
					t.Errorf("dropped: %v: the command sees %q, want %q", drop, p.stderr(), want)
				}
			}
		})
	}
}
