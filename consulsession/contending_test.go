package consulsession

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// copiesOf is a contender for one of n copies.
func copiesOf(n int, rt http.RoundTripper) Config {
	c := config(rt)
	c.Copies = n
	return c
}

func mustAcquire(t *testing.T, c Config) *Term {
	t.Helper()
	term, err := contender(t, c).Acquire(t.Context(), always)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func giveBack(t *testing.T, term *Term) {
	t.Helper()
	if err := term.Release(t.Context(), ended(time.Second, 0)); err != nil {
		t.Error(err)
	}
}

// acquiring is an Acquire in the background.
type acquiring struct {
	done chan struct{}
	term *Term
	err  error
}

func acquiringWith(ctx context.Context, t *testing.T, c Config) *acquiring {
	t.Helper()
	a := &acquiring{done: make(chan struct{})}
	n := contender(t, c)
	go func() {
		defer close(a.done)
		a.term, a.err = n.Acquire(ctx, always)
	}()
	synctest.Wait()
	return a
}

func (a *acquiring) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// All copies are free and all contenders come in the same instant: each is refused a few
// times at most.
func TestCopiesTakenAtOnce(t *testing.T) {
	const copies = 100
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		held := map[int]bool{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		seed := time.Duration(0)
		for range copies {
			c := copiesOf(copies, m.Transport(nil))
			c.Jitter = func(most time.Duration) time.Duration { // spread, but always in the same way
				mu.Lock()
				defer mu.Unlock()
				seed += 7919 * time.Microsecond
				return seed % max(most, 1)
			}
			wg.Go(func() {
				term, err := contender(t, c).Acquire(t.Context(), always)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				held[term.copy] = true
			})
		}
		wg.Wait()
		if len(held) != copies {
			t.Errorf("%d copies are held, want %d", len(held), copies)
		}
		t.Logf("%.1f requests each", float64(m.Requests().Total())/copies)
		if per := float64(m.Requests().Total()) / copies; per > 15 {
			t.Errorf("%.1f requests a contender, want at most 15: %v", per, m.Requests())
		}
	})
}

// Another number of copies is refused, both ways, as soon as it is set; none at all is a
// number, too.
func TestCopiesMustAgree(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		a := mustAcquire(t, copiesOf(2, m.Transport(nil)))
		for _, n := range []int{0, 1, 3} {
			_, err := contender(t, copiesOf(n, m.Transport(nil))).Acquire(t.Context(), always)
			if bad, ok := errors.AsType[*CopiesError](err); !ok || bad.Want != n || bad.Record.Copies != 2 || bad.Record.By != "h1" {
				t.Errorf("%d copies beside 2: got %v, want a *CopiesError", n, err)
			}
		}
		giveBack(t, a)
	})
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		plain := mustAcquire(t, config(m.Transport(nil)))
		queued := acquiringWith(t.Context(), t, config(m.Transport(nil)))
		_, err := contender(t, copiesOf(2, m.Transport(nil))).Acquire(t.Context(), always)
		if bad, ok := errors.AsType[*CopiesError](err); !ok || bad.Want != 2 || bad.Record.Copies != 0 || bad.Record.By != "h1" {
			t.Errorf("copies beside a holder without: got %v, want a *CopiesError", err)
		}
		giveBack(t, plain)
		<-queued.done
		if queued.err != nil {
			t.Fatal(queued.err)
		}
		giveBack(t, queued.term)
		// Nobody uses it without copies any more.
		giveBack(t, mustAcquire(t, copiesOf(2, m.Transport(nil))))
		wantNothingLeft(t, m)
	})
}

