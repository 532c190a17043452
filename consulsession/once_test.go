package consulsession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

const testPeriod = "onlyone/" + testName + "/.period"

// periodic is a contender of host for p.
func periodic(t *testing.T, m *consulmodel.Model, host string, p Period, change ...func(*Config)) *Contender {
	t.Helper()
	c := config(m.Transport(nil))
	c.Host, c.Period = host, p
	for _, f := range change {
		f(&c)
	}
	return contender(t, c)
}

func noWait(c *Config) { c.NoWait = true }

func acquire(t *testing.T, c *Contender) *Term {
	t.Helper()
	term, err := c.Acquire(t.Context(), always)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// ended is a run of d that ended now with exit.
func ended(d time.Duration, exit int) Ended {
	return Ended{Started: time.Now().Add(-d), Ended: time.Now(), Exit: exit, Outcome: "exited"}
}

func release(t *testing.T, term *Term, e Ended) {
	t.Helper()
	if err := term.Release(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

func periodRecord(t *testing.T, m *consulmodel.Model) PeriodRecord {
	t.Helper()
	kv, _ := m.Key(testPeriod)
	var r PeriodRecord
	if err := json.Unmarshal(kv.Value, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// A period that is done is done: for who comes later, who waits, and who doesn't wait.
func TestPeriodDone(t *testing.T) {
	p := daily(dayOne, OnCrash)
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first := acquire(t, periodic(t, m, "h1", p))
		if r := periodRecord(t, m); r.State != periodBegun || r.Session != first.session || r.Host != "h1" || r.Attempt != 1 {
			t.Errorf("with the lock came %+v, want the period begun", r)
		}
		if _, err := periodic(t, m, "h2", p, noWait).Acquire(t.Context(), always); verdict(err) != "held by h1 (pid 1) since "+stamp(time.Now()) {
			t.Errorf("-n while it runs: %v", err)
		}
		waiters := make(chan error, 3)
		for i := range 3 {
			go func() {
				_, err := periodic(t, m, fmt.Sprint("w", i), p).Acquire(t.Context(), always)
				waiters <- err
			}()
		}
		later := make(chan *Term)
		time.Sleep(time.Second)
		go func() {
			tomorrow, err := periodic(t, m, "h3", daily(dayTwo, OnCrash)).Acquire(t.Context(), always)
			if err != nil {
				t.Error(err)
			}
			later <- tomorrow
		}()
		time.Sleep(time.Second)
		release(t, first, ended(2*time.Second, 3))
		for range 3 {
			if err := <-waiters; verdict(err) != "done" {
				t.Errorf("a waiter: %v, want that it is done", err)
			}
		}
		next := <-later
		if r := periodRecord(t, m); r.Period != next.c.Period.ID || !slices.Equal(r.Past, []string{p.ID}) {
			t.Errorf("the next period's record is %+v", r)
		}
		if env := next.Env(); !slices.Contains(env, "IDEMPOTENCY_KEY="+testName+"/"+next.c.Period.ID) || !slices.Contains(env, "ONLYONE_PERIOD="+next.c.Period.ID) {
			t.Errorf("environment %q", env)
		}
		for _, n := range [][]func(*Config){{}, {noWait}} {
			if _, err := periodic(t, m, "h4", p, n...).Acquire(t.Context(), always); verdict(err) != "done" {
				t.Errorf("a late host: %v, want that it is done", err)
			}
		}
		if _, err := periodic(t, m, "h4", daily(dayOne.Add(time.Hour), OnCrash)).Acquire(t.Context(), always); verdict(err) != "missed" {
			t.Errorf("a period before the present one: %v, want that it is missed", err)
		}
		release(t, next, ended(0, 0))
		wantNothingLeft(t, m)
	})
}

// Begun by a session that died: who may go on depends on the policy.
func TestPeriodOfADeadHolder(t *testing.T) {
	for retry, want := range map[Retry]string{OnCrash: "run", OnFailure: "run", Never: "done never"} {
		t.Run(string(retry), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				p := daily(dayOne, retry)
				first := acquire(t, periodic(t, m, "h1", p))
				got := make(chan error)
				var term *Term
				go func() {
					var err error
					term, err = periodic(t, m, "h2", p).Acquire(t.Context(), always)
					got <- err
				}()
				time.Sleep(time.Second)
				m.DestroySession(first.session)
				if err := <-got; verdict(err) != want {
					t.Fatalf("%v, want %s", err, want)
				}
				if want != "run" {
					wantNothingLeft(t, m)
					return
				}
				if r := periodRecord(t, m); r.Attempt != 2 || len(r.Failed) > 0 || r.Session != term.session {
					t.Errorf("%+v, want the second attempt", r)
				}
				// The dead one can't mark anything any more.
				var lost *LostError
				if err := first.Release(t.Context(), ended(time.Second, 0)); !errors.As(err, &lost) {
					t.Error(err)
				}
				if r := periodRecord(t, m); r.State != periodBegun || r.Session != term.session {
					t.Errorf("%+v was written by a term that is over", r)
				}
				release(t, term, ended(time.Second, 0))
				wantNothingLeft(t, m)
			})
		})
	}
}

