package consulsession

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// How an acquiring request can fail without being final.
var (
	errLockDelay = errors.New("the lock-delay of the last holder's lease isn't over")
	errPlain     = fmt.Errorf("%w (of one without copies)", errLockDelay)
	errTaken     = errors.New("the lock was taken by somebody else, or something else has changed")
	errUnknown   = errors.New("the acquire's outcome is unknown")
)

// attempt is an acquire that was sent.
type attempt struct {
	session string
	copy    int
	before  *api.KVPair // the record of the period as it was before
	unclean []Unclean   // the holders before that have yet to be fenced
	unknown bool        // there was no answer, to it or to one before it of the same session
}

// pending: it may still get session the lock.
func (a attempt) pending(session string) bool { return a.session == session && a.unknown }

// tryLock has the guard ready and acquires what a consistent read has just shown to be free.
//
// That read closes a hole: a leader that was just elected and
// hasn't applied the end of the old session would grant the lock without its lock-delay.
//
// All or nothing: with the lock comes the record that the period is begun, and neither comes
// if the period's record has changed since, or if the lock was paused.
func (c *Contender) tryLock(ctx context.Context, session string, v view, s slot, ready func([]byte) error) (*Term, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	a := c.tried // of an unanswered acquire: what there is now is our own
	if !s.heldBy(session) {
		if err := c.unmirrored(ctx, &s); err != nil {
			return nil, err
		}
		unclean, err := c.unclean(ctx, s)
		if err != nil {
			c.Log.Debug().Err(cause(err)).Msg("cannot read the last holder")
			return nil, errUnknown
		}
		a = attempt{session, s.copy, s.period, unclean, true}
	}
	if err := ready(c.releaseInfo(a)); err != nil {
		return nil, err
	}
	ops, err := c.acquireOps(session, v, s, a.unclean)
	if err != nil {
		return nil, err
	}
	rctx, done := context.WithTimeout(ctx, c.Poll)
	defer done()
	before := c.tried.pending(session) // this one's answer says nothing of that
	c.tried = a
	sent := c.Now()
	r, err := c.txn(rctx, ops)
	if no, ok := errors.AsType[*refused](err); ok {
		c.tried.unknown = before
		c.elsewhere[s.copy] = c.Copies > 0 && isHeld(no.what)
		switch {
		case isLockDelay(no.what) && c.Copies > 0 && strings.Contains(no.what, strconv.Quote(c.dir()+".lock")):
			return nil, errPlain
		case isLockDelay(no.what):
			return nil, errLockDelay
		case isHeld(no.what), isStale(no.what), strings.Contains(no.what, `" exists`):
			return nil, errTaken
		case isInvalidSession(no.what), strings.Contains(no.what, "failed session check"), strings.Contains(no.what, "doesn't exist"):
			return nil, errSessionGone
		case isDenied(no.what):
			return nil, &PermissionError{no, c.Rule()}
		}
		c.Log.Debug().Str("answer", no.what).Msg("acquire refused")
		return nil, fmt.Errorf("%w: %s", errUnknown, no.what) // paced, and bounded for -n
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case forbidden(err):
		return nil, &PermissionError{cause(err), c.Rule()}
	case err != nil:
		// It may have been carried out, or be carried out later. The same session may ask
		// again (that is idempotent) until it is destroyed; only a success of our own counts.
		if strings.Contains(err.Error(), "invalid session") {
			return nil, errSessionGone
		}
		c.Log.Debug().Err(cause(err)).Msg("cannot acquire")
		return nil, errUnknown
	}
	t := &Term{c: c, session: session, copy: s.copy, queued: c.Copies == 0 && v.inQueue(session), sent: sent, unclean: a.unclean}
	for _, res := range r.Results {
		switch kv := res.KV; {
		case kv == nil:
		case kv.Key == c.lockKey(s.copy) && kv.Session == session: // before, it had none
			t.token = kv.ModifyIndex
		case kv.Key == c.lockDir(s.copy)+".runs":
			t.runs = kv.Value
		}
	}
	if t.token == 0 {
		return nil, &UnreachableError{c.Address(), errNotConsul}
	}
	if c.Period.ID != "" {
		before, _ := c.periodOf(s)
		t.period, t.before = c.begin(before, session), c.tried.before
	}
	return t, nil
}

