package consulsession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// consistent fails the test for a read that isn't.
type consistent struct {
	t  *testing.T
	to http.RoundTripper
}

func (c consistent) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	if isRead := r.Method == http.MethodGet || r.URL.Path == "/v1/txn"; isRead && !q.Has("consistent") || q.Has("stale") {
		c.t.Errorf("%s %s isn't consistent", r.Method, r.URL)
	}
	return c.to.RoundTrip(r)
}

func operator(t *testing.T, rt http.RoundTripper) *Operator {
	t.Helper()
	o, err := NewOperator(OperatorConfig{Client: ClientConfig{Transport: consistent{t, rt}}, Prefix: "onlyone", Timeout: 2 * time.Second, By: "ann@desk"})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// hold acquires a lock as host.
func hold(t *testing.T, m *consulmodel.Model, host string, change func(*Config)) *Term {
	t.Helper()
	c := config(m.Transport(nil))
	c.Host = host
	if change != nil {
		change(&c)
	}
	term, err := contender(t, c).Acquire(t.Context(), always)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// listen is what a holder is told, by its watch and the check that follows.
func listen(ctx context.Context, term *Term) <-chan Orders {
	orders := make(chan Orders, 100)
	go term.Watch(ctx, func() {
		if o, err := term.Check(ctx); err == nil && o != (Orders{}) {
			orders <- o
		}
	})
	return orders
}

func letGo(t *testing.T, term *Term, exit int) {
	t.Helper()
	if err := term.Release(t.Context(), Ended{Started: time.Now(), Ended: time.Now(), Exit: exit, Outcome: "exited"}); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, o *Operator, name string) Lock {
	t.Helper()
	l, _, err := o.Find(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSplitKey(t *testing.T) {
	for key, want := range map[string][2]string{
		"a/.lock":            {"a", ".lock"},
		"a/b.c/.step-down":   {"a/b.c", ".step-down"},
		"a/~queue/1-2":       {"a", "~queue/1-2"},
		"a/0/.runs":          {"a/0", ".runs"},
		".drain/web-1":       {},
		"a/b":                {},
		"":                   {},
		"a.b":                {},
		"a/":                 {},
		"a/b/.x/.lock":       {"a/b", ".x/.lock"},
		"a//.lock":           {"a/", ".lock"},
		"-\x1b[2J\xff/.lock": {"-\x1b[2J\xff", ".lock"},
	} {
		name, rest, ok := splitKey(key)
		if name != want[0] && ok || ok != (want[0] != "") || ok && rest != want[1] {
			t.Errorf("splitKey(%q) = %q, %q, %v", key, name, rest, ok)
		}
	}
}

// A lock in its life, with one request each time.
func TestFind(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		rt := m.Transport(nil)
		o := operator(t, rt)
		if l := find(t, o, testName); l.State != Free || l.Holder != nil || l.LastRun != nil || l.Held != 0 {
			t.Errorf("never used: %+v", l)
		}
		term := hold(t, m, "h1", nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		for i := range 2 {
			c := config(m.Transport(nil))
			c.Host = fmt.Sprintf("w%d", i)
			go func() { _, _ = contender(t, c).Acquire(ctx, always); done <- struct{}{} }()
			time.Sleep(time.Second)
		}
		before := rt.Sent()
		l := find(t, o, testName)
		if rt.Sent() != before+1 {
			t.Errorf("%d requests, want 1", rt.Sent()-before)
		}
		if l.State != Held || l.Held != 1 || l.Holder.Host != "h1" || l.Holder.Pid != 1 || l.Holder.Command != "job" || l.Holder.Session != term.Session() || l.Holder.Token != term.Token() {
			t.Errorf("held: %+v, holder %+v, want token %d", l, l.Holder, term.Token())
		}
		if len(l.Waiting) != 2 || l.Waiting[0].Host != "w0" || l.Waiting[1].Host != "w1" {
			t.Errorf("waiting: %+v", l.Waiting)
		}
		// An operator's note in the lock key takes neither holder nor token away.
		m.PutKey(testLock, "please don't touch")
		if l := find(t, o, testName); l.Holder == nil || l.Holder.Host != "h1" || l.Holder.Token != term.Token() {
			t.Errorf("after a plain write: %+v", l.Holder)
		}
		// The next one's queue entry is there until it releases: it doesn't wait any more.
		letGo(t, term, 0)
		time.Sleep(time.Second)
		if l := find(t, o, testName); l.Holder == nil || l.Holder.Host != "w0" || len(l.Waiting) != 1 || l.Waiting[0].Host != "w1" {
			t.Errorf("the next one: %+v, waiting %+v", l.Holder, l.Waiting)
		}
		cancel()
		<-done
		<-done
		m.DestroySession(m.Sessions()[0].ID)
		time.Sleep(20 * time.Second)
		term = hold(t, m, "h1", nil)
		letGo(t, term, 3)
		l = find(t, o, testName)
		if l.State != Free || l.Unclean != nil || l.LastRun == nil || l.LastRun.Exit != 3 || l.LastRun.Token != term.Token() || len(l.Waiting) != 0 {
			t.Errorf("released: %+v, run %+v", l, l.LastRun)
		}
		term = hold(t, m, "h2", nil)
		m.DestroySession(term.Session())
		l = find(t, o, testName)
		if l.State != Free || l.Unclean == nil || l.Unclean.Host != "h2" || l.Unclean.Token != term.Token() {
			t.Errorf("a session that ended: %+v, unclean %+v", l, l.Unclean)
		}
		// One that couldn't fence it doesn't make it clean.
		fencer := hold(t, m, "h3", nil)
		if err := fencer.Release(t.Context(), Ended{Outcome: stateUnfenced}); err != nil {
			t.Fatal(err)
		}
		l = find(t, o, testName)
		if l.State != Free || l.Unclean == nil || l.Unclean.Host != "h2" || l.Unclean.Token != term.Token() {
			t.Errorf("not fenced: %+v, unclean %+v", l, l.Unclean)
		}
	})
}

// What somebody else holds, and what isn't ours.
func TestFindForeign(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		o := operator(t, m.Transport(nil))
		s := m.CreateSession(15*time.Second, 15*time.Second)
		m.Acquire(testLock, s, "")
		l := find(t, o, testName)
		if _, index := m.Holder(testLock); l.State != Held || l.Holder.Host != "" || l.Holder.Session != s || l.Holder.Token != index {
			t.Errorf("held by consul lock: %+v", l.Holder)
		}
		m.PutKey("onlyone/conf/.lock", "configuration")
		if l := find(t, o, "conf"); l.State != Foreign || len(l.Problems) != 1 || !strings.Contains(l.Problems[0], "not a lock") {
			t.Errorf("a key without a lock's flags: %+v", l)
		}
	})
}

// Nothing in our keys can make it fail, and all that can't be read is named.
func TestUnreadableRecords(t *testing.T) {
	own := []string{".holder", ".runs", ".period", ".paused", ".step-down", ".copies"}
	for _, value := range []string{"", "{", "null", "7", `"x"`, "[]", "{}", `{"schema":0}`, `{"schema":-1}`, `{"schema":2,"host":"x"}`, `{"schema":1e99}`,
		`{"schema":1,"runs":7,"host":[],"period":{},"by":1,"copies":"many"}`, "\x00\xff", strings.Repeat("[", 10000)} {
		for _, key := range own {
			kvs := api.KVPairs{{Key: "onlyone/a/" + key, Value: []byte(value), ModifyIndex: 1}}
			locks := locksIn("onlyone", kvs, time.Now())
			if len(locks) != 1 || len(locks[0].Problems) != 1 {
				t.Errorf("%s = %.20q: %+v", key, value, locks)
				continue
			}
			if newer := strings.Contains(locks[0].Problems[0], "newer onlyone"); newer != strings.HasPrefix(value, `{"schema":2`) {
				t.Errorf("%s = %.20q: %s", key, value, locks[0].Problems[0])
			}
			// As a contender has it: an order that can't be read counts.
			if paused := locks[0].Paused != nil; paused != (key == ".paused") {
				t.Errorf("%s = %.20q: paused %v", key, value, paused)
			}
			if _, err := json.Marshal(locks); err != nil {
				t.Errorf("%s = %.20q: %v", key, value, err)
			}
		}
	}
	// A contender refuses these, too.
	for key, value := range map[string]string{".period": `{"schema":1,"period":"p","state":"odd"}`, ".copies": `{"schema":1,"copies":1001}`} {
		kvs := api.KVPairs{{Key: "onlyone/a/" + key, Value: []byte(value), ModifyIndex: 1}}
		if locks := locksIn("onlyone", kvs, time.Now()); len(locks) != 1 || len(locks[0].Problems) != 1 {
			t.Errorf("%s = %s: %+v", key, value, locks)
		}
	}
	// Only what a newer onlyone may have meant the same way is shown of its record.
	kvs := api.KVPairs{{Key: "onlyone/a/.lock", Session: "s", Value: []byte(`{"schema":9,"host":"h","session":"s"}`), Flags: api.LockFlagValue, ModifyIndex: 4}}
	if l := locksIn("onlyone", kvs, time.Now())[0]; l.Holder.Host != "h" || l.Holder.Token != 4 {
		t.Errorf("a newer holder: %+v", l.Holder)
	}
}

func FuzzLocks(f *testing.F) {
	f.Add("a/.lock", []byte("{}"), "a/0/.runs", []byte(`{"schema":1,"runs":[{}]}`), "s")
	f.Add("a/.copies", []byte(`{"schema":1,"copies":3}`), "a/2/.lock", []byte(`{"schema":1,"session":"s","host":"h"}`), "s")
	f.Fuzz(func(t *testing.T, k1 string, v1 []byte, k2 string, v2 []byte, session string) {
		locks := locksIn("onlyone", api.KVPairs{{Key: "onlyone/" + k1, Value: v1}, {Key: "onlyone/" + k2, Value: v2, Session: session}}, time.Now())
		for _, l := range locks {
			l.AllRuns()
			l.At(0)
		}
		if _, err := json.Marshal(locks); err != nil {
			t.Error(err)
		}
	})
}

// Copies are one lock, and only where .copies says so.
func TestFindCopies(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		rt := m.Transport(nil)
		o := operator(t, rt)
		three := func(c *Config) { c.Copies = 3 }
		a, b := hold(t, m, "h0", three), hold(t, m, "h1", three)
		m.PutKey("onlyone/"+testName+"2/0/.lock", "") // another lock, not a copy
		for range 2 {
			l := find(t, o, testName)
			if l.Copies != 3 || l.Held != 2 || len(l.Each) != 2 || l.State != Held || l.Holder != nil {
				t.Fatalf("%+v", l)
			}
			if c := l.Each[1]; c.Copy != 1 || c.Holder.Host != "h1" || c.Holder.Token != b.Token() {
				t.Errorf("copy 1: %+v", c.Holder)
			}
		}
		l, target, err := o.Find(t.Context(), testName+"/1")
		if err != nil || target != (Target{testName, 1}) || l.At(1).Holder.Session != b.Session() {
			t.Errorf("NAME/1: %+v, %v, %v", l, target, err)
		}
		before := rt.Sent()
		locks, _, err := o.Locks(t.Context(), "")
		if err != nil || len(locks) != 2 || locks[0].Name != testName || locks[1].Name != testName+"2/0" || rt.Sent() != before+1 {
			t.Errorf("ls: %+v, %v, %d requests", locks, err, rt.Sent()-before)
		}
		locks, _, err = o.Locks(t.Context(), "team/job/1")
		if err != nil || len(locks) != 0 {
			t.Errorf("ls NAME/1: %+v, %v", locks, err)
		}
		letGo(t, a, 0)
		letGo(t, b, 0)
		runs := find(t, o, testName).AllRuns()
		if len(runs) != 2 || runs[0].Copy != 0 || runs[1].Copy != 1 || runs[0].Token != a.Token() {
			t.Errorf("runs: %+v", runs)
		}
	})
}