// A term that starts nothing leaves the period exactly as it was, and so does an acquire whose
// answer nobody waits for, carried out or not.
func TestPeriodIsRestored(t *testing.T) {
	p := daily(dayTwo, OnCrash)
	for name, before := range map[string]func(*testing.T, *consulmodel.Model){
		"none": func(*testing.T, *consulmodel.Model) {},
		"an earlier one": func(t *testing.T, m *consulmodel.Model) {
			release(t, acquire(t, periodic(t, m, "h0", daily(dayOne, OnCrash))), ended(time.Second, 7))
		},
		"a crash": func(t *testing.T, m *consulmodel.Model) {
			m.DestroySession(acquire(t, periodic(t, m, "h0", p)).session)
			time.Sleep(21 * time.Second) // its lease
		},
	} {
		leave := map[string]func(t *testing.T, m *consulmodel.Model){
			"never started": func(t *testing.T, m *consulmodel.Model) {
				release(t, acquire(t, periodic(t, m, "h1", p)), Ended{Exit: -1, Outcome: "failed"})
			},
		}
		for how, plan := range map[string]consulmodel.Plan{
			"carried out, no answer": {DropAnswer: true},
			"late":                   {RequestDelay: 1900 * time.Millisecond, DropAnswer: true},
			"a minute late":          {RequestDelay: time.Minute},
			"never":                  {DropRequest: true},
		} {
			leave[how] = func(t *testing.T, m *consulmodel.Model) {
				c := periodic(t, m, "h1", p)
				n := 0
				c.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Has("lock") && r.Has("cas") {
						n++
						return plan
					}
					return consulmodel.Plan{}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if _, err := c.Acquire(ctx, always); err == nil {
					t.Error("acquired without an answer")
				}
				if n == 0 {
					t.Error("there was no acquire")
				}
				time.Sleep(2 * time.Minute)
			}
		}
		for how, do := range leave {
			t.Run(name+"/"+how, func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *consulmodel.Model) {
					before(t, m)
					was, existed := m.Key(testPeriod)
					do(t, m)
					is, exists := m.Key(testPeriod)
					if exists != existed || string(is.Value) != string(was.Value) {
						t.Errorf("the record is %s (%v), was %s (%v)", is.Value, exists, was.Value, existed)
					}
					if d := m.LockDelay(testLock); d > 0 {
						t.Errorf("a lock-delay of %s runs", d)
					}
					wantNothingLeft(t, m)
					release(t, acquire(t, periodic(t, m, "h2", p)), ended(0, 0))
				})
			})
		}
	}
}

