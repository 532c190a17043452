//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999 * time.Millisecond: "0s", time.Second: "1s", 59*time.Second + 900*time.Millisecond: "59s", time.Minute: "1m",
		4*time.Minute + 12*time.Second: "4m12s", time.Hour: "1h", time.Hour + 59*time.Second: "1h", 3*time.Hour + 12*time.Minute + 5*time.Second: "3h12m",
		26 * time.Hour: "26h", 48*time.Hour - 1: "47h59m", 48 * time.Hour: "2d", 77*time.Hour + 30*time.Minute: "3d5h",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%s) = %q, want %q", d, got, want)
		}
	}
}

var testNow = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func back(d time.Duration) string { return testNow.Add(-d).Format(time.RFC3339Nano) }

func TestDescribe(t *testing.T) {
	web2 := consulsession.Party{Session: "s", Token: 1873, Host: "web-2", Pid: 4711, Since: back(4*time.Minute + 12*time.Second), Command: "thanos compact --wait"}
	run := consulsession.Run{Token: 1800, Host: "web-1", Started: back(50 * time.Minute), Ended: back(12 * time.Minute), Outcome: "exited"}
	for name, c := range map[string]struct {
		lock consulsession.Lock
		want string
	}{
		"held": {consulsession.Lock{Name: "compactor", Held: 1,
			Hold: consulsession.Hold{State: consulsession.Held, Holder: &web2, LastRun: &run,
				StepDown: &consulsession.Order{By: "ann@desk", Since: back(3 * time.Second), Session: "s", Reason: "kernel upgrade"},
				Period:   &consulsession.PeriodRecord{Period: "2026-11-29T03:00:00Z", State: "ended", Host: "web-2", Exit: 3, Ended: back(time.Hour), Attempt: 2}},
			Waiting: []consulsession.Party{{Session: "a", Host: "web-1", Since: back(4*time.Minute + 10*time.Second)}, {Session: "b"}}},
			`compactor   held by web-2  pid 4711  since 2026-11-29 11:55:48Z (4m12s)  token 1873
  command   thanos compact --wait
  step-down asked for by ann@desk 3s ago: kernel upgrade
  last run  web-1  exit 0  took 38m  ended 2026-11-29 11:48:00Z (12m)
  period    2026-11-29T03:00:00Z  ended (exit 3) on web-2 at 2026-11-29 11:00:00Z  attempt 2
  waiting   1. web-1 (4m10s)   2. a session that isn't onlyone's`},
		"a clock ahead": {consulsession.Lock{Name: "a", Hold: consulsession.Hold{State: consulsession.Held, Holder: &consulsession.Party{Host: "h", Pid: 1, Since: back(-time.Hour), Token: 2}}},
			`a   held by h  pid 1  since 2026-11-29 13:00:00Z (0s)  token 2`},
		"nonsense for a time": {consulsession.Lock{Name: "a", Hold: consulsession.Hold{State: consulsession.Held, Holder: &consulsession.Party{Host: "h", Pid: 1, Since: "noon", Token: 2}}},
			`a   held by h  pid 1  since noon  token 2`},
		"paused": {consulsession.Lock{Name: "a", Hold: consulsession.Hold{State: consulsession.Free},
			Paused: &consulsession.Order{By: "ann@desk", Since: back(time.Minute), Until: back(-time.Hour), Reason: "repair"}},
			`a   free
  paused    by ann@desk 1m ago, until 2026-11-29 13:00:00Z (for 1h): repair`},
		"copies": {consulsession.Lock{Name: "shard", Copies: 4, Held: 1, Hold: consulsession.Hold{State: consulsession.Held},
			Each: []consulsession.Copy{{Copy: 0, Hold: consulsession.Hold{State: consulsession.Free}},
				{Copy: 1, Hold: consulsession.Hold{State: consulsession.Free, Unclean: &consulsession.Party{Host: "web-3"}}},
				{Copy: 3, Hold: consulsession.Hold{State: consulsession.Held, Holder: &web2}}}},
			`shard   1 of 4 copies held
  1         free; its last holder (web-3) ended without releasing
  3         held by web-2  pid 4711  since 2026-11-29 11:55:48Z (4m12s)  token 1873
  command   thanos compact --wait`},
		"a number of copies that can't be read": {consulsession.Lock{Name: "shard", Hold: consulsession.Hold{State: consulsession.Free},
			Each: []consulsession.Copy{{Copy: 0, Hold: consulsession.Hold{State: consulsession.Free}}}, Problems: []string{"why"}},
			`shard   0 of ? copies held
  0         free
  note      why`},
	} {
		if got := strings.Join(describe(c.lock, testNow), "\n"); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, c.want)
		}
	}
	long := consulsession.Lock{Name: "a", Waiting: make([]consulsession.Party, 1000)}
	if s := strings.Join(describe(long, testNow), "\n"); !strings.HasSuffix(s, "and 990 more") {
		t.Errorf("a long queue: %s", s)
	}
}

