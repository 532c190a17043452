package consulsession

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
	copy     int
	runs     []byte       // the record of runs as it was when the lock was acquired
	period   PeriodRecord // as this term began it; zero without periods
	before   *api.KVPair  // the record of the period as it was before
	unclean  []Unclean
	compared bool // the session was compared with what was asked for
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
func (t *Term) Key() string { return t.c.lockKey(t.copy) }

// Unclean are the holders that did not release before this one: the last one, and if that
// one died (or failed) while it was to fence others, those, too. The oldest is first.
func (t *Term) Unclean() []Unclean { return t.unclean }

// Env is what the command's environment says of this term.
func (t *Term) Env() []string {
	env := []string{
		"FENCE_TOKEN=" + strconv.FormatUint(t.token, 10),
		"ONLYONE_NAME=" + t.c.Name,
		"ONLYONE_KEY=" + t.Key(),
		"ONLYONE_SESSION=" + t.session,
		"CONSUL_LOCK_HELD=true",
	}
	name := t.c.Name
	if t.c.Copies > 0 {
		name = fmt.Sprintf("%s/%d", t.c.Name, t.copy)
		env = append(env, "ONLYONE_COPY="+strconv.Itoa(t.copy), "ONLYONE_COPIES="+strconv.Itoa(t.c.Copies))
	}
	if id := t.c.Period.ID; id != "" {
		env = append(env, "ONLYONE_PERIOD="+id, "IDEMPOTENCY_KEY="+name+"/"+id)
	}
	return env
}

// Orders are what operators ask of the holder; nil: nothing.
type Orders struct {
	StepDown *Order // this holder is to hand over
	Paused   *Order // nobody may run
}

// Check is a linearizable ownership check: a read-only transaction in consistent mode,
// which the leader serves only after a quorum has confirmed it, and which writes nothing
// to Raft. nil proves that the session held the key at an instant after the call began;
// a *LostError that it doesn't any more; everything else is silence. The same request reads
// what operators ask of the holder.
func (t *Term) Check(ctx context.Context) (Orders, error) {
	stepDown, paused := t.c.lockDir(t.copy)+".step-down", t.c.dir()+".paused"
	_, also, err := checkSession(ctx, t.c.api, t.Key(), t.session, stepDown, paused)
	if err != nil {
		return Orders{}, t.unproven(ctx, err)
	}
	var o Orders
	for _, res := range also {
		switch kv := res.KV; {
		case kv == nil:
		case kv.Key == stepDown:
			if order := ParseOrder(kv.Value); order.Session == t.session {
				o.StepDown = &order
			}
		case kv.Key == paused:
			if order := ParseOrder(kv.Value); !order.Over(t.c.Wall()) {
				o.Paused = &order
			}
		}
	}
	return o, nil
}

// unproven is what the error of a check says: the loss, or nothing.
func (t *Term) unproven(ctx context.Context, err error) error {
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
// the error is a *refused. What is below the other keys comes with it.
func checkSession(ctx context.Context, client *api.Client, key, session string, others ...string) (*api.KVPair, api.TxnResults, error) {
	ops := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: session}}}
	for _, k := range others {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: k}})
	}
	r, err := txn(ctx, client, ops)
	if err != nil {
		return nil, nil, err
	}
	if len(r.Results) == 0 || r.Results[0].KV == nil || r.Results[0].KV.Key != key || r.Results[0].KV.Session != session {
		return nil, nil, errNotConsul // a 200 of something else in the way proves nothing
	}
	return r.Results[0].KV, r.Results[1:], nil
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

