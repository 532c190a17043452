package consulsession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

// Status is what a Finding means for a run.
type Status int

// A run works; it works, but look at this; its settings can't work; the token lacks a right;
// Consul doesn't answer. The greater, the sooner a run would end by it.
const (
	StatusOK Status = iota
	StatusWarn
	StatusImpossible
	StatusDenied
	StatusUnreachable
)

// Finding is what one check of [Contender.Doctor] came to.
type Finding struct {
	Check  string // one word
	Status Status
	What   string
	Hint   string // what to do; empty where there is nothing
}

// doctorChecks is how many ownership checks are timed.
const doctorChecks = 5

// Limits beyond which Doctor warns.
const (
	clockLimit  = 2 * time.Second // a Date has whole seconds, and answers take their time
	expiryLimit = 24 * time.Hour  // a token that ends sooner ends before somebody looks again
)

// Doctor tries all that a run needs of Consul, in its order, and calls report for each check.
// Without a Name it tries what any lock of Prefix needs. Each request is sent once and takes
// at most Poll. It leaves nothing in Consul, also when ctx ends: what it writes is locked by
// a session that takes it away when it ends. (Only a session whose creation was never
// answered has to end by its TTL.)
func (c *Contender) Doctor(ctx context.Context, report func(Finding)) {
	d := &doctor{Contender: c, report: func(f Finding) {
		if ctx.Err() == nil { // what was cut off has found nothing
			report(f)
		}
	}}
	c.rt.answered = d.clock.note
	defer func() { c.rt.answered = nil }()
	if !d.reach(ctx) {
		return
	}
	d.agent(ctx)
	if !d.tokenSelf(ctx) {
		return
	}
	d.trial(ctx)
	d.compareClocks()
	if c.Name != "" {
		d.look(ctx)
	}
}

type doctor struct {
	*Contender
	report func(Finding)
	leader string
	clock  clockBounds
}

func (d *doctor) ok(check, format string, a ...any) {
	d.report(Finding{check, StatusOK, fmt.Sprintf(format, a...), ""})
}

func (d *doctor) warn(check, hint, format string, a ...any) {
	d.report(Finding{check, StatusWarn, fmt.Sprintf(format, a...), hint})
}

// fail reports what an error means for a run. rule is the ACL rule that allows what was tried.
func (d *doctor) fail(check, what string, err error, rule string) {
	f := Finding{check, StatusUnreachable, fmt.Sprintf("cannot %s: %v", what, cause(err)), ""}
	no, isRefused := errors.AsType[*refused](err)
	_, setting := badSetting(err)
	_, config := errors.AsType[*ConfigError](err)
	switch {
	case config:
		f.Status = StatusImpossible
	case unknownToken(err):
		f.Status, f.Hint = StatusDenied, "Consul doesn't know this token: was it deleted, has it expired, is it another cluster's?"
	case forbidden(err), isRefused && isDenied(no.what):
		f.Status, f.Hint = StatusDenied, "add to the token's policy: "+rule
	case setting:
		f.Status, f.Hint = StatusImpossible, "are --ttl, --check, --session-node and --datacenter right?"
	}
	d.report(f)
}

// unknownToken: Consul answers 403 as it does where a rule is missing.
func unknownToken(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ACL not found")
}

// try is one request, with the time that a run gives it.
func (d *doctor) try(ctx context.Context, f func(context.Context) error) error {
	ctx, done := context.WithTimeout(ctx, d.Poll)
	defer done()
	return f(ctx)
}

func query(ctx context.Context) *api.QueryOptions { return (&api.QueryOptions{}).WithContext(ctx) }

// reach asks each address for the leader, and goes on with the first that knows one.
func (d *doctor) reach(ctx context.Context) bool {
	first := -1
	for i := range d.rt.endpoints {
		d.rt.use(i)
		address := d.Address()
		var leader string
		err := d.try(ctx, func(ctx context.Context) error {
			_, err := d.api.Raw().Query("/v1/status/leader", &leader, query(ctx))
			return err
		})
		switch {
		case isDecode(err), badRequest(err):
			err = errNotConsul
		case err == nil && leader == "":
			err = errors.New("it knows no leader")
		}
		if err == nil && first < 0 {
			first, d.leader = i, leader
		}
		if err == nil {
			continue
		}
		f := Finding{"consul", StatusUnreachable, fmt.Sprintf("cannot use Consul at %s: %v", address, cause(err)), whereConsulIs(address, err)}
		if len(d.rt.endpoints) > 1 && (first >= 0 || i < len(d.rt.endpoints)-1) {
			f.Status = StatusWarn // another one may do
		}
		d.report(f)
	}
	if first >= 0 {
		d.rt.use(first)
	}
	return first >= 0
}

