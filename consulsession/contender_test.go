package consulsession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

const (
	testName = "team/job"
	testLock = "onlyone/" + testName + "/.lock"
)

// config is a contender of the model, with the default dials and no jitter.
func config(rt http.RoundTripper) Config {
	start := time.Now()
	return Config{
		Client: ClientConfig{Transport: rt}, Prefix: "onlyone", Name: testName,
		Lease: 20 * time.Second, TTL: 10 * time.Second, Poll: 2 * time.Second,
		Host: "h1", Pid: 1, Command: "job",
		Now:    func() time.Duration { return time.Since(start) },
		Jitter: func(most time.Duration) time.Duration { return most / 2 },
		Log:    zerolog.Nop(),
	}
}

func contender(t *testing.T, c Config) *Contender {
	t.Helper()
	n, err := NewContender(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func always([]byte) error { return nil }

// inBubble gives each test its model.
func inBubble(t *testing.T, f func(t *testing.T, m *consulmodel.Model)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, consulmodel.New(consulmodel.Options{Seed: 1, NoJitter: true})) })
}

func wantNothingLeft(t *testing.T, m *consulmodel.Model) {
	t.Helper()
	if s := m.Sessions(); len(s) > 0 {
		t.Errorf("sessions are left: %v", s)
	}
	for _, k := range m.Keys() {
		if strings.Contains(k.Key, "~queue") {
			t.Errorf("queue entry %s is left", k.Key)
		}
	}
}

// The queue is in order of arrival, one holds at a time, and a hand-over costs the same
// however many wait (https://github.com/hashicorp/consul/issues/7523).
func TestQueueOrderAndCost(t *testing.T) {
	for _, n := range []int{10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				var mu sync.Mutex
				var order []int
				var tokens []uint64
				holding := 0
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						c := contender(t, config(m.Transport(nil)))
						term, err := c.Acquire(t.Context(), always)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						order, tokens = append(order, i), append(tokens, term.Token())
						if holding++; holding > 1 {
							t.Error("two hold the lock")
						}
						mu.Unlock()
						time.Sleep(100 * time.Millisecond)
						mu.Lock()
						holding--
						mu.Unlock()
						if err := term.Release(t.Context(), Ended{Started: time.Now(), Ended: time.Now(), Outcome: "exited"}); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if !slices.IsSorted(order) || len(order) != n {
					t.Errorf("order of holders %v", order)
				}
				if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != n {
					t.Errorf("tokens %v", tokens)
				}
				counts := m.Requests()
				// After each renewal the watch is sent again: that is the price of waiting.
				if per := float64(counts.Total()-2*counts[consulmodel.SessionRenew]) / float64(n); per > 8 {
					t.Errorf("%.1f requests a contender, want at most 8", per)
				}
				if per := float64(m.RaftWrites()) / float64(n); per > 6 {
					t.Errorf("%.1f raft writes a contender, want at most 6", per)
				}
				wantNothingLeft(t, m)
			})
		})
	}
}

// A contender that waits asks little and keeps its session.
func TestIdleContenderIsQuiet(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		m.PutKey(testLock, "an operator's note") // without the flags of a lock
		ctx, cancel := context.WithCancel(t.Context())
		rt := m.Transport(nil)
		done := make(chan error)
		go func() { _, err := contender(t, config(rt)).Acquire(ctx, always); done <- err }()
		var foreign *ForeignKeyError
		if err := <-done; !errors.As(err, &foreign) {
			t.Fatalf("got %v, want a *ForeignKeyError for a key without a lock's flags", err)
		}
		m.DeleteKey(testLock)
		holder, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range 40 { // keep the holder's session
				time.Sleep(5 * time.Second)
				_ = holder.Renew(context.Background())
			}
		}()
		before := rt.Requests().Total()
		go func() { _, err := contender(t, config(rt)).Acquire(ctx, always); done <- err }()
		time.Sleep(200 * time.Second)
		if rate := float64(rt.Requests().Total()-before) / 200; rate > 0.3 {
			t.Errorf("%.2f requests/s, want at most 0.3", rate)
		}
		cancel()
		<-done
		if err := holder.Release(context.Background(), Ended{}); err != nil {
			t.Error(err)
		}
		wantNothingLeft(t, m)
	})
}