func TestJudge(t *testing.T) {
	ok := func(ago time.Duration) consulsession.Run {
		return consulsession.Run{Host: "db-2", Ended: back(ago), Outcome: "exited"}
	}
	failed := func(exit int) consulsession.Run {
		return consulsession.Run{Host: "db-1", Exit: exit, Outcome: "exited"}
	}
	outcome := func(o string) consulsession.Run { return consulsession.Run{Outcome: o} }
	for _, c := range []struct {
		what string
		runs []consulsession.Run
		want string
	}{
		{"never", nil, "UNKNOWN: backup has no recorded run"},
		{"well", []consulsession.Run{failed(1), ok(3 * time.Hour)}, "OK: backup succeeded 3h ago on db-2 | age=10800s;90000;93600 failures=0"},
		{"just in time", []consulsession.Run{ok(25 * time.Hour)}, "OK: backup succeeded 25h ago on db-2 | age=90000s;90000;93600 failures=0"},
		{"late", []consulsession.Run{ok(25*time.Hour + time.Second)}, "WARNING: backup last succeeded 25h ago on db-2 (limit 25h) | age=90001s;90000;93600 failures=0"},
		{"at the limit", []consulsession.Run{ok(26 * time.Hour)}, "WARNING: backup last succeeded 26h ago on db-2 (limit 25h) | age=93600s;90000;93600 failures=0"},
		{"too late", []consulsession.Run{ok(31 * time.Hour), failed(1), failed(12)}, "CRITICAL: backup last succeeded 31h ago on db-2 (limit 26h); 2 failures since; last exit 12 | age=111600s;90000;93600 failures=2"},
		{"a clock ahead", []consulsession.Run{ok(-time.Hour)}, "OK: backup succeeded 0s ago on db-2 | age=0s;90000;93600 failures=0"},
		{"stopped by an operator", []consulsession.Run{ok(time.Hour), outcome("stopped")}, "OK: backup succeeded 1h ago on db-2 | age=3600s;90000;93600 failures=0"},
		{"exit 0 of one that was cut off", []consulsession.Run{ok(time.Hour), outcome("lost"), outcome("timeout")}, "OK: backup succeeded 1h ago on db-2; 2 failures since; last timeout (exit 0) | age=3600s;90000;93600 failures=2"},
		{"never well", []consulsession.Run{failed(1)}, "CRITICAL: backup did not succeed in any of its last 1 recorded runs; 1 failure since; last exit 1 | age=U;90000;93600 failures=1"},
		{"no time", []consulsession.Run{{Host: "db-2", Ended: "noon", Outcome: "exited"}}, "CRITICAL: backup did not succeed in any of its last 1 recorded runs | age=U;90000;93600 failures=0"},
		{"performance data in a name", []consulsession.Run{{Host: "a|b=1", Ended: back(0), Outcome: "exited"}}, "OK: backup succeeded 0s ago on a/b=1 | age=0s;90000;93600 failures=0"},
	} {
		var runs []consulsession.CopyRun
		for _, r := range c.runs {
			runs = append(runs, consulsession.CopyRun{Copy: -1, Run: r})
		}
		v := judge("backup", consulsession.Lock{}, runs, 26*time.Hour, 25*time.Hour, testNow)
		if got := v.String(); got != c.want || !strings.HasPrefix(got, checkWords[v.code]+":") {
			t.Errorf("%s: %s\nwant %s", c.what, got, c.want)
		}
		if b, err := json.Marshal(v.json("backup")); err != nil || !strings.Contains(string(b), `"status":"`+checkWords[v.code]) {
			t.Errorf("%s: %s, %v", c.what, b, err)
		}
	}
	// Copies: the one that was acquired last needn't have ended last.
	copies := []consulsession.CopyRun{{Copy: 0, Run: ok(time.Minute)}, {Copy: 1, Run: ok(30 * time.Hour)}}
	copies[0].Token, copies[1].Token = 7, 9
	if got, want := judge("backup", consulsession.Lock{}, copies, 26*time.Hour, 0, testNow).String(), "OK: backup succeeded 1m ago on db-2 | age=60s;;93600 failures=0"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	late := failed(3)
	late.Ended = back(time.Second)
	copies = []consulsession.CopyRun{{Copy: 0, Run: late}, {Copy: 1, Run: ok(time.Hour)}}
	if got, want := judge("backup", consulsession.Lock{}, copies, 26*time.Hour, 0, testNow).String(), "OK: backup succeeded 1h ago on db-2; 1 failure since; last exit 3 | age=3600s;;93600 failures=1"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	running := consulsession.Lock{Hold: consulsession.Hold{State: consulsession.Held, Holder: &consulsession.Party{Host: "db-3", Since: back(time.Hour)}}}
	v := judge("backup", running, []consulsession.CopyRun{{Run: ok(31 * time.Hour)}}, 26*time.Hour, 0, testNow)
	if got, want := v.String(), "CRITICAL: backup last succeeded 31h ago on db-2 (limit 26h); runs on db-3 since 1h | age=111600s;;93600 failures=0"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// stepping is a step-down of a lock in a model, in fake time.
type stepping struct {
	*stepDown
	m              *consulmodel.Model
	rt             *consulmodel.Transport
	stdout, stderr bytes.Buffer
}

func newStepping(t *testing.T, m *consulmodel.Model) *stepping {
	t.Helper()
	s := &stepping{m: m, rt: m.Transport(nil)}
	o, err := consulsession.NewOperator(consulsession.OperatorConfig{Client: consulsession.ClientConfig{Transport: s.rt}, Prefix: "onlyone", Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := cli.NewContext(nil, flag.NewFlagSet("", flag.ContinueOnError), &cli.Context{Context: t.Context()})
	s.stepDown = &stepDown{now: time.Now, operation: &operation{Operator: o, c: c, prefix: prefixValue{"onlyone"},
		in: &invocation{what: "step-down", stdout: &s.stdout, stderr: &s.stderr}}}
	return s
}

func modelConfig(m *consulmodel.Model, host string) consulsession.Config {
	start := time.Now()
	return consulsession.Config{Client: consulsession.ClientConfig{Transport: m.Transport(nil)}, Prefix: "onlyone", Name: "job",
		Lease: 20 * time.Second, TTL: time.Hour, Poll: 2 * time.Second, Host: host, Pid: 7, Command: "work",
		Now: func() time.Duration { return time.Since(start) }, Jitter: func(d time.Duration) time.Duration { return d / 2 }, Log: zerolog.Nop()}
}

func acquire(ctx context.Context, m *consulmodel.Model, host string) (*consulsession.Term, error) {
	c, err := consulsession.NewContender(modelConfig(m, host))
	if err != nil {
		return nil, err
	}
	return c.Acquire(ctx, func([]byte) error { return nil })
}

// obeying is a holder that does what it is asked to, after a time.
func obeying(t *testing.T, term *consulsession.Term, after time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	go term.Watch(ctx, func() {
		if o, err := term.Check(ctx); err != nil || o.StepDown == nil {
			return
		}
		cancel()
		started := time.Now()
		time.Sleep(after)
		if err := term.Release(t.Context(), consulsession.Ended{Started: started, Ended: time.Now(), Exit: 143, Outcome: "stopped"}); err != nil {
			t.Error(err)
		}
	})
}

// holders are those of all copies, as they are now.
func (s *stepping) holders(t *testing.T) ([]consulsession.Target, []consulsession.Party) {
	t.Helper()
	l, target, err := s.Find(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	targets, parties, err := holders(l, target, true)
	if err != nil {
		t.Fatal(err)
	}
	return targets, parties
}

func (s *stepping) run(t *testing.T, limit time.Duration) error {
	t.Helper()
	targets, parties := s.holders(t)
	if err := s.ask(targets[0], parties[0]); err != nil {
		t.Fatal(err)
	}
	ctx, done := context.WithTimeout(t.Context(), limit)
	defer done()
	return s.await(ctx, "job", limit)
}

func TestStepDownWait(t *testing.T) {
	tests := map[string]struct {
		setup    func(t *testing.T, s *stepping, term *consulsession.Term)
		said     string // a pattern
		code     int
		what     string // in the error
		took     time.Duration
		ordered  bool // the order is still there
		released bool
	}{
		"nobody waits": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) { obeying(t, term, 1200*time.Millisecond) },
			said:  "job: asked web-2 (pid 7) to step down\njob: web-2 (pid 7) has released it after 1.2s: stopped (exit 143)\njob: free, nobody waits\n",
			took:  1200 * time.Millisecond, released: true,
		},
		"the next one": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				obeying(t, term, 3*time.Second)
				go func() {
					if _, err := acquire(t.Context(), s.m, "web-1"); err != nil {
						t.Error(err)
					}
				}()
				time.Sleep(time.Second)
			},
			said: "has released it after 3s: stopped (exit 143)\njob: web-1 (pid 7) took over (token ",
			took: 3 * time.Second, released: true,
		},
		"it doesn't stop": {
			setup: func(*testing.T, *stepping, *consulsession.Term) {},
			said:  "job: asked web-2 (pid 7) to step down\n",
			code:  exitTimeout, what: "web-2 (pid 7) has not stopped within 1m, and isn't asked to any more", took: time.Minute,
		},
		"its session ends": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				time.AfterFunc(5*time.Second, func() { s.m.DestroySession(term.Session()) })
			},
			said: "lost the lock after 5s without releasing it: it died or was cut off, and isn't known to have obeyed\n",
			code: exitLost, what: "lost the lock instead of handing over", took: 5 * time.Second, ordered: true,
		},
		"its session ends, and nobody here sees it before another one has the lock": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				start := time.Now()
				s.rt.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if d := time.Since(start); d < 40*time.Second && (d > 3*time.Second || r.Blocking) {
						return consulmodel.Plan{Refuse: consulmodel.ErrRefused}
					}
					return consulmodel.Plan{}
				})
				time.AfterFunc(5*time.Second, func() { s.m.DestroySession(term.Session()) })
				time.AfterFunc(30*time.Second, func() {
					if _, err := acquire(t.Context(), s.m, "web-1"); err != nil {
						t.Error(err)
					}
				})
			},
			said: "without releasing it: it died or was cut off, and isn't known to have obeyed\njob: web-1 (pid 7) took over",
			code: exitLost, what: "lost the lock instead of handing over", took: 40 * time.Second,
		},
		"Consul is away for a while": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				obeying(t, term, 0)
				s.away(10*time.Second, 20*time.Second)
				time.Sleep(time.Second)
			},
			said: "job: asked web-2 (pid 7) to step down\njob: web-2 (pid 7) has released it after 0s: stopped (exit 143)\njob: free, nobody waits\n",
			took: 0, released: true,
		},
		"Consul goes away with the order": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				obeying(t, term, 5*time.Second)
				s.awayAfterWrite(20 * time.Second)
			},
			said: "job: asked web-2 (pid 7) to step down\njob: web-2 (pid 7) has released it after ",
			took: -1, released: true,
		},
		"Consul doesn't come back": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				obeying(t, term, 5*time.Second)
				s.awayAfterWrite(time.Hour)
			},
			said: "job: asked web-2 (pid 7) to step down\n",
			code: exitUnavailable, what: "it isn't known whether web-2 (pid 7) has stepped down, and the request couldn't be taken back", took: -1, released: true,
		},
		"paused": {
			setup: func(t *testing.T, s *stepping, term *consulsession.Term) {
				obeying(t, term, 0)
				if _, _, err := s.Pause(t.Context(), "job", time.Now().Add(time.Hour), ""); err != nil {
					t.Error(err)
				}
			},
			said: "job: free, and paused ", took: 0, released: true,
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := consulmodel.New(consulmodel.Options{Seed: 1, NoJitter: true})
				s := newStepping(t, m)
				term, err := acquire(t.Context(), m, "web-2")
				if err != nil {
					t.Fatal(err)
				}
				c.setup(t, s, term)
				start := time.Now()
				err = s.run(t, time.Minute)
				took := time.Since(start)
				if exitCode(err) != c.code || c.what != "" && !strings.Contains(err.Error(), c.what) {
					t.Errorf("%d, %v; want %d, %q", exitCode(err), err, c.code, c.what)
				}
				if got := s.stdout.String(); !strings.Contains(got, c.said) || strings.Contains(got, "released") != (strings.Contains(c.said, "released") || name == "paused") {
					t.Errorf("said\n%swant\n%s", got, c.said)
				}
				if c.took >= 0 && took.Round(10*time.Millisecond) != c.took {
					t.Errorf("took %s, want %s", took, c.took)
				}
				kv, ordered := m.Key("onlyone/job/.step-down")
				if ordered != c.ordered && !c.released {
					t.Errorf("the order is there: %v (%s)", ordered, kv.Value)
				}
			})
		})
	}
}

