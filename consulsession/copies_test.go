package consulsession

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// of is a Config change: n copies.
func of(n int) func(*Config) { return func(c *Config) { c.Copies = n } }

func copyLock(i int) string { return fmt.Sprintf("onlyone/%s/%d/.lock", testName, i) }

// kept renews a term's session until it is released.
func kept(t *testing.T, c *Contender) (term *Term, done func(Ended)) {
	t.Helper()
	term = acquire(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for term.c.pause(ctx, 5*time.Second) == nil {
			_ = term.Renew(context.Background())
		}
	}()
	return term, func(e Ended) {
		t.Helper()
		cancel()
		release(t, term, e)
	}
}

// holdings checks that no copy is held twice and that its tokens grow.
type holdings struct {
	mu     sync.Mutex
	held   map[int]string
	tokens map[int]uint64
	most   int
	order  []int // of contenders
}

func (h *holdings) enter(t *testing.T, i int, term *Term) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if by, ok := h.held[term.copy]; ok {
		t.Errorf("copy %d is held by %s and %s", term.copy, by, term.session)
	}
	h.held[term.copy] = term.session
	h.most = max(h.most, len(h.held))
	if term.token <= h.tokens[term.copy] {
		t.Errorf("copy %d: token %d after %d", term.copy, term.token, h.tokens[term.copy])
	}
	h.tokens[term.copy] = term.token
	h.order = append(h.order, i)
}

func (h *holdings) leave(term *Term) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, term.copy)
}

func newHoldings() *holdings { return &holdings{held: map[int]string{}, tokens: map[int]uint64{}} }

// Never more than so many, never two with a number, in order of arrival, and a hand-over costs
// the same however many wait.
func TestCopies(t *testing.T) {
	for _, n := range []int{12, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				const copies = 5
				h := newHoldings()
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 10 * time.Millisecond)
						term := acquire(t, periodic(t, m, fmt.Sprint("h", i), Period{}, of(copies)))
						h.enter(t, i, term)
						if env := term.Env(); !slices.Contains(env, fmt.Sprint("ONLYONE_COPY=", term.copy)) || !slices.Contains(env, "ONLYONE_COPIES=5") || !slices.Contains(env, "ONLYONE_KEY="+copyLock(term.copy)) {
							t.Errorf("environment %q", env)
						}
						time.Sleep(time.Duration(1000+i*37%400) * time.Millisecond)
						h.leave(term)
						release(t, term, ended(time.Second, 0))
					})
				}
				wg.Wait()
				if h.most != copies || len(h.order) != n {
					t.Errorf("at most %d of %d copies at once, %d runs of %d", h.most, copies, len(h.order), n)
				}
				if !slices.IsSorted(h.order) {
					t.Errorf("order of holders %v", h.order)
				}
				counts := m.Requests()
				// Two more than without copies: it wakes when it becomes the first, and when a copy is free.
				if per := float64(counts.Total()-counts[consulmodel.SessionRenew]) / float64(n); per > 10 {
					t.Errorf("%.1f requests a contender, want at most 10", per)
				}
				wantNothingLeft(t, m)
			})
		})
	}
}