// Not waiting: who holds it, that others wait, that a lock-delay runs.
func TestNoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		c := config(m.Transport(nil))
		c.NoWait = true
		var held *HeldError
		if _, err := contender(t, c).Acquire(t.Context(), always); !errors.As(err, &held) || held.By.Host != "h1" {
			t.Errorf("got %v, want held by h1", err)
		}
		m.DestroySession(first.session)
		if _, err := contender(t, c).Acquire(t.Context(), always); !errors.As(err, &held) || held.Why != "lock-delay" {
			t.Errorf("got %v, want a lock-delay", err)
		}
		wantNothingLeft(t, m)
	})
}

// The next host has the lock when the lease of a dead one is over, and not before.
func TestLockDelayIsTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		end := time.Now()
		m.DestroySession(first.session)
		next, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(end); waited < 20*time.Second || waited > 21*time.Second {
			t.Errorf("acquired after %s, want 20s and at most a second", waited)
		}
		if next.Token() <= first.Token() {
			t.Errorf("token %d after %d", next.Token(), first.Token())
		}
	})
}

// An acquire that was carried out but not answered is asked again with the same session;
// the token is what the key shows.
func TestUnansweredAcquire(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		lost := 0
		rt := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("lock") && lost < 2 {
				lost++
				return consulmodel.Plan{DropAnswer: true}
			}
			return consulmodel.Plan{}
		})
		sent := time.Now()
		term, err := contender(t, config(rt)).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		if session, index := m.Holder(testLock); session != term.session || index != term.Token() {
			t.Errorf("the key has session %s, index %d; the term %s, %d", session, index, term.session, term.Token())
		}
		if lost != 2 || term.Sent() < 4*time.Second || time.Since(sent) < 4*time.Second {
			t.Errorf("the lease counts from %s, want from the third request", term.Sent())
		}
	})
}

// A request of a contender that gave up may arrive a minute later: with the session
// destroyed it locks nothing.
func TestLateAcquireOfALeaverLocksNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		rt := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("lock") {
				return consulmodel.Plan{RequestDelay: time.Minute}
			}
			return consulmodel.Plan{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := contender(t, config(rt)).Acquire(ctx, always); err == nil {
			t.Fatal("acquired")
		}
		wantNothingLeft(t, m)
		time.Sleep(2 * time.Minute)
		if session, _ := m.Holder(testLock); session != "" {
			t.Errorf("session %s holds the lock", session)
		}
	})
}

// Nothing is left by a contender that is told to stop while a request of its is carried out but not
// answered: no session that it has never heard of, and no queue entry.
func TestStoppedBeforeTheAnswer(t *testing.T) {
	for _, held := range []bool{false, true} {
		for n := range 6 {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				if held {
					if _, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always); err != nil {
						t.Fatal(err)
					}
				}
				others := len(m.Sessions())
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				came, stopped := 0, make(chan time.Time, 1)
				rt := m.Transport(func(*consulmodel.Request) (p consulmodel.Plan) {
					if p.AnswerDelay = 10 * time.Millisecond; came == n {
						time.AfterFunc(5*time.Millisecond, func() { stopped <- time.Now(); cancel(hurried{}) })
					}
					came++
					return p
				})
				term, err := contender(t, config(rt)).Acquire(ctx, func([]byte) error {
					if ctx.Err() != nil { // to start a guard takes time
						t.Errorf("held %t, stopped at request %d: it goes on", held, n)
					}
					return nil
				})
				if err != nil {
					if took := time.Since(<-stopped); took > 100*time.Millisecond {
						t.Errorf("held %t, stopped at request %d: it took %s", held, n, took)
					}
				} else {
					if err := term.Release(t.Context(), Ended{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				if s := m.Sessions(); len(s) != others {
					t.Errorf("held %t, stopped at request %d: %d sessions are left", held, n, len(s)-others)
				}
				for _, k := range m.Keys() {
					if strings.Contains(k.Key, "~queue") {
						t.Errorf("held %t, stopped at request %d: queue entry %s is left", held, n, k.Key)
					}
				}
			})
		}
	}
}

// hurried is why a contender has 80 ms to leave, as after a stop signal.
type hurried struct{}

func (hurried) Error() string             { return "hurried" }
func (hurried) LeaveLimit() time.Duration { return 80 * time.Millisecond }

