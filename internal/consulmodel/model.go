package consulmodel

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Version is the Consul release whose answers the model gives.
type Version int

const (
	V1_14 Version = iota // 1.14.11
	V1_8                 // 1.8.7
)

const (
	// sessionTTLMultiplier, sessionTTLMin and sessionTTLMax: agent/structs/structs.go, session_ttl_min's default.
	sessionTTLMultiplier = 2
	sessionTTLMin        = 10 * time.Second
	sessionTTLMax        = 24 * time.Hour
	// maxLockDelay is applied when a session ends, not when it is created (state/session.go).
	maxLockDelay     = 60 * time.Second
	defaultLockDelay = 15 * time.Second

	defaultQueryTime = 300 * time.Second
	maxQueryTime     = 600 * time.Second
	// jitterFraction: a blocking query waits up to wait/16 longer, a held request retries within hold/16.
	jitterFraction = 16

	maxBody = 512 * 1024 // kv_max_value_size and txn_max_req_len

	// tombstoneTTL keeps the index of a prefix from falling for so long after a delete (tombstone_ttl).
	tombstoneTTL = 15 * time.Minute

	// firstIndex: a new server has written some entries of its own.
	firstIndex = 10

	serfHealth = "serfHealth"
)

// Options of a Model; the zero value is a healthy 1.14 cluster without ACLs.
type Options struct {
	Seed    uint64  // session ids and all jitter follow from it
	Version Version // V1_14 when zero

	RPCHold  time.Duration // how long a request waits for a leader; 7s when zero (rpc_hold_timeout)
	NoJitter bool          // blocking queries end at exactly wait, held requests go on at the very election

	Node       string // name of the agent's node; "node-1" when empty
	Datacenter string // "dc1" when empty

	// ConnLimit is how many requests of one Transport may be open at the server (http_max_conns_per_client): 200 when
	// zero, none when negative. A blocking query whose client went away counts until its wait is over.
	ConnLimit int

	// ACL says whether a token has a right; nil grants all. It is called with the model locked: it must not call back.
	ACL func(token string, right Right, name string) bool

	// OnEvent sees each change at its instant and in its order. It is called with the model locked: it must not call
	// back, nor wait.
	OnEvent func(Event)
	// Log keeps all events for Model.Events.
	Log bool
}

// Right is what an ACL is asked for.
type Right string

const (
	TokenExists  Right = "token:exists" // false: 403 "ACL not found", as for a deleted token
	KeyRead      Right = "key:read"
	KeyWrite     Right = "key:write"
	SessionRead  Right = "session:read"  // name is the session's node
	SessionWrite Right = "session:write" // name is the session's node
	AgentRead    Right = "agent:read"
)

// Op is the kind of an Event.
type Op string

const (
	SessionCreated Op = "session-created"
	SessionRenewed Op = "session-renewed"
	SessionEnded   Op = "session-ended" // Cause says why
	Acquired       Op = "acquired"      // Session holds Key from now on; Index is its ModifyIndex
	Released       Op = "released"      // Session unlocked Key: no lock-delay
	Invalidated    Op = "invalidated"   // Session ended and with it the hold of Key: its lock-delay runs from now
	Deleted        Op = "deleted"       // Key is gone; if Session is set it held Key until now: no lock-delay
	Written        Op = "written"       // Key has another value; Session is its holder
	LeaderLost     Op = "leader-lost"
	LeaderElected  Op = "leader-elected"
	DelaysLost     Op = "lock-delays-lost"
	Restored       Op = "restored"
)

// Why a session ended.
const (
	CauseDestroy    = "destroy"
	CauseTTL        = "ttl"
	CauseStaleTimer = "stale-timer"
	CauseNode       = "node"
	CauseCheck      = "check"
)

// Event is one change of the cluster's state.
type Event struct {
	Time    time.Time
	Index   uint64 // of the raft entry; that of the last one for what writes none
	Op      Op
	Key     string
	Session string
	Cause   string
	Value   []byte // of Written; not to be changed
	Client  int    // number of the Transport that asked for it, 0 for the model's own methods and timers
}

