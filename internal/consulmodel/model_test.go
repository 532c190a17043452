package consulmodel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// bubble runs f in a synctest bubble, with a model without jitter and the real client.
func bubble(t *testing.T, opts consulmodel.Options, f func(*testing.T, *consulmodel.Model, *consulmodel.Transport, *api.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := consulmodel.New(opts)
		rt := m.Transport(nil)
		f(t, m, rt, newClient(t, rt))
	})
}

var exact = consulmodel.Options{Seed: 1, NoJitter: true, Log: true}

// take creates a session with TTL 10s and lock-delay 20s and acquires key "k" with it.
func take(t *testing.T, c *api.Client) string {
	t.Helper()
	id, _, err := c.Session().CreateNoChecks(&api.SessionEntry{TTL: "10s", LockDelay: 20 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ok, _, err := c.KV().Acquire(&api.KVPair{Key: "k", Session: id, Value: []byte("held")}, nil)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	return id
}

// lock sends a lock transaction and returns "" or the error's text.
func lock(t *testing.T, c *api.Client, id string) string {
	t.Helper()
	ok, res, _, err := c.Txn().Txn(api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVLock, Key: "k", Session: id}}}, nil)
	if err != nil {
		return err.Error()
	}
	if ok {
		return ""
	}
	return res.Errors[0].What
}

// at fails unless d has gone by since the bubble began.
func at(t *testing.T, began time.Time, d time.Duration) {
	t.Helper()
	if got := time.Since(began); got != d {
		t.Errorf("now is %v, want %v", got, d)
	}
}

// within is a context that ends in d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func events(m *consulmodel.Model, began time.Time) (out []string) {
	for _, e := range m.Events() {
		s := time.Duration(e.Time.Sub(began)).String() + " " + string(e.Op)
		if e.Cause != "" {
			s += " " + e.Cause
		}
		out = append(out, s)
	}
	return out
}

func TestTTL(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		id := take(t, c)
		time.Sleep(19 * time.Second)
		if e, _, err := c.Session().Renew(id, nil); err != nil || e == nil || e.TTL != "10s" {
			t.Fatal(e, err)
		}
		time.Sleep(20*time.Second - 1)
		if s, _ := m.Holder("k"); s != id {
			t.Error("lost before 2xTTL")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if s, _ := m.Holder("k"); s != "" {
			t.Error("held after 2xTTL")
		}
		if e, _, err := c.Session().Renew(id, nil); err != nil || e != nil {
			t.Error("renewed a dead session", e, err)
		}
		want := []string{"0s session-created", "0s acquired", "19s session-renewed", "39s session-ended ttl", "39s invalidated ttl"}
		if got := events(m, began); !slices.Equal(got, want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
	})
}

func TestLockDelay(t *testing.T) {
	for _, tc := range []struct {
		name  string
		end   func(m *consulmodel.Model, id string)
		delay time.Duration
	}{
		{"destroy", func(m *consulmodel.Model, id string) { m.DestroySession(id) }, 20 * time.Second},
		{"stale timer", func(m *consulmodel.Model, id string) { m.StaleTimer(id) }, 20 * time.Second},
		{"node", func(m *consulmodel.Model, id string) { m.DeregisterNode("node-1") }, 20 * time.Second},
		{"unlock", func(m *consulmodel.Model, id string) { m.Unlock("k", id) }, 0},
		{"delete", func(m *consulmodel.Model, id string) { m.DeleteKey("k") }, 0},
		{"destroy, delays lost", func(m *consulmodel.Model, id string) { m.DestroySession(id); m.ForgetLockDelays() }, 0},
		{"destroy, delete", func(m *consulmodel.Model, id string) { m.DestroySession(id); m.DeleteKey("k") }, 20 * time.Second},
		{"destroy, election", func(m *consulmodel.Model, id string) {
			m.DestroySession(id)
			m.LoseLeader()
			m.ElectLeader()
		}, 20 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
				id := take(t, c)
				tc.end(m, id)
				other := m.CreateSession(0, 0)
				if tc.delay > 0 {
					if d := m.LockDelay("k"); d != tc.delay {
						t.Errorf("lock-delay %v, want %v", d, tc.delay)
					}
					time.Sleep(tc.delay - 1)
					if what := lock(t, c, other); what != `failed to lock key "k" due to lock delay` {
						t.Errorf("just before its end: %q", what)
					}
					time.Sleep(time.Nanosecond)
				}
				if what := lock(t, c, other); what != "" {
					t.Errorf("after the lock-delay: %q", what)
				}
			})
		})
	}
}