// Dead contenders in the queue are passed over and swept.
func TestDeadContendersAreSwept(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		holder, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		var dead []string
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			// Its network is cut off when it waits, so that it leaves its entry behind.
			rt := m.Transport(nil)
			go func() { _, _ = contender(t, config(rt)).Acquire(ctx, always) }()
			synctest.Wait()
			rt.SetFaults(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{DropRequest: true} })
			cancel()
			time.Sleep(3 * time.Second)
		}
		for _, s := range m.Sessions() {
			if s.ID != holder.session {
				dead = append(dead, s.ID)
			}
		}
		if len(dead) != 3 {
			t.Fatalf("%d dead contenders, want 3", len(dead))
		}
		var next *Term
		done := make(chan struct{})
		go func() {
			defer close(done)
			next, err = contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		}()
		synctest.Wait()
		for _, s := range dead {
			m.DestroySession(s)
		}
		synctest.Wait()
		if err := holder.Release(t.Context(), Ended{}); err != nil {
			t.Fatal(err)
		}
		<-done
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Release(t.Context(), Ended{}); err != nil {
			t.Fatal(err)
		}
		wantNothingLeft(t, m)
	})
}

// Consul that clamps or ignores the lock-delay protects nobody: that is a loss.
func TestSessionThatIsNotWhatWasAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		term, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		term.c.Lease = 30 * time.Second // more than the session has
		var lost *LostError
		if err := term.Renew(t.Context()); !errors.As(err, &lost) || lost.Free {
			t.Errorf("got %v, want a loss", err)
		}
	})
}

// A token without rights is told which rule it lacks; nothing is left.
func TestPermissionDenied(t *testing.T) {
	for _, lacks := range []consulmodel.Right{consulmodel.TokenExists, consulmodel.SessionWrite, consulmodel.KeyWrite} {
		t.Run(string(lacks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := consulmodel.New(consulmodel.Options{Seed: 1, ACL: func(_ string, r consulmodel.Right, _ string) bool { return r != lacks }})
				var denied *PermissionError
				_, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
				if !errors.As(err, &denied) || !strings.Contains(denied.Rule, `key_prefix "onlyone/team/job/"`) {
					t.Errorf("got %v, want a *PermissionError with the rule", err)
				}
				wantNothingLeft(t, m)
			})
		})
	}
}

// A leader that was elected a moment ago may not know a session that lives, and says so to a
// renewal: seen in a rolling restart of real servers (1.14.11), where it moved the job. A holder
// goes on, and one that waits keeps its session and so its place.
func TestRenewalThatALeaderCannotKnow(t *testing.T) {
	young := func(r *consulmodel.Request) consulmodel.Plan {
		if r.Endpoint == consulmodel.SessionRenew {
			return consulmodel.Plan{Status: 404, Body: "Session id '" + r.Session + "' not found"}
		}
		return consulmodel.Plan{}
	}
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		rt := m.Transport(nil)
		term, err := contender(t, config(rt)).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		rt2 := m.Transport(nil)
		waited := make(chan error)
		go func() {
			_, err := contender(t, config(rt2)).Acquire(t.Context(), always)
			waited <- err
		}()
		time.Sleep(5 * time.Second)
		before := m.Sessions()
		rt.SetFaults(young)
		rt2.SetFaults(young)
		if err := term.Renew(t.Context()); err == nil || errors.As(err, new(*LostError)) {
			t.Errorf("%v, want an error that says nothing about the lock", err)
		}
		time.Sleep(12 * time.Second)
		rt.SetFaults(nil)
		rt2.SetFaults(nil)
		if err := term.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		if after := m.Sessions(); len(before) != 2 || len(after) != 2 || after[0].ID != before[0].ID || after[1].ID != before[1].ID {
			t.Errorf("sessions %+v, were %+v", after, before)
		}
		m.DestroySession(term.Session())
		if err := term.Renew(t.Context()); !errors.As(err, new(*LostError)) {
			t.Errorf("%v, want that the session was ended", err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// Release by another process, with what ready was given.
func TestReleaseTerm(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		var info []byte
		if _, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), func(b []byte) error { info = b; return nil }); err != nil {
			t.Fatal(err)
		}
		if err := ReleaseTerm(t.Context(), info, Ended{}, m.Transport(nil)); err != nil {
			t.Fatal(err)
		}
		wantNothingLeft(t, m)
		if d := m.LockDelay(testLock); d > 0 {
			t.Errorf("a lock-delay of %s runs although the lock was released", d)
		}
	})
}