func (c *Contender) begin(before PeriodRecord, session string) PeriodRecord {
	return c.Period.begin(before, c.Host, c.Pid, session, c.Wall())
}

// acquireOps is the acquiring transaction. The result of the lock's own operation carries the token.
func (c *Contender) acquireOps(session string, v view, s slot, unclean []Unclean) (api.TxnOps, error) {
	dir := c.lockDir(s.copy)
	held := c.record("held", session, unclean...)
	op := func(o api.KVTxnOp) *api.TxnOp { return &api.TxnOp{KV: &o} }
	lock := func(key string) *api.TxnOp {
		return op(api.KVTxnOp{Verb: api.KVLock, Key: key, Value: held, Flags: api.LockFlagValue, Session: session})
	}
	ops := api.TxnOps{lock(c.lockKey(s.copy))}
	// Who held it last, and so who is to be fenced, is as it was read: this process may have been stopped
	// since, or the request be late.
	switch {
	case s.heldBy(session):
	case s.lock == nil:
		ops = slices.Insert(ops, 0, op(api.KVTxnOp{Verb: api.KVCheckNotExists, Key: c.lockKey(s.copy)}))
	case s.lock.Key == c.lockKey(s.copy):
		ops = slices.Insert(ops, 0, op(api.KVTxnOp{Verb: api.KVCheckIndex, Key: s.lock.Key, Index: s.lock.ModifyIndex}))
	default: // the mirror, which is locked below
		ops = append(ops, op(api.KVTxnOp{Verb: api.KVCheckIndex, Key: s.lock.Key, Index: s.lock.ModifyIndex}))
	}
	ops = append(ops,
		op(api.KVTxnOp{Verb: api.KVGetTree, Key: dir + ".runs"}),
		op(api.KVTxnOp{Verb: api.KVSet, Key: dir + ".holder", Value: held}),
		op(api.KVTxnOp{Verb: api.KVDelete, Key: dir + ".step-down"})) // it was for the last holder
	if v.paused != nil { // and over, or we wouldn't be here
		ops = append(ops, op(api.KVTxnOp{Verb: api.KVDeleteCAS, Key: v.paused.Key, Index: v.paused.ModifyIndex}))
	}
	ops = append(ops, op(api.KVTxnOp{Verb: api.KVCheckNotExists, Key: c.dir() + ".paused"}))
	if c.Period.ID != "" {
		before, err := c.periodOf(s)
		if err != nil {
			return nil, err
		}
		var index uint64 // 0: only if there is none
		if s.period != nil {
			index = s.period.ModifyIndex
		}
		ops = append(ops, op(api.KVTxnOp{Verb: api.KVCAS, Key: dir + ".period", Index: index, Value: encode(c.begin(before, session))}))
	}
	if v.inQueue(session) {
		ops = append(ops, op(api.KVTxnOp{Verb: api.KVCheckSession, Key: c.queueKey(session), Session: session}))
	}
	if c.Copies == 0 {
		return append(ops, op(api.KVTxnOp{Verb: api.KVCheckNotExists, Key: c.dir() + ".copies"})), nil
	}
	ops = append(ops, lock(c.mirrorKey(s.copy)),
		op(api.KVTxnOp{Verb: api.KVDelete, Key: c.queueKey(session)})) // the next in the queue may take another copy
	if v.copies != nil {
		return append(ops, op(api.KVTxnOp{Verb: api.KVCheckIndex, Key: v.copies.Key, Index: v.copies.ModifyIndex})), nil
	}
	// The first with copies: nobody who does without may have come in between.
	if v.plain != nil {
		ops = append(ops, op(api.KVTxnOp{Verb: api.KVCheckIndex, Key: v.plain.Key, Index: v.plain.ModifyIndex}))
		// ... nor may the lease of one who did be running still: locked and unlocked, the key is as it was.
		if v.plain.Flags == api.LockFlagValue {
			for _, verb := range []api.KVOp{api.KVLock, api.KVUnlock} {
				ops = append(ops, op(api.KVTxnOp{Verb: verb, Key: v.plain.Key, Value: v.plain.Value, Flags: v.plain.Flags, Session: session}))
			}
		}
	} else {
		ops = append(ops, op(api.KVTxnOp{Verb: api.KVCheckNotExists, Key: c.dir() + ".lock"}))
	}
	return append(ops, op(api.KVTxnOp{Verb: api.KVCAS, Key: c.dir() + ".copies",
		Value: encode(Copies{Schema: Schema, Copies: c.Copies, By: c.Host, Since: stamp(c.Wall().Truncate(time.Second))})})), nil
}