// An acquire whose answer was lost is asked for again: one attempt, begun once.
func TestUnansweredAcquireOfAPeriod(t *testing.T) {
	for how, plan := range map[string]consulmodel.Plan{
		"carried out": {DropAnswer: true},
		"late":        {RequestDelay: 2050 * time.Millisecond, DropAnswer: true},
	} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				release(t, acquire(t, periodic(t, m, "h0", daily(dayOne, OnCrash))), ended(0, 0))
				was, _ := m.Key(testPeriod)
				c := periodic(t, m, "h1", daily(dayTwo, Never))
				lost := 0
				c.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Has("lock") && r.Has("cas") && lost < 2 {
						lost++
						return plan
					}
					return consulmodel.Plan{}
				})
				term := acquire(t, c)
				if r := periodRecord(t, m); r.Attempt != 1 || r.Session != term.session || r.Period != daily(dayTwo, Never).ID {
					t.Errorf("%+v, want the first attempt", r)
				}
				if u := term.Unclean(); len(u) > 0 {
					t.Errorf("the last holder is %+v, want nobody: it released", u)
				}
				release(t, term, Ended{Exit: -1, Outcome: "failed"})
				if is, _ := m.Key(testPeriod); string(is.Value) != string(was.Value) {
					t.Errorf("the record is %s, was %s", is.Value, was.Value)
				}
				wantNothingLeft(t, m)
			})
		})
	}
}

// What isn't a record of ours is told, and never overwritten.
func TestRecordThatCannotBeUsed(t *testing.T) {
	for _, value := range []string{"", "an operator's note", `{"schema":2,"period":"x","state":"ended"}`, `{"schema":1}`} {
		for _, n := range [][]func(*Config){{}, {noWait}} {
			t.Run(fmt.Sprint(value, len(n)), func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *consulmodel.Model) {
					m.PutKey(testPeriod, value)
					var bad *RecordError
					if _, err := periodic(t, m, "h1", daily(dayOne, OnCrash), n...).Acquire(t.Context(), always); !errors.As(err, &bad) || bad.Key != testPeriod {
						t.Errorf("%v, want a *RecordError", err)
					}
					if kv, _ := m.Key(testPeriod); string(kv.Value) != value {
						t.Errorf("it is now %s", kv.Value)
					}
					if s, _ := m.Holder(testLock); s != "" {
						t.Error("the lock was acquired")
					}
					wantNothingLeft(t, m)
				})
			})
		}
	}
	t.Run("written while we wait", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			first := acquire(t, periodic(t, m, "h1", Period{}))
			got := make(chan error)
			go func() {
				_, err := periodic(t, m, "h2", daily(dayOne, OnCrash)).Acquire(t.Context(), always)
				got <- err
			}()
			time.Sleep(time.Second)
			m.PutKey(testPeriod, "garbage")
			release(t, first, ended(0, 0))
			if _, ok := errors.AsType[*RecordError](<-got); !ok {
				t.Error("want a *RecordError")
			}
			wantNothingLeft(t, m)
		})
	})
}

// A guard whose keeper was killed before anything was started leaves all as it was.
func TestReleaseTermOfNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		dead := acquire(t, periodic(t, m, "h0", daily(dayOne, OnCrash)))
		m.DestroySession(dead.session)
		time.Sleep(21 * time.Second)
		was, _ := m.Key(testPeriod)
		for range 2 {
			var info []byte
			term, err := periodic(t, m, "h1", daily(dayTwo, Never)).Acquire(t.Context(), func(b []byte) error { info = b; return nil })
			if err != nil {
				t.Fatal(err)
			}
			if u := term.Unclean(); len(u) != 1 || u[0].Host != "h0" {
				t.Errorf("the last holder is %+v, want h0", u)
			}
			if err := ReleaseTerm(t.Context(), info, Ended{Exit: -1, Outcome: "failed"}, m.Transport(nil)); err != nil {
				t.Error(err)
			}
			if is, _ := m.Key(testPeriod); string(is.Value) != string(was.Value) {
				t.Errorf("the record is %s, was %s", is.Value, was.Value)
			}
			wantNothingLeft(t, m)
		}
	})
}

