package consulsession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/rs/zerolog"
)

// Config is what a contender needs.
type Config struct {
	Client ClientConfig

	Prefix      string        // "onlyone"
	Name        string        // of the lock
	Lease       time.Duration // sent as lock-delay
	TTL         time.Duration // of the session
	Poll        time.Duration // the longest that one request but a watch may take
	NoWait      bool          // return a *HeldError or a *PausedError instead of queueing
	Copies      int           // so many may hold the lock at once, each a copy of it; 0: one, without copies
	Period      Period        // run once in it; zero: whenever the lock is free
	Checks      []string      // health checks that the session depends on; none by default
	SessionNode string        // the catalog node that the session belongs to; empty: the agent's
	Host        string        // for the record
	Pid         int           // for the record
	Command     string        // for the record

	// Now reads the boot clock: the clock that the lease is counted on.
	Now func() time.Duration
	// Wall reads the wall clock, for records and for orders that end by themselves; nil: time.Now.
	Wall   func() time.Time
	Jitter func(most time.Duration) time.Duration
	Log    zerolog.Logger
	// Waiting is called when what the contender waits for has changed.
	Waiting func(Queue)
	// Looks is called by Acquire after each look at the lock: free if it is about to be acquired.
	Looks func(free bool)
}

// Queue is what a waiting contender knows.
type Queue struct {
	Position, Of int    // 1 is the next to hold the lock
	Free         bool   // nobody holds the lock, but it can't be had yet
	Holder       Record // zero where it isn't known
	Copies       int    // 0 without copies
	Done         int    // so many of them have nothing to run any more in this period, if none is Free
	Paused       *Order // nobody may start
}

// Limits of requests, in time.
const (
	// watchWait is the wait of a blocking read: a cancelled one keeps its place among the
	// 200 connections that an agent gives one address until its wait is over.
	watchWait = 15 * time.Second
	// watchLimit is watchWait, the sixteenth that Consul adds, and the way there and back.
	watchLimit = watchWait + watchWait/16 + 3*time.Second
	// leaveLimit bounds the clean-up of a contender that gives up.
	leaveLimit = 2 * time.Second
	// answerLimit is how long a contender that gives up waits before that for an answer. With the
	// 80 ms that a stop signal leaves it to clean up it is below the 100 ms that are promised.
	answerLimit = 15 * time.Millisecond
	// delayPause is how often the first in the queue asks while a lock-delay runs.
	delayPause = time.Second
)

// Contender contends for one lock. It isn't safe for concurrent use.
//
// It opens at most two connections to an address, and one while it waits: a holder's watch has
// its own. So proofs need no new connection in which to be refused when a host has as many
// as Consul allows, and nobody's watch stands in the way of another request.
type Contender struct {
	Config
	api       *api.Client
	rt        *transport
	watches   *api.Client // for the watch of a holder
	watchesRT *transport
	tried     attempt // the last acquire that was sent
	last      lastTerm
	elsewhere map[int]bool            // copies that somebody holds who knows no copies: their mirrors don't say so
	reached   bool                    // Consul has answered once
	known     bool                    // it has made a session, so it is a Consul
	turns     chan chan time.Duration // see turn
}

// lastTerm is the last one that this contender has released: nothing of it is left, whatever
// the lock says.
type lastTerm struct {
	session string
	unclean []Unclean // who is still to be fenced, since it started nothing
}

// NewContender checks the settings of the client; it sends nothing. Its errors are
// *ConfigError.
func NewContender(c Config) (*Contender, error) {
	client, rt, err := newAPI(c.Client, 1)
	if err != nil {
		return nil, err
	}
	watches, watchesRT, err := newAPI(c.Client, 1)
	if err != nil {
		return nil, err
	}
	if c.Wall == nil {
		c.Wall = time.Now
	}
	return &Contender{Config: c, api: client, rt: rt, watches: watches, watchesRT: watchesRT, elsewhere: map[int]bool{}}, nil
}