// The order reaches the holder that was meant, and no other.
func TestStepDown(t *testing.T) {
	for _, copies := range []int{0, 2} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				o := operator(t, m.Transport(nil))
				term := hold(t, m, "h1", func(c *Config) { c.Copies = copies })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				orders := listen(ctx, term)
				time.Sleep(time.Second)
				target := Target{testName, copies - 1}
				if copies > 0 {
					target.Copy = 0
				}
				from := *find(t, o, testName).At(target.Copy).Holder
				a, err := o.StepDown(t.Context(), target, from, "kernel upgrade")
				if err != nil {
					t.Fatal(err)
				}
				if c := <-orders; c.StepDown == nil || c.StepDown.Reason != "kernel upgrade" || c.StepDown.By != "ann@desk" || c.StepDown.Session != term.Session() {
					t.Errorf("the holder saw %+v", c)
				}
				if h := find(t, o, testName).At(target.Copy); h.StepDown == nil || h.StepDown.Reason != "kernel upgrade" {
					t.Errorf("status: %+v", h)
				}
				letGo(t, term, 0)
				m.PutKey("onlyone/"+target.String()+"/.step-down", `{"schema":1,"session":"another"}`)
				if find(t, o, testName).At(target.Copy).StepDown != nil {
					t.Error("an order for somebody who has gone is shown")
				}
				if held, err := o.TakeBack(t.Context(), a); held || err != nil {
					t.Errorf("taken back from one that has released: %v, %v", held, err)
				}
				next := hold(t, m, "h2", func(c *Config) { c.Copies = copies })
				m.PutKey("onlyone/"+target.String()+"/.step-down", string(encode(a.Order)))
				if find(t, o, testName).At(target.Copy).StepDown != nil {
					t.Error("an order for the last holder is shown as one for this one")
				}
				m.DeleteKey("onlyone/" + target.String() + "/.step-down")
				var none *NotHeldError
				if _, err := o.StepDown(t.Context(), target, from, ""); !errors.As(err, &none) || none.Hold.Holder == nil || none.Hold.Holder.Host != "h2" {
					t.Errorf("of one that has gone: %v", err)
				}
				for _, k := range m.Keys() {
					if strings.HasSuffix(k.Key, ".step-down") {
						t.Errorf("%s is left", k.Key)
					}
				}
				a, err = o.StepDown(t.Context(), target, *find(t, o, testName).At(target.Copy).Holder, "")
				if err != nil || a.From.Session != next.Session() {
					t.Fatal(a, err)
				}
				// Another operator's order isn't ours to take back.
				b, err := o.StepDown(t.Context(), target, a.From, "again")
				if err != nil {
					t.Fatal(err)
				}
				if held, err := o.TakeBack(t.Context(), a); !held || err != nil {
					t.Errorf("the older order: %v, %v", held, err)
				}
				if find(t, o, testName).At(target.Copy).StepDown == nil {
					t.Error("the newer order was taken back with it")
				}
				if held, err := o.TakeBack(t.Context(), b); !held || err != nil || find(t, o, testName).At(target.Copy).StepDown != nil {
					t.Errorf("the newer order: %v, %v", held, err)
				}
			})
		})
	}
}