// Watch calls changed when something happened to the lock key, or when an operator has rung
// the bell beside it, until ctx ends. It only speeds things up: a watch can be old, so it
// proves nothing, and the next check says what it was. (Not a watch of all that begins with a
// dot: Consul's HTTP server takes a path that ends in "/." for the folder.)
func (t *Term) Watch(ctx context.Context, changed func()) {
	index, seen := t.token, t.token
	for {
		begin := t.c.Now()
		wctx, done := context.WithTimeout(ctx, watchLimit)
		kvs, meta, err := t.c.watches.KV().List(t.Key(), (&api.QueryOptions{WaitIndex: index, WaitTime: watchWait}).WithContext(wctx))
		done()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.c.Log.Debug().Err(cause(err)).Msg("cannot watch the lock")
			if t.c.pause(ctx, t.c.Poll/2+t.c.Jitter(t.c.Poll)) != nil {
				return
			}
			continue
		}
		var newest uint64
		gone := true
		for _, kv := range kvs {
			newest = max(newest, kv.ModifyIndex)
			gone = gone && kv.Key != t.Key()
		}
		if gone || newest != seen {
			seen = newest
			changed()
		} else if t.c.Now()-begin < watchWait/2 && t.c.rest(ctx) != nil {
			return
		}
		// Gone: the check will say so. Don't spin on a missing key.
		if gone && t.c.pause(ctx, t.c.Poll) != nil {
			return
		}
		if meta.LastIndex < index {
			index = 0 // it went back: a snapshot was restored
		} else {
			index = meta.LastIndex
		}
	}
}

// Ended is what the record of runs will say.
type Ended struct {
	Started, Ended time.Time
	Exit           int
	Outcome        string
	Restarts       int
}

// Release gives the lock back: one transaction that unlocks the key with a "released"
// record, appends to the record of runs and removes our queue entry; then the session is
// destroyed, so that no request which is still under way can lock again. The caller must
// be sure that nothing of the command is left. The lock key is never deleted.
func (t *Term) Release(ctx context.Context, e Ended) error {
	defer t.End(ctx)
	return t.Unlock(ctx, e)
}

// Unlock is the first half of Release, until it is answered. End must follow, whatever it returns:
// a *LostError says that the lock was lost, and so nothing of a run that e tells of is on record. To
// who says "lost" in e that is no news.
func (t *Term) Unlock(ctx context.Context, e Ended) error {
	record := t.c.record("released", t.session)
	t.c.last = lastTerm{session: t.session}
	if e.Started.IsZero() {
		t.c.last.unclean = t.unclean
		record = t.c.unstarted(t.session, t.unclean)
	}
	ops := t.c.unlockOps(t.session, t.copy, record)
	ops = append(ops, t.c.recordOps(t.copy, t.token, t.runs, t.period, t.before, e)...)
	err := t.c.unlock(ctx, ops, t.session, t.queued)
	if _, isLost := errors.AsType[*LostError](err); isLost && (e.Outcome == "lost" || e.Started.IsZero()) {
		return nil
	}
	return err
}

// End is the second half of Release.
func (t *Term) End(ctx context.Context) { t.c.destroy(ctx, t.session) }

// recordOps writes what a run was into the records. One that never started leaves none, and
// its period as it was.
func (c *Contender) recordOps(copy int, token uint64, runs []byte, period PeriodRecord, before *api.KVPair, e Ended) (ops api.TxnOps) {
	set := func(key string, value []byte) {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value}})
	}
	dir := c.lockDir(copy)
	if e.Started.IsZero() {
		if period.Period != "" {
			ops = append(ops, restore(dir+".period", before))
		}
		return ops
	}
	run := Run{Token: token, Host: c.Host, Period: period.Period, Started: stamp(e.Started), Ended: stamp(e.Ended), Exit: e.Exit, Outcome: e.Outcome, Restarts: e.Restarts}
	if value := appendRun(runs, run); value != nil {
		set(dir+".runs", value)
	}
	if period.Period != "" {
		set(dir+".period", encode(period.end(token, e)))
	}
	return ops
}