// Close drops idle connections.
func (c *Contender) Close() {
	c.rt.closeIdle()
	c.watchesRT.closeIdle()
}

// Address is the address that is used at present.
func (c *Contender) Address() string { return c.rt.address() }

// Rule is the ACL policy that a token needs for this lock.
func (c *Contender) Rule() string { return c.keyRule() + " " + c.sessionRule() }

func (c *Contender) keyRule() string {
	return fmt.Sprintf(`key_prefix %q { policy = "write" }`, c.dir())
}

// sessionRule is about the node that the session is tied to.
func (c *Contender) sessionRule() string {
	if c.SessionNode != "" {
		return fmt.Sprintf(`session %q { policy = "write" }`, c.SessionNode)
	}
	return `session_prefix "" { policy = "write" }`
}

// Acquire contends until the lock is held, ctx ends or it can't go on, and leaves no
// queue entry and no session behind where it fails (as far as Consul answers). Before
// each acquiring request it calls ready with the information that ReleaseTerm needs.
//
// Errors: *HeldError, *PausedError, *DoneError, *MissedError, *RecordError, *CopiesError,
// *ForeignKeyError, *PermissionError, *UnreachableError, an error of ready, or ctx's.
func (c *Contender) Acquire(ctx context.Context, ready func(info []byte) error) (*Term, error) {
	for {
		t, err := c.contend(ctx, ready)
		if errors.Is(err, errSessionGone) && ctx.Err() == nil {
			c.Log.Info().Msg("the session ended while waiting: joining the queue again")
			if c.pause(ctx, c.Jitter(c.Poll)) == nil {
				continue
			}
		}
		return t, err
	}
}

// contend is one session's life up to the acquire.
//
// The lock is read before a session is made for it: who can't have it and doesn't wait, or
// whose period is done, needs none and has written nothing.
func (c *Contender) contend(ctx context.Context, ready func([]byte) error) (t *Term, err error) {
	looked := c.Now()
	v, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	session, err := c.createSession(ctx)
	if err != nil {
		return nil, err
	}
	fresh := c.Now()-looked < c.Poll/4 // v was read since the last change, or an election
	ctx, cancel := context.WithCancelCause(ctx)
	renewing := make(chan struct{})
	c.turns = make(chan chan time.Duration)
	go func() {
		defer close(renewing)
		c.keepAlive(ctx, session, cancel, c.turns)
	}()
	queued := false
	defer func() {
		if errors.Is(context.Cause(ctx), errSessionGone) {
			err = errSessionGone
		}
		cause := context.Cause(ctx)
		cancel(nil) // stop renewing first
		<-renewing
		if err != nil {
			c.leave(context.WithoutCancel(ctx), cause, session, queued)
		}
	}()
	begin := c.Now()
	taken := 0                         // how often others were faster
	refused := map[int]time.Duration{} // copies that couldn't be had, and when to ask for them again
	for {
		if !fresh {
			if err := c.retry(ctx, "read the lock", func(ctx context.Context) (err error) { v, err = c.read(ctx); return err }); err != nil {
				return nil, err
			}
		}
		fresh = false
		if err := c.refuse(v, session); err != nil {
			return nil, err
		}
		queued = queued && v.inQueue(session) // or somebody has deleted the entry
		paused := v.pause(c.Wall())
		ahead := v.ahead(session)
		s, can := c.pick(v, session, refused)
		if can && (s.heldBy(session) && paused != nil || c.tried.pending(session) && c.tried.copy != s.copy) {
			// An acquire whose answer was lost: paused since, or it may still get us another copy.
			return nil, errSessionGone
		}
		if can && (s.heldBy(session) || len(ahead) == 0 && paused == nil) {
			c.looks(true)
			t, err := c.tryLock(ctx, session, v, s, ready)
			switch {
			case err == nil:
				return t, nil
			case errors.Is(err, errLockDelay) && c.NoWait && c.Copies == 0:
				return nil, &HeldError{Why: "lock-delay"}
			case errors.Is(err, errLockDelay) && c.Copies > 0, errors.Is(err, errTaken) && c.Copies > 0:
				at := c.Now() + delayPause/10 + c.Jitter(delayPause*9/10)
				refused[s.copy] = at
				if errors.Is(err, errPlain) {
					for i := range v.slots {
						refused[i] = at
					}
				}
			case errors.Is(err, errTaken) && taken < 2 && (c.NoWait || !queued):
				taken++ // somebody was faster: see who
			case errors.Is(err, errLockDelay) && !queued:
				// In order of arrival: the first one asks while the delay runs, the others watch.
				queued, fresh = true, c.readsAll()
				if v, err = c.enqueue(ctx, session); err != nil {
					return nil, err
				}
			case errors.Is(err, errLockDelay):
				c.tell(v, session)
				if err := c.pause(ctx, delayPause/10+c.Jitter(delayPause*9/10)); err != nil {
					return nil, err
				}
			case errors.Is(err, errTaken) && c.NoWait && c.Now()-begin > 4*c.Poll:
				return nil, &HeldError{} // again and again
			case errors.Is(err, errUnknown) && c.NoWait && c.Now()-begin > 4*c.Poll:
				return nil, &UnreachableError{c.Address(), err}
			case errors.Is(err, errTaken), errors.Is(err, errUnknown):
				if err := c.pause(ctx, c.Jitter(c.Poll/4)); err != nil {
					return nil, err
				}
			default:
				return nil, err
			}
			continue
		}
		c.looks(false)
		if c.NoWait {
			return nil, c.conflict(v, session, ahead, paused)
		}
		if c.tried.pending(session) && (!queued || len(ahead) > 0) {
			// An acquire that wasn't answered may yet be carried out, and nobody would look.
			return nil, errSessionGone
		}
		if !queued {
			queued, fresh = true, c.readsAll()
			if v, err = c.enqueue(ctx, session); err != nil {
				return nil, err
			}
			continue
		}
		c.sweep(ctx, v, session)
		c.tell(v, session)
		if err := c.await(ctx, v, ahead, paused, refused); err != nil {
			return nil, err
		}
	}
}

