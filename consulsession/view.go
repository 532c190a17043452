package consulsession

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// The keys, all below Prefix/Name/:
//
//	.lock             the lock
//	.holder           who acquired it last; its ModifyIndex is that holder's token
//	.runs, .period    records
//	.paused           an operator's order: nobody may start
//	.step-down        an operator's order to the holder
//	.lock-bell        written with each order: the holder's watch of the lock sees it, too
//	~queue/SESSION    contenders, each locked by its own session
//
// With copies there are these in Name, and a lock with its records in Name/0, Name/1, ...:
//
//	.copies           how many there may be
//	~held/I           locked and unlocked together with Name/I/.lock: one watch sees all copies
//	~held/bell        written when there are more copies: that watch sees it, too
//
// [Contender.Doctor] makes ~doctor/SESSION, there or (without a Name) in Prefix, and removes it.
func (c *Contender) dir() string {
	if c.Name == "" {
		return c.Prefix + "/" // only for Doctor: it has no lock
	}
	return c.Prefix + "/" + c.Name + "/"
}

// lockDir is where the lock of a copy and its records are.
func (c *Contender) lockDir(copy int) string {
	if c.Copies == 0 {
		return c.dir()
	}
	return c.dir() + strconv.Itoa(copy) + "/"
}

func (c *Contender) lockKey(copy int) string        { return c.lockDir(copy) + ".lock" }
func (c *Contender) queueKey(session string) string { return c.dir() + "~queue/" + session }

// mirrorKey is the key beside a copy's lock, or, for -1, what they all begin with.
func (c *Contender) mirrorKey(copy int) string {
	if copy < 0 {
		return c.dir() + "~held/"
	}
	return c.dir() + "~held/" + strconv.Itoa(copy)
}

// view is what a contender knows of the lock and its queue, from one consistent read. With
// many copies and periods it takes several; what changes between them is found by the
// acquire, which checks all that it depends on.
type view struct {
	slots   []slot
	many    bool          // the slots are copies
	mirrors api.KVPairs   // of all copies, also of those that there are no more
	queue   []*api.KVPair // in order of arrival
	paused  *api.KVPair
	copies  *api.KVPair
	plain   *api.KVPair // with copies: the lock of those who use the name without
}

// slot is the lock, or one of its copies.
type slot struct {
	copy   int
	lock   *api.KVPair // or its mirror; nil: never held
	period *api.KVPair // nil: none yet
}

func (s slot) free() bool                 { return s.lock == nil || s.lock.Session == "" }
func (s slot) heldBy(session string) bool { return s.lock != nil && s.lock.Session == session }
func (v view) free() bool                 { return slices.ContainsFunc(v.slots, slot.free) }
func (v view) holds(session string) bool {
	return slices.ContainsFunc(v.slots, func(s slot) bool { return s.heldBy(session) })
}
func (v view) inQueue(session string) bool {
	return slices.ContainsFunc(v.queue, func(e *api.KVPair) bool { return e.Session == session })
}

// ahead are the living entries before session's own; all of them, if it has none. With copies
// that of a holder (its request came late) isn't in anybody's way.
func (v view) ahead(session string) []*api.KVPair {
	var ahead []*api.KVPair
	for _, e := range v.queue {
		if e.Session == session {
			break
		}
		if e.Session != "" && !(v.many && v.holds(e.Session)) {
			ahead = append(ahead, e)
		}
	}
	return ahead
}

// holder is the record of a holder: without copies, of the holder.
func (v view) holder() Record {
	for _, s := range v.slots {
		if s.free() {
			continue
		}
		if r, _ := ParseRecord(s.lock.Value); r.Session == s.lock.Session {
			return r
		}
	}
	return Record{}
}

// pause is the pause that is in force, or nil.
func (v view) pause(now time.Time) *Order {
	if v.paused == nil {
		return nil
	}
	if o := ParseOrder(v.paused.Value); !o.Over(now) {
		return &o
	}
	return nil
}

// periodReads is how many records of periods one read takes: a transaction may have 64
// operations on Consul 1.8.
const periodReads = 56