// takeBack undoes an acquire that may have been carried out, or may be later: unlocked, it
// arms no lock-delay, and the period is as it was.
func (c *Contender) takeBack(session string) api.TxnOps {
	ops := c.unlockOps(session, c.tried.copy, c.unstarted(session, c.tried.unclean))
	if c.Period.ID != "" {
		ops = append(ops, restore(c.lockDir(c.tried.copy)+".period", c.tried.before))
	}
	return ops
}

// unstarted is the lock's record after a term in which the command was never started: who was to
// be fenced before still is.
func (c *Contender) unstarted(session string, unclean []Unclean) []byte {
	if len(unclean) > 0 {
		return c.record(stateUnfenced, session, unclean...)
	}
	return c.record("released", session)
}

// unlockOps unlocks the lock of a copy, in a transaction that fails if session doesn't hold it.
func (c *Contender) unlockOps(session string, copy int, record []byte) api.TxnOps {
	unlock := func(key string) *api.TxnOp {
		return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Value: record, Flags: api.LockFlagValue, Session: session}}
	}
	ops := api.TxnOps{unlock(c.lockKey(copy))}
	if c.Copies > 0 {
		ops = append(ops, unlock(c.mirrorKey(copy)))
	}
	return ops
}

// restore puts a key back to what it was: kv, or nothing.
func restore(key string, kv *api.KVPair) *api.TxnOp {
	if kv == nil {
		return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: key}}
	}
	return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: kv.Value}}
}

// unmirrored reads the lock of a copy that has no mirror: it was never held, or somebody has deleted
// the mirror, and then the lock says who hasn't released it.
func (c *Contender) unmirrored(ctx context.Context, s *slot) error {
	if c.Copies == 0 || s.lock != nil {
		return nil
	}
	rctx, done := context.WithTimeout(ctx, c.Poll)
	defer done()
	r, err := c.txn(rctx, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: c.lockKey(s.copy)}}})
	if err != nil {
		c.Log.Debug().Err(cause(err)).Msg("cannot read the lock of a copy")
		return errUnknown
	}
	for _, res := range r.Results {
		if res.KV != nil && res.KV.Key == c.lockKey(s.copy) {
			s.lock = res.KV
		}
	}
	if c.elsewhere[s.copy] = !s.free(); !s.free() {
		return errTaken
	}
	return nil
}

// maxUnclean is how many holders that did not release are remembered; each of them died while
// it fenced the one before.
const maxUnclean = 8

// unclean are the holders before this one that haven't released, the oldest first. It asks
// Consul only if there is one.
func (c *Contender) unclean(ctx context.Context, s slot) ([]Unclean, error) {
	if s.lock == nil {
		return nil, nil
	}
	r, ok := ParseRecord(s.lock.Value)
	switch {
	case !ok:
		return nil, nil
	case r.State == stateUnfenced:
		return r.Unfenced, nil
	case r.Session == c.last.session: // our own term, which we have survived
		return c.last.unclean, nil
	case r.State != "held":
		return nil, nil
	}
	last := Unclean{Host: r.Host, Pid: r.Pid, Session: r.Session, Since: r.Since}
	key := c.lockDir(s.copy) + ".holder"
	rctx, done := context.WithTimeout(ctx, c.Poll)
	defer done()
	res, err := c.txn(rctx, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: key}}})
	if err != nil {
		return nil, err
	}
	for _, res := range res.Results {
		if res.KV == nil || res.KV.Key != key {
			continue
		}
		if h, ok := ParseRecord(res.KV.Value); ok && h.Session == last.Session {
			last.Token = res.KV.ModifyIndex
		}
	}
	all := append(slices.Clone(r.Unfenced), last)
	return all[max(0, len(all)-maxUnclean):], nil
}