func TestOperatorPauses(t *testing.T) {
	for _, copies := range []int{0, 100} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				o := operator(t, m.Transport(nil))
				many := func(c *Config) { c.Copies = copies }
				term := hold(t, m, "h1", many)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				orders := listen(ctx, term)
				time.Sleep(time.Second)
				if _, _, err := o.Pause(t.Context(), testName, time.Now().Add(time.Hour), "one"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				order, l, err := o.Pause(t.Context(), testName, time.Now().Add(2*time.Hour), "two")
				if err != nil || l.Held != 1 || order.By != "ann@desk" {
					t.Fatal(order, l, err)
				}
				time.Sleep(time.Second)
				var told Orders
				for len(orders) > 0 {
					told = <-orders
				}
				if told.Paused == nil || told.Paused.Reason != "two" { // also of the second one it is told at once
					t.Errorf("the holder saw %+v", told.Paused)
				}
				letGo(t, term, 0)
				if l := find(t, o, testName); l.Paused == nil || l.Paused.Reason != "two" {
					t.Errorf("status: %+v", l.Paused)
				}
				c := config(m.Transport(nil))
				many(&c)
				c.NoWait = true
				var paused *PausedError
				if _, err := contender(t, c).Acquire(t.Context(), always); !errors.As(err, &paused) {
					t.Errorf("acquire while paused: %v", err)
				}
				if was, err := o.Resume(t.Context(), testName); !was || err != nil {
					t.Errorf("resume: %v, %v", was, err)
				}
				if was, err := o.Resume(t.Context(), testName); was || err != nil {
					t.Errorf("resume again: %v, %v", was, err)
				}
				for _, k := range m.Keys() {
					if strings.HasSuffix(k.Key, ".paused") {
						t.Errorf("%s is left", k.Key)
					}
				}
				// One that is over is none, though its key is there.
				if _, _, err := o.Pause(t.Context(), testName, time.Now().Add(time.Minute), ""); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if l := find(t, o, testName); l.Paused != nil {
					t.Errorf("after its end: %+v", l.Paused)
				}
				letGo(t, hold(t, m, "h1", many), 0)
			})
		})
	}
}

