package consulsession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// Term is one holding of the lock, from a successful acquiring transaction of our own.
// Check and Renew are called one at a time; Watch may run beside them.
type Term struct {
	c        *Contender
	session  string
	queued   bool
	sent     time.Duration
	token    uint64
	runs     []byte // the record of runs as it was when the lock was acquired
	compared bool   // the session was compared with what was asked for
}

// Token is the fencing token: the ModifyIndex that the acquiring transaction gave the
// lock key. It grows from holder to holder, also over release, deletion and a snapshot
// restored on the same cluster; LockIndex and CreateIndex would not.
func (t *Term) Token() uint64 { return t.token }

// Sent is the boot clock just before the acquiring request was sent.
func (t *Term) Sent() time.Duration { return t.sent }

// Session is the session's id, Key the lock key.
func (t *Term) Session() string { return t.session }

// Key is the lock key.
func (t *Term) Key() string { return t.c.lockKey() }

// Env is what the command's environment says of this term.
func (t *Term) Env() []string {
	return []string{
		"FENCE_TOKEN=" + strconv.FormatUint(t.token, 10),
		"ONLYONE_NAME=" + t.c.Name,
		"ONLYONE_KEY=" + t.Key(),
		"ONLYONE_SESSION=" + t.session,
		"CONSUL_LOCK_HELD=true",
	}
}

// Check is a linearizable ownership check: a read-only transaction in consistent mode,
// which the leader serves only after a quorum has confirmed it, and which writes nothing
// to Raft. nil proves that the session held the key at an instant after the call began;
// a *LostError that it doesn't any more; everything else is silence.
func (t *Term) Check(ctx context.Context) error {
	_, err := checkSession(ctx, t.c.api, t.Key(), t.session)
	no, ok := errors.AsType[*refused](err)
	if !ok {
		return cause(err)
	}
	switch {
	case isDenied(no.what):
		return no // the token's rights are gone, not the lock: silence
	case strings.Contains(no.what, "doesn't exist"):
		return &LostError{"the lock key was deleted", true}
	case !strings.Contains(no.what, "failed session check"):
		return no
	}
	// The key has another session or none. None, and our session is gone: the lock-delay
	// keeps others off. In every other case somebody may have the lock already.
	if strings.Contains(no.what, `current session "" !=`) {
		if _, err := renew(ctx, t.c.api, t.session); errors.Is(err, errSessionGone) {
			return &LostError{"the session was ended (destroyed, expired, or its node was removed)", false}
		}
		return &LostError{"the lock was unlocked by somebody else", true}
	}
	return &LostError{"the lock is held by another session", true}
}

// checkSession is the transaction of an ownership check. If the session doesn't hold the key
// the error is a *refused.
func checkSession(ctx context.Context, client *api.Client, key, session string) (*api.KVPair, error) {
	r, err := txn(ctx, client, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: session}}})
	if err != nil {
		return nil, err
	}
	if len(r.Results) != 1 || r.Results[0].KV == nil || r.Results[0].KV.Key != key || r.Results[0].KV.Session != session {
		return nil, errNotConsul // a 200 of something else in the way proves nothing
	}
	return r.Results[0].KV, nil
}

// Renew keeps the session alive. A *LostError says that the session is gone or isn't what
// was asked for; success proves nothing about the lock (a leader answers from memory).
func (t *Term) Renew(ctx context.Context) error {
	e, err := renew(ctx, t.c.api, t.session)
	if errors.Is(err, errSessionGone) {
		return &LostError{"the session was ended (destroyed, expired, or its node was removed)", false}
	}
	if err != nil || t.compared {
		return cause(err)
	}
	t.compared = true
	if e.LockDelay < t.c.Lease {
		return &LostError{fmt.Sprintf("Consul made a lock-delay of %s of the lease of %s: it protects nobody", e.LockDelay, t.c.Lease), false}
	}
	return nil
}

// Watch calls changed when something happened to the lock key, until ctx ends. It only
// speeds things up: a watch can be old, so it proves nothing.
func (t *Term) Watch(ctx context.Context, changed func()) {
	index := t.token
	for {
		wctx, done := context.WithTimeout(ctx, watchLimit)
		kv, meta, err := t.c.api.KV().Get(t.Key(), (&api.QueryOptions{WaitIndex: index, WaitTime: watchWait}).WithContext(wctx))
		done()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if t.c.pause(ctx, t.c.Poll/2+t.c.Jitter(t.c.Poll)) != nil {
				return
			}
			continue
		case kv == nil:
			changed()
			// Gone: the check will say so. Don't spin on a missing key.
			if t.c.pause(ctx, t.c.Poll) != nil {
				return
			}
			continue
		case kv.ModifyIndex != index:
			changed()
		}
		index = kv.ModifyIndex
		if meta.LastIndex < index {
			index = 0
		}
	}
}

