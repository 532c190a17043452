package consulsession

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// verify asks with at most 5 s, and returns how long that took.
func verify(t *testing.T, rt http.RoundTripper, c Claim) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err := Verify(ctx, ClientConfig{Transport: rt}, c)
	return time.Since(start), err
}

// held is a term of the model's, and what its command would claim.
func held(t *testing.T, m *consulmodel.Model) Claim {
	t.Helper()
	term, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
	if err != nil {
		t.Fatal(err)
	}
	return Claim{Key: testLock, Session: term.Session(), Token: term.Token()}
}

// One request that writes nothing, and every way to lose a lock.
func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(m *consulmodel.Model, c *Claim)
		why  string // empty: it is still held
	}{
		"held":               {func(*consulmodel.Model, *Claim) {}, ""},
		"a note in the key":  {func(m *consulmodel.Model, c *Claim) { m.PutKey(c.Key, "note") }, ""},
		"token not known":    {func(_ *consulmodel.Model, c *Claim) { c.Token = 0 }, ""},
		"session destroyed":  {func(m *consulmodel.Model, c *Claim) { m.DestroySession(c.Session) }, "nobody holds the lock"},
		"unlocked":           {func(m *consulmodel.Model, c *Claim) { m.Unlock(c.Key, c.Session) }, "nobody holds the lock"},
		"deleted":            {func(m *consulmodel.Model, c *Claim) { m.DeleteKey(c.Key) }, "there is no such lock key"},
		"other key":          {func(_ *consulmodel.Model, c *Claim) { c.Key = "onlyone/other/.lock" }, "there is no such lock key"},
		"token of elsewhere": {func(_ *consulmodel.Model, c *Claim) { c.Token += 1000 }, "token "},
		"held by another": {func(m *consulmodel.Model, c *Claim) {
			m.Unlock(c.Key, c.Session)
			m.Acquire(c.Key, m.CreateSession(10*time.Second, time.Second), "theirs")
		}, "the lock is held by another session"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				claim := held(t, m)
				c.lose(m, &claim)
				writes, rt := m.RaftWrites(), m.Transport(nil)
				_, err := verify(t, rt, claim)
				lost, isLost := errors.AsType[*LostError](err)
				if (c.why == "" && err != nil) || (c.why != "" && (!isLost || len(lost.Reason) < len(c.why) || lost.Reason[:len(c.why)] != c.why)) {
					t.Errorf("%v, want %q", err, c.why)
				}
				if rt.Sent() != 1 || m.RaftWrites() != writes {
					t.Errorf("%d requests and %d writes, want 1 and 0", rt.Sent(), m.RaftWrites()-writes)
				}
			})
		})
	}
}

// A leader that was deposed believes that the lock is held. It can't answer.
func TestVerifyIsLinearizable(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		claim := held(t, m)
		m.Depose()
		m.Unlock(claim.Key, claim.Session)
		rt := m.Transport(func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Deposed: true} })
		if _, err := verify(t, rt, claim); err == nil {
			t.Error("a deposed leader's word was taken")
		}
	})
}

// Without an answer: again until the time is over, and not longer.
func TestVerifyWithoutAnswer(t *testing.T) {
	never := []consulmodel.Plan{{DropRequest: true}, {DropAnswer: true}, {Refuse: consulmodel.ErrRefused}, {Status: 500, Body: "No cluster leader"},
		{Status: 429}, {Status: 404}, {Status: 409, Body: `{"Results":null,"Errors":[{"OpIndex":0,"What":"policy says no"}]}`}}
	for _, plan := range never {
		synctest.Test(t, func(t *testing.T) {
			m := consulmodel.New(consulmodel.Options{Seed: 1, NoJitter: true})
			claim := held(t, m)
			rt := m.Transport(func(*consulmodel.Request) consulmodel.Plan { return plan })
			took, err := verify(t, rt, claim)
			if _, ok := errors.AsType[*UnreachableError](err); !ok {
				t.Errorf("%+v: %v, want an UnreachableError", plan, err)
			}
			if took != 5*time.Second {
				t.Errorf("%+v: gave up after %s, want 5s", plan, took)
			}
			if n := rt.Sent(); n < 2 || n > 60 {
				t.Errorf("%+v: %d requests", plan, n)
			}
		})
	}
}

// An election that is shorter than the time is ridden out.
func TestVerifyOverAnElection(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		claim := held(t, m)
		m.LoseLeader()
		time.AfterFunc(2*time.Second, m.ElectLeader)
		if took, err := verify(t, m.Transport(nil), claim); err != nil || took < 2*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// What isn't Consul's answer proves nothing, and no second try mends it.
func TestVerifyNonsense(t *testing.T) {
	for _, plan := range []consulmodel.Plan{{Status: 200, Body: `{}`}, {Status: 200, Body: `{"Results":[{"KV":{"Key":"` + testLock + `","Session":"other"}}]}`},
		{Status: 200, Body: `<html>`}, {Status: 301}} {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			claim := held(t, m)
			rt := m.Transport(func(*consulmodel.Request) consulmodel.Plan { return plan })
			took, err := verify(t, rt, claim)
			if _, ok := errors.AsType[*UnreachableError](err); !ok || took != 0 {
				t.Errorf("%+v: %v after %s, want an UnreachableError at once", plan, err, took)
			}
		})
	}
}