// Nobody has the lock earlier for it: the lock-delay protects the promise.
func TestEndSession(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		o := operator(t, m.Transport(nil))
		term := hold(t, m, "h1", nil)
		if d, err := o.LockDelay(t.Context(), term.Session()); d != 20*time.Second || err != nil {
			t.Errorf("lock-delay %s, %v", d, err)
		}
		if err := o.EndSession(t.Context(), term.Session()); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		var lost *LostError
		if _, err := term.Check(t.Context()); !errors.As(err, &lost) || lost.Free {
			t.Errorf("the holder's check: %v", err)
		}
		hold(t, m, "h2", nil)
		if d := time.Since(ended); d < 20*time.Second {
			t.Errorf("the next holder came after %s, in the lease of the last one", d)
		}
	})
}

func TestResize(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		o := operator(t, m.Transport(nil))
		var none *NoCopiesError
		if _, err := o.Resize(t.Context(), testName, 2, ""); !errors.As(err, &none) {
			t.Errorf("a lock without copies: %v", err)
		}
		two := func(c *Config) { c.Copies = 2 }
		terms := []*Term{hold(t, m, "h0", two), hold(t, m, "h1", two)}
		// One with the old number waits: it must learn of the new one at once, not with the next release.
		waiter := config(m.Transport(nil))
		two(&waiter)
		failed := make(chan error, 1)
		go func() { _, err := contender(t, waiter).Acquire(t.Context(), always); failed <- err }()
		time.Sleep(time.Second)
		start := time.Now()
		r, err := o.Resize(t.Context(), testName, 150, "")
		if err != nil || r.From != 2 || r.To != 150 || len(r.Asked) > 0 {
			t.Fatal(r, err)
		}
		var differ *CopiesError
		if err := <-failed; !errors.As(err, &differ) || differ.Record.Copies != 150 || time.Since(start) > time.Second {
			t.Errorf("the waiter ended with %v after %s", err, time.Since(start))
		}
		terms = append(terms, hold(t, m, "h2", func(c *Config) { c.Copies = 150 }))
		if terms[2].copy != 2 {
			t.Errorf("the third has copy %d", terms[2].copy)
		}
		if r, err := o.Resize(t.Context(), testName, 150, ""); err != nil || r.From != r.To {
			t.Errorf("the same number: %+v, %v", r, err)
		}
		r, err = o.Resize(t.Context(), testName, 1, "too many")
		if err != nil || len(r.Asked) != 2 || r.Asked[0].Target.Copy != 1 || r.Asked[1].Target.Copy != 2 {
			t.Fatal(r, err)
		}
		for i, c := range find(t, o, testName).Each {
			if asked := c.StepDown != nil; asked != (i > 0) {
				t.Errorf("copy %d: asked to step down: %v", c.Copy, asked)
			}
		}
		// Growing again while one beyond still holds its copy takes nothing from it.
		if _, err := o.Resize(t.Context(), testName, 3, ""); err != nil {
			t.Fatal(err)
		}
		for _, term := range terms {
			if _, err := term.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if s, _ := m.Holder(fmt.Sprintf("onlyone/%s/~held/%d", testName, term.copy)); s != term.Session() {
				t.Errorf("mirror %d is held by %q", term.copy, s)
			}
			letGo(t, term, 0)
		}
	})
}