// Random holders die: their copies come back after their lease, and nobody waits for them
// where another copy is free.
func TestCopiesOfTheDead(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			m := consulmodel.New(consulmodel.Options{Seed: seed})
			r := rand.New(rand.NewPCG(seed, 1))
			h := newHoldings()
			var wg sync.WaitGroup
			for i := range 12 {
				plans := make([]int, 6)
				for j := range plans {
					plans[j] = r.IntN(10_000)
				}
				wg.Go(func() {
					for _, p := range plans {
						term := acquire(t, periodic(t, m, fmt.Sprint("h", i), Period{}, of(5)))
						h.enter(t, i, term)
						time.Sleep(time.Duration(p) * time.Millisecond)
						h.leave(term)
						if p%4 == 0 {
							m.DestroySession(term.session)
							continue
						}
						release(t, term, ended(time.Second, 0))
					}
				})
			}
			wg.Wait()
			if len(h.order) != 72 {
				t.Errorf("seed %d: %d runs, want 72", seed, len(h.order))
			}
			wantNothingLeft(t, m)
		})
	}
	t.Run("a lock-delay holds up nobody", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			first, _ := kept(t, periodic(t, m, "h1", Period{}, of(2)))
			second, releaseSecond := kept(t, periodic(t, m, "h2", Period{}, of(2)))
			got := make(chan *Term)
			go func() { got <- acquire(t, periodic(t, m, "h3", Period{}, of(2))) }()
			time.Sleep(time.Second)
			m.DestroySession(first.session)
			time.Sleep(5 * time.Second)
			begin := time.Now()
			releaseSecond(ended(time.Second, 0))
			third := <-got
			if third.copy != second.copy || time.Since(begin) > 0 {
				t.Errorf("copy %d after %s, want the free one (%d) at once", third.copy, time.Since(begin), second.copy)
			}
			release(t, third, ended(0, 0))
		})
	})
}

func TestCopiesNoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		_, one := kept(t, periodic(t, m, "h1", Period{}, of(2), noWait))
		_, two := kept(t, periodic(t, m, "h2", Period{}, of(2), noWait))
		var held *HeldError
		if _, err := periodic(t, m, "h3", Period{}, of(2), noWait).Acquire(t.Context(), always); !errors.As(err, &held) || held.Copies != 2 {
			t.Errorf("%v, want that both copies are held", err)
		}
		var other *CopiesError
		if _, err := periodic(t, m, "h3", Period{}, of(3)).Acquire(t.Context(), always); !errors.As(err, &other) || other.Record.Copies != 2 || other.Record.By != "h1" {
			t.Errorf("%v, want a *CopiesError", err)
		}
		m.PutKey("onlyone/"+testName+"/.copies", "garbage")
		var bad *RecordError
		if _, err := periodic(t, m, "h3", Period{}, of(2)).Acquire(t.Context(), always); !errors.As(err, &bad) {
			t.Errorf("%v, want a *RecordError", err)
		}
		one(ended(0, 0))
		two(ended(0, 0))
		wantNothingLeft(t, m)
	})
}

// A copy that fails or dies is run again when each has had its turn: else a bad one would take all hosts.
func TestCopiesRetriedLast(t *testing.T) {
	for _, retry := range []Retry{OnFailure, OnCrash} {
		t.Run(string(retry), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				var got []int
				for i := range 7 {
					term := acquire(t, periodic(t, m, fmt.Sprint("h", i), daily(dayOne, retry), of(3)))
					got = append(got, term.copy)
					e := ended(time.Second, 1)
					if retry == OnCrash {
						e.Outcome = "stopped"
					}
					release(t, term, e)
				}
				if want := []int{0, 1, 2, 0, 1, 2, 0}; !slices.Equal(got, want) {
					t.Errorf("the copies were run in the order %d, want %d", got, want)
				}
			})
		})
	}
}

// Where some copies are done and the others run, that is said, and not that one will be free soon.
func TestCopiesPartlyDone(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		p := daily(dayOne, OnCrash)
		for range 2 {
			release(t, acquire(t, periodic(t, m, "h1", p, of(3))), ended(time.Second, 0))
		}
		_, done := kept(t, periodic(t, m, "h1", p, of(3)))
		var held *HeldError
		_, err := periodic(t, m, "h2", p, of(3), noWait).Acquire(t.Context(), always)
		if !errors.As(err, &held) || held.Why != "" || held.Done != 2 || held.Error() != "held: 2 of its 3 copies are done in this period, the others run" {
			t.Errorf("one that doesn't wait: %v", err)
		}
		var told []Queue
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = periodic(t, m, "h2", p, of(3), func(c *Config) { c.Waiting = func(q Queue) { told = append(told, q) } }).Acquire(ctx, always)
		if len(told) == 0 || told[0].Free || told[0].Done != 2 {
			t.Errorf("one that waits is told %+v", told)
		}
		done(ended(time.Second, 0))
		wantNothingLeft(t, m)
	})
}