// unlock sends the transaction until it is answered. A *LostError says that session didn't hold
// the lock.
func (c *Contender) unlock(ctx context.Context, ops api.TxnOps, session string, queued bool) error {
	if queued {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: c.queueKey(session)}})
	}
	for first := true; ; first = false {
		rctx, done := context.WithTimeout(ctx, c.Poll)
		_, err := c.txn(rctx, ops)
		done()
		if no, ok := errors.AsType[*refused](err); ok {
			c.Log.Debug().Str("answer", no.what).Msg("unlock refused")
			switch {
			case isDenied(no.what):
				return no
			case strings.Contains(no.what, c.mirrorKey(-1)) && !strings.Contains(no.what, "/.lock"):
				// Somebody has deleted the mirror, which decides nothing.
				ops = slices.DeleteFunc(ops, func(op *api.TxnOp) bool { return strings.HasPrefix(op.KV.Key, c.mirrorKey(-1)) })
				continue
			case first:
				return &LostError{no.what, true}
			}
			// Not ours any more, or an earlier try was carried out.
			switch done, err2 := c.carriedOut(ctx, ops); {
			case done:
				return nil
			case err2 == nil:
				return &LostError{no.what, true}
			}
		}
		if err == nil || c.pause(ctx, c.Poll/20+c.Jitter(c.Poll/10)) != nil {
			return cause(err)
		}
	}
}

// carriedOut reports whether an unlock has been: the lock has the record that it writes, or, if there
// was another holder since, the run that it tells of is on record. Of one that tells of none it
// makes no difference.
func (c *Contender) carriedOut(ctx context.Context, ops api.TxnOps) (bool, error) {
	lock := ops[0].KV
	i := slices.IndexFunc(ops, func(op *api.TxnOp) bool { return strings.HasSuffix(op.KV.Key, "/.runs") })
	if i < 0 {
		return true, nil
	}
	ours := parseRuns(ops[i].KV.Value).Runs
	if len(ours) == 0 { // too large
		return true, nil
	}
	ctx, done := context.WithTimeout(ctx, c.Poll)
	defer done()
	r, err := c.txn(ctx, api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: lock.Key}},
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: ops[i].KV.Key}},
	})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(r.Results, func(res *api.TxnResult) bool {
		switch kv := res.KV; {
		case kv == nil:
		case kv.Key == lock.Key:
			return bytes.Equal(kv.Value, lock.Value)
		case kv.Key == ops[i].KV.Key:
			return slices.Contains(parseRuns(kv.Value).Runs, ours[len(ours)-1])
		}
		return false
	}), nil
}

// destroy ends a session. With its unlock carried out, that arms no lock-delay for the next.
// Without an answer to the unlock it is tried all the same: the session must not be used again,
// and a lock-delay from now is shorter than one from the end of its TTL.
func (c *Contender) destroy(ctx context.Context, session string) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), c.Poll/4)
	defer done()
	if _, err := c.api.Session().Destroy(session, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		c.Log.Debug().Err(cause(err)).Msg("cannot destroy the session; it ends by itself")
	}
}

// releaseInfo is what another process needs to release a term of this contender.
type releaseInfo struct {
	Client  ClientConfig
	Prefix  string
	Name    string
	Copies  int
	Copy    int
	Period  Period
	Lease   time.Duration
	Poll    time.Duration
	Host    string
	Pid     int
	Command string
	Session string
	Unclean []Unclean
	Before  *api.KVPair // the record of the period before the acquire
}

func (c *Contender) releaseInfo(a attempt) []byte {
	return encode(releaseInfo{c.Client, c.Prefix, c.Name, c.Copies, a.copy, c.Period, c.Lease, c.Poll, c.Host, c.Pid, c.Command, a.session, a.unclean, a.before})
}

