package consulsession

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// OperatorConfig is what an Operator needs.
type OperatorConfig struct {
	Client  ClientConfig
	Prefix  string           // "onlyone"
	Timeout time.Duration    // of each request but a watch
	By      string           // user@host, for what is written
	Wall    func() time.Time // nil: time.Now
}

// An Operator looks at locks and orders their holders about, without contending. All reads
// are consistent. Its methods may be called concurrently.
//
// Errors: *PermissionError, *UnreachableError, *RecordError, ctx's, and what a method names.
type Operator struct {
	OperatorConfig
	api   *api.Client
	rt    *transport
	clock clockBounds
}

// NewOperator checks the settings of the client; it sends nothing. Its errors are *ConfigError.
func NewOperator(c OperatorConfig) (*Operator, error) {
	client, rt, err := newAPI(c.Client, 2)
	if err != nil {
		return nil, err
	}
	if c.Wall == nil {
		c.Wall = time.Now
	}
	o := &Operator{OperatorConfig: c, api: client, rt: rt}
	rt.answered = o.clock.note
	return o, nil
}

// Close drops idle connections.
func (o *Operator) Close() { o.rt.closeIdle() }

// Skew is by how much, about, the clock of the agent is ahead of ours, if they differ by more
// than can come of the way there: Consul says whole seconds. An agent on this host has our
// clock.
func (o *Operator) Skew() (ahead time.Duration, ok bool) {
	o.clock.mu.Lock()
	defer o.clock.mu.Unlock()
	return (o.clock.max-o.clock.min)/2 + o.clock.min, o.clock.known && (o.clock.min > clockLimit || o.clock.max < -clockLimit)
}

// A Target is a lock, or one of its copies.
type Target struct {
	Name string
	Copy int // -1: the lock itself
}

func (t Target) String() string {
	if t.Copy < 0 {
		return t.Name
	}
	return t.Name + "/" + strconv.Itoa(t.Copy)
}

func (o *Operator) dir(t Target) string { return o.Prefix + "/" + t.String() + "/" }

func (o *Operator) rule(path, policy string) string {
	return fmt.Sprintf(`key_prefix %q { policy = %q }`, o.Prefix+"/"+path, policy)
}

// Locks reads all locks whose names begin with begin, in order of their names: one request.
// filtered says that Consul left keys out which the token may not read (1.11 and newer say so).
func (o *Operator) Locks(ctx context.Context, begin string) (locks []Lock, filtered bool, err error) {
	kvs, meta, err := o.first(ctx, parent(begin), begin)
	if err != nil {
		return nil, false, err
	}
	return o.beginning(begin, kvs), meta.ResultsFilteredByACLs, nil
}

// parent is the folder of what begins with begin: what NAME/2 is, NAME/.copies tells.
func parent(begin string) string { return begin[:strings.LastIndexByte(begin, '/')+1] }

func (o *Operator) beginning(begin string, kvs api.KVPairs) (locks []Lock) {
	for _, l := range locksIn(o.Prefix, kvs, o.Wall()) {
		if strings.HasPrefix(l.Name, begin) {
			locks = append(locks, l)
		}
	}
	return locks
}