// A copy that consul lock holds isn't about to be free.
func TestCopyOfAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		release(t, acquire(t, periodic(t, m, "h1", Period{}, of(1))), ended(0, 0))
		s := m.CreateSession(time.Hour, 15*time.Second)
		m.Acquire(copyLock(0), s, "consul lock's")
		var held *HeldError
		if _, err := periodic(t, m, "h2", Period{}, of(1), noWait).Acquire(t.Context(), always); !errors.As(err, &held) || held.Why != "" {
			t.Errorf("one that doesn't wait: %v", err)
		}
		var told []Queue
		got := make(chan *Term)
		c := periodic(t, m, "h2", Period{}, of(1), func(c *Config) { c.Waiting = func(q Queue) { told = append(told, q) } })
		go func() { got <- acquire(t, c) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(told) == 0 || told[0].Free {
			t.Errorf("one that waits is told %+v", told)
		}
		m.Unlock(copyLock(0), s)
		time.Sleep(2 * delayPause)
		select {
		case term := <-got:
			release(t, term, ended(0, 0))
		default:
			t.Fatal("it is free, and was not taken")
		}
		m.DestroySession(s)
		wantNothingLeft(t, m)
	})
}

// Each copy has its own period; it is done when all are.
func TestCopiesWithPeriods(t *testing.T) {
	p := daily(dayOne, OnCrash)
	key := func(i int) string { return fmt.Sprintf("onlyone/%s/%d/.period", testName, i) }
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first := acquire(t, periodic(t, m, "h1", p, of(2)))
		release(t, first, ended(time.Second, 0))
		second, releaseSecond := kept(t, periodic(t, m, "h1", p, of(2)))
		if first.copy == second.copy {
			t.Errorf("copy %d ran its period twice", first.copy)
		}
		if env := second.Env(); !slices.Contains(env, fmt.Sprintf("IDEMPOTENCY_KEY=%s/%d/%s", testName, second.copy, p.ID)) {
			t.Errorf("environment %q", env)
		}
		if _, err := periodic(t, m, "h2", p, of(2), noWait).Acquire(t.Context(), always); verdict(err) == "done" || err == nil {
			t.Errorf("one of two is done and one runs: %v", err)
		}
		got := make(chan error)
		go func() {
			_, err := periodic(t, m, "h2", p, of(2)).Acquire(t.Context(), always)
			got <- err
		}()
		time.Sleep(20 * time.Second)
		releaseSecond(ended(time.Second, 1))
		if err := <-got; verdict(err) != "done" {
			t.Errorf("%v, want that it is done", err)
		}
		wantNothingLeft(t, m)
		// A copy whose record can't be used isn't done, and that must not look like success.
		m.PutKey(key(1), "garbage")
		var bad *RecordError
		if _, err := periodic(t, m, "h2", p, of(2)).Acquire(t.Context(), always); !errors.As(err, &bad) {
			t.Errorf("%v, want a *RecordError", err)
		}
		if kv, _ := m.Key(key(1)); string(kv.Value) != "garbage" {
			t.Errorf("it was overwritten: %s", kv.Value)
		}
		wantNothingLeft(t, m)
	})
	t.Run("many", func(t *testing.T) { // more records than one read takes
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			for range 2 * periodReads {
				release(t, acquire(t, periodic(t, m, "h1", p, of(2*periodReads))), ended(0, 0))
			}
			if _, err := periodic(t, m, "h1", p, of(2*periodReads)).Acquire(t.Context(), always); verdict(err) != "done" {
				t.Errorf("%v, want that it is done", err)
			}
		})
	})
}