// ReleaseTerm releases the lock of a contender whose process has gone, with what that
// contender gave to ready, in the time that ctx leaves. e says whether the command was started
// and, with an Outcome, how it ended if it did so before that process: this is written down, so
// that a periodic job which is done isn't done again. Without one the period stays begun, and the
// record of runs says "failed" if it can be had at once. If nothing was started, all is left as
// it was before the acquire.
// network replaces the network in tests; nil is the real one.
func ReleaseTerm(ctx context.Context, info []byte, e Ended, network http.RoundTripper) error {
	var i releaseInfo
	if err := json.Unmarshal(info, &i); err != nil {
		return fmt.Errorf("cannot read how to release the lock: %w", err)
	}
	i.Client.Transport = network
	c, err := NewContender(Config{Client: i.Client, Prefix: i.Prefix, Name: i.Name, Copies: i.Copies, Period: i.Period,
		Lease: i.Lease, Poll: i.Poll, Host: i.Host, Pid: i.Pid, Command: i.Command,
		Jitter: func(most time.Duration) time.Duration { return most / 2 }})
	if err != nil {
		return err
	}
	defer c.Close()
	record := c.record("released", i.Session)
	if e.Started.IsZero() {
		record = c.unstarted(i.Session, i.Unclean)
	}
	ops := c.unlockOps(i.Session, i.Copy, record)
	switch {
	case e.Started.IsZero():
		ops = append(ops, c.recordOps(i.Copy, 0, nil, PeriodRecord{Period: i.Period.ID}, i.Before, e)...)
	case e.Outcome != "":
		ops = append(ops, c.lateRecordOps(ctx, i, e)...)
	default:
		ops = append(ops, c.cutShortOps(ctx, i, e)...)
	}
	defer c.destroy(ctx, i.Session)
	err = c.unlock(ctx, ops, i.Session, c.Copies == 0)
	if _, isLost := errors.AsType[*LostError](err); isLost {
		return nil // also if it was released before
	}
	return err
}

// lateRecordOps is recordOps for a term that another process began: what it knew is read,
// again and again while nobody answers. Released without it, a job that is done would be
// begun anew.
func (c *Contender) lateRecordOps(ctx context.Context, i releaseInfo, e Ended) api.TxnOps {
	for {
		ops, err := c.readRecordOps(ctx, i, e)
		if err == nil {
			return ops
		}
		c.Log.Debug().Err(cause(err)).Msg("cannot read the records")
		_, isRefused := errors.AsType[*refused](err) // not ours any more
		_, isBad := errors.AsType[*RecordError](err)
		if isRefused || isBad || c.pause(ctx, c.Poll/20+c.Jitter(c.Poll/10)) != nil {
			return nil
		}
	}
}

// cutShortOps appends a run that was cut short to the record of runs, if it is known when. That
// is for people: one short try, since the release is worth more.
func (c *Contender) cutShortOps(ctx context.Context, i releaseInfo, e Ended) api.TxnOps {
	if e.Ended.IsZero() {
		return nil
	}
	e.Exit, e.Outcome = -1, "failed"
	ctx, done := context.WithTimeout(ctx, c.Poll/4)
	defer done()
	ops, err := c.readRecordOps(ctx, i, e)
	if err != nil {
		c.Log.Debug().Err(cause(err)).Msg("cannot read the record of runs")
		return nil
	}
	return slices.DeleteFunc(ops, func(op *api.TxnOp) bool { return op.KV.Key == c.lockDir(i.Copy)+".period" })
}

func (c *Contender) readRecordOps(ctx context.Context, i releaseInfo, e Ended) (api.TxnOps, error) {
	dir := c.lockDir(i.Copy)
	ctx, done := context.WithTimeout(ctx, c.Poll)
	defer done()
	r, err := c.txn(ctx, api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: c.lockKey(i.Copy), Session: i.Session}},
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: dir + ".holder"}},
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: dir + ".runs"}},
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: dir + ".period"}},
	})
	if err != nil {
		return nil, err
	}
	var token uint64
	var runs []byte
	var period PeriodRecord
	for _, res := range r.Results {
		switch kv := res.KV; {
		case kv == nil:
		case kv.Key == dir+".holder":
			token = kv.ModifyIndex
		case kv.Key == dir+".runs":
			runs = kv.Value
		case kv.Key == dir+".period" && c.Period.ID != "":
			if period, err = parsePeriod(kv.Key, kv.Value, true); err != nil {
				return nil, err
			}
		}
	}
	if period.Session != i.Session {
		period = PeriodRecord{} // not ours to end
	}
	return c.recordOps(i.Copy, token, runs, period, nil, e), nil
}