// first reads a folder. If there is nothing that begins with probe, the token must be able to
// read that: Consul leaves out of a tree what may not be read, but refuses a single key.
func (o *Operator) first(ctx context.Context, folder, probe string) (kvs api.KVPairs, meta *api.QueryMeta, err error) {
	err = o.ask(ctx, o.rule(probe, "read"), func(ctx context.Context) (err error) {
		if kvs, meta, err = o.list(ctx, folder, api.QueryOptions{}); err != nil {
			return err
		}
		if slices.ContainsFunc(kvs, func(kv *api.KVPair) bool { return strings.HasPrefix(kv.Key, o.Prefix+"/"+probe) }) {
			return nil
		}
		_, _, err = o.api.KV().Get(o.Prefix+"/"+probe, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		return err
	})
	return kvs, meta, err
}

// Find reads the lock NAME, or the one that NAME is a copy of. One that was never used is
// free.
func (o *Operator) Find(ctx context.Context, name string) (Lock, Target, error) {
	kvs, _, err := o.first(ctx, folder(name), name+"/")
	if err != nil {
		return Lock{}, Target{}, err
	}
	l, t := o.find(name, kvs)
	return l, t, nil
}

// folder is what Find has to read.
func folder(name string) string {
	i := strings.LastIndexByte(name, '/')
	if _, ok := copyNumber(name[i+1:]); ok && i > 0 {
		return name[:i+1] // perhaps a copy
	}
	return name + "/"
}

func (o *Operator) find(name string, kvs api.KVPairs) (Lock, Target) {
	i := strings.LastIndexByte(name, '/')
	n, isNumber := copyNumber(name[i+1:])
	for _, l := range locksIn(o.Prefix, kvs, o.Wall()) {
		switch {
		case l.Name == name:
			return l, Target{name, -1}
		case isNumber && i > 0 && l.Name == name[:i] && l.copies != nil:
			return l, Target{l.Name, n}
		}
	}
	return Lock{Name: name, Hold: Hold{State: Free}}, Target{name, -1}
}

// list reads a tree. path is below the prefix.
func (o *Operator) list(ctx context.Context, path string, q api.QueryOptions) (api.KVPairs, *api.QueryMeta, error) {
	q.RequireConsistent = true
	kvs, meta, err := o.api.KV().List(o.Prefix+"/"+path, q.WithContext(ctx))
	if err == nil && meta.LastIndex == 0 {
		err = errNotConsul // a 404 of something else is no empty tree
	}
	return kvs, meta, err
}

// ask sends a request to each address in turn until one answers.
func (o *Operator) ask(ctx context.Context, rule string, f func(context.Context) error) (err error) {
	for range o.rt.endpoints {
		rctx, done := context.WithTimeout(ctx, o.Timeout)
		err = f(rctx)
		done()
		no, isRefused := errors.AsType[*refused](err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case forbidden(err), isRefused && isDenied(no.what):
			return &PermissionError{cause(err), rule}
		case isRefused:
			return no
		}
	}
	return &UnreachableError{o.rt.address(), cause(err)}
}

// write sends a transaction; a refusal is a *refused.
func (o *Operator) write(ctx context.Context, t Target, ops api.TxnOps) (r *api.TxnResponse, err error) {
	err = o.ask(ctx, o.rule(t.Name+"/", "write"), func(ctx context.Context) (err error) { r, err = txn(ctx, o.api, ops); return err })
	return r, err
}

// Watch calls changed with the locks whose names begin with begin, and again when something
// below them has changed, until it says false or ctx ends. An error before the first answer
// ends it; after that trouble is told, and it goes on.
func (o *Operator) Watch(ctx context.Context, begin string, changed func([]Lock) (more bool), trouble func(error)) error {
	return o.watch(ctx, parent(begin), begin, watchRest, func(kvs api.KVPairs) bool { return changed(o.beginning(begin, kvs)) }, trouble)
}

// WatchOne is Watch for what Find finds.
func (o *Operator) WatchOne(ctx context.Context, name string, changed func(Lock, Target) (more bool), trouble func(error)) error {
	return o.watch(ctx, folder(name), name+"/", 0, func(kvs api.KVPairs) bool { return changed(o.find(name, kvs)) }, trouble)
}

// watchRest is how long a watch of many locks rests after each change: among thousands of
// them something always changes, and each answer has them all.
const watchRest = time.Second

// troublePause is how long a watch rests after an error.
const troublePause = time.Second

// watch is one blocking read after the other. What it sees is what a leader said, so it is
// for people to look at and no proof for anything that runs.
func (o *Operator) watch(ctx context.Context, folder, probe string, rest time.Duration, changed func(api.KVPairs) bool, trouble func(error)) error {
	kvs, meta, err := o.first(ctx, folder, probe)
	if err != nil || !changed(kvs) {
		return err
	}
	index := meta.LastIndex
	for {
		wctx, done := context.WithTimeout(ctx, watchLimit)
		kvs, meta, err := o.list(wctx, folder, api.QueryOptions{WaitIndex: index, WaitTime: watchWait})
		done()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case forbidden(err):
			return &PermissionError{cause(err), o.rule(probe, "read")}
		case err != nil:
			trouble(&UnreachableError{o.rt.address(), cause(err)})
			if err := pause(ctx, troublePause); err != nil {
				return err
			}
			index = 0
			continue
		case !changed(kvs):
			return nil
		}
		if err := pause(ctx, rest); err != nil {
			return err
		}
		index = meta.LastIndex // also if it went back: a snapshot was restored
	}
}