// use makes the address with this number the one that is asked next.
func (t *transport) use(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = n
}

// agentSelf is what is used of /v1/agent/self.
type agentSelf struct {
	Config struct {
		Datacenter, NodeName, Version string
		Server                        bool
	}
	DebugConfig struct{ LeaveOnTerm *bool }
}

// agent finds out what becomes of a session when the agent that it was made through ends.
func (d *doctor) agent(ctx context.Context) {
	var self agentSelf
	err := d.try(ctx, func(ctx context.Context) error {
		_, err := d.api.Raw().Query("/v1/agent/self", &self, query(ctx))
		return err
	})
	if err != nil {
		d.ok("consul", "Consul at %s (leader %s)", d.Address(), d.leader)
		switch {
		case unknownToken(err): // to be said of the token itself
		case forbidden(err):
			d.warn("agent", `to see it, add to the token's policy: agent_prefix "" { policy = "read" }`,
				"the token may not ask what the agent is; a run doesn't need to, but a server, or an agent that leaves on SIGTERM, takes its sessions along")
		default:
			d.warn("agent", "", "cannot ask the agent what it is: %v", cause(err))
		}
		return
	}
	d.ok("consul", "Consul %s at %s (%s, leader %s)", self.Config.Version, d.Address(), self.Config.Datacenter, d.leader)
	if older(self.Config.Version) {
		d.warn("consul", "", "Consul %s is older than 1.8, the oldest that onlyone was tested with", self.Config.Version)
	}
	node := self.Config.NodeName
	switch leaves := self.DebugConfig.LeaveOnTerm; {
	case d.SessionNode != "":
		d.ok("agent", "sessions belong to the node %s, whatever becomes of the agent %s", d.SessionNode, node)
	case self.Config.Server:
		d.warn("agent", "run a client agent on this host and give its address",
			"the agent %s is a server: when it stops, it is removed from the cluster, and the sessions that were made there end with it", node)
	case leaves != nil && *leaves:
		d.warn("agent", "set leave_on_terminate = false in the agent's configuration; then a restart keeps the sessions",
			"the agent %s leaves the cluster on SIGTERM, and the sessions that were made there end with it", node)
	default:
		d.ok("agent", "%s is a client agent: sessions outlive its restart", node)
	}
}

// older reports whether a version is below 1.8.
func older(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a < 1 || a == 1 && b < 8)
}

// tokenSelf looks at the token, and reports whether there is a point in going on.
func (d *doctor) tokenSelf(ctx context.Context) bool {
	var t api.ACLToken
	err := d.try(ctx, func(ctx context.Context) error {
		_, err := d.api.Raw().Query("/v1/acl/token/self", &t, query(ctx))
		return err
	})
	s, _ := errors.AsType[*StatusError](err)
	given := d.rt.token.get() != ""
	switch {
	case s != nil && s.Code == http.StatusUnauthorized && strings.Contains(s.Body, "ACL support disabled"):
		d.ok("token", "Consul has no ACLs: no token is needed")
		return true
	case forbidden(err) && !given:
		d.ok("token", "there is none: what Consul allows to everybody counts")
		return true
	case forbidden(err):
		d.fail("token", "use the token", err, d.Rule())
		return false
	case err != nil:
		d.ok("token", "Consul says nothing of it: %v", cause(err))
		return true
	}
	from, hint := d.tokenSource()
	what := fmt.Sprintf("%s (accessor %s)", from, t.AccessorID)
	switch {
	case t.ExpirationTime != nil && t.ExpirationTime.Sub(d.Wall()) < expiryLimit:
		if hint == "" {
			hint = "replace it in its file; it is read again while a command runs"
		}
		d.warn("token", hint, "%s ends in %s, at %s", what, t.ExpirationTime.Sub(d.Wall()).Round(time.Second), stamp(t.ExpirationTime.Truncate(time.Second)))
	case hint != "":
		d.warn("token", hint, "%s can't be replaced while a command runs", what)
	case t.ExpirationTime != nil:
		d.ok("token", "%s, until %s", what, stamp(t.ExpirationTime.Truncate(time.Second)))
	default:
		d.ok("token", "%s, without an end", what)
	}
	return true
}