// Who used the name without copies may be alive until its lease is over, also if its session isn't
// any more: no copy can be had before.
func TestCopiesAfterALostLockWithout(t *testing.T) {
	for _, copies := range []int{1, 200} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				plain := mustAcquire(t, config(m.Transport(nil)))
				before, _ := m.Key(plain.Key())
				m.DestroySession(plain.session)
				lost := time.Now()
				n := copiesOf(copies, m.Transport(nil))
				n.NoWait = true
				_, err := contender(t, n).Acquire(t.Context(), always)
				if held, ok := errors.AsType[*HeldError](err); !ok || held.Why != "lock-delay" {
					t.Errorf("one that doesn't wait: %v", err)
				}
				requests := m.Requests().Total()
				term := mustAcquire(t, copiesOf(copies, m.Transport(nil)))
				if d := time.Since(lost); d < plain.c.Lease || d > plain.c.Lease+2*delayPause {
					t.Errorf("a copy was acquired %s after the loss, want %s", d, plain.c.Lease)
				}
				if n := m.Requests().Total() - requests; n > 250 { // not as many as there are copies
					t.Errorf("%d requests meanwhile", n)
				}
				if after, _ := m.Key(plain.Key()); after.Session != "" || after.Flags != before.Flags || string(after.Value) != string(before.Value) {
					t.Errorf("the lock without copies was %+v, and is %+v", before, after)
				}
				giveBack(t, term)
				wantNothingLeft(t, m)
			})
		})
	}
}

// The first with copies and one without come in the same instant: one of them is refused.
func TestCopiesAndNoneAtOnce(t *testing.T) {
	for _, first := range []int{0, 2} {
		for _, used := range []bool{false, true} { // without copies, before
			t.Run(fmt.Sprintf("%d first, used %v", first, used), func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *consulmodel.Model) {
					if used {
						giveBack(t, mustAcquire(t, config(m.Transport(nil))))
					}
					slow := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
						if r.Has("lock") {
							return consulmodel.Plan{RequestDelay: time.Second}
						}
						return consulmodel.Plan{}
					})
					late := acquiringWith(t.Context(), t, copiesOf(2-first, slow)) // has read, and found it free
					term := mustAcquire(t, copiesOf(first, m.Transport(nil)))
					<-late.done
					if bad, ok := errors.AsType[*CopiesError](late.err); !ok {
						t.Errorf("got %v, want a *CopiesError", late.err)
					} else if bad.Want != 2-first || bad.Record.Copies != first {
						t.Errorf("got %+v", bad)
					}
					giveBack(t, term)
				})
			})
		}
	}
}

// A larger number wakes who waits with the old one, and it says so.
func TestResizeWakesTheFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		a := mustAcquire(t, copiesOf(1, m.Transport(nil)))
		next := acquiringWith(t.Context(), t, copiesOf(1, m.Transport(nil)))
		if _, err := operator(t, m.Transport(nil)).Resize(t.Context(), testName, 2, "more"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !next.ended() {
			t.Fatal("it still waits")
		}
		if bad, ok := errors.AsType[*CopiesError](next.err); !ok || bad.Record.Copies != 2 || bad.Record.By != "ann@desk" {
			t.Errorf("got %v, want a *CopiesError", next.err)
		}
		b := mustAcquire(t, copiesOf(2, m.Transport(nil)))
		if b.copy != 1 {
			t.Errorf("got copy %d, want 1", b.copy)
		}
		giveBack(t, a)
		giveBack(t, b)
		wantNothingLeft(t, m)
	})
}

// The acquire of one copy isn't answered, and is carried out when its contender has gone to
// wait: it must not hold a copy (or the lock) that it doesn't know of. The other one of the
// queue would wait for it, and it for the other.
func TestAcquireCarriedOutInTheQueue(t *testing.T) {
	for _, copies := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				n := 0
				lates := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Has("check-not-exists") && n == 0 { // an acquire
						n++
						return consulmodel.Plan{RequestDelay: 30*time.Second + 100*time.Millisecond}
					}
					return consulmodel.Plan{}
				})
				late := acquiringWith(t.Context(), t, copiesOf(copies, lates))
				var terms []*Term
				for range max(copies, 1) {
					terms = append(terms, mustAcquire(t, copiesOf(copies, m.Transport(nil))))
				}
				slower := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Has("check-not-exists") {
						return consulmodel.Plan{RequestDelay: 200 * time.Millisecond}
					}
					return consulmodel.Plan{}
				})
				second := acquiringWith(t.Context(), t, copiesOf(copies, slower))
				time.Sleep(10 * time.Second)
				third := acquiringWith(t.Context(), t, copiesOf(copies, m.Transport(nil)))
				for range 4 {
					time.Sleep(5 * time.Second)
					for _, term := range terms {
						if err := term.Renew(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, term := range terms { // the instant before it is carried out
					go giveBack(t, term)
				}
				wait := []*acquiring{late, second, third}
				for range wait {
					time.Sleep(40 * time.Second)
					i := slices.IndexFunc(wait, (*acquiring).ended)
					if i < 0 {
						t.Fatalf("%d contenders wait for each other", len(wait))
					}
					if wait[i].err != nil {
						t.Fatal(wait[i].err)
					}
					var lost *LostError // nobody has renewed it
					if err := wait[i].term.Release(t.Context(), ended(time.Second, 0)); err != nil && !errors.As(err, &lost) {
						t.Error(err)
					}
					wait = slices.Delete(wait, i, i+1)
				}
				if n != 1 {
					t.Errorf("%d late acquires, want 1", n)
				}
			})
		})
	}
}