// NotHeldError says that there is nobody to be asked.
type NotHeldError struct {
	Target Target
	Hold   Hold
	Copies int // how many copies there may be, if Target isn't one of them
}

func (e *NotHeldError) Error() string {
	switch {
	case e.Hold.State == Held:
		return fmt.Sprintf("it has changed hands, and %s holds it now", e.Hold.Holder)
	case e.Hold.Unclean != nil:
		return fmt.Sprintf("nobody holds it: its last holder, %s, ended without releasing", e.Hold.Unclean)
	case e.Copies > 0:
		return fmt.Sprintf("nobody holds one of its %d copies", e.Copies)
	}
	return "nobody holds it"
}

// Asked is an order to step down that was given.
type Asked struct {
	Target Target
	From   Party
	Order  Order
	index  uint64
}

// StepDown asks from, the holder of t, to stop its command in order and to hand over: nobody
// else. *NotHeldError if it doesn't hold the lock any more.
func (o *Operator) StepDown(ctx context.Context, t Target, from Party, reason string) (Asked, error) {
	a := Asked{Target: t, From: from, Order: o.order(reason)}
	a.Order.Session = from.Session
	r, err := o.write(ctx, t, api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: o.dir(t) + ".lock", Session: from.Session}},
		{KV: &api.KVTxnOp{Verb: api.KVSet, Key: o.dir(t) + ".step-down", Value: encode(a.Order)}},
		o.ring(t),
	})
	if notHeldBy(err) {
		l, _, err := o.Find(ctx, t.String())
		if err != nil {
			return a, err
		}
		return a, &NotHeldError{Target: t, Hold: l.At(t.Copy)}
	}
	if err != nil {
		return a, err
	}
	for _, res := range r.Results {
		if res.KV != nil && res.KV.Key == o.dir(t)+".step-down" {
			a.index = res.KV.ModifyIndex
		}
	}
	return a, nil
}

// TakeBack takes an order back. held is false if the holder that was asked has let go.
func (o *Operator) TakeBack(ctx context.Context, a Asked) (held bool, err error) {
	_, err = o.write(ctx, a.Target, api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: o.dir(a.Target) + ".lock", Session: a.From.Session}},
		{KV: &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: o.dir(a.Target) + ".step-down", Index: a.index}},
	})
	if notHeldBy(err) {
		return false, nil
	}
	if no, ok := errors.AsType[*refused](err); ok && isStale(no.what) {
		return true, nil // somebody else has asked since: that order stands
	}
	return true, err
}

// notHeldBy: a transaction was refused since a session doesn't hold the lock.
func notHeldBy(err error) bool {
	no, ok := errors.AsType[*refused](err)
	return ok && (strings.Contains(no.what, "failed session check") || strings.Contains(no.what, "doesn't exist"))
}

// ring wakes the holder of t, which looks for orders every poll anyway. Each time with other
// contents: Consul wakes nobody for the same.
func (o *Operator) ring(t Target) *api.TxnOp {
	return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: o.dir(t) + ".lock-bell", Value: []byte(rand.Text())}}
}

func (o *Operator) order(reason string) Order {
	return Order{Schema: Schema, By: o.By, Since: stamp(o.Wall().Truncate(time.Second)), Reason: reason}
}

// chunk is how many keys one transaction writes: Consul 1.8 takes 64.
const chunk = 60

// Pause has the holders of a lock stop, and nobody start, until the time is over; for ever if
// until is zero. An earlier pause is replaced.
//
// One key is the gate that each acquire checks, and what each holder's check reads.
func (o *Operator) Pause(ctx context.Context, name string, until time.Time, reason string) (Order, Lock, error) {
	order := o.order(reason)
	order.Until = stamp(until.Add(time.Second - 1).Truncate(time.Second)) // never sooner than was asked for
	t := Target{name, -1}
	if _, err := o.write(ctx, t, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVSet, Key: o.dir(t) + ".paused", Value: encode(order)}}}); err != nil {
		return order, Lock{}, err
	}
	l, err := o.ringAll(ctx, name)
	return order, l, err
}

// Resume ends a pause. was is false if there was none.
func (o *Operator) Resume(ctx context.Context, name string) (was bool, err error) {
	l, _, err := o.Find(ctx, name)
	if err != nil {
		return false, err
	}
	t := Target{name, -1}
	_, err = o.write(ctx, t, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: o.dir(t) + ".paused"}}})
	return l.Paused != nil, err
}