// Model is one Consul cluster. All methods may be called from any goroutine, but not from Options' functions.
type Model struct {
	opts Options

	mu  sync.Mutex // never held while waiting
	rng *rand.Rand

	index      uint64
	raftWrites int
	counts     Counts
	transports int
	server     *Transport

	leader   bool
	leaderAt time.Time
	waiting  []*call

	frozen bool
	held   []func()

	kv       store
	sessions map[string]*session
	sessIdx  uint64
	nodes    map[string]map[string]bool // node -> check -> passing
	delays   map[string]time.Time

	watches watches
	deposed *Snapshot // what a deposed leader believes, see Depose

	// pending and dirty belong to the raft entry that is being applied; commit clears them.
	pending []Event
	dirty   []string
	client  int
	log     []Event
}

// New returns a cluster with a leader and no keys.
func New(opts Options) *Model {
	if opts.RPCHold == 0 {
		opts.RPCHold = 7 * time.Second
	}
	if opts.Node == "" {
		opts.Node = "node-1"
	}
	if opts.Datacenter == "" {
		opts.Datacenter = "dc1"
	}
	if opts.ConnLimit == 0 {
		opts.ConnLimit = 200
	}
	m := &Model{
		opts:     opts,
		rng:      rand.New(rand.NewPCG(opts.Seed, 0x6f6e6c796f6e65)),
		index:    firstIndex,
		leader:   true,
		leaderAt: time.Now(),
		sessions: make(map[string]*session),
		nodes:    map[string]map[string]bool{opts.Node: {serfHealth: true}},
		delays:   make(map[string]time.Time),
	}
	m.server = &Transport{m: m}
	return m
}

// LoseLeader leaves the cluster without a leader: session timers stop, requests wait for Options.RPCHold and are then
// answered 500 "No cluster leader". Blocking queries stay, and end with what they saw last.
func (m *Model) LoseLeader() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leader {
		return
	}
	m.leader = false
	for _, s := range m.sessions {
		s.stop()
	}
	m.note(Event{Op: LeaderLost})
	m.flush()
}

// ElectLeader ends LoseLeader: every session has a fresh timer of 2xTTL, and waiting requests go on.
func (m *Model) ElectLeader() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leader {
		return
	}
	m.leader, m.leaderAt = true, time.Now()
	for _, s := range m.inOrder() {
		s.start(m)
	}
	m.note(Event{Op: LeaderElected})
	m.flush()
	waiting := m.waiting
	m.waiting = nil
	for _, c := range waiting {
		if d := m.jitter(m.opts.RPCHold / jitterFraction); d > 0 {
			m.waiting = append(m.waiting, c) // until then its hold may still run out
			m.after(d, func() {
				if m.leader && m.unwait(c) {
					m.serve(c)
				}
			})
		} else {
			m.resume(c)
		}
	}
}

// resume goes on with a request that waited for a leader.
func (m *Model) resume(c *call) {
	if m.frozen {
		m.held = append(m.held, func() { m.serve(c) })
		return
	}
	m.serve(c)
}

// Freeze makes every server stop: requests hang, timers don't act.
func (m *Model) Freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = true
}

// Thaw ends Freeze. Held requests and timers that are due run at once, in an order that follows from the seed (with
// NoJitter: timers and requests as they came).
func (m *Model) Thaw() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.frozen {
		return
	}
	m.frozen = false
	held := m.held
	m.held = nil
	if !m.opts.NoJitter {
		m.rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	}
	for _, f := range held {
		m.client = 0
		f()
	}
}

// StaleTimer ends a session whose timer a leader left behind when it was paused: it is destroyed however recently it
// was renewed, since a leader that couldn't end it tries again later without looking (invalidateSession in
// agent/consul/session_ttl.go). It reports whether the session existed.
func (m *Model) StaleTimer(id string) bool { return m.endSession(id, CauseStaleTimer) }

// DestroySession ends a session as an operator does.
func (m *Model) DestroySession(id string) bool { return m.endSession(id, CauseDestroy) }

func (m *Model) endSession(id, cause string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[id]
	if s == nil {
		return false
	}
	m.client = 0
	m.destroy(s, cause)
	return true
}