func TestLockDelayIsClamped(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		id := m.CreateSession(0, 10*time.Minute)
		m.Acquire("k", id, "")
		m.DestroySession(id)
		if d := m.LockDelay("k"); d != time.Minute {
			t.Error(d)
		}
	})
}

func TestElection(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		id := take(t, c)
		time.Sleep(15 * time.Second)
		m.LoseLeader()

		// A request that finds no leader in time.
		_, _, err := c.Session().Renew(id, nil)
		at(t, began, 22*time.Second)
		if err == nil || err.Error() != "Unexpected response code: 500" {
			t.Error(err)
		}
		_, _, err = c.KV().Get("k", &api.QueryOptions{RequireConsistent: true})
		at(t, began, 29*time.Second)
		if err == nil || !strings.Contains(err.Error(), "No cluster leader") {
			t.Error(err)
		}

		// A follower's answer to ?stale.
		kv, meta, err := c.KV().Get("k", &api.QueryOptions{AllowStale: true})
		if err != nil || kv.Session != id || meta.KnownLeader || meta.LastContact != 29*time.Second {
			t.Error(kv, meta, err)
		}

		// One that is there when the leader comes.
		go func() {
			time.Sleep(3 * time.Second)
			m.ElectLeader()
		}()
		kv, meta, err = c.KV().Get("k", nil)
		at(t, began, 32*time.Second)
		if err != nil || kv.Session != id || !meta.KnownLeader {
			t.Error(kv, meta, err)
		}

		// No timer ran in between, and each is fresh.
		time.Sleep(20*time.Second - 1)
		if s, _ := m.Holder("k"); s != id {
			t.Error("lost before 2xTTL")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if s, _ := m.Holder("k"); s != "" {
			t.Error("held after 2xTTL")
		}
	})
}

func TestElectionJitter(t *testing.T) {
	bubble(t, consulmodel.Options{Seed: 3}, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		m.LoseLeader()
		time.AfterFunc(time.Second, m.ElectLeader)
		if _, _, err := c.KV().Get("k", nil); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d < time.Second || d >= time.Second+7*time.Second/16 {
			t.Error(d)
		}
	})
}

func TestStaleRenewalDoesNothing(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, rt *consulmodel.Transport, c *api.Client) {
		id := take(t, c)
		for range 9 {
			time.Sleep(2 * time.Second)
			req, _ := http.NewRequest("PUT", "http://127.0.0.1:8500/v1/session/renew/"+id+"?stale", nil)
			res, err := rt.RoundTrip(req)
			if err != nil || res.StatusCode != 200 {
				t.Fatal(res, err)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(m.Sessions()) != 0 {
			t.Error("a ?stale renewal kept the session alive")
		}
	})
}

func TestWatch(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		id := take(t, c)
		_, index := m.Holder("k")

		// Nothing changes: it ends after wait.
		kv, meta, err := c.KV().Get("k", &api.QueryOptions{WaitIndex: index, WaitTime: 15 * time.Second})
		at(t, began, 15*time.Second)
		if err != nil || kv.Session != id || meta.LastIndex != index {
			t.Error(kv, meta, err)
		}

		// The session's end wakes it.
		kv, meta, err = c.KV().Get("k", &api.QueryOptions{WaitIndex: index, WaitTime: 15 * time.Second})
		at(t, began, 20*time.Second)
		if err != nil || kv.Session != "" || meta.LastIndex <= index {
			t.Error(kv, meta, err)
		}

		// Without a leader it ends with what it saw, and says there is one.
		time.AfterFunc(time.Second, m.LoseLeader)
		kv, meta, err = c.KV().Get("k", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: 15 * time.Second, RequireConsistent: true})
		at(t, began, 35*time.Second)
		if err != nil || kv == nil || !meta.KnownLeader || meta.LastContact != 0 {
			t.Error(kv, meta, err)
		}
		if n := m.Blocked(); n != 0 {
			t.Errorf("%d requests are still open", n)
		}
	})
}