// ringAll wakes all holders of a lock.
func (o *Operator) ringAll(ctx context.Context, name string) (Lock, error) {
	l, _, err := o.Find(ctx, name)
	if err != nil {
		return l, err
	}
	var ops api.TxnOps
	if l.Holder != nil {
		ops = append(ops, o.ring(Target{name, -1}))
	}
	for _, c := range l.Each {
		if c.Holder != nil {
			ops = append(ops, o.ring(Target{name, c.Copy}))
		}
	}
	for some := range slices.Chunk(ops, chunk) {
		if _, err := o.write(ctx, Target{name, -1}, some); err != nil {
			return l, err
		}
	}
	return l, nil
}

// LockDelay is the lock-delay of a session: for so long after its end nobody can acquire what
// it held.
func (o *Operator) LockDelay(ctx context.Context, session string) (d time.Duration, err error) {
	err = o.ask(ctx, `session_prefix "" { policy = "read" }`, func(ctx context.Context) error {
		e, _, err := o.api.Session().Info(session, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		if err == nil && e != nil {
			d = e.LockDelay
		}
		return err
	})
	return d, err
}

// EndSession destroys a session: what it holds is freed after its lock-delay.
func (o *Operator) EndSession(ctx context.Context, session string) error {
	return o.ask(ctx, `session_prefix "" { policy = "write" }`, func(ctx context.Context) error {
		_, err := o.api.Session().Destroy(session, (&api.WriteOptions{}).WithContext(ctx))
		return err
	})
}

// NoCopiesError says that a lock isn't used with copies.
type NoCopiesError struct{ Name string }

func (e *NoCopiesError) Error() string {
	return "it has no copies: the first contender with --copies says how many there are"
}

// ErrMeanwhile says that somebody else has changed the same thing in the same moment.
var ErrMeanwhile = errors.New("somebody else has just changed it")

// Resized is what Resize did.
type Resized struct {
	From, To int
	Asked    []Asked // holders of copies that there are no more
}

// Resize changes the number of copies of a lock. If there are fewer, the holders of those
// beyond are asked to step down. If there are more, the first of the queue is woken.
// *NoCopiesError, ErrMeanwhile.
func (o *Operator) Resize(ctx context.Context, name string, n int, reason string) (Resized, error) {
	l, t, err := o.Find(ctx, name)
	r := Resized{From: l.Copies, To: n}
	switch {
	case err != nil:
		return r, err
	case l.copies == nil || t.Copy >= 0:
		return r, &NoCopiesError{name}
	case l.Copies == 0:
		return r, &RecordError{l.copies.Key, "it isn't a number of copies that this onlyone understands"}
	case l.Copies != n:
		if l, err = o.setCopies(ctx, t, l, n); err != nil {
			return r, err
		}
	}
	// Also if it was n before: whoever said so may not have come to this.
	for _, c := range l.Each {
		if c.Copy < n || c.Holder == nil {
			continue
		}
		a, err := o.StepDown(ctx, Target{name, c.Copy}, *c.Holder, reason)
		if _, gone := errors.AsType[*NotHeldError](err); gone {
			continue
		}
		if err != nil {
			return r, err
		}
		r.Asked = append(r.Asked, a)
	}
	return r, nil
}

// setCopies makes the number of copies n. What it returns was read after that: a copy may have been
// acquired until then, and none beyond n can be any more.
func (o *Operator) setCopies(ctx context.Context, t Target, l Lock, n int) (Lock, error) {
	ops := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCAS, Key: l.copies.Key, Index: l.copies.ModifyIndex,
		Value: encode(Copies{Schema: Schema, Copies: n, By: o.By, Since: stamp(o.Wall().Truncate(time.Second))})}}}
	if n > l.Copies {
		// Not a mirror of a new copy: there may be one, from an earlier number, that says who didn't release it.
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: o.dir(t) + "~held/bell", Value: []byte(rand.Text())}})
	}
	_, err := o.write(ctx, t, ops)
	if no, ok := errors.AsType[*refused](err); ok && isStale(no.what) {
		return l, ErrMeanwhile
	}
	if err != nil {
		return l, err
	}
	l, _, err = o.Find(ctx, t.Name)
	return l, err
}