// Of several holders one lets go in this moment, and one isn't an onlyone: the others are asked all the
// same, and it is said.
func TestStepDownAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := consulmodel.New(consulmodel.Options{Seed: 1, NoJitter: true})
		s := newStepping(t, m)
		var terms []*consulsession.Term
		for i := range 4 {
			c := modelConfig(m, fmt.Sprint("web-", i))
			c.Copies = 4
			contender, err := consulsession.NewContender(c)
			if err != nil {
				t.Fatal(err)
			}
			term, err := contender.Acquire(t.Context(), func([]byte) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			terms = append(terms, term)
		}
		targets, parties := s.holders(t)
		let := func(i int) {
			if err := terms[i].Release(t.Context(), consulsession.Ended{Started: time.Now(), Ended: time.Now(), Outcome: "exited"}); err != nil {
				t.Error(err)
			}
		}
		let(0)
		parties[1].Host = ""
		err := s.askAll(targets, parties)
		if exitCode(err) != exitConflict || !strings.Contains(err.Error(), "takes no requests; stop it where it runs; if all else fails: onlyone unlock job/1") {
			t.Errorf("%d, %v", exitCode(err), err)
		}
		if got, want := s.stdout.String(), "job/0: web-0 (pid 7) has just let go\njob/2: asked web-2 (pid 7) to step down\njob/3: asked web-3 (pid 7) to step down\n"; got != want {
			t.Errorf("said\n%swant\n%s", got, want)
		}
		for i, asked := range []bool{false, false, true, true} {
			if _, is := m.Key(fmt.Sprintf("onlyone/job/%d/.step-down", i)); is != asked {
				t.Errorf("copy %d was asked: %v", i, is)
			}
		}
		// One alone that has gone is an answer.
		let(2)
		s.moves = nil
		if err := s.askAll(targets[2:3], parties[2:3]); exitCode(err) != exitConflict || !strings.Contains(err.Error(), "job/2: nobody holds it") {
			t.Errorf("%d, %v", exitCode(err), err)
		}
	})
}