// The mirror of a copy that there was before: it must wake the queue all the same.
func TestResizeWakesAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		o := operator(t, m.Transport(nil))
		one := func(c *Config) { c.Copies = 1 }
		hold(t, m, "h0", func(c *Config) { c.Copies, c.TTL = 1, time.Hour })
		resize := func(n int) {
			t.Helper()
			if _, err := o.Resize(t.Context(), testName, n, ""); err != nil {
				t.Fatal(err)
			}
		}
		resize(2)
		resize(1)
		waiter := config(m.Transport(nil))
		one(&waiter)
		failed := make(chan error, 1)
		go func() { _, err := contender(t, waiter).Acquire(t.Context(), always); failed <- err }()
		time.Sleep(time.Second)
		// Neither a mirror beyond the copies nor a deleted one keeps it busy.
		m.PutKey("onlyone/"+testName+"/~held/5", "")
		time.Sleep(time.Second)
		m.DeleteKey("onlyone/" + testName + "/~held/5")
		time.Sleep(time.Second)
		before := m.Requests().Total()
		time.Sleep(time.Minute)
		if n := m.Requests().Total() - before; n > 20 {
			t.Fatalf("%d requests in a quiet minute", n)
		}
		start := time.Now()
		resize(2)
		var differ *CopiesError
		if err := <-failed; !errors.As(err, &differ) || time.Since(start) > time.Second {
			t.Errorf("the waiter ended with %v after %s", err, time.Since(start))
		}
	})
}