// A guard writes down how the command ended, also when its first requests fail.
func TestReleaseTermOfAPeriod(t *testing.T) {
	for name, faults := range map[string]func() consulmodel.Faults{
		"": func() consulmodel.Faults { return nil },
		"the first request is refused": func() consulmodel.Faults {
			return func(r *consulmodel.Request) consulmodel.Plan {
				if r.N == 0 {
					return consulmodel.Plan{Refuse: syscall.ECONNREFUSED}
				}
				return consulmodel.Plan{}
			}
		},
		"no leader for a second": func() consulmodel.Faults {
			begin := time.Now()
			return func(r *consulmodel.Request) consulmodel.Plan {
				if time.Since(begin) < time.Second {
					return consulmodel.Plan{Status: 500, Body: "No cluster leader"}
				}
				return consulmodel.Plan{}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				var info []byte
				c := periodic(t, m, "h1", daily(dayOne, OnCrash))
				term, err := c.Acquire(t.Context(), func(b []byte) error { info = b; return nil })
				if err != nil {
					t.Fatal(err)
				}
				e := ended(time.Second, 0)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if err := ReleaseTerm(ctx, info, e, m.Transport(faults())); err != nil {
					t.Error(err)
				}
				if r := periodRecord(t, m); r.State != periodEnded || r.Token != term.Token() || r.Seconds != 1 {
					t.Errorf("%+v, want that it ended", r)
				}
				if _, err := periodic(t, m, "h2", daily(dayOne, OnCrash)).Acquire(t.Context(), always); verdict(err) != "done" {
					t.Errorf("%v, want that it is done", err)
				}
				wantNothingLeft(t, m)
			})
		})
	}
}

// A guard that has cut a run short, because its keeper died, leaves it in the record of runs and
// the period begun. When Consul doesn't answer the read, the lock is released without it.
func TestReleaseTermOfACutRun(t *testing.T) {
	for name, c := range map[string]struct {
		plan consulmodel.Plan // of the first request
		want int
	}{
		"":                             {consulmodel.Plan{}, 1},
		"the first request is refused": {consulmodel.Plan{Refuse: syscall.ECONNREFUSED}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				var info []byte
				term, err := periodic(t, m, "h1", daily(dayOne, OnCrash)).Acquire(t.Context(), func(b []byte) error { info = b; return nil })
				if err != nil {
					t.Fatal(err)
				}
				faults := func(r *consulmodel.Request) consulmodel.Plan {
					if r.N == 0 {
						return c.plan
					}
					return consulmodel.Plan{}
				}
				if err := ReleaseTerm(t.Context(), info, Ended{Started: time.Now().Add(-time.Second), Ended: time.Now()}, m.Transport(faults)); err != nil {
					t.Error(err)
				}
				if r := periodRecord(t, m); r.State != periodBegun {
					t.Errorf("%+v, want that it is begun", r)
				}
				var runs Runs
				if kv, ok := m.Key("onlyone/" + testName + "/.runs"); ok {
					if err := json.Unmarshal(kv.Value, &runs); err != nil {
						t.Fatal(err)
					}
				}
				if len(runs.Runs) != c.want {
					t.Fatalf("the record has %+v, want %d runs", runs.Runs, c.want)
				}
				if c.want == 1 {
					if r := runs.Runs[0]; r.Token != term.Token() || r.Outcome != "failed" || r.Exit != -1 || r.Period != periodRecord(t, m).Period {
						t.Errorf("the record has %+v", r)
					}
				}
				release(t, acquire(t, periodic(t, m, "h2", daily(dayOne, OnCrash))), ended(time.Second, 0)) // who comes next runs it
				wantNothingLeft(t, m)
			})
		})
	}
}

const testPaused = "onlyone/" + testName + "/.paused"

func pauseValue(d time.Duration) string {
	return string(encode(Order{Schema: 1, By: "ann@web-1", Until: stamp(time.Now().Add(d))}))
}