// look reads the lock before there is a session. Its errors are final.
func (c *Contender) look(ctx context.Context) (v view, err error) {
	const nobody = "none" // no session is called so
	if err := c.retry(ctx, "read the lock", func(ctx context.Context) (err error) { v, err = c.read(ctx); return err }); err != nil {
		return v, err
	}
	if err := c.refuse(v, nobody); err != nil {
		return v, err
	}
	_, can := c.pick(v, nobody, nil)
	paused, ahead := v.pause(c.Wall()), v.ahead(nobody)
	free := can && len(ahead) == 0 && paused == nil
	c.looks(free)
	if !free && c.NoWait {
		return v, c.conflict(v, nobody, ahead, paused)
	}
	return v, nil
}

func (c *Contender) looks(free bool) {
	if c.Looks != nil {
		c.Looks(free)
	}
}

// conflict is why a contender that doesn't wait ends.
func (c *Contender) conflict(v view, session string, ahead []*api.KVPair, paused *Order) error {
	free, done := c.free(v, session)
	switch h := (&HeldError{Waiting: len(ahead), Copies: c.Copies}); {
	case paused != nil && (free || c.Copies > 0):
		return &PausedError{*paused}
	case !free:
		h.By, h.Done = v.holder(), done
		return h
	case len(ahead) > 0:
		h.Why = "queue"
		return h
	default:
		h.Why = "lock-delay"
		return h
	}
}

func (c *Contender) tell(v view, session string) {
	if c.Waiting == nil {
		return
	}
	q := Queue{Holder: v.holder(), Copies: c.Copies, Paused: v.pause(c.Wall())}
	if q.Free, q.Done = c.free(v, session); q.Free {
		q.Done = 0
	}
	for _, e := range v.queue {
		if e.Session == "" || v.holds(e.Session) {
			continue // gone, or the holder's own entry
		}
		q.Of++
		if e.Session == session {
			q.Position = q.Of
		}
	}
	c.Waiting(q)
}