// Ended is what the record of runs will say.
type Ended struct {
	Started, Ended time.Time
	Exit           int
	Outcome        string
}

// Release gives the lock back: one transaction that unlocks the key with a "released"
// record, appends to the record of runs and removes our queue entry; then the session is
// destroyed, so that no request which is still under way can lock again. The caller must
// be sure that nothing of the command is left. The lock key is never deleted.
func (t *Term) Release(ctx context.Context, e Ended) error {
	c := t.c
	run := Run{Token: t.token, Host: c.Host, Started: stamp(e.Started), Ended: stamp(e.Ended), Exit: e.Exit, Outcome: e.Outcome}
	ops := api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVUnlock, Key: t.Key(), Value: c.record("released", t.session), Flags: api.LockFlagValue, Session: t.session}},
	}
	if !e.Started.IsZero() {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: c.dir() + ".runs", Value: appendRun(t.runs, run)}})
	}
	return c.unlock(ctx, ops, t.session, t.queued)
}

// unlock sends the transaction until it is answered, then destroys the session.
func (c *Contender) unlock(ctx context.Context, ops api.TxnOps, session string, queued bool) error {
	if queued {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: c.queueKey(session)}})
	}
	var err error
	for {
		rctx, done := context.WithTimeout(ctx, c.Poll)
		_, err = c.txn(rctx, ops)
		done()
		if no, ok := errors.AsType[*refused](err); ok {
			// Not ours any more, or an earlier try was carried out.
			c.Log.Debug().Str("answer", no.what).Msg("unlock refused")
			break
		}
		if err == nil || c.pause(ctx, c.Poll/20+c.Jitter(c.Poll/10)) != nil {
			break
		}
	}
	// With the unlock carried out, the destruction arms no lock-delay for the next. Without an
	// answer it is tried all the same: the session must not be used again, and a lock-delay
	// from now is shorter than one from the end of its TTL.
	dctx, done := context.WithTimeout(context.WithoutCancel(ctx), c.Poll/4)
	defer done()
	_, derr := c.api.Session().Destroy(session, (&api.WriteOptions{}).WithContext(dctx))
	if derr != nil {
		c.Log.Debug().Err(cause(derr)).Msg("cannot destroy the session; it ends by itself")
	}
	if no, ok := errors.AsType[*refused](err); err != nil && (!ok || isDenied(no.what)) {
		return cause(err)
	}
	return nil
}

// releaseInfo is what another process needs to release a term of this contender.
type releaseInfo struct {
	Config  releaseConfig
	Session string
}

type releaseConfig struct {
	Client  ClientConfig
	Prefix  string
	Name    string
	Lease   time.Duration
	Poll    time.Duration
	Host    string
	Pid     int
	Command string
}

func (c *Contender) releaseInfo(session string) []byte {
	b, _ := json.Marshal(releaseInfo{releaseConfig{c.Client, c.Prefix, c.Name, c.Lease, c.Poll, c.Host, c.Pid, c.Command}, session})
	return b
}

// ReleaseTerm releases the lock of a contender whose process has gone, with what that
// contender gave to ready, in the time that ctx leaves. network replaces the network in
// tests; nil is the real one.
func ReleaseTerm(ctx context.Context, info []byte, network http.RoundTripper) error {
	var i releaseInfo
	if err := json.Unmarshal(info, &i); err != nil {
		return fmt.Errorf("cannot read how to release the lock: %w", err)
	}
	r := i.Config
	r.Client.Transport = network
	c, err := NewContender(Config{Client: r.Client, Prefix: r.Prefix, Name: r.Name, Lease: r.Lease, Poll: r.Poll, Host: r.Host, Pid: r.Pid, Command: r.Command,
		Jitter: func(most time.Duration) time.Duration { return most / 2 }})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.unlock(ctx, api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVUnlock, Key: c.lockKey(), Value: c.record("released", i.Session), Flags: api.LockFlagValue, Session: i.Session}},
	}, i.Session, true)
}
