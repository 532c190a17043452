//go:build linux

package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
	"github.com/a-seed-0bc5ead7/onlyone/period"
)

// period is what .period says; the zero record if there is none.
func (j *job) period() (r consulsession.PeriodRecord) {
	j.t.Helper()
	if kv := j.s.Key(j.t, "onlyone/"+j.name+"/.period"); kv != nil {
		if err := json.Unmarshal(kv.Value, &r); err != nil {
			j.t.Errorf("%v: %s", err, kv.Value)
		}
	}
	return r
}

// noting is a command that first writes down what it knows of its period.
func (j *job) noting(command []string) []string {
	return append([]string{"sh", "-c", `echo "$ONLYONE_PERIOD $IDEMPOTENCY_KEY" >>` + filepath.Join(j.dir, "notes") + `; exec "$@"`, "sh"}, command...)
}

// TestKilledInTheReleaseHook: nothing was started, so the period isn't begun; also when onlyone
// is killed before it can say so.
func TestKilledInTheReleaseHook(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	script, hooked := filepath.Join(j.dir, "script"), filepath.Join(j.dir, "hooked")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := j.with("--once-per id:x", []string{"--on-release", "echo >" + hooked + "; exec sleep 1000"}, script)
	j.await("the hook runs", func() bool { b, _ := os.ReadFile(hooked); return len(b) > 0 })
	a.kill()
	<-a.done
	b := j.run("--once-per id:x", "echo", "ran")
	b.wait(0)
	if s := b.stderr(); !strings.Contains(s, "ran\n") {
		t.Errorf("the period counts as done:\n%s", s)
	}
}