// Who hasn't released a copy is to be fenced also if there was no such copy for a while.
func TestResizeKeepsTheUnclean(t *testing.T) {
	for _, late := range []bool{false, true} { // does the holder die when there is such a copy again?
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				o, two := operator(t, m.Transport(nil)), func(c *Config) { c.Copies = 2 }
				letGo(t, hold(t, m, "h0", two), 0)
				zero, one := hold(t, m, "h0", two), hold(t, m, "h1", two)
				if !late {
					m.DestroySession(one.session)
				}
				for _, n := range []int{1, 2} {
					if _, err := o.Resize(t.Context(), testName, n, ""); err != nil {
						t.Fatal(err)
					}
				}
				if late {
					m.DestroySession(one.session)
				}
				letGo(t, zero, 0)
				time.Sleep(21 * time.Second)
				hold(t, m, "h2", two) // copy 0
				next := hold(t, m, "h3", two)
				if u := next.Unclean(); next.copy != 1 || len(u) != 1 || u[0].Session != one.session || u[0].Token != one.token {
					t.Errorf("copy %d: to be fenced are %+v", next.copy, u)
				}
			})
		})
	}
}

// Who acquires a copy in the moment in which there are to be fewer is asked to step down, too. So is who
// wasn't asked since the answer of the first request was lost: by the same command once more.
func TestResizeAsksAll(t *testing.T) {
	two := func(c *Config) { c.Copies, c.TTL = 2, time.Hour }
	t.Run("a copy acquired meanwhile", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			hold(t, m, "h0", two)
			var late *Term
			o := operator(t, m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
				if r.Has("cas") && late == nil {
					late = hold(t, m, "h1", two)
				}
				return consulmodel.Plan{}
			}))
			if r, err := o.Resize(t.Context(), testName, 1, ""); err != nil || len(r.Asked) != 1 || r.Asked[0].From.Session != late.session {
				t.Errorf("%+v, %v", r, err)
			}
		})
	})
	t.Run("no answer", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			hold(t, m, "h0", two)
			beyond := hold(t, m, "h1", two)
			lost := false
			o := operator(t, m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
				if r.Has("cas") && !lost {
					lost = true
					return consulmodel.Plan{Status: 500, Body: "raft apply failed: leadership lost while committing log", Execute: true}
				}
				return consulmodel.Plan{}
			}))
			var away *UnreachableError
			if _, err := o.Resize(t.Context(), testName, 1, ""); !errors.As(err, &away) {
				t.Errorf("the first time: %v", err)
			}
			if r, err := o.Resize(t.Context(), testName, 1, ""); err != nil || r.From != 1 || len(r.Asked) != 1 || r.Asked[0].From.Session != beyond.session {
				t.Errorf("once more: %+v, %v", r, err)
			}
		})
	})
}