// tokenSource says where the token comes from, and what would be better.
func (d *doctor) tokenSource() (from, hint string) {
	const file = "put it into a file: CONSUL_HTTP_TOKEN_FILE or --token-file; that is read again when it changes"
	switch {
	case d.rt.token.file != "":
		return "the token of " + d.rt.token.file, ""
	case d.rt.token.get() == "":
		return "the anonymous token", ""
	case d.Client.Token != "":
		return "the token of --token", "others see it in the list of processes: " + file
	}
	return "the token of CONSUL_HTTP_TOKEN", file
}

// trial makes a session, tries each right and operation of a run with it, and ends it. All
// that is written is locked by the session, and goes with it.
func (d *doctor) trial(ctx context.Context) {
	name := "onlyone/doctor"
	if d.Name != "" {
		name = "onlyone/" + d.Name + "/doctor"
	}
	var session string
	// Not cut off by ctx: a session whose id we don't wait for is one that we can't end.
	err := d.try(context.WithoutCancel(ctx), func(ctx context.Context) (err error) {
		session, err = d.newSession(ctx, name, api.SessionBehaviorDelete)
		return err
	})
	if err != nil {
		d.fail("session", "create a session", err, d.sessionRule())
		d.rights(ctx, d.dir()+"~doctor/0")
		return
	}
	if err := d.trySession(ctx, session); err != nil {
		d.fail("session", "keep a session", err, d.sessionRule())
		return
	}
	d.ok("session", "created, renewed and destroyed")
}

// trySession uses the session, and ends it in any case.
func (d *doctor) trySession(ctx context.Context, session string) (err error) {
	defer func() {
		end, done := context.WithTimeout(context.WithoutCancel(ctx), max(d.Poll, leaveLimit))
		defer done()
		_, gone := d.api.Session().Destroy(session, (&api.WriteOptions{}).WithContext(end))
		if err == nil {
			err = gone
		}
	}()
	var e *api.SessionEntry
	if err := d.try(ctx, func(ctx context.Context) (err error) { e, err = renew(ctx, d.api, session); return err }); err != nil {
		return err
	}
	if e.LockDelay < d.Lease {
		return &ConfigError{fmt.Sprintf("Consul made a lock-delay of %s of the lease of %s: it protects nobody", e.LockDelay, d.Lease)}
	}
	if key := d.dir() + "~doctor/" + session; d.rights(ctx, key) {
		d.tryLock(ctx, session, key)
	}
	return nil
}

// rights asks for the right to write each key that a run writes, by a delete with the index
// 0, which never deletes anything. It reports whether key, where the rest is tried, is allowed.
func (d *doctor) rights(ctx context.Context, key string) bool {
	keys := []string{key}
	if d.Name != "" {
		for _, k := range []string{".lock", ".holder", ".runs", ".period", ".paused", ".step-down", "~queue/0"} {
			keys = append(keys, d.dir()+k)
		}
	}
	var ops api.TxnOps
	for _, k := range keys {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: k}})
	}
	var r *api.TxnResponse
	err := d.try(ctx, func(ctx context.Context) (err error) {
		_, r, _, err = d.api.Txn().Txn(ops, query(ctx))
		return err
	})
	if err != nil {
		d.fail("keys", "write below "+d.dir(), err, d.keyRule())
		return false
	}
	var denied []string
	for _, e := range r.Errors {
		if e != nil && isDenied(e.What) && e.OpIndex >= 0 && e.OpIndex < len(keys) {
			denied = append(denied, keys[e.OpIndex])
		}
	}
	if len(denied) == 0 {
		d.ok("keys", "all below %s may be read and written", d.dir())
		return true
	}
	d.report(d.deniedKeys(keys, denied))
	return !slices.Contains(denied, key)
}