// notes are those, one for each run.
func (j *job) notes() []string {
	b, err := os.ReadFile(filepath.Join(j.dir, "notes"))
	if err != nil && !os.IsNotExist(err) {
		j.t.Error(err)
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// ran checks which runs there were, by their tags, and that all of them had one key.
func (j *job) ran(tags ...string) {
	j.t.Helper()
	all := j.intervals()
	consultest.NoOverlap(j.t, all)
	var got []string
	for _, i := range all {
		got = append(got, i.Tag)
	}
	if !slices.Equal(got, tags) {
		j.t.Errorf("the runs were %q, want %q", got, tags)
	}
	if n := slices.Compact(j.notes()); len(n) > 1 {
		j.t.Errorf("the runs of one period had different keys: %q", n)
	}
}

// Somebody runs the period: who doesn't wait is told so, who waits leaves when it is done.
func TestOncePerWhileItRuns(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		gate, open := j.gate("gate")
		const flags = "--once-per id:x --host "
		a := j.run(flags+"a", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
		j.running(1)
		b := j.run(flags+"b", j.child(consultest.ChildOptions{Tag: "b", For: time.Millisecond})...)
		j.queued(1)
		n := j.run(flags+"c -n", "echo", "ran")
		n.wait(75)
		oneLine(t, n.stderr(), "held by a (pid ", "not waiting (-n)")
		if r := j.period(); r.State != "begun" || r.Period != "x" || r.Host != "a" {
			t.Errorf("while it runs the record says %+v", r)
		}
		open()
		a.wait(0)
		b.wait(0)
		n = j.run(flags+"c -n", "echo", "ran")
		n.wait(0)
		for _, p := range []*proc{a, b, n} {
			if p.stderr() != "" {
				t.Errorf("it says:\n%s", p.stderr())
			}
		}
		if r := j.period(); r.State != "ended" || r.Host != "a" || r.Exit != 0 || r.Attempt != 1 {
			t.Errorf("when it is done the record says %+v", r)
		}
		j.ran("a")
	})
}

// What becomes of a period whose run ends in one of several ways, while b and then c wait.
func TestRetry(t *testing.T) {
	t.Parallel()
	kill := func(j *job, a *proc, open func()) { a.kill(); a.wait(-int(syscall.SIGKILL)) }
	stop := func(j *job, a *proc, open func()) { a.signal(syscall.SIGTERM); a.wait(-int(syscall.SIGTERM)) }
	end := func(code int) func(*job, *proc, func()) {
		return func(j *job, a *proc, open func()) { open(); a.wait(code) }
	}
	for _, c := range []struct {
		name   string
		retry  string
		exit   int // of a's command, if it comes to its end
		end    func(j *job, a *proc, open func())
		b      string // the host that b says it is
		runs   []string
		say    string // what b says with -v, if it runs nothing
		record consulsession.PeriodRecord
	}{
		{"on-crash, killed", "on-crash", 0, kill, "b", []string{"a", "b"}, "",
			consulsession.PeriodRecord{State: "ended", Host: "b", Attempt: 2}},
		{"on-crash, stopped", "on-crash", 0, stop, "b", []string{"a", "b"}, "",
			consulsession.PeriodRecord{State: "ended", Host: "b", Attempt: 2}},
		{"on-crash, failed", "on-crash", 3, end(3), "b", []string{"a"}, "period x already done by a (exit 3, ",
			consulsession.PeriodRecord{State: "ended", Host: "a", Exit: 3, Attempt: 1}},
		{"on-failure, killed", "on-failure", 0, kill, "b", []string{"a", "b"}, "",
			consulsession.PeriodRecord{State: "ended", Host: "b", Attempt: 2}},
		{"on-failure, failed", "on-failure", 3, end(3), "b", []string{"a", "b"}, "",
			consulsession.PeriodRecord{State: "ended", Host: "b", Attempt: 2}},
		{"on-failure, failed, the same host", "on-failure", 3, end(3), "a", []string{"a", "c"}, "period x failed on a (exit 3), and this host has tried it",
			consulsession.PeriodRecord{State: "ended", Host: "c", Attempt: 2}},
		{"on-failure, stopped, the same host", "on-failure", 0, stop, "a", []string{"a", "b"}, "",
			consulsession.PeriodRecord{State: "ended", Host: "a", Attempt: 2}},
		{"on-failure, done", "on-failure", 0, end(0), "b", []string{"a"}, "period x already done by a (exit 0, ",
			consulsession.PeriodRecord{State: "ended", Host: "a", Attempt: 1}},
		{"never, killed", "never", 0, kill, "b", []string{"a"}, "did not end; it isn't run again (--retry never)",
			consulsession.PeriodRecord{State: "begun", Host: "a", Attempt: 1}},
		{"never, stopped", "never", 0, stop, "b", []string{"a"}, "did not end; it isn't run again (--retry never)",
			consulsession.PeriodRecord{State: "stopped", Host: "a", Exit: 143, Attempt: 1}},
		{"never, failed", "never", 3, end(3), "b", []string{"a"}, "period x already done by a (exit 3, ",
			consulsession.PeriodRecord{State: "ended", Host: "a", Exit: 3, Attempt: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			consultest.Each(t, func(t *testing.T, version string) {
				j := newJob(t, shared(t, version))
				gate, open := j.gate("gate")
				flags := "-v --once-per id:x --retry " + c.retry + " --host "
				a := j.run(flags+"a", j.noting(j.child(consultest.ChildOptions{Tag: "a", Until: gate, Exit: c.exit}))...)
				j.running(1)
				b := j.run(flags+c.b, j.noting(j.child(consultest.ChildOptions{Tag: "b", For: 20 * time.Millisecond}))...)
				j.queued(1)
				w := j.run(flags+"c", j.noting(j.child(consultest.ChildOptions{Tag: "c", For: 20 * time.Millisecond}))...)
				j.queued(2)
				c.end(j, a, open)
				b.wait(0)
				w.wait(0)
				j.ran(c.runs...)
				if !strings.Contains(b.stderr(), c.say) {
					t.Errorf("the next one doesn't say %q:\n%s", c.say, b.stderr())
				}
				if n := j.notes(); len(n) == 0 || n[0] != "x "+j.name+"/x" {
					t.Errorf("the command's period and key are %q", n)
				}
				r := j.period()
				got := consulsession.PeriodRecord{State: r.State, Host: r.Host, Exit: r.Exit, Attempt: r.Attempt}
				if fmt.Sprint(got) != fmt.Sprint(c.record) {
					t.Errorf("the record says %+v, want %+v", got, c.record)
				}
			})
		})
	}
}

// A host that has lost its lock marks nothing: the period stays begun, and another runs it.
func TestOncePerLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		finds bool // it finds out while its command runs; else the command ends before that
	}{{"while it runs", true}, {"in the moment in which it ends", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			consultest.Each(t, func(t *testing.T, version string) {
				j := newJob(t, shared(t, version))
				gate, open := j.gate("gate")
				flags := shortDials + " --once-per id:x --host "
				a := j.run(flags+"a", j.noting(j.child(consultest.ChildOptions{Tag: "a", Until: gate}))...)
				j.running(1)
				b := j.run(flags+"b", j.noting(j.child(consultest.ChildOptions{Tag: "b", For: 20 * time.Millisecond}))...)
				j.queued(1)
				lock := j.s.Key(t, j.lockKey())
				if _, err := j.s.Client().Session().Destroy(lock.Session, nil); err != nil {
					t.Fatal(err)
				}
				if c.finds {
					a.wait(79)
				} else {
					open()
					<-a.done // with the command's own exit code, or 79 if it was faster
					if !strings.Contains(a.stderr(), "the lock was lost") {
						t.Errorf("that it isn't on record is said by nobody:\n%s", a.stderr())
					}
				}
				if r := j.period(); r.State != "begun" || r.Session != lock.Session || r.Host != "a" {
					t.Errorf("after the loss the record says %+v", r)
				}
				b.wait(0)
				j.ran("a", "b")
				if r := j.period(); r.State != "ended" || r.Host != "b" || r.Attempt != 2 {
					t.Errorf("in the end the record says %+v", r)
				}
			})
		})
	}
}