// Who joins the queue of more copies than one read has periods of doesn't ask for one that is done.
func TestManyCopiesDone(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		const n = periodReads + 2
		p := daily(dayOne, OnCrash)
		for range n - 1 {
			release(t, acquire(t, periodic(t, m, "h1", p, of(n))), ended(0, 0))
		}
		_, done := kept(t, periodic(t, m, "h1", p, of(n)))
		last := periodic(t, m, "h2", p, of(n))
		asked := 0
		last.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("cas") {
				asked++
			}
			return consulmodel.Plan{}
		})
		got := make(chan error)
		go func() {
			_, err := last.Acquire(t.Context(), always)
			got <- err
		}()
		// The copy that runs is one of the first: what is beyond isn't read with it.
		time.Sleep(10 * time.Second)
		done(ended(0, 0))
		if err := <-got; verdict(err) != "done" || asked > 0 {
			t.Errorf("%v, after %d acquires", err, asked)
		}
	})
}

// Lost answers with copies: one session never holds two.
func TestUnansweredAcquireOfACopy(t *testing.T) {
	for how, plan := range map[string]consulmodel.Plan{
		"carried out":   {DropAnswer: true},
		"late":          {RequestDelay: 2050 * time.Millisecond, DropAnswer: true},
		"never":         {DropRequest: true},
		"a minute late": {RequestDelay: time.Minute},
	} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				c := periodic(t, m, "h1", daily(dayOne, OnCrash), of(3))
				lost := 0
				c.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Has("lock") && r.Has("cas") && lost < 2 {
						lost++
						return plan
					}
					return consulmodel.Plan{}
				})
				// Somebody takes the first copy meanwhile.
				go func() {
					time.Sleep(2010 * time.Millisecond)
					other := acquire(t, periodic(t, m, "h2", daily(dayOne, OnCrash), of(3)))
					time.Sleep(10 * time.Second)
					release(t, other, ended(0, 0))
				}()
				term, done := kept(t, c)
				time.Sleep(3 * time.Minute)
				n := 0
				for i := range 3 {
					if s, _ := m.Holder(copyLock(i)); s != "" {
						n++
					}
				}
				if s, index := m.Holder(term.Key()); n != 1 || s != term.session || index != term.token {
					t.Errorf("%d copies are held; %s by %s (%d)", n, term.Key(), s, index)
				}
				done(ended(0, 0))
				wantNothingLeft(t, m)
			})
		})
	}
}

// Keys beside the copies that are used (a deleted one, those of a larger number before) don't
// make the first contender ask without a pause.
func TestCopiesWatchIsQuiet(t *testing.T) {
	for name, change := range map[string]func(m *consulmodel.Model){
		"nothing":                   func(*consulmodel.Model) {},
		"a deleted mirror":          func(m *consulmodel.Model) { m.DeleteKey("onlyone/" + testName + "/~held/1") },
		"a copy of a larger number": func(m *consulmodel.Model) { m.PutKey("onlyone/"+testName+"/~held/7", "old") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				_, one := kept(t, periodic(t, m, "h1", Period{}, of(2)))
				_, two := kept(t, periodic(t, m, "h2", Period{}, of(2)))
				rt := m.Transport(func(r *consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{AnswerDelay: time.Millisecond} })
				got := make(chan *Term)
				go func() {
					got <- acquire(t, periodic(t, m, "h3", Period{}, of(2), func(c *Config) { c.Client.Transport = rt }))
				}()
				time.Sleep(time.Second)
				change(m)
				before := rt.Sent()
				time.Sleep(100 * time.Second)
				if n := rt.Sent() - before; n > 1000 || name != "a deleted mirror" && n > 35 {
					t.Errorf("%d requests in 100 s", n)
				}
				one(ended(0, 0))
				synctest.Wait()
				select {
				case term := <-got:
					release(t, term, ended(0, 0))
				case <-time.After(2 * time.Second):
					t.Error("a copy is free, and it wasn't taken")
				}
				two(ended(0, 0))
			})
		})
	}
}