// reads are the operations of a read. Trees, since a key that doesn't exist is no error there.
func (c *Contender) reads() api.TxnOps {
	tree := func(key string) *api.TxnOp { return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: key}} }
	ops := api.TxnOps{tree(c.queueKey("")), tree(c.dir() + ".paused"), tree(c.dir() + ".copies"), tree(c.dir() + ".lock")}
	if c.Copies > 0 {
		ops = append(ops, tree(c.mirrorKey(-1)))
	}
	if c.Period.ID != "" {
		for i := range min(max(c.Copies, 1), periodReads) {
			ops = append(ops, tree(c.lockDir(i)+".period"))
		}
	}
	return ops
}

// readsAll: those operations are the whole of it.
func (c *Contender) readsAll() bool { return c.Period.ID == "" || c.Copies <= periodReads }

// read is a consistent read of lock and queue: one request, one instant.
func (c *Contender) read(ctx context.Context) (view, error) {
	r, err := c.txn(ctx, c.reads())
	if err != nil {
		return view{}, err
	}
	for i := periodReads; c.Period.ID != "" && i < c.Copies; i += periodReads {
		var ops api.TxnOps
		for n := i; n < min(i+periodReads, c.Copies); n++ {
			ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: c.lockDir(n) + ".period"}})
		}
		more, err := c.txn(ctx, ops)
		if err != nil {
			return view{}, err
		}
		r.Results = append(r.Results, more.Results...)
	}
	return c.view(r), nil
}

func (c *Contender) view(r *api.TxnResponse) view {
	v := view{slots: make([]slot, max(c.Copies, 1)), many: c.Copies > 0}
	byKey := map[string]**api.KVPair{c.dir() + ".paused": &v.paused, c.dir() + ".copies": &v.copies}
	for i := range v.slots {
		s := &v.slots[i]
		s.copy = i
		if c.Copies > 0 {
			byKey[c.mirrorKey(i)] = &s.lock
		} else {
			byKey[c.lockKey(0)] = &s.lock
		}
		byKey[c.lockDir(i)+".period"] = &s.period
	}
	if c.Copies > 0 {
		byKey[c.dir()+".lock"] = &v.plain
	}
	for _, res := range r.Results {
		if res.KV == nil {
			continue
		}
		if c.Copies > 0 && strings.HasPrefix(res.KV.Key, c.mirrorKey(-1)) {
			v.mirrors = append(v.mirrors, res.KV)
		}
		if at, ok := byKey[res.KV.Key]; ok {
			*at = res.KV
		} else if strings.HasPrefix(res.KV.Key, c.queueKey("")) {
			v.queue = append(v.queue, res.KV)
		}
	}
	slices.SortFunc(v.queue, func(a, b *api.KVPair) int {
		switch {
		case a.CreateIndex < b.CreateIndex:
			return -1
		case a.CreateIndex > b.CreateIndex:
			return 1
		}
		return 0
	})
	return v
}

// refuse is why there is nothing to wait for: the key is somebody else's, the number of
// copies is another, or the period is done. nil if there is.
func (c *Contender) refuse(v view, session string) error {
	if err := c.agree(v); err != nil {
		return err
	}
	if c.Copies == 0 {
		// Only of a free key: while it is held, somebody's plain write takes the flags away, and
		// the holder's release puts them back.
		if s := v.slots[0]; s.free() && s.lock != nil && s.lock.Flags != api.LockFlagValue {
			return &ForeignKeyError{c.lockKey(0), s.lock.Flags}
		}
	}
	if c.Period.ID == "" {
		return nil
	}
	var first error
	for _, s := range v.slots {
		err := c.due(s, session)
		if err == nil {
			return nil // this one has yet to run, or may have to
		}
		// A copy whose record can't be used isn't done: that mustn't end with success.
		if _, bad := errors.AsType[*RecordError](err); first == nil || bad {
			first = err
		}
	}
	return first
}

// due says why the period isn't to be run with this slot; nil if it is.
func (c *Contender) due(s slot, session string) error {
	if c.Period.ID == "" {
		return nil
	}
	r, err := c.periodOf(s)
	if err != nil {
		return err
	}
	if !s.free() && r.State == periodBegun && r.Period == c.Period.ID && s.lock.Session == r.Session {
		return nil // it runs: not done yet
	}
	return c.Period.due(r, session, c.Host)
}