func TestWatchDefaultAndMaximumWait(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		m.PutKey("k", "v")
		_, index := m.Holder("k")
		c.KV().Get("k", &api.QueryOptions{WaitIndex: index})
		at(t, began, 300*time.Second)
		c.KV().Get("k", &api.QueryOptions{WaitIndex: index, WaitTime: time.Hour})
		at(t, began, 900*time.Second)
	})
}

func TestWatchJitterFollowsFromTheSeed(t *testing.T) {
	once := func(seed uint64) (d time.Duration) {
		bubble(t, consulmodel.Options{Seed: seed}, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
			began := time.Now()
			m.PutKey("k", "v")
			_, index := m.Holder("k")
			c.KV().Get("k", &api.QueryOptions{WaitIndex: index, WaitTime: 16 * time.Second})
			d = time.Since(began)
		})
		return d
	}
	a, b, c := once(1), once(1), once(2)
	if a != b || a == c || a < 16*time.Second || a >= 17*time.Second {
		t.Error(a, b, c)
	}
}

// TestCancelledWatchKeepsItsSlot: a watch that was cancelled counts for the agent's limit of connections until its wait
// is over, as 1.8.7 and 1.14.11 do.
func TestCancelledWatchKeepsItsSlot(t *testing.T) {
	opts := exact
	opts.ConnLimit = 2
	bubble(t, opts, func(t *testing.T, m *consulmodel.Model, rt *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		m.PutKey("k", "v")
		_, index := m.Holder("k")
		for range 2 {
			q := (&api.QueryOptions{WaitIndex: index, WaitTime: 25 * time.Second}).WithContext(within(t, time.Second))
			if _, _, err := c.KV().Get("k", q); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		at(t, began, 2*time.Second)
		if _, _, err := c.KV().Get("k", nil); err == nil || !strings.Contains(err.Error(), "429") {
			t.Error(err)
		}
		time.Sleep(23 * time.Second)
		synctest.Wait()
		if _, _, err := c.KV().Get("k", nil); err != nil {
			t.Error(err)
		}
	})
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name    string
		plan    consulmodel.Plan
		took    time.Duration // until the client knows
		is      error
		has     string
		applied time.Duration // when the key was written; -1: never
	}{
		{"healthy", consulmodel.Plan{}, 0, nil, "", 0},
		{"slow", consulmodel.Plan{RequestDelay: time.Second, AnswerDelay: time.Second}, 2 * time.Second, nil, "", time.Second},
		{"request lost", consulmodel.Plan{DropRequest: true}, 3 * time.Second, context.DeadlineExceeded, "", -1},
		{"answer lost", consulmodel.Plan{DropAnswer: true}, 3 * time.Second, context.DeadlineExceeded, "", 0},
		{"late request", consulmodel.Plan{RequestDelay: 30 * time.Second}, 3 * time.Second, context.DeadlineExceeded, "", 30 * time.Second},
		{"late answer", consulmodel.Plan{AnswerDelay: 30 * time.Second}, 3 * time.Second, context.DeadlineExceeded, "", 0},
		{"refused", consulmodel.Plan{Refuse: consulmodel.ErrRefused}, 0, syscall.ECONNREFUSED, "", -1},
		{"refused late", consulmodel.Plan{Refuse: consulmodel.ErrRefused, RequestDelay: time.Second}, time.Second, syscall.ECONNREFUSED, "", -1},
		{"broken", consulmodel.Plan{Break: io.EOF}, 0, io.EOF, "", 0},
		{"500", consulmodel.Plan{Status: 500, Body: "rpc error"}, 0, nil, "500 (rpc error)", -1},
		{"500, and yet applied", consulmodel.Plan{Status: 500, Body: "leadership lost", Execute: true, RequestDelay: time.Second}, time.Second, nil, "500 (leadership lost)", time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, exact, func(t *testing.T, m *consulmodel.Model, rt *consulmodel.Transport, c *api.Client) {
				began := time.Now()
				rt.SetFaults(func(r *consulmodel.Request) consulmodel.Plan {
					if r.Endpoint != consulmodel.KVPut || r.Key != "k" || r.Client != 1 || r.N != 0 || r.Method != "PUT" {
						t.Errorf("asked about %+v", r)
					}
					return tc.plan
				})
				_, err := c.KV().Put(&api.KVPair{Key: "k", Value: []byte("v")}, (&api.WriteOptions{}).WithContext(within(t, 3*time.Second)))
				at(t, began, tc.took)
				switch {
				case tc.has != "":
					if err == nil || !strings.Contains(err.Error(), tc.has) {
						t.Errorf("error %v, want %s", err, tc.has)
					}
				case !errors.Is(err, tc.is):
					t.Errorf("error %v, want %v", err, tc.is)
				}
				time.Sleep(time.Minute)
				applied := time.Duration(-1)
				for _, e := range m.Events() {
					if e.Op == consulmodel.Written {
						applied = e.Time.Sub(began)
					}
				}
				if applied != tc.applied {
					t.Errorf("applied at %v, want %v", applied, tc.applied)
				}
				want := 1
				if tc.applied < 0 {
					want = 0
				}
				if n := rt.Requests().Total(); n != want || rt.Sent() != 1 || m.Requests()[consulmodel.KVPut] != want {
					t.Errorf("%d requests arrived, %d sent", n, rt.Sent())
				}
			})
		})
	}
}