// While paused nobody acquires; a pause that is over goes with the next acquire.
func TestPause(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		m.PutKey(testPaused, pauseValue(time.Minute))
		var paused *PausedError
		if _, err := periodic(t, m, "h1", Period{}, noWait).Acquire(t.Context(), always); !errors.As(err, &paused) || paused.Order.By != "ann@web-1" {
			t.Errorf("%v, want a *PausedError", err)
		}
		begin := time.Now()
		var told []Queue
		term := acquire(t, periodic(t, m, "h1", Period{}, func(c *Config) { c.Waiting = func(q Queue) { told = append(told, q) } }))
		if d := time.Since(begin); d < time.Minute || d > time.Minute+2*time.Second {
			t.Errorf("acquired after %s, want a minute", d)
		}
		if len(told) == 0 || told[0].Paused == nil || !told[0].Free || told[0].Position != 1 {
			t.Errorf("told %+v", told)
		}
		if _, ok := m.Key(testPaused); ok {
			t.Error("the pause that is over is still there")
		}
		// Set while others wait for the holder.
		got := make(chan *Term)
		go func() { got <- acquire(t, periodic(t, m, "h2", Period{})) }()
		time.Sleep(time.Second)
		m.PutKey(testPaused, "an operator's note") // without an end
		release(t, term, ended(0, 0))
		time.Sleep(10 * time.Minute)
		if s, _ := m.Holder(testLock); s != "" {
			t.Error("acquired while paused")
		}
		m.DeleteKey(testPaused)
		synctest.Wait()
		release(t, <-got, ended(0, 0))
		wantNothingLeft(t, m)
	})
}

// A pause in the very moment of an acquire is before it or after it: nobody acquires once it is
// set (https://github.com/hashicorp/terraform/issues/36928 asks for such a lock by hand).
func TestPauseInTheMomentOfAnAcquire(t *testing.T) {
	won := 0
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			var set time.Time // when the pause was set
			var acquired []time.Time
			m := consulmodel.New(consulmodel.Options{Seed: seed, NoJitter: true, OnEvent: func(e consulmodel.Event) {
				switch {
				case e.Key == testPaused:
					set = time.Now()
				case e.Key == testLock && e.Op == consulmodel.Acquired:
					acquired = append(acquired, time.Now())
					if !set.IsZero() {
						t.Errorf("seed %d: acquired %s after the pause", seed, time.Since(set))
					}
				}
			}})
			rt := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
				d := time.Duration((seed*7+uint64(r.N)*13)%10) * 100 * time.Microsecond
				return consulmodel.Plan{RequestDelay: d, AnswerDelay: d}
			})
			c := config(rt)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if term, err := contender(t, c).Acquire(ctx, always); err == nil {
					_ = term.Release(t.Context(), ended(0, 0))
				}
			}()
			time.Sleep(time.Duration(seed%60) * 100 * time.Microsecond)
			m.PutKey(testPaused, pauseValue(time.Hour))
			<-done
			won += len(acquired)
			wantNothingLeft(t, m)
		})
	}
	if won == 0 || won == 1000 {
		t.Errorf("%d of 1000 acquires came before the pause: the race wasn't one", won)
	}
}