// CreateSession makes a session without checks for somebody else and returns its id. TTL 0 means none.
func (m *Model) CreateSession(ttl, lockDelay time.Duration) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	s := &session{ID: m.uuid(), Node: m.opts.Node, LockDelay: lockDelay, Behavior: behaviorRelease, NodeChecks: []string{}, ttl: ttl}
	if ttl > 0 {
		s.TTL = ttl.String()
	}
	m.addSession(s)
	return s.ID
}

// Acquire takes key with a session, as somebody else's PUT ?acquire does, lock-delay included.
func (m *Model) Acquire(key, session, value string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	if m.delayed(key) {
		return false
	}
	m.next()
	ok, what := m.lock(&Entry{Key: key, Value: []byte(value), Session: session})
	m.commit()
	return ok && what == ""
}

// Unlock releases key with the session of its holder, whoever calls. There is no lock-delay.
func (m *Model) Unlock(key, session string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	m.next()
	e := &Entry{Key: key, Session: session}
	if old := m.kv.get(key); old != nil {
		e.Value, e.Flags = old.Value, old.Flags
	}
	ok, _ := m.unlock(e)
	m.commit()
	return ok
}

// PutKey writes a value as `consul kv put` does: the holder stays, Flags and LockIndex are reset to 0.
func (m *Model) PutKey(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	m.next()
	m.put(&Entry{Key: key, Value: []byte(value)}, false)
	m.commit()
}

// DeleteKey deletes key, held or not, as `consul kv delete` does. It reports whether the key existed.
func (m *Model) DeleteKey(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	existed := m.kv.get(key) != nil
	m.next()
	m.remove(key)
	m.commit()
	return existed
}

// ForgetLockDelays is what a server that got its state as a snapshot knows of lock-delays: nothing.
func (m *Model) ForgetLockDelays() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.delays)
	m.note(Event{Op: DelaysLost})
	m.flush()
}

// RegisterNode adds a node with a passing serfHealth.
func (m *Model) RegisterNode(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes[name] = map[string]bool{serfHealth: true}
}

// DeregisterNode removes a node and ends its sessions, as `consul leave` and autopilot do.
func (m *Model) DeregisterNode(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	delete(m.nodes, name)
	for _, s := range m.inOrder() {
		if s.Node == name {
			m.destroy(s, CauseNode)
		}
	}
}

// SetCheck registers a check of a node, or changes it; one that is critical ends the sessions that depend on it.
func (m *Model) SetCheck(node, check string, passing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = 0
	if m.nodes[node] == nil {
		return
	}
	m.nodes[node][check] = passing
	if passing {
		return
	}
	for _, s := range m.inOrder() {
		if s.Node == node && (slices.Contains(s.NodeChecks, check) || slices.Contains(s.Checks, check)) {
			m.destroy(s, CauseCheck)
		}
	}
}

// Snapshot is what `consul snapshot save` keeps.
type Snapshot struct {
	kv       store
	sessions []session
}

// Snapshot saves keys and sessions.
func (m *Model) Snapshot() *Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &Snapshot{kv: m.kv.clone()}
	for _, x := range m.inOrder() {
		y := *x
		y.timer = nil
		s.sessions = append(s.sessions, y)
	}
	return s
}

// Restore brings a snapshot back on the same cluster: its sessions live again with full timers, later ones are unknown,
// lock-delays are forgotten, the raft index goes on, and blocking queries end with what they saw before.
func (m *Model) Restore(s *Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.sessions {
		x.stop()
	}
	m.next()
	m.kv = s.kv.clone()
	clear(m.sessions)
	clear(m.delays)
	for _, x := range s.sessions {
		y := new(session)
		*y = x
		m.sessions[y.ID] = y
		if m.leader {
			y.start(m)
		}
	}
	m.note(Event{Op: Restored})
	m.flush()
	m.watches.abandon(m)
}

// Depose keeps the present state as that of a leader that is being deposed without noticing. Requests whose Plan says
// Deposed reach it from now on.
func (m *Model) Depose() {
	s := m.Snapshot()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deposed = s
}

// Holder is the session that holds key ("" for none) and the key's ModifyIndex (0 if there is no such key).
func (m *Model) Holder(key string) (session string, modifyIndex uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.kv.get(key); e != nil {
		return e.Session, e.ModifyIndex
	}
	return "", 0
}