// TestLateAcquire: the client has given up, the lock comes all the same.
func TestLateAcquire(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, rt *consulmodel.Transport, c *api.Client) {
		id := m.CreateSession(30*time.Second, 20*time.Second)
		rt.SetFaults(func(r *consulmodel.Request) (p consulmodel.Plan) {
			if r.Endpoint == consulmodel.TxnWrite && r.Has("lock") && r.Ops[0].Session == id {
				p.RequestDelay = 29 * time.Second
			}
			return p
		})
		q := (&api.QueryOptions{}).WithContext(within(t, 2*time.Second))
		_, _, _, err := c.Txn().Txn(api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVLock, Key: "k", Session: id}}}, q)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if s, _ := m.Holder("k"); s != "" {
			t.Error("held already")
		}
		time.Sleep(27 * time.Second)
		synctest.Wait()
		if s, _ := m.Holder("k"); s != id {
			t.Error("the late lock was not carried out")
		}
	})
}

func TestCancelIsSeenAtOnce(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, rt *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("stopping")
		time.AfterFunc(time.Second, func() { cancel(why) })
		m.Freeze()
		_, _, err := c.KV().Get("k", (&api.QueryOptions{}).WithContext(ctx))
		at(t, began, time.Second)
		if !errors.Is(err, why) {
			t.Error(err)
		}
		if _, _, err := c.KV().Get("k", (&api.QueryOptions{}).WithContext(ctx)); !errors.Is(err, why) || rt.Sent() != 1 {
			t.Error("a dead context sent a request", err)
		}
	})
}

func TestFreeze(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		began := time.Now()
		id := take(t, c)
		time.Sleep(5 * time.Second)
		m.Freeze()
		time.AfterFunc(25*time.Second, m.Thaw)
		// A renewal that is given up hangs in the server; the timer runs out at 20s, but acts only at the thaw.
		_, _, err := c.Session().Renew(id, (&api.WriteOptions{}).WithContext(within(t, 2*time.Second)))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		at(t, began, 27*time.Second)
		if s, _ := m.Holder("k"); s != id {
			t.Error("lost while frozen")
		}
		kv, _, err := c.KV().Get("k", nil)
		at(t, began, 30*time.Second)
		if err != nil || kv == nil {
			t.Error(kv, err)
		}
		if m.Blocked() != 0 {
			t.Error("requests are still held")
		}
	})
}