// The period is the one of the host's clock at its start, --early, --time-zone and
// --start-deadline included.
func TestPeriodOfAStart(t *testing.T) {
	t.Parallel()
	s := shared(t, consultest.Version())
	at := func(clock string) time.Time {
		now, err := time.Parse(time.RFC3339, "2026-"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	for _, c := range []struct {
		name, clock, flags string
		exit               int
		want               string // the period, or what is said
	}{
		{"in the middle", "03-29T02:30:00", "--once-per 1h", 0, "2026-03-29T02:00:00Z"},
		{"5 s early", "03-29T02:59:55", "--once-per 1h", 0, "2026-03-29T03:00:00Z"},
		{"15 s early", "03-29T02:59:45", "--once-per 1h", 0, "2026-03-29T02:00:00Z"},
		{"15 s early, 20 s allowed", "03-29T02:59:45", "--once-per 1h --early 20s", 0, "2026-03-29T03:00:00Z"},
		{"5 s early, none allowed", "03-29T02:59:55", "--once-per 1h --early 0", 0, "2026-03-29T02:00:00Z"},
		{"5 s early, a short period", "03-29T02:59:55", "--once-per 8s --early 1s", 0, "2026-03-29T02:59:52Z"},
		{"cron", "03-29T02:30:00", "--once-per cron:15_2_*_*_*", 0, "2026-03-29T02:15:00Z"},
		{"a day of UTC", "03-29T22:30:00", "--once-per 1d", 0, "2026-03-29T00:00:00Z"},
		{"a day of Berlin, after 23 hours", "03-29T22:30:00", "--once-per 1d --time-zone Europe/Berlin", 0, "2026-03-29T22:00:00Z"},
		{"cron in Berlin at an hour that doesn't exist", "03-29T01:10:00", "--once-per cron:30_2_*_*_* --time-zone Europe/Berlin", 0, "2026-03-29T01:00:00Z"},
		{"within the start deadline", "03-29T02:05:00", "--once-per 1h --start-deadline 10m", 0, "2026-03-29T02:00:00Z"},
		{"after the start deadline", "03-29T02:20:00", "--once-per 1h --start-deadline 10m", 75, "not started within the 10m of --start-deadline"},
		{"after it, and that's fine", "03-29T02:20:00", "--once-per 1h --start-deadline 10m -E 0 -v", 0, "not started within the 10m of --start-deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, s)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"env", "TZ=UTC", hostClock + "=" + time.Until(at(c.clock)).String(), self, "run"}
			for _, f := range strings.Fields(c.flags) {
				args = append(args, strings.ReplaceAll(f, "_", " "))
			}
			p := j.start(append(append(args, j.name, "--"), "sh", "-c", "echo ran $ONLYONE_PERIOD")...)
			p.wait(c.exit)
			if ran := "ran " + c.want + "\n"; p.stderr() != ran && (strings.Contains(p.stderr(), "ran 2026") || !strings.Contains(p.stderr(), c.want)) {
				t.Errorf("it says %q, want %q", p.stderr(), c.want)
			}
		})
	}
}

// A host whose clock is so late that the next period has begun elsewhere doesn't go back.
func TestPeriodIsOver(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	now := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	j.on("a", now, "--once-per 1h --time-zone UTC", "true").wait(0)
	p := j.on("b", now.Add(-10*time.Minute), "--once-per 1h --time-zone UTC", "echo", "ran")
	p.wait(75)
	oneLine(t, p.stderr(), "period 2026-11-29T02:00:00Z is over: a has begun 2026-11-29T03:00:00Z")
}

// A host whose clock is ahead by more than a period has begun one that isn't due for long: the others
// run nothing until then, which isn't as it should be, so -q doesn't keep quiet about it.
func TestPeriodOfAClockAhead(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	now := time.Date(2026, 11, 29, 3, 30, 0, 0, time.UTC)
	j.on("a", now.AddDate(1, 0, 0), "--once-per 1h --time-zone UTC", "true").wait(0)
	result := filepath.Join(j.dir, "result.json")
	p := j.on("b", now, "-q --once-per 1h --time-zone UTC --result-file "+result, "echo", "ran")
	p.wait(75)
	if s := readFile(t, result); !strings.Contains(s, `"outcome": "conflict"`) {
		t.Errorf("the result is %s", s)
	}
	oneLine(t, p.stderr(), "period 2026-11-29T03:00:00Z is over: a has begun 2027-11-29T03:00:00Z, which by this host's clock is ",
		"ahead: nothing runs until then", "set the clock that is wrong", "consul kv delete onlyone/"+j.name+"/.period")
	// What is only a little late is as it may be.
	p = j.on("b", now.AddDate(1, 0, 0).Add(-time.Hour), "-q --once-per 1h --time-zone UTC", "echo", "ran")
	p.wait(75)
	if p.stderr() != "" {
		t.Errorf("it says:\n%s", p.stderr())
	}
}

// Without --once-per the start deadline counts from the call. Who waits is told in time.
func TestStartDeadline(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	a := j.run("", j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	b := j.run("--start-deadline 1s", "echo", "ran")
	b.wait(75)
	oneLine(t, b.stderr(), "not started within the 1s of --start-deadline")
	a.signal(syscall.SIGTERM)
	a.wait(-int(syscall.SIGTERM))
}

// --splay waits before contending, as long as host and period say; a stop signal ends that.
func TestSplay(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	host := ""
	const most = 2 * time.Second
	for i := 0; host == "" || period.Splay(host, "x", most) < most/2; i++ {
		host = fmt.Sprintf("web-%d", i)
	}
	want := period.Splay(host, "x", most)
	begin := consultest.BootNow()
	p := j.run("--splay 2s --once-per id:x --host "+host, j.child(consultest.ChildOptions{Tag: "a", For: time.Millisecond})...)
	if took := j.running(1).Start - begin; took < want {
		t.Errorf("it began after %s, the splay of %s is %s", took, host, want)
	}
	p.wait(0)
	p = j.run("--splay 1h", "echo", "ran")
	time.Sleep(100 * time.Millisecond)
	if len(j.s.Sessions(t, "onlyone/"+j.name)) > 0 {
		t.Error("it contends before its time")
	}
	p.signal(syscall.SIGTERM)
	p.wait(-int(syscall.SIGTERM))
}