// Two who resize in the same moment: one is told.
func TestResizeMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		letGo(t, hold(t, m, "h0", func(c *Config) { c.Copies = 2 }), 0)
		o := operator(t, m.Transport(func(r *consulmodel.Request) consulmodel.Plan {
			if r.Has("cas") {
				return consulmodel.Plan{RequestDelay: time.Second}
			}
			return consulmodel.Plan{}
		}))
		errs := make(chan error)
		go func() { _, err := o.Resize(t.Context(), testName, 3, ""); errs <- err }()
		time.Sleep(time.Second / 2)
		if _, err := operator(t, m.Transport(nil)).Resize(t.Context(), testName, 4, ""); err != nil {
			t.Error(err)
		}
		if err := <-errs; !errors.Is(err, ErrMeanwhile) {
			t.Errorf("the slower one: %v", err)
		}
	})
}

// A watch is one blocking request at a time, and shows each change.
func TestOperatorWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		rt := m.Transport(nil)
		o := operator(t, rt)
		seen := make(chan Lock, 100)
		trouble := make(chan error, 100)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- o.WatchOne(ctx, testName, func(l Lock, _ Target) bool { seen <- l; return true }, func(err error) { trouble <- err })
		}()
		if l := <-seen; l.State != Free {
			t.Errorf("first %+v", l)
		}
		before := rt.Sent()
		time.Sleep(10 * time.Minute)
		if n := rt.Sent() - before; n > 45 {
			t.Errorf("%d requests in 10 quiet minutes", n)
		}
		for len(seen) > 0 {
			<-seen
		}
		start := time.Now()
		term := hold(t, m, "h1", nil)
		for l := range seen {
			if l.State == Held {
				break
			}
		}
		if time.Since(start) > time.Second {
			t.Errorf("seen after %s", time.Since(start))
		}
		// Consul goes away and comes back.
		rt.SetFaults(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Refuse: consulmodel.ErrRefused} })
		for len(trouble) == 0 {
			time.Sleep(time.Second)
		}
		var gone *UnreachableError
		if err := <-trouble; !errors.As(err, &gone) {
			t.Errorf("trouble: %v", err)
		}
		letGo(t, term, 0)
		rt.SetFaults(nil)
		for l := range seen {
			if l.State == Free {
				break
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Errors are what the caller can act on.
func TestOperatorErrors(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		ops := map[string]func(*Operator) error{
			"locks":  func(o *Operator) error { _, _, err := o.Locks(t.Context(), ""); return err },
			"find":   func(o *Operator) error { _, _, err := o.Find(t.Context(), testName); return err },
			"pause":  func(o *Operator) error { _, _, err := o.Pause(t.Context(), testName, time.Time{}, ""); return err },
			"resume": func(o *Operator) error { _, err := o.Resume(t.Context(), testName); return err },
			"resize": func(o *Operator) error { _, err := o.Resize(t.Context(), testName, 2, ""); return err },
			"end":    func(o *Operator) error { return o.EndSession(t.Context(), "x") },
			"step-down": func(o *Operator) error {
				_, err := o.StepDown(t.Context(), Target{testName, -1}, Party{Session: "x"}, "")
				return err
			},
			"watch": func(o *Operator) error {
				return o.WatchOne(t.Context(), testName, func(Lock, Target) bool { return false }, func(error) {})
			},
		}
		for name, plan := range map[string]consulmodel.Plan{
			"refused":       {Refuse: consulmodel.ErrRefused},
			"silent":        {DropRequest: true},
			"no leader":     {Status: 500, Body: "No cluster leader"},
			"not Consul":    {Status: 404, Body: "404 page not found"},
			"another page":  {Status: 200, Body: "<html>hello</html>"},
			"a rate limit":  {Status: 429, Body: "slow down"},
			"a broken pipe": {Break: errors.New("unexpected EOF")},
		} {
			for what, f := range ops {
				if name == "not Consul" && what == "end" {
					continue // destroying what isn't there is a success for Consul, too
				}
				start := time.Now()
				err := f(operator(t, m.Transport(func(*consulmodel.Request) consulmodel.Plan { return plan })))
				var gone *UnreachableError
				if name == "another page" && what == "end" && err == nil {
					continue
				}
				if !errors.As(err, &gone) {
					t.Errorf("%s, %s: %v", name, what, err)
				}
				if time.Since(start) > 3*time.Second {
					t.Errorf("%s, %s: took %s", name, what, time.Since(start))
				}
			}
		}
		denied := consulmodel.Plan{Status: 403, Body: "Permission denied"}
		for what, f := range ops {
			var no *PermissionError
			if err := f(operator(t, m.Transport(func(*consulmodel.Request) consulmodel.Plan { return denied }))); !errors.As(err, &no) || no.Rule == "" {
				t.Errorf("denied, %s: %v", what, err)
			}
		}
	})
}