// An acquire isn't answered, and the next one of the same session is refused: the first may still be carried
// out. It must not get the session a second copy, nor a lock for which the one before it in the queue waits.
func TestAcquireCarriedOutAfterARefusal(t *testing.T) {
	for _, copies := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				if copies > 0 {
					giveBack(t, mustAcquire(t, copiesOf(copies, m.Transport(nil))))
				}
				// Its holder died, so that nothing but the time changes until the first acquire is carried out.
				m.DestroySession(mustAcquire(t, copiesOf(copies, m.Transport(nil))).session)
				acquires := 0
				rt := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
					isJoin := len(r.Ops) > 1 && r.Ops[0].Verb == "lock" && r.Ops[1].Verb == "get-tree"
					switch acquire := r.Has("check-not-exists"); {
					case acquire && acquires == 0:
						acquires++
						return consulmodel.Plan{RequestDelay: 20*time.Second + time.Millisecond}
					case acquire:
						acquires++
					case isJoin && acquires > 0: // another is before it in the queue
						return consulmodel.Plan{RequestDelay: time.Second}
					}
					return consulmodel.Plan{}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				late := acquiringWith(ctx, t, copiesOf(copies, rt))
				time.Sleep(2100 * time.Millisecond)
				slow := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
					return consulmodel.Plan{RequestDelay: map[bool]time.Duration{true: 500 * time.Millisecond}[r.Has("check-not-exists")]}
				})
				other := acquiringWith(ctx, t, copiesOf(copies, slow))
				time.Sleep(9 * time.Second)
				if late.ended() {
					_ = late.term.Renew(t.Context())
				}
				time.Sleep(9 * time.Second) // a moment after the first acquire was to be carried out
				held := map[string]int{}
				for _, k := range m.Keys() {
					if strings.HasSuffix(k.Key, "/.lock") && k.Session != "" {
						held[k.Session]++
					}
				}
				for s, n := range held {
					if n > 1 {
						t.Errorf("%s holds %d copies", s, n)
					}
				}
				time.Sleep(5 * time.Second)
				if !other.ended() && !late.ended() {
					t.Errorf("two contenders wait for each other; held: %v", held)
				}
				synctest.Wait()
				if acquires < 2 {
					t.Errorf("%d acquires", acquires)
				}
			})
		})
	}
}

// Somebody has deleted what is in the queue: who waits joins it again, before those who come then.
func TestQueueIsJoinedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		_, done := kept(t, contender(t, config(m.Transport(nil))))
		rt := m.Transport(nil)
		first := acquiringWith(t.Context(), t, config(rt))
		time.Sleep(time.Second)
		for _, k := range m.Keys() {
			if strings.Contains(k.Key, "/~queue/") {
				m.DeleteKey(k.Key)
			}
		}
		m.PutKey(testLock, "a note") // wakes it
		time.Sleep(time.Second)
		second := acquiringWith(t.Context(), t, config(m.Transport(nil)))
		if l := find(t, operator(t, m.Transport(nil)), testName); len(l.Waiting) != 2 {
			t.Errorf("%d are said to wait, want 2", len(l.Waiting))
		}
		done(ended(0, 0))
		synctest.Wait()
		if !first.ended() || second.ended() {
			t.Fatalf("the first has it: %v; the second: %v", first.ended(), second.ended())
		}
		giveBack(t, first.term)
		synctest.Wait()
		giveBack(t, second.term)
		wantNothingLeft(t, m)
	})
}