// createSession makes a session for one term: no health checks unless asked for (serf
// takes a session away earlier than its TTL), and the lease as its lock-delay. It is sent
// as a string, since small numbers are seconds and Go's library can't send all values.
func (c *Contender) createSession(ctx context.Context) (string, error) {
	var id string
	err := c.retry(ctx, "create a session", answered(func(ctx context.Context) (err error) {
		id, err = c.newSession(ctx, "onlyone/"+c.Name, "release")
		return err
	}))
	c.known = c.known || err == nil
	return id, err
}

// newSession asks once.
func (c *Contender) newSession(ctx context.Context, name, behavior string) (string, error) {
	body := map[string]any{
		"Name": name, "TTL": c.TTL.String(), "LockDelay": c.Lease.String(),
		"Behavior": behavior, "NodeChecks": append([]string{}, c.Checks...),
	}
	if c.SessionNode != "" {
		body["Node"] = c.SessionNode
	}
	var out struct{ ID string }
	_, err := c.api.Raw().Write("/v1/session/create", body, &out, (&api.WriteOptions{}).WithContext(ctx))
	if err == nil && out.ID == "" {
		err = errNotConsul
	}
	return out.ID, err
}

var errNotConsul = errors.New("it does not answer as Consul does; is CONSUL_HTTP_ADDR (--http-addr) right?")

// renewAfter is when a waiting contender renews its session: a watch that ends then, with the
// sixteenth that Consul adds to its wait, and one attempt to renew, end within the TTL.
func (c *Contender) renewAfter() time.Duration { return c.TTL * 7 / 10 }

// renewLimit is the most that an attempt may take.
func (c *Contender) renewLimit() time.Duration { return min(c.Poll, c.TTL/5) }

// keepAlive renews the session of a waiting contender and cancels the contender when it is
// gone. It does so when the contender gives it its turn, between two watches; by itself only
// if that doesn't come, since the contender has something else under way.
func (c *Contender) keepAlive(ctx context.Context, session string, cancel context.CancelCauseFunc, turns <-chan chan time.Duration) {
	due := c.Now() + c.renewAfter()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(due + c.renewLimit()/2 - c.Now())
		var turn chan time.Duration
		select {
		case <-ctx.Done():
			return
		case turn = <-turns:
		case <-timer.C:
		}
		if turn == nil || c.Now() >= due {
			due = c.Now() + c.renewAfter()
			if err := c.renewOnce(ctx, session); err != nil {
				if ctx.Err() == nil && errors.Is(err, errSessionGone) || forbidden(err) {
					cancel(c.whyEnded(err))
					return
				}
				due = c.Now() + c.Poll/4 + c.Jitter(c.Poll/2)
			}
		}
		if turn != nil {
			turn <- due - c.Now()
		}
	}
}

func (c *Contender) renewOnce(ctx context.Context, session string) error {
	ctx, done := context.WithTimeout(ctx, c.renewLimit())
	defer done()
	_, err := renew(ctx, c.api, session)
	return err
}

func (c *Contender) whyEnded(err error) error {
	if forbidden(err) {
		return &PermissionError{cause(err), c.Rule()}
	}
	return err
}