// TestDeposed: a leader that was cut off and doesn't know it.
func TestDeposed(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, rt *consulmodel.Transport, c *api.Client) {
		id := take(t, c)
		m.Depose()
		m.DestroySession(id)
		rt.SetFaults(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Deposed: true} })
		if kv, _, err := c.KV().Get("k", nil); err != nil || kv.Session != id {
			t.Error(kv, err)
		}
		if e, _, err := c.Session().Renew(id, nil); err != nil || e == nil {
			t.Error(e, err)
		}
		check := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: "k", Session: id}}}
		if ok, _, _, err := c.Txn().Txn(check, nil); err != nil || !ok {
			t.Error(ok, err)
		}
		if ok, _, _, err := c.Txn().Txn(check, &api.QueryOptions{RequireConsistent: true}); err == nil {
			t.Error("a consistent read of a deposed leader", ok)
		}
		if _, err := c.KV().Put(&api.KVPair{Key: "k"}, nil); err == nil || !strings.Contains(err.Error(), "not the leader") {
			t.Error(err)
		}
		if s, _ := m.Holder("k"); s != "" || len(m.Sessions()) != 0 {
			t.Error("a deposed leader changed something", s)
		}
	})
}

func TestRestore(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		first := take(t, c)
		snap := m.Snapshot()
		m.Unlock("k", first)
		m.DestroySession(first)
		second := take(t, c)
		_, index := m.Holder("k")

		began := time.Now()
		time.AfterFunc(time.Second, func() { m.Restore(snap) })
		kv, meta, err := c.KV().Get("k", &api.QueryOptions{WaitIndex: index, WaitTime: 15 * time.Second})
		at(t, began, time.Second)
		if err != nil || kv.Session != second || meta.LastIndex != index {
			t.Error("a watch wakes with the old value and the old index", kv, meta, err)
		}
		if s, i := m.Holder("k"); s != first || i >= index {
			t.Error(s, i)
		}
		if e, _, _ := c.Session().Renew(second, nil); e != nil {
			t.Error("a session from after the snapshot lives")
		}
		if e, _, _ := c.Session().Renew(first, nil); e == nil {
			t.Error("a session of the snapshot is dead")
		}
		m.DeleteKey("k")
		if lock(t, c, first) != "" {
			t.Error("no lock")
		}
		if _, i := m.Holder("k"); i <= index {
			t.Error("the raft index fell", i, index)
		}
	})
}

func TestChecks(t *testing.T) {
	bubble(t, exact, func(t *testing.T, m *consulmodel.Model, _ *consulmodel.Transport, c *api.Client) {
		a, _, err := c.Session().Create(&api.SessionEntry{LockDelay: time.Second}, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := m.CreateSession(0, 0)
		m.SetCheck("node-1", "serfHealth", false)
		if s := m.Sessions(); len(s) != 1 || s[0].ID != b {
			t.Error(a, s)
		}
		_, _, err = c.Session().Create(nil, nil)
		if err == nil || !strings.Contains(err.Error(), "Check 'serfHealth' is in critical state") {
			t.Error(err)
		}
		m.RegisterNode("locks")
		if _, _, err := c.Session().CreateNoChecks(&api.SessionEntry{Node: "locks"}, nil); err != nil {
			t.Error(err)
		}
		m.DeregisterNode("node-1")
		if s := m.Sessions(); len(s) != 1 || s[0].Node != "locks" {
			t.Error(s)
		}
	})
}

// TestServeHTTP: the same model behind a real listener.
func TestServeHTTP(t *testing.T) {
	m := consulmodel.New(consulmodel.Options{})
	s := httptest.NewServer(m)
	defer s.Close()
	c, err := api.NewClient(&api.Config{Address: s.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	id := take(t, c)
	if s, i := m.Holder("k"); s != id || i == 0 {
		t.Error(s, i)
	}
	kv, meta, err := c.KV().Get("k", nil)
	if err != nil || kv.Session != id || !bytes.Equal(kv.Value, []byte("held")) || meta.LastIndex != kv.ModifyIndex || !meta.KnownLeader {
		t.Error(kv, meta, err)
	}
	if _, meta, err = c.KV().Get("none", nil); err != nil || meta.LastIndex == 0 {
		t.Error(meta, err)
	}
}