// Consul leaves out what may not be read: that isn't "free".
func TestOperatorMayNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		term := hold(t, m, "h1", nil)
		defer letGo(t, term, 0)
		o := operator(t, &filtered{m.Transport(nil)})
		var no *PermissionError
		if _, _, err := o.Find(t.Context(), testName); !errors.As(err, &no) {
			t.Errorf("find: %v", err)
		}
		if _, _, err := o.Locks(t.Context(), ""); !errors.As(err, &no) {
			t.Errorf("locks: %v", err)
		}
	})
}

// filtered answers as for a token without rights: an empty tree, a refused key.
type filtered struct{ to http.RoundTripper }

func (f *filtered) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Has("recurse") {
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = "/v1/kv/nothing/here", ""
		return f.to.RoundTrip(r)
	}
	resp, err := f.to.RoundTrip(r)
	if err == nil {
		resp.StatusCode = http.StatusForbidden
	}
	return resp, err
}

// A pause in the very moment of an acquire: whoever acquires afterwards is refused, and
// whoever did before is told.
func TestPauseRaces(t *testing.T) {
	for _, copies := range []int{0, 3} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 2))
				var mu sync.Mutex
				within := func(ms int) time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return time.Duration(rng.IntN(ms)) * time.Millisecond
				}
				late := func(*consulmodel.Request) consulmodel.Plan {
					return consulmodel.Plan{RequestDelay: within(5)}
				}
				acquired := 0
				for i := range 1000 {
					m := consulmodel.New(consulmodel.Options{Seed: uint64(i), NoJitter: true})
					o := operator(t, m.Transport(late))
					c := config(m.Transport(late))
					c.NoWait, c.Copies, c.Name = true, copies, fmt.Sprintf("race/%d", i)
					got := make(chan *Term)
					go func() {
						term, err := contender(t, c).Acquire(t.Context(), always)
						if paused := (*PausedError)(nil); err != nil && !errors.As(err, &paused) {
							t.Errorf("race %d: %v", i, err)
						}
						got <- term
					}()
					time.Sleep(within(12))
					if _, _, err := o.Pause(t.Context(), c.Name, time.Time{}, ""); err != nil {
						t.Fatal(err)
					}
					term := <-got
					if term == nil {
						continue
					}
					acquired++
					if gate, _ := m.Key("onlyone/" + c.Name + "/.paused"); term.Token() > gate.ModifyIndex {
						t.Fatalf("race %d: acquired as %d, though paused as %d", i, term.Token(), gate.ModifyIndex)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					select {
					case o := <-listen(ctx, term):
						if o.Paused == nil {
							t.Errorf("race %d: the holder saw %+v", i, o)
						}
					case <-ctx.Done():
						t.Errorf("race %d: the holder wasn't told", i)
					}
					cancel()
					letGo(t, term, 0)
				}
				if acquired < 100 || acquired > 900 {
					t.Errorf("%d of 1000 acquired it: these were no races", acquired)
				}
			})
		})
	}
}