// turn has the session renewed, if that is due, and says when it is due next. Between two
// watches the one connection of this contender is free.
func (c *Contender) turn(ctx context.Context) (time.Duration, error) {
	answer := make(chan time.Duration, 1)
	select {
	case c.turns <- answer:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	select {
	case next := <-answer:
		return next, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// renew renews session; errSessionGone if it is unknown. A server that was restarted and elected a
// moment ago renews from a state that it hasn't caught up with (Consul's Session.Renew reads
// without a barrier) and answers 404 for a session that lives, so a consistent read has the last
// word.
func renew(ctx context.Context, client *api.Client, session string) (*api.SessionEntry, error) {
	e, _, err := client.Session().Renew(session, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil || e != nil {
		return e, err
	}
	e, _, err = client.Session().Info(session, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, errSessionGone
	}
	return nil, errNotRenewed
}

// txn sends a transaction; a refusal is a *refused.
func (c *Contender) txn(ctx context.Context, ops api.TxnOps) (*api.TxnResponse, error) {
	return txn(ctx, c.api, ops)
}

func txn(ctx context.Context, client *api.Client, ops api.TxnOps) (*api.TxnResponse, error) {
	ok, r, _, err := client.Txn().Txn(ops, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	r.Results = slices.DeleteFunc(r.Results, func(t *api.TxnResult) bool { return t == nil })
	r.Errors = slices.DeleteFunc(r.Errors, func(e *api.TxnError) bool { return e == nil })
	if !ok {
		return nil, &refused{txnErrors(r)}
	}
	return r, nil
}

// refused: the transaction was not carried out.
type refused struct{ what string }

func (e *refused) Error() string { return e.what }

func (c *Contender) record(state, session string, unfenced ...Unclean) []byte {
	return encode(Record{Schema: Schema, State: state, Host: c.Host, Pid: c.Pid, Session: session,
		Since: stamp(c.Wall().Truncate(time.Millisecond)), Command: c.Command, Unfenced: unfenced})
}

// enqueue joins the queue, with retries.
func (c *Contender) enqueue(ctx context.Context, session string) (v view, err error) {
	err = c.retry(ctx, "join the queue", answered(func(ctx context.Context) (err error) { v, err = c.join(ctx, session); return err }))
	return v, err
}

// join enters the queue and reads lock and queue in the same instant.
func (c *Contender) join(ctx context.Context, session string) (view, error) {
	r, err := c.txn(ctx, append(api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVLock, Key: c.queueKey(session), Value: c.record("waiting", session), Flags: api.LockFlagValue, Session: session}},
	}, c.reads()...))
	if err != nil {
		return view{}, err
	}
	if len(r.Results) == 0 || r.Results[0].KV == nil || r.Results[0].KV.Session != session {
		return view{}, errNotConsul
	}
	r.Results = r.Results[1:] // the lock operation's own result has no value
	return c.view(r), nil
}

// await blocks until what this contender waits for may have changed: the entry before its
// own; or, for the first one, the pause, the lock, or any of the copies. What it sees proves nothing.
func (c *Contender) await(ctx context.Context, v view, ahead []*api.KVPair, paused *Order, refused map[int]time.Duration) error {
	switch {
	case len(ahead) > 0:
		return c.watchKey(ctx, ahead[len(ahead)-1], 0)
	case paused != nil && (v.free() || c.Copies > 0):
		var limit time.Duration
		if until, err := time.Parse(time.RFC3339, paused.Until); err == nil {
			limit = max(until.Sub(c.Wall()), 0) + 10*time.Millisecond
		}
		return c.watchKey(ctx, v.paused, limit)
	case c.Copies > 0:
		var limit time.Duration
		for _, at := range refused {
			if left := at - c.Now(); left > 0 && (limit == 0 || left < limit) {
				limit = left
			}
		}
		return c.watchCopies(ctx, v, limit)
	case v.slots[0].lock == nil:
		return nil // the lock key has vanished: it is free
	}
	return c.watchKey(ctx, v.slots[0].lock, 0)
}

// watchKey blocks until kv has changed, or for at most limit; 0: for as long as it takes.
func (c *Contender) watchKey(ctx context.Context, kv *api.KVPair, limit time.Duration) error {
	return c.watch(ctx, limit, func(o *api.QueryOptions) (bool, error) {
		o.WaitIndex = kv.ModifyIndex
		now, meta, err := c.api.KV().Get(kv.Key, o)
		if err != nil {
			return false, err
		}
		if now == nil || now.ModifyIndex != kv.ModifyIndex || now.Session != kv.Session {
			return true, nil
		}
		if meta.LastIndex > 0 && meta.LastIndex < kv.ModifyIndex { // it went back: a snapshot was restored
			return true, c.rest(ctx)
		}
		return false, nil
	})
}

// watchCopies blocks until one of the copies was acquired, released, lost or added.
func (c *Contender) watchCopies(ctx context.Context, v view, limit time.Duration) error {
	seen := newest(v.mirrors)
	index := seen
	return c.watch(ctx, limit, func(o *api.QueryOptions) (bool, error) {
		o.WaitIndex = index
		kvs, meta, err := c.api.KV().List(c.mirrorKey(-1), o)
		if err != nil {
			return false, err
		}
		// What is no news is only where to wait from: a key that was deleted counts in the index
		// of what isn't there any more.
		if index = meta.LastIndex; index < o.WaitIndex {
			index = 0 // it went back: a snapshot was restored
		}
		return newest(kvs) != seen || len(kvs) != len(v.mirrors), nil
	})
}

func newest(kvs api.KVPairs) (index uint64) {
	for _, kv := range kvs {
		index = max(index, kv.ModifyIndex)
	}
	return index
}

// rest is for a watch that came back at once and saw nothing new: what is between may not wait, or
// take the index away. (Consul itself has answered with an index of 0.)
func (c *Contender) rest(ctx context.Context) error {
	return c.pause(ctx, c.Poll/8+c.Jitter(c.Poll/4))
}

// watch sends blocking reads until one saw a change or limit is over. With a limit the caller
// looks again after each that took its time, since clocks may have been set meanwhile.
func (c *Contender) watch(ctx context.Context, limit time.Duration, read func(*api.QueryOptions) (changed bool, err error)) error {
	for {
		wait, err := c.turn(ctx)
		if err != nil {
			return err
		}
		wait = min(wait, watchWait)
		if limit > 0 {
			wait = min(wait, limit)
		}
		wait = max(wait, 10*time.Millisecond)
		begin := c.Now()
		wctx, done := context.WithTimeout(ctx, watchLimit)
		changed, err := read((&api.QueryOptions{WaitTime: wait}).WithContext(wctx))
		done()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case forbidden(err):
			return &PermissionError{cause(err), c.Rule()}
		case err != nil:
			c.Log.Debug().Err(cause(err)).Msg("cannot watch the queue")
			if err := c.pause(ctx, c.Poll/4+c.Jitter(c.Poll)); err != nil {
				return err
			}
		case changed, limit > 0 && c.Now()-begin >= wait:
			return nil
		case c.Now()-begin < wait/2:
			if err := c.rest(ctx); err != nil || limit > 0 {
				return err
			}
		}
	}
}

// sweep deletes dead entries between our own and the living one before it: each dead
// entry is met by one contender, the first one behind it.
func (c *Contender) sweep(ctx context.Context, v view, session string) {
	var dead []*api.KVPair
	for _, e := range v.queue {
		if e.Session == session {
			break
		}
		if e.Session == "" {
			dead = append(dead, e)
		} else {
			dead = nil
		}
	}
	if len(dead) > 32 { // a transaction may have 64 operations on Consul 1.8
		dead = dead[:32]
	}
	var ops api.TxnOps
	for _, e := range dead {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: e.Key, Index: e.ModifyIndex}})
	}
	if len(ops) == 0 {
		return
	}
	rctx, done := context.WithTimeout(ctx, c.Poll)
	defer done()
	if _, err := c.txn(rctx, ops); err != nil {
		c.Log.Debug().Err(cause(err)).Msg("cannot sweep dead queue entries")
	}
}