// deniedKeys says which rule is missing: one for all keys, or one for each that is denied.
func (d *doctor) deniedKeys(keys, denied []string) Finding {
	if len(denied) == len(keys) {
		f := Finding{"keys", StatusDenied, "the keys below " + d.dir() + " may not be written: permission denied", "add to the token's policy: " + d.keyRule()}
		if d.Name == "" {
			f.Hint += "\nor, if it is for one lock only, try: onlyone doctor NAME"
		}
		return f
	}
	status := StatusWarn // a run doesn't need ~doctor
	var names, rules []string
	for _, k := range denied {
		if dir, own, ok := strings.Cut(k, "~"); ok {
			word, _, _ := strings.Cut(own, "/")
			k = dir + "~" + word + "/"
			rules = append(rules, fmt.Sprintf("key_prefix %q { policy = \"write\" }", k))
		} else {
			rules = append(rules, fmt.Sprintf("key %q { policy = \"write\" }", k))
		}
		if !strings.HasSuffix(k, "~doctor/") {
			status = StatusDenied
		}
		names = append(names, k)
	}
	return Finding{"keys", status, fmt.Sprintf("may not be written: %s: permission denied", strings.Join(names, ", ")),
		"add to the token's policy: " + strings.Join(rules, " ")}
}

// tryLock does with key what a run does with its lock.
func (d *doctor) tryLock(ctx context.Context, session, key string) {
	op := func(kv api.KVTxnOp) *api.TxnOp { kv.Key = key; return &api.TxnOp{KV: &kv} }
	do := func(ops ...*api.TxnOp) (r *api.TxnResponse, err error) {
		err = d.try(ctx, func(ctx context.Context) (err error) { r, err = d.txn(ctx, ops); return err })
		return r, err
	}
	held := d.record("doctor", session)
	r, err := do(op(api.KVTxnOp{Verb: api.KVCheckNotExists}), op(api.KVTxnOp{Verb: api.KVLock, Value: held, Flags: api.LockFlagValue, Session: session}))
	if err == nil && (len(r.Results) == 0 || r.Results[len(r.Results)-1].KV == nil || r.Results[len(r.Results)-1].KV.Session != session) {
		err = errNotConsul
	}
	if err != nil {
		d.fail("lock", "lock "+key, err, d.keyRule())
		return
	}
	index := r.Results[len(r.Results)-1].KV.ModifyIndex
	took, err := d.timeChecks(ctx, session, key)
	if err != nil {
		d.fail("lock", "check who holds "+key, err, d.keyRule())
		return
	}
	r, err = do(op(api.KVTxnOp{Verb: api.KVGetTree}))
	if err == nil && (len(r.Results) != 1 || r.Results[0].KV == nil || r.Results[0].KV.Session != session) {
		err = &refused{"Permission denied: it isn't in the list"} // what may not be read is left out
	}
	if err != nil {
		d.fail("lock", "list "+key, err, d.keyRule())
		return
	}
	if err := d.tryWatch(ctx, key, index, func() error {
		_, err := do(op(api.KVTxnOp{Verb: api.KVCAS, Index: index, Value: append(held, ' '), Flags: api.LockFlagValue}), op(api.KVTxnOp{Verb: api.KVCheckSession, Session: session}))
		return err
	}); err != nil {
		d.fail("lock", "set "+key, err, d.keyRule())
		return
	}
	if _, err := do(op(api.KVTxnOp{Verb: api.KVUnlock, Value: held, Flags: api.LockFlagValue, Session: session}), op(api.KVTxnOp{Verb: api.KVDelete})); err != nil {
		d.fail("lock", "unlock "+key, err, d.keyRule())
		return
	}
	d.ok("lock", "locked, checked, listed, changed, unlocked and deleted (%s...)", d.dir()+"~doctor/")
	slices.Sort(took)
	worst := took[len(took)-1]
	if limit := d.Poll / 4; worst > limit {
		d.warn("latency", "a longer --poll (and --lease), or an agent on this host",
			"a check of the lock took %s: with --poll %s only a few slow ones fit before the renew deadline", rounded(worst), d.Poll)
		return
	}
	d.ok("latency", "a check of the lock takes %s (the slowest of %d: %s)", rounded(took[len(took)/2]), len(took), rounded(worst))
}

func rounded(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(100 * time.Microsecond)
}