func (c *Contender) periodOf(s slot) (PeriodRecord, error) {
	key := c.lockDir(s.copy) + ".period"
	if s.period == nil {
		return parsePeriod(key, nil, false)
	}
	return parsePeriod(key, s.period.Value, true)
}

// free reports whether nobody holds the lock, or one of its copies that is to be run, and how many
// copies nobody holds since their period is done.
func (c *Contender) free(v view, session string) (free bool, done int) {
	for _, s := range v.slots {
		switch {
		case !s.free() || c.elsewhere[s.copy]:
		case c.due(s, session) == nil:
			free = true
		default:
			done++
		}
	}
	return free, done
}

// pick is the slot to acquire: one that an unanswered acquire may have got us, or the first
// free one that is due and wasn't refused a moment ago. Those that failed or died in this period come
// after the others, which a bad one mustn't keep all hosts from. Once refused, any of them: others have
// seen the same ones free in the same instant, and would all go on to the next.
func (c *Contender) pick(v view, session string, refused map[int]time.Duration) (slot, bool) {
	for _, s := range v.slots {
		if s.heldBy(session) {
			return s, true
		}
	}
	var can []slot
	least := 0
	for _, s := range v.slots {
		if !s.free() || c.Now() < refused[s.copy] || c.due(s, session) != nil {
			continue
		}
		n := c.attempts(s)
		if len(can) == 0 || n < least {
			can, least = nil, n
		}
		if n == least {
			can = append(can, s)
		}
	}
	switch {
	case len(can) == 0:
		return slot{}, false
	case len(refused) == 0:
		return can[0], true
	}
	return can[min(int(c.Jitter(time.Duration(len(can)))), len(can)-1)], true
}

// attempts is how often a slot was begun in this period.
func (c *Contender) attempts(s slot) int {
	if c.Period.ID == "" {
		return 0
	}
	if r, _ := c.periodOf(s); r.Period == c.Period.ID {
		return r.Attempt
	}
	return 0
}

// MaxCopies is the most copies that a lock may have: a contender reads the state of all of
// them at once.
const MaxCopies = 1000

// Copies is the value of .copies: how many copies of a lock there may be.
type Copies struct {
	Schema int    `json:"schema"`
	Copies int    `json:"copies"`
	By     string `json:"by"` // the host that said so
	Since  string `json:"since"`
}

// CopiesError says that others use another number of copies. 0 is a number, too: without.
type CopiesError struct {
	Name   string
	Want   int
	Record Copies
}

func (e *CopiesError) Error() string {
	return fmt.Sprintf("%s is used with %s (since %s, by %s), not with %s", e.Name, many(e.Record.Copies), e.Record.Since, e.Record.By, many(e.Want))
}

func many(n int) string {
	switch n {
	case 0:
		return "no copies"
	case 1:
		return "1 copy"
	}
	return strconv.Itoa(n) + " copies"
}

// parseCopies reads .copies. 0 would agree with whoever does without, whom the record itself keeps
// off: for ever.
func parseCopies(kv *api.KVPair) (r Copies, err error) {
	switch err := json.Unmarshal(kv.Value, &r); {
	case err == nil && r.Schema > Schema:
		return r, newerRecord(kv.Key, r.Schema)
	case err != nil || r.Schema < 1 || r.Copies < 1 || r.Copies > MaxCopies:
		return r, &RecordError{kv.Key, "it isn't a number of copies that this onlyone understands"}
	}
	return r, nil
}

// agree holds the contenders of a name to one number of copies: that of the first, or what an
// operator has made of it since. Whoever began without copies keeps the others off while it
// holds the lock.
func (c *Contender) agree(v view) error {
	if v.copies == nil {
		if c.Copies > 0 && v.plain != nil && v.plain.Session != "" {
			r, _ := ParseRecord(v.plain.Value)
			return &CopiesError{c.Name, c.Copies, Copies{By: cmp.Or(r.Host, "a session that isn't onlyone's"), Since: cmp.Or(r.Since, "?")}}
		}
		return nil
	}
	r, err := parseCopies(v.copies)
	if err != nil || r.Copies == c.Copies {
		return err
	}
	return &CopiesError{c.Name, c.Copies, r}
}