// The record of runs keeps the last 20 and survives garbage; a newer schema is left alone.
func TestRunsRecord(t *testing.T) {
	var value []byte
	for i := range 30 {
		value = appendRun(value, Run{Token: uint64(i)})
	}
	var runs Runs
	if err := json.Unmarshal(value, &runs); err != nil || len(runs.Runs) != 20 || runs.Runs[19].Token != 29 {
		t.Errorf("%v %d runs", err, len(runs.Runs))
	}
	if got := appendRun([]byte(`{"schema":9,"runs":[{}]}`), Run{Token: 1}); got != nil {
		t.Errorf("what a newer onlyone wrote was replaced by %s", got)
	}
	for _, old := range []string{"", "garbage", `[]`, `{"schema":1,"runs":[{"host":"` + strings.Repeat("x", 524_000) + `"}]}`} {
		if err := json.Unmarshal(appendRun([]byte(old), Run{Token: 1}), &runs); err != nil || len(runs.Runs) != 1 {
			t.Errorf("after %q: %v, %d runs", old, err, len(runs.Runs))
		}
	}
}

// A token file is read again when it changes, and a second address is used when the first
// one is gone (https://github.com/patroni/patroni/issues/2449, /879).
func TestTokenFileAndAddresses(t *testing.T) {
	var mu sync.Mutex
	var tokens []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		token := r.Header.Get("X-Consul-Token")
		tokens = append(tokens, token)
		if token == "old" {
			http.Error(w, "ACL not found", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `[{"ID":"s","LockDelay":20000000000}]`)
	}))
	defer server.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	c := config(nil)
	c.Client = ClientConfig{Addresses: []string{gone.URL, server.URL}, TokenFile: file}
	n := contender(t, c)
	defer n.Close()
	if _, err := renew(t.Context(), n.api, "s"); err == nil {
		t.Error("the first address is gone, and yet there was an answer")
	}
	if _, err := renew(t.Context(), n.api, "s"); !forbidden(err) {
		t.Errorf("got %v, want a 403 for the old token", err)
	}
	write("new")
	if _, err := renew(t.Context(), n.api, "s"); err != nil {
		t.Errorf("with the new token: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil { // the first half of a write
		t.Fatal(err)
	}
	if _, err := renew(t.Context(), n.api, "s"); err != nil {
		t.Errorf("while the file is written: %v", err)
	}
	if last := tokens[len(tokens)-1]; last != "new" {
		t.Errorf("the last token was %q", last)
	}
}

func TestAddresses(t *testing.T) {
	for _, good := range []string{"127.0.0.1:8500", "http://consul.example:8500", "https://consul.example", "https://x:8501/consul", "unix:///run/consul.sock", "[::1]:8500", "localhost:8500"} {
		if _, err := parseAddress(good, "http"); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "ftp://x", "http://", "127.0.0.1:port", "a b:8500", "http://user@x:8500", "x:"} {
		if _, err := parseAddress(bad, "http"); err == nil {
			t.Errorf("%q is taken for an address", bad)
		}
	}
}

// While a lock-delay runs, newcomers queue in order of arrival instead of all asking.
func TestNewcomersQueueDuringALockDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		first, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		m.DestroySession(first.session)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(time.Duration(i+1) * 100 * time.Millisecond)
				term, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if err := term.Release(t.Context(), Ended{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 5 {
			t.Errorf("order of holders %v", order)
		}
	})
}

// Answers of something that isn't Consul prove nothing and don't end us.
func TestNonsenseIsSilence(t *testing.T) {
	for _, body := range []string{`{}`, `null`, `{"Results":[]}`, `{"Results":[null]}`, `{"Results":[{"KV":{"Key":"other","Session":"s"}}]}`, `[]`, ``, `<html>`} {
		t.Run(body, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				rt := m.Transport(nil)
				term, err := contender(t, config(rt)).Acquire(t.Context(), always)
				if err != nil {
					t.Fatal(err)
				}
				rt.SetFaults(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Status: 200, Body: body} })
				var lost *LostError
				if _, err := term.Check(t.Context()); err == nil || errors.As(err, &lost) {
					t.Errorf("a check that was answered %q: %v", body, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if _, err := contender(t, config(rt)).Acquire(ctx, always); err == nil {
					t.Errorf("acquired by %q", body)
				}
			})
		})
	}
}