// away takes Consul away from the operator between two instants.
func (s *stepping) away(from, to time.Duration) {
	start := time.Now()
	s.rt.SetFaults(func(*consulmodel.Request) consulmodel.Plan {
		if d := time.Since(start); d >= from && d < to {
			return consulmodel.Plan{Refuse: consulmodel.ErrRefused}
		}
		return consulmodel.Plan{}
	})
}

// awayAfterWrite takes Consul away from the operator once it has written something.
func (s *stepping) awayAfterWrite(d time.Duration) {
	var since time.Time
	s.rt.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
		if !since.IsZero() && time.Since(since) < d {
			return consulmodel.Plan{Refuse: consulmodel.ErrRefused}
		}
		if r.Has("set") {
			since = time.Now()
		}
		return consulmodel.Plan{}
	})
}

// onConsul runs a command line against a model over HTTP.
func onConsul(t *testing.T, h http.Handler, line string) *result {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return onlyone(t, append(strings.Fields(line), "--http-addr", srv.URL)...)
}

// An agent whose clock differs is told of, as the end of a pause is the contenders' to see.
func TestPauseWarnsOfClocks(t *testing.T) {
	for _, c := range []struct {
		off  time.Duration
		want string
	}{{0, ""}, {time.Second, ""}, {-time.Minute, "ahead of"}, {time.Hour, "behind"}} {
		m := consulmodel.New(consulmodel.Options{Seed: 1})
		r := onConsul(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(c.off).UTC().Format(http.TimeFormat))
			m.ServeHTTP(w, r)
		}), "pause job")
		if warned := strings.Contains(r.stderr, "clock"); r.code != 0 || warned != (c.want != "") || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%s: exit %d, %q", c.off, r.code, r.stderr)
		}
	}
}