// A check brings the orders for the holder, and a watch says at once that there may be one; else
// it is quiet.
func TestOrdersOfAHolder(t *testing.T) {
	const stepDown, bell = "onlyone/" + testName + "/.step-down", testLock + "-bell"
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		m.PutKey(stepDown, `{"schema":1,"session":"somebody else's"}`)
		rt := m.Transport(nil)
		c := config(rt)
		term := acquire(t, contender(t, c))
		if _, ok := m.Key(stepDown); ok {
			t.Error("the order for the last holder is still there")
		}
		snapshot := m.Snapshot()
		ctx, cancel := context.WithCancel(t.Context())
		var rung atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() { term.Watch(ctx, func() { rung.Add(1) }) })
		wg.Go(func() {
			for term.c.pause(ctx, 5*time.Second) == nil {
				_ = term.Renew(context.Background())
			}
		})
		woken := func(what string, want int64) {
			t.Helper()
			synctest.Wait()
			if n := rung.Swap(0); n != want {
				t.Errorf("%s: the watch woke %d times, want %d", what, n, want)
			}
		}
		orders := func(what, stepDown, paused string) {
			t.Helper()
			o, err := term.Check(t.Context())
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			for name, is := range map[string]struct {
				order *Order
				want  string
			}{"step-down": {o.StepDown, stepDown}, "pause": {o.Paused, paused}} {
				if (is.order != nil) != (is.want != "") || is.order != nil && is.order.Reason != is.want {
					t.Errorf("%s: %s is %+v, want %q", what, name, is.order, is.want)
				}
			}
		}
		quiet := func(what string, most int) {
			t.Helper()
			synctest.Wait()
			rung.Store(0)
			before := rt.Requests()[consulmodel.KVList]
			time.Sleep(time.Minute)
			if n := rt.Requests()[consulmodel.KVList] - before; n > most {
				t.Errorf("%s: %d requests of the watch in a minute, want at most %d", what, n, most)
			}
			rung.Store(0)
		}
		quiet("at first", 5)
		m.PutKey(stepDown, `{"schema":1,"session":"somebody else's","reason":"x"}`)
		woken("without the bell", 0)
		orders("an order for somebody else", "", "")
		m.PutKey(stepDown, fmt.Sprintf(`{"schema":1,"session":%q,"reason":"x"}`, term.session))
		m.PutKey(bell, "")
		woken("the bell", 1)
		orders("step-down", "x", "")
		quiet("with an order", 5)
		m.DeleteKey(stepDown)
		orders("taken back", "", "")
		m.PutKey(testPaused, pauseValue(-time.Second))
		orders("a pause that is over", "", "")
		m.PutKey(testPaused, `{"schema":1,"reason":"y"}`)
		m.PutKey(bell, "1")
		woken("the bell again", 1)
		orders("a pause", "", "y")
		m.PutKey(testLock, "an operator's note")
		woken("a write on the lock", 1)
		quiet("with a changed lock", 5)
		m.Restore(snapshot) // the index goes back
		quiet("with a lower index", 6)
		m.PutKey(bell, "2")
		woken("the bell after a restored snapshot", 1)
		m.DeleteKey(testLock)
		woken("the lock was deleted", 1)
		quiet("with a deleted lock", 31) // a poll between two
		cancel()
		wg.Wait()
	})
}

// Who didn't release is told to the next, until somebody has started something.
func TestUnclean(t *testing.T) {
	plain := func(t *testing.T, m *consulmodel.Model, host string) *Contender {
		return periodic(t, m, host, Period{})
	}
	want := func(t *testing.T, term *Term, host string, token uint64) {
		t.Helper()
		switch u := term.Unclean(); {
		case host == "" && len(u) > 0:
			t.Errorf("the last holder is %+v, want none", u)
		case host != "" && (len(u) != 1 || u[0].Host != host || u[0].Token != token):
			t.Errorf("the last holder is %+v, want %s with token %d", u, host, token)
		}
	}
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first := acquire(t, plain(t, m, "h1"))
		want(t, first, "", 0)
		release(t, first, ended(0, 0))
		second := acquire(t, plain(t, m, "h2"))
		want(t, second, "", 0)
		m.DestroySession(second.session)
		third := acquire(t, plain(t, m, "h3"))
		want(t, third, "h2", second.token)
		release(t, third, Ended{Exit: -1, Outcome: "failed"}) // it has started nothing
		fourth := acquire(t, plain(t, m, "h4"))
		want(t, fourth, "h2", second.token)
		release(t, fourth, ended(0, 0))
		fifth := acquire(t, plain(t, m, "h5"))
		want(t, fifth, "", 0)
		m.DestroySession(fifth.session)
		time.Sleep(21 * time.Second)
		// A lost answer: the record that is there now is our own.
		c := plain(t, m, "h6")
		lost := 0
		c.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("lock") && lost < 2 {
				lost++
				return consulmodel.Plan{DropAnswer: true}
			}
			return consulmodel.Plan{}
		})
		sixth := acquire(t, c)
		want(t, sixth, "h5", fifth.token)
		release(t, sixth, ended(0, 0))
		// consul lock has a value of its own.
		s := m.CreateSession(10*time.Second, time.Second)
		m.Acquire(testLock, s, "consul lock's")
		m.Unlock(testLock, s)
		m.DestroySession(s)
		m.DeleteKey(testLock)
		seventh := acquire(t, plain(t, m, "h7"))
		want(t, seventh, "", 0)
		release(t, seventh, ended(0, 0))
		wantNothingLeft(t, m)
	})
}