// Key returns one key.
func (m *Model) Key(key string) (Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.kv.get(key); e != nil {
		return *e, true
	}
	return Entry{}, false
}

// Keys returns all keys, sorted by name.
func (m *Model) Keys() []Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Entry, len(m.kv.keys))
	for i, e := range m.kv.keys {
		out[i] = *e
	}
	return out
}

// SessionInfo is a session as an inspector sees it.
type SessionInfo struct {
	ID, Name, Node string
	TTL, LockDelay time.Duration
	Expires        time.Time // when it ends unless renewed; zero: no TTL, or no leader
	CreateIndex    uint64
}

// Sessions returns all sessions in the order of their creation.
func (m *Model) Sessions() []SessionInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []SessionInfo
	for _, s := range m.inOrder() {
		i := SessionInfo{ID: s.ID, Name: s.Name, Node: s.Node, TTL: s.ttl, LockDelay: s.LockDelay, CreateIndex: s.CreateIndex}
		if s.ttl > 0 && m.leader {
			i.Expires = s.expires
		}
		out = append(out, i)
	}
	return out
}

// LockDelay is how long key stays refused from now on; 0 if it isn't.
func (m *Model) LockDelay(key string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(0, time.Until(m.delays[key]))
}

// Index is the index of the last raft entry.
func (m *Model) Index() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

// RaftWrites counts the raft entries that the model has written.
func (m *Model) RaftWrites() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.raftWrites
}

// Requests counts the requests that reached the server.
func (m *Model) Requests() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts
}

// Blocked is how many requests are open at the server: watches, and those that wait for a leader or a thaw.
func (m *Model) Blocked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watches.n + len(m.waiting) + len(m.held)
}

// Events returns the log; it is empty without Options.Log.
func (m *Model) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// next begins a raft entry.
func (m *Model) next() {
	m.index++
	m.raftWrites++
}

// note adds an event to the entry that is being applied.
func (m *Model) note(e Event) { m.pending = append(m.pending, e) }

// commit ends a raft entry: observers see it, then the watches that it concerns are answered.
func (m *Model) commit() {
	m.flush()
	if len(m.dirty) > 0 {
		dirty := m.dirty
		m.watches.keys(m, dirty)
		m.dirty = dirty[:0]
	}
}

func (m *Model) flush() {
	if len(m.pending) == 0 {
		return
	}
	now := time.Now()
	for i := range m.pending {
		e := &m.pending[i]
		e.Time, e.Index, e.Client = now, m.index, m.client
		if m.opts.Log {
			m.log = append(m.log, *e)
		}
		if m.opts.OnEvent != nil {
			m.opts.OnEvent(*e)
		}
	}
	m.pending = m.pending[:0]
}

// delayed reports whether a lock-delay refuses key now.
func (m *Model) delayed(key string) bool {
	if len(m.delays) == 0 {
		return false
	}
	t, ok := m.delays[key]
	if !ok {
		return false
	}
	if t.After(time.Now()) {
		return true
	}
	delete(m.delays, key)
	return false
}

// after runs f, with the model locked, in d; if the servers are frozen then, at the thaw.
func (m *Model) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.frozen {
			m.held = append(m.held, f)
			return
		}
		m.client = 0
		f()
	})
}

// jitter is a random duration in [0, d).
func (m *Model) jitter(d time.Duration) time.Duration {
	if m.opts.NoJitter || d <= 0 {
		return 0
	}
	return time.Duration(m.rng.Int64N(int64(d)))
}

func (m *Model) uuid() string {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], m.rng.Uint64())
	binary.LittleEndian.PutUint64(b[8:], m.rng.Uint64())
	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:36], b[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// byID returns the sessions as Consul lists them.
func (m *Model) byID() []*session {
	out := m.inOrder()
	slices.SortFunc(out, func(a, b *session) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// inOrder returns the sessions by creation, so that a seed gives the same schedule each time.
func (m *Model) inOrder() []*session {
	out := make([]*session, 0, len(m.sessions))
	for _, s := range m.sessions {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *session) int {
		if a.CreateIndex != b.CreateIndex {
			return int(int64(a.CreateIndex) - int64(b.CreateIndex))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}