// A thousand locks are one request.
func TestLsOfAThousand(t *testing.T) {
	m := consulmodel.New(consulmodel.Options{Seed: 1})
	for i := range 1000 {
		m.PutKey(fmt.Sprintf("onlyone/batch/%04d/.runs", i), `{"schema":1,"runs":[{"token":1,"host":"h","exit":0,"outcome":"exited"}]}`)
	}
	requests := 0
	r := onConsul(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { requests++; m.ServeHTTP(w, r) }), "ls")
	if n := strings.Count(r.stdout, "\n"); r.code != 0 || n != 1001 || requests != 1 {
		t.Errorf("exit %d, %d lines, %d requests, %s", r.code, n, requests, r.stderr)
	}
}

// What isn't Consul is no Consul without locks.
func TestStatusOfSomethingElse(t *testing.T) {
	for what, h := range map[string]http.HandlerFunc{
		"404":  http.NotFound,
		"HTML": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>hello</html>") },
		"[]":   func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "[]") },
		"502":  func(w http.ResponseWriter, r *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
	} {
		for _, line := range []string{"status job", "ls", "history job", "pause job", "step-down job"} {
			if r := onConsul(t, h, line); r.code != exitUnavailable || r.stdout != "" || !strings.Contains(r.stderr, "cannot reach Consul") {
				t.Errorf("%s, %s: exit %d, %q, %q", what, line, r.code, r.stdout, r.stderr)
			}
		}
	}
}