// A contender that lost the lock, and whose command is gone, isn't an unclean end to itself: it
// would fence its own host (--on-lost wait).
func TestUncleanIsntOneself(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		c := periodic(t, m, "h1", Period{})
		first := acquire(t, c)
		m.DestroySession(first.session)
		release(t, first, Ended{Outcome: "lost", Started: time.Now(), Ended: time.Now(), Exit: -1}) // nothing is left
		second := acquire(t, c)
		if u := second.Unclean(); len(u) > 0 {
			t.Errorf("the last holder is %+v, want nobody", u)
		}
		m.DestroySession(second.session)
		third := acquire(t, periodic(t, m, "h2", Period{}))
		if u := third.Unclean(); len(u) != 1 || u[0].Session != second.session {
			t.Errorf("the last holder is %+v, want the one of before", u)
		}
	})
}

// That a run isn't on record, since the lock was lost before its release, is told to whom it matters.
func TestUnlockOfALostLock(t *testing.T) {
	for _, c := range []struct {
		what string
		e    Ended
		lost bool // the release was carried out, and its answer lost
		told bool
	}{
		{"it ended by itself", ended(time.Second, 0), false, true},
		{"it was stopped", Ended{Started: time.Now(), Ended: time.Now(), Exit: 143, Outcome: "stopped"}, false, true},
		{"the caller knows", Ended{Started: time.Now(), Ended: time.Now(), Exit: -1, Outcome: "lost"}, false, false},
		{"nothing was started", Ended{Exit: -1, Outcome: "failed"}, false, false},
		{"released before", ended(time.Second, 0), true, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				contender := periodic(t, m, "h1", Period{ID: "p1"})
				term := acquire(t, contender)
				if !c.lost {
					m.DestroySession(term.session)
				}
				unlocks := 0
				contender.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Has("unlock") {
						unlocks++
					}
					return consulmodel.Plan{DropAnswer: c.lost && unlocks == 1}
				})
				var lost *LostError
				err := term.Release(t.Context(), c.e)
				if told := errors.As(err, &lost); told != c.told || !told && err != nil {
					t.Errorf("the answer is %v", err)
				}
			})
		})
	}
}

// The first try to release isn't answered, and the second is refused: what the records say counts, whether
// somebody has had the lock since or not.
func TestUnlockUnanswered(t *testing.T) {
	for what, c := range map[string]struct{ carriedOut, another, told bool }{
		"lost":                                   {told: true},
		"lost, and another has had it since":     {another: true, told: true},
		"released":                               {carriedOut: true},
		"released, and another has had it since": {carriedOut: true, another: true},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				release(t, acquire(t, periodic(t, m, "h0", Period{})), ended(time.Second, 0)) // also by this one there is a run
				contender := periodic(t, m, "h1", Period{})
				term := acquire(t, contender)
				unlocks := 0
				contender.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if !r.Has("unlock") {
						return consulmodel.Plan{}
					}
					switch unlocks++; {
					case unlocks == 1 && c.carriedOut:
						return consulmodel.Plan{DropAnswer: true}
					case unlocks == 1:
						return consulmodel.Plan{Status: 500, Body: "No cluster leader", RequestDelay: time.Second}
					case unlocks == 2 && !c.carriedOut:
						m.DestroySession(term.session)
						m.ForgetLockDelays()
					}
					if unlocks == 2 && c.another {
						next := acquire(t, periodic(t, m, "h2", Period{}))
						release(t, next, ended(time.Second, 0))
					}
					return consulmodel.Plan{}
				})
				var lost *LostError
				err := term.Release(t.Context(), ended(time.Second, 0))
				if told := errors.As(err, &lost); told != c.told || !told && err != nil {
					t.Errorf("the answer is %v", err)
				}
			})
		})
	}
}