// Somebody has deleted the mirror of a copy: its holder releases all the same, and its run is on record.
func TestReleaseWithoutMirror(t *testing.T) {
	for _, guard := range []bool{false, true} {
		t.Run(fmt.Sprint(guard), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				var info []byte
				p := Period{ID: "p1"}
				term, err := periodic(t, m, "h1", p, of(2)).Acquire(t.Context(), func(b []byte) error { info = b; return nil })
				if err != nil {
					t.Fatal(err)
				}
				m.DeleteKey("onlyone/" + testName + "/~held/0")
				if guard {
					err = ReleaseTerm(t.Context(), info, ended(time.Second, 0), m.Transport(nil))
				} else {
					err = term.Release(t.Context(), ended(time.Second, 0))
				}
				if err != nil {
					t.Error(err)
				}
				h := find(t, operator(t, m.Transport(nil)), testName+"/0").At(0)
				if h.Unclean != nil || h.LastRun == nil || h.LastRun.Outcome != "exited" || h.Period == nil || h.Period.State != periodEnded {
					t.Errorf("%+v, run %+v, period %+v", h, h.LastRun, h.Period)
				}
				// The next one has it at once, and the mirror is there again.
				next := acquire(t, periodic(t, m, "h2", Period{}, of(2), noWait))
				if s, _ := m.Holder("onlyone/" + testName + "/~held/0"); next.copy != 0 || s != next.session {
					t.Errorf("copy %d, whose mirror is held by %q", next.copy, s)
				}
				release(t, next, ended(0, 0))
				wantNothingLeft(t, m)
			})
		})
	}
}

// Somebody has deleted the mirror of a copy whose holder didn't release: it is to be fenced all the same.
func TestUncleanWithoutMirror(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first := acquire(t, periodic(t, m, "h1", Period{}, of(1)))
		m.DeleteKey("onlyone/" + testName + "/~held/0")
		writes := m.RaftWrites()
		var held *HeldError
		if _, err := periodic(t, m, "h2", Period{}, of(1), noWait).Acquire(t.Context(), always); !errors.As(err, &held) || held.Why != "" {
			t.Errorf("while it is held: %v", err)
		}
		if n := m.RaftWrites() - writes; n > 2 { // the session
			t.Errorf("%d writes to see that it is held", n)
		}
		m.DestroySession(first.session)
		time.Sleep(21 * time.Second)
		next := acquire(t, periodic(t, m, "h2", Period{}, of(1)))
		if u := next.Unclean(); len(u) != 1 || u[0].Session != first.session || u[0].Token != first.token {
			t.Errorf("to be fenced are %+v", u)
		}
		release(t, next, ended(0, 0))
		wantNothingLeft(t, m)
	})
}

// A holder's own entry in the queue holds up nobody: one that it made in the moment of the
// acquire, and one whose request came late.
func TestEntryOfAHolder(t *testing.T) {
	queued := func(m *consulmodel.Model, session string) bool {
		_, ok := m.Key("onlyone/" + testName + "/~queue/" + session)
		return ok
	}
	t.Run("late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			first, done := kept(t, periodic(t, m, "h1", Period{}, of(2)))
			m.Acquire("onlyone/"+testName+"/~queue/"+first.session, first.session, "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			second, err := periodic(t, m, "h2", Period{}, of(2)).Acquire(ctx, always)
			if err != nil {
				t.Fatalf("a copy is free: %v", err)
			}
			release(t, second, ended(0, 0))
			done(ended(0, 0))
		})
	})
	t.Run("in the moment of the acquire", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			c := periodic(t, m, "h1", Period{}, of(2))
			c.Client.Transport.(*consulmodel.Transport).SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
				if i := slices.IndexFunc(r.Ops, func(o consulmodel.TxnOp) bool { return o.Verb == "lock" }); i >= 0 {
					m.Acquire("onlyone/"+testName+"/~queue/"+r.Ops[i].Session, r.Ops[i].Session, "")
				}
				return consulmodel.Plan{}
			})
			term := acquire(t, c)
			if queued(m, term.session) {
				t.Error("its entry is in the queue while it holds")
			}
			release(t, term, ended(0, 0))
		})
	})
}