// An acquire that is refused for a reason we don't know is asked for again with pauses.
func TestUnknownRefusalIsPaced(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		rt := m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("lock") {
				return consulmodel.Plan{Status: 409, Body: `{"Results":null,"Errors":[{"OpIndex":0,"What":"policy says no"}]}`}
			}
			return consulmodel.Plan{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := contender(t, config(rt)).Acquire(ctx, always); err == nil {
			t.Fatal("acquired")
		}
		if n := rt.Sent(); n > 200 {
			t.Errorf("%d requests in 10s", n)
		}
	})
}

// indexless is what stands in front of Consul and takes its index away, or makes it 0, as Consul has
// done, too: https://developer.hashicorp.com/consul/api-docs/features/blocking. With now it
// doesn't wait, either.
type indexless struct {
	to    http.RoundTripper
	value string
	now   bool
}

func (n indexless) RoundTrip(r *http.Request) (*http.Response, error) {
	if n.now && r.URL.Query().Has("index") {
		r = r.Clone(r.Context())
		q := r.URL.Query()
		q.Del("index")
		r.URL.RawQuery = q.Encode()
	}
	resp, err := n.to.RoundTrip(r)
	if err == nil {
		resp.Header.Del("X-Consul-Index")
		if n.value != "" {
			resp.Header.Set("X-Consul-Index", n.value)
		}
	}
	return resp, err
}

// No watch asks without a pause, whatever stands between; and it sees what changes.
func TestWatchesWithoutAnIndex(t *testing.T) {
	for _, copies := range []int{0, 1} {
		for _, way := range []indexless{{}, {value: "0"}, {now: true}, {value: "1", now: true}, {value: "1000000", now: true}} {
			t.Run(fmt.Sprintf("%d copies, %q, %v", copies, way.value, way.now), func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *consulmodel.Model) {
					client := func() (*consulmodel.Transport, Config) {
						rt := m.Transport(func(*consulmodel.Request) consulmodel.Plan {
							return consulmodel.Plan{AnswerDelay: time.Millisecond}
						})
						return rt, copiesOf(copies, indexless{rt, way.value, way.now})
					}
					holder, c := client()
					term, done := kept(t, contender(t, c))
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					changes := make(chan struct{}, 1000)
					go term.Watch(ctx, func() { changes <- struct{}{} })
					waiter, c := client()
					next := acquiringWith(ctx, t, c)
					time.Sleep(100 * time.Second)
					for what, rt := range map[string]*consulmodel.Transport{"holder": holder, "waiter": waiter} {
						if n := rt.Sent(); n > 1500 {
							t.Errorf("%d requests of the %s in 100 s", n, what)
						}
					}
					for len(changes) > 0 {
						<-changes
					}
					m.PutKey(term.Key()+"-bell", "")
					time.Sleep(16 * time.Second)
					if len(changes) == 0 {
						t.Error("the holder hasn't seen the bell")
					}
					done(ended(0, 0))
					time.Sleep(16 * time.Second)
					if !next.ended() || next.err != nil {
						t.Errorf("the waiter hasn't got it: %v", next.err)
					}
				})
			})
		}
	}
}

// One of two addresses doesn't do, in a way that another agent may do better.
func TestOneAddressIsSick(t *testing.T) {
	for _, code := range []int{408, 429, 500, 502, 503, 504} {
		for _, body := range []string{"<html>sick</html>", "Your IP is issuing too many concurrent connections, please rate limit your calls"} {
			t.Run(fmt.Sprintf("%d %.20s", code, body), func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *consulmodel.Model) {
					sick := m.Transport(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Status: code, Body: body} })
					c := config(byHost{"sick:1": sick, "good:1": m.Transport(nil)})
					c.Client.Addresses = []string{"sick:1", "good:1"}
					ctx, cancel := context.WithTimeout(t.Context(), 2*c.Poll)
					defer cancel()
					term, err := contender(t, c).Acquire(ctx, always)
					if err != nil || sick.Sent() != 1 {
						t.Fatalf("%v, after %d requests to the sick one", err, sick.Sent())
					}
					giveBack(t, term)
				})
			})
		}
	}
}