// leave ends a session that won't be used: queue entry, then the session.
func (c *Contender) leave(ctx context.Context, why error, session string, queued bool) {
	limit := leaveLimit
	var l interface{ LeaveLimit() time.Duration }
	if errors.As(why, &l) {
		limit = l.LeaveLimit()
	}
	ctx, done := context.WithTimeout(ctx, limit)
	defer done()
	if err := c.endSession(ctx, session, queued); err != nil {
		c.Log.Debug().Err(cause(err)).Msg("cannot leave the queue; the session ends by itself")
	}
}

// endSession unlocks what an unanswered acquire may have locked, removes the queue entry
// and destroys the session. After that nothing that is still under way can lock with it.
func (c *Contender) endSession(ctx context.Context, session string, queued bool) error {
	if queued {
		// At best: without it the entry is dead when the session is, and is swept.
		_, _ = c.txn(ctx, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: c.queueKey(session)}}})
	}
	if c.tried.session == session {
		// An acquire whose answer we didn't wait for: unlocked, it arms no lock-delay.
		_, _ = c.txn(ctx, c.takeBack(session))
	}
	_, err := c.api.Session().Destroy(session, (&api.WriteOptions{}).WithContext(ctx))
	return err
}

// retry calls f, each time with at most Poll, until it succeeds or there is no point in
// going on. While this host has too many connections it waits. It gives up after two polls
// if the caller doesn't wait, or if Consul has never answered: then the address is wrong or
// the agent is down.
func (c *Contender) retry(ctx context.Context, what string, f func(context.Context) error) error {
	start, told := c.Now(), false
	for {
		rctx, done := context.WithTimeout(ctx, c.Poll)
		err := f(rctx)
		done()
		no, isRefused := errors.AsType[*refused](err)
		refusal, setting := badSetting(err)
		full, isFull := errors.AsType[*ConnectionLimitError](err)
		switch {
		case err == nil:
			c.reached = true
			if told {
				c.Log.Info().Msg("Consul answers again")
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case forbidden(err), isRefused && isDenied(no.what):
			return &PermissionError{cause(err), c.Rule()}
		case isRefused && isInvalidSession(no.what):
			return errSessionGone
		case setting && ((c.NoWait || !c.reached) && c.Now()-start >= c.Poll || !c.known && c.Now()-start >= 5*c.Poll):
			// Not at once: an agent that has just started says so, too.
			return &ConfigError{"Consul refuses the session: " + refusal}
		case isFull && !c.NoWait:
			// Its turn comes when others of this host have ended.
			if !told && c.Now()-start >= c.Poll {
				told = true
				c.Log.Warn().Msgf("Consul at %s: %v: waiting for a connection", c.Address(), full)
			}
			if err := c.pause(ctx, c.Poll/2+c.Jitter(c.Poll)); err != nil {
				return err
			}
			continue
		case badRequest(err) && (c.NoWait || !c.known):
			return &UnreachableError{c.Address(), cause(err)}
		case !c.known && (errors.Is(err, errNotConsul) || isDecode(err)), (c.NoWait || !c.reached) && c.Now()-start >= 2*c.Poll:
			return &UnreachableError{c.Address(), cause(err)}
		}
		if !told && c.reached && c.Now()-start > c.Poll {
			told = true
			c.Log.Info().Err(cause(err)).Msgf("cannot %s: retrying", what)
		}
		if err := c.pause(ctx, c.Poll/8+c.Jitter(c.Poll/2)); err != nil {
			return err
		}
	}
}

// answered is f, which makes something in Consul, for retry when its caller gives up: a request that
// is under way is answered in a moment, and then it is known what there is to be undone. The
// deadline of an attempt stays: a timeout counts against the address, a stop doesn't.
func answered(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		limit, _ := ctx.Deadline() // retry has set it
		on, cancel := context.WithDeadline(context.WithoutCancel(ctx), limit)
		defer cancel()
		defer context.AfterFunc(ctx, func() {
			timer := time.AfterFunc(answerLimit, cancel)
			context.AfterFunc(on, func() { timer.Stop() })
		})()
		return f(on)
	}
}

// isDecode: the answer was a success, but not JSON that Consul would send.
func isDecode(err error) bool {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return true
	}
	_, ok := errors.AsType[*json.UnmarshalTypeError](err)
	return ok
}

// pause waits, or returns ctx's cause.
func (c *Contender) pause(ctx context.Context, d time.Duration) error { return pause(ctx, d) }

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