// The commands have help of 80 columns, and each flag is explained.
func TestOperateHelp(t *testing.T) {
	for _, name := range []string{"status", "ls", "history", "check", "step-down", "pause", "resume", "unlock", "resize"} {
		r := onlyone(t, name, "--help")
		if r.code != 0 || !strings.HasPrefix(r.stdout, "onlyone "+name) || !strings.Contains(r.stdout, "--prefix") || !strings.Contains(r.stdout, "--timeout") || !strings.Contains(r.stdout, "--token-file") {
			t.Errorf("%s: exit %d\n%s", name, r.code, r.stdout)
		}
		if !strings.Contains(appHelp, "  "+name+" ") && !strings.Contains(appHelp, ", "+name+" ") {
			t.Errorf("onlyone --help has no %s", name)
		}
		for line := range strings.Lines(r.stdout) {
			if len([]rune(line)) > 81 || strings.Contains(line, "%!") {
				t.Errorf("%s: %q", name, line)
			}
		}
		if lines := strings.Count(r.stdout, "\n"); lines > 32 {
			t.Errorf("%s has %d lines", name, lines)
		}
	}
	example := regexp.MustCompile(`(?m)^  OK: .*$`).FindString(onlyone(t, "check", "--help").stdout)
	v := verdict{text: "backup succeeded 3h ago on db-2", limits: ";90000;93600", age: 3 * time.Hour, success: &consulsession.Run{}}
	if strings.TrimSpace(example) != v.String() {
		t.Errorf("the example is %q, but it prints %q", example, v)
	}
}

// On a terminal the picture is redrawn in place, and cut to what fits.
func TestWatchOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	master, tty := terminal(t, 40)
	m := consulmodel.New(consulmodel.Options{Seed: 1})
	srv := httptest.NewServer(m)
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		New("1", nil).Main(ctx, []string{"onlyone", "status", "--watch", "--http-addr", srv.URL, "job"}, tty, os.Stderr)
	}()
	if got, want := read(t, master, "\x1b[J"), "\x1b[Hjob   free\x1b[K\n\x1b[J"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	m.Acquire("onlyone/job/.lock", m.CreateSession(time.Hour, 0), "")
	for {
		got := read(t, master, "\x1b[J")
		if strings.Contains(got, "free") {
			continue // a second has passed
		}
		if want := "\x1b[Hjob   held by a session that isn't onl…\x1b[K\n\x1b[J"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		break
	}
	cancel()
	<-ended
}