// timeChecks does what a holder does each --poll.
func (d *doctor) timeChecks(ctx context.Context, session, key string) (took []time.Duration, err error) {
	for range doctorChecks {
		begin := time.Now()
		err := d.try(ctx, func(ctx context.Context) error {
			_, err := d.txn(ctx, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: session}}})
			return err
		})
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}

// watchHead is how long a blocking read may take to be under way before the key is changed.
const watchHead = 50 * time.Millisecond

// tryWatch blocks on key until change has changed it. A watch that doesn't work only makes a
// run slower; the error is change's.
func (d *doctor) tryWatch(ctx context.Context, key string, index uint64, change func() error) error {
	wctx, done := context.WithTimeout(ctx, watchHead+2*d.Poll)
	defer done()
	var kv *api.KVPair
	var werr error
	var at time.Time
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		q := query(wctx)
		q.WaitIndex, q.WaitTime = index, watchWait
		kv, _, werr = d.watches.KV().Get(key, q)
		at = time.Now()
	}()
	defer func() { done(); <-answered }()
	if err := d.pause(ctx, watchHead); err != nil {
		return err
	}
	changed := time.Now()
	if err := change(); err != nil {
		return err
	}
	<-answered
	const hint = "waiting works without, but a hand-over takes up to 15s; is there a proxy between?"
	switch {
	case forbidden(werr):
		d.fail("watch", "watch "+key, werr, d.keyRule())
	case werr != nil:
		d.warn("watch", hint, "a blocking read saw no change: %v", cause(werr))
	case at.Before(changed), kv == nil, kv.ModifyIndex <= index:
		d.warn("watch", hint, "a blocking read came back before there was a change")
	default:
		d.ok("watch", "a blocking read saw a change after %s", rounded(at.Sub(changed)))
	}
	return nil
}

// clockBounds is what is known of Consul's clock less this host's. A Date header has whole
// seconds, so each answer gives bounds, and many give narrower ones.
type clockBounds struct {
	mu       sync.Mutex
	known    bool
	min, max time.Duration
}

func (b *clockBounds) note(resp *http.Response, sent time.Time) {
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return
	}
	low, high := date.Sub(time.Now().Round(0)), date.Add(time.Second).Sub(sent.Round(0))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known && low <= b.max && high >= b.min {
		low, high = max(low, b.min), min(high, b.max)
	}
	b.known, b.min, b.max = true, low, high // without an overlap one of the clocks was set
}

// compareClocks warns of a difference that there must be. The Date is that of the agent.
func (d *doctor) compareClocks() {
	b := &d.clock
	b.mu.Lock()
	defer b.mu.Unlock()
	about := ((b.max-b.min)/2 + b.min).Round(100 * time.Millisecond)
	switch {
	case !b.known:
	case b.min > clockLimit:
		d.warn("clock", "let both hosts keep their clocks by NTP", "this host's clock is about %s behind that of the agent at %s", about, d.Address())
	case b.max < -clockLimit:
		d.warn("clock", "let both hosts keep their clocks by NTP", "this host's clock is about %s ahead of that of the agent at %s", -about, d.Address())
	case d.rt.local():
		d.ok("clock", "the agent is on this host and has its clock: nothing to compare it with")
	default:
		d.ok("clock", "within %s of that of the agent at %s", max(b.max, -b.min, time.Second).Round(100*time.Millisecond), d.Address())
	}
}

// local reports whether the present address is on this host.
func (t *transport) local() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.endpoints[t.current]
	host, _, err := net.SplitHostPort(e.host)
	if err != nil {
		host = e.host
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return e.socket != "" || host == "localhost" || ip != nil && ip.IsLoopback()
}