// Between the read of the lock and the acquire, another one has it and dies: this process was stopped, say.
func TestUncleanInTheMomentOfAnAcquire(t *testing.T) {
	for _, copies := range []int{0, 1} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				release(t, acquire(t, periodic(t, m, "h0", Period{}, of(copies))), ended(0, 0))
				var between *Term
				term, err := periodic(t, m, "h2", Period{}, of(copies)).Acquire(t.Context(), func([]byte) error {
					if between == nil {
						between = acquire(t, periodic(t, m, "h1", Period{}, of(copies)))
						m.DestroySession(between.session)
						time.Sleep(21 * time.Second)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if u := term.Unclean(); len(u) != 1 || u[0].Session != between.session {
					t.Errorf("to be fenced are %+v", u)
				}
				release(t, term, ended(0, 0))
				wantNothingLeft(t, m)
			})
		})
	}
}

// An acquire that was taken back has fenced nobody.
func TestUncleanAfterATakenBackAcquire(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first := acquire(t, periodic(t, m, "h1", Period{}))
		m.DestroySession(first.session)
		time.Sleep(21 * time.Second)
		c := periodic(t, m, "h2", Period{})
		c.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
			return consulmodel.Plan{DropAnswer: r.Has("lock")}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx, always); err == nil {
			t.Fatal("acquired")
		}
		next := acquire(t, periodic(t, m, "h3", Period{}))
		if u := next.Unclean(); len(u) != 1 || u[0].Host != "h1" {
			t.Errorf("the last holder is %+v, want h1: nobody has fenced it", u)
		}
	})
}

// Who died before it had started anything is to be fenced, and so is the one that it should
// have fenced. A guard that releases for it knows that, too.
func TestUncleanChain(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		var tokens []uint64
		hosts := func(term *Term) (hosts []string) {
			for i, u := range term.Unclean() {
				hosts = append(hosts, u.Host)
				if u.Token != tokens[i] {
					t.Errorf("%s has token %d, want %d", u.Host, u.Token, tokens[i])
				}
			}
			return hosts
		}
		var info []byte
		for _, host := range []string{"h1", "h2"} {
			term := acquire(t, periodic(t, m, host, Period{}))
			tokens = append(tokens, term.token)
			m.DestroySession(term.session)
			time.Sleep(21 * time.Second)
		}
		third, err := periodic(t, m, "h3", Period{}).Acquire(t.Context(), func(b []byte) error { info = b; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := hosts(third); !slices.Equal(got, []string{"h1", "h2"}) {
			t.Errorf("to be fenced are %q", got)
		}
		if err := ReleaseTerm(t.Context(), info, Ended{}, m.Transport(nil)); err != nil { // killed in its fence command
			t.Error(err)
		}
		fourth, err := periodic(t, m, "h4", Period{}).Acquire(t.Context(), func(b []byte) error { info = b; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := hosts(fourth); !slices.Equal(got, []string{"h1", "h2"}) {
			t.Errorf("after a guard's release to be fenced are %q", got)
		}
		if err := ReleaseTerm(t.Context(), info, Ended{Started: time.Now()}, m.Transport(nil)); err != nil { // killed while its command ran
			t.Error(err)
		}
		if got := hosts(acquire(t, periodic(t, m, "h5", Period{}))); len(got) > 0 {
			t.Errorf("after a command was started to be fenced are %q", got)
		}
	})
}