// look reads the keys of the lock, and says what a run would stumble over.
func (d *doctor) look(ctx context.Context) {
	kvs, err := d.tree(ctx, d.dir()+".", d.queueKey(""))
	if err != nil {
		d.fail("name", "read "+d.dir(), err, d.keyRule())
		return
	}
	waiting := 0
	lock := kvs[d.dir()+".lock"]
	for k, kv := range kvs {
		holds := lock != nil && lock.Session == kv.Session // who had to queue keeps the entry
		if strings.HasPrefix(k, d.queueKey("")) && kv.Session != "" && !holds {
			waiting++
		}
	}
	if kv := kvs[d.dir()+".paused"]; kv != nil {
		if o := ParseOrder(kv.Value); !o.Over(d.Wall()) {
			d.warn("paused", "onlyone resume "+d.Name, "%s is paused %s: nobody may start", d.Name, printableOrder(o))
		}
	}
	copies := kvs[d.dir()+".copies"]
	if copies == nil {
		d.lookAt(d.dir(), d.Name, kvs, waiting)
		return
	}
	r, err := parseCopies(copies)
	if err != nil {
		d.warn("copies", inspect(copies.Key), "cannot use the record %s: a run with --copies would refuse it", copies.Key)
		return
	}
	d.ok("copies", "%s has %d copies, says %s since %s; %d waiting", d.Name, r.Copies, r.By, r.Since, waiting)
	for i := range min(r.Copies, 50) {
		dir := d.dir() + strconv.Itoa(i) + "/"
		kvs, err := d.tree(ctx, dir+".")
		if err != nil {
			d.fail("name", "read "+dir, err, d.keyRule())
			return
		}
		d.lookAt(dir, d.Name+"/"+strconv.Itoa(i), kvs, 0)
	}
}

// printableOrder is for people: who wrote an order decides what is in it.
func printableOrder(o Order) string { return strings.Join(strings.Fields(o.String()), " ") }

func inspect(key string) string { return "look at it: consul kv get " + key }

// tree reads what begins with each of prefixes, in one instant.
func (d *doctor) tree(ctx context.Context, prefixes ...string) (map[string]*api.KVPair, error) {
	var ops api.TxnOps
	for _, p := range prefixes {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: p}})
	}
	kvs := map[string]*api.KVPair{}
	err := d.try(ctx, func(ctx context.Context) error {
		r, err := d.txn(ctx, ops)
		if err != nil {
			return err
		}
		for _, res := range r.Results {
			if res.KV != nil {
				kvs[res.KV.Key] = res.KV
			}
		}
		return nil
	})
	return kvs, err
}

// lookAt judges one lock and its records, which are in dir.
func (d *doctor) lookAt(dir, name string, kvs map[string]*api.KVPair, waiting int) {
	d.lookAtLock(name, kvs[dir+".lock"], waiting)
	if kv := kvs[dir+".period"]; kv != nil {
		if r, err := parsePeriod(kv.Key, kv.Value, true); err != nil {
			d.warn("period", inspect(kv.Key), "%v; a run with --once-per would refuse it", err)
		} else {
			d.ok("period", "%s: %s %s, by %s", name, r.Period, r.State, r.Host)
		}
	}
	if kv := kvs[dir+".runs"]; kv != nil {
		var r Runs
		if json.Unmarshal(kv.Value, &r) != nil || r.Schema < 1 {
			d.warn("runs", inspect(kv.Key), "the record %s isn't onlyone's: the next run replaces it", kv.Key)
		} else if r.Schema > Schema {
			d.warn("runs", "use the newer onlyone here, too", "the record %s has schema %d: this onlyone adds no runs to it", kv.Key, r.Schema)
		}
	}
}

func (d *doctor) lookAtLock(name string, kv *api.KVPair, waiting int) {
	if kv == nil {
		d.ok("name", "%s was never held", name)
		return
	}
	r, ok := ParseRecord(kv.Value)
	foreign := &ForeignKeyError{kv.Key, kv.Flags}
	switch {
	case kv.Session == "" && kv.Flags != api.LockFlagValue:
		d.report(Finding{"name", StatusImpossible, foreign.Error(), "choose another NAME or --prefix, or delete that key if it is yours: consul kv delete " + kv.Key})
	case kv.Session != "" && (!ok || r.Session != kv.Session):
		d.ok("name", "%s is held by the session %s, which isn't onlyone's (consul lock?); %d waiting", name, kv.Session, waiting)
	case kv.Session != "":
		d.ok("name", "%s is held by %s (pid %d) since %s; %d waiting", name, r.Host, r.Pid, r.Since, waiting)
	case !ok:
		d.warn("name", inspect(kv.Key), "%s is free; its record isn't one that this onlyone knows: nobody sees who held it last, and the next holder replaces it", name)
	case r.State == "held":
		d.ok("name", "%s is free; %s (pid %d), which had it last, ended without releasing it", name, r.Host, r.Pid)
	default:
		d.ok("name", "%s is free; %s had it last, until %s", name, r.Host, r.Since)
	}
}
