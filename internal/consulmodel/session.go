package consulmodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

const (
	behaviorRelease = "release"
	behaviorDelete  = "delete"
)

// session is one session; its exported fields are those of Consul's JSON.
type session struct {
	ID            string
	Name          string
	Node          string
	LockDelay     time.Duration
	Behavior      string
	TTL           string
	NodeChecks    []string
	ServiceChecks []serviceCheck
	Checks        []string `json:",omitempty"`
	CreateIndex   uint64
	ModifyIndex   uint64

	ttl     time.Duration
	expires time.Time
	timer   *time.Timer
}

type serviceCheck struct {
	ID        string
	Namespace string
}

// sessionBody is what a client may send to /v1/session/create.
type sessionBody struct {
	Name          string
	Node          *string
	LockDelay     any
	Behavior      string
	TTL           string
	NodeChecks    *[]string
	ServiceChecks []serviceCheck
	Checks        *[]string
}

// start gives s a fresh timer of 2xTTL, if it has a TTL.
func (s *session) start(m *Model) {
	if s.ttl <= 0 {
		return
	}
	d := s.ttl * sessionTTLMultiplier
	s.expires = time.Now().Add(d)
	if s.timer != nil {
		s.timer.Reset(d)
		return
	}
	s.timer = m.after(d, func() {
		// A renewal that got the lock first has moved the deadline.
		if m.sessions[s.ID] == s && m.leader && !s.expires.After(time.Now()) {
			m.destroy(s, CauseTTL)
		}
	})
}

func (s *session) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (m *Model) addSession(s *session) {
	m.next()
	s.CreateIndex, s.ModifyIndex = m.index, m.index
	m.sessIdx = m.index
	m.sessions[s.ID] = s
	if m.leader {
		s.start(m)
	}
	m.note(Event{Op: SessionCreated, Session: s.ID})
	m.commit()
	m.watches.session(m, s.ID)
}

// destroy ends s by one raft entry: the keys that it holds are released or deleted, and each name gets its lock-delay.
func (m *Model) destroy(s *session, cause string) {
	s.stop()
	delete(m.sessions, s.ID)
	m.next()
	m.sessIdx = m.index
	m.note(Event{Op: SessionEnded, Session: s.ID, Cause: cause})
	var keys []*Entry
	for _, e := range m.kv.keys {
		if e.Session == s.ID {
			keys = append(keys, e)
		}
	}
	delay := min(s.LockDelay, maxLockDelay)
	for _, e := range keys {
		if s.Behavior == behaviorDelete {
			m.remove(e.Key)
		} else {
			free := *e
			free.Session = ""
			m.put(&free, true)
		}
		m.pending[len(m.pending)-1].Op = Invalidated
		m.pending[len(m.pending)-1].Cause = cause
		if delay > 0 {
			m.delays[e.Key] = time.Now().Add(delay)
		}
	}
	m.commit()
	m.watches.session(m, s.ID)
}

// parseLockDelay: a string is a duration; a number is nanoseconds; less than 1000 of either are seconds.
func parseLockDelay(v any) (d time.Duration, err error) {
	switch v := v.(type) {
	case string:
		if d, err = time.ParseDuration(v); err != nil {
			return 0, err
		}
	case float64:
		d = time.Duration(v)
	}
	if d < 1000 {
		d *= time.Second
	}
	return d, nil
}

func (m *Model) sessionCreate(c *call) {
	s := &session{
		Node:       m.opts.Node,
		NodeChecks: []string{serfHealth},
		Checks:     []string{serfHealth},
		LockDelay:  defaultLockDelay,
		Behavior:   behaviorRelease,
	}
	if len(c.body) > 0 {
		var b sessionBody
		err := json.NewDecoder(bytes.NewReader(c.body)).Decode(&b) // unknown fields pass, unlike in transactions
		if err == nil && b.LockDelay != nil {
			s.LockDelay, err = parseLockDelay(b.LockDelay)
		}
		if err != nil {
			m.fail(c, 400, "Request decode failed: "+err.Error())
			return
		}
		s.Name, s.Behavior, s.TTL, s.ServiceChecks = b.Name, b.Behavior, b.TTL, b.ServiceChecks
		if b.Node != nil {
			s.Node = *b.Node
		}
		if b.NodeChecks != nil {
			s.NodeChecks = *b.NodeChecks
		}
		if b.Checks != nil {
			s.Checks = *b.Checks
		}
	}
	switch { // the order of agent/session_endpoint.go's fixupEmptySessionChecks
	case len(s.Checks) == 0:
		s.NodeChecks = []string{}
	case len(s.Checks) == 1 && s.Checks[0] == serfHealth:
		s.Checks = nil
	case len(s.NodeChecks) == 0:
		s.Checks = nil
	}
	if s.Node == "" {
		m.fail(c, 500, "Must provide Node")
		return
	}
	if !m.allowed(c, SessionWrite, s.Node) {
		return
	}
	switch s.Behavior {
	case "":
		s.Behavior = behaviorRelease
	case behaviorRelease, behaviorDelete:
	default:
		m.fail(c, 500, fmt.Sprintf("Invalid Behavior setting '%s'", s.Behavior))
		return
	}
	if s.TTL != "" {
		ttl, err := time.ParseDuration(s.TTL)
		if err != nil {
			m.fail(c, 500, fmt.Sprintf("Session TTL '%s' invalid: %v", s.TTL, err))
			return
		}
		if ttl != 0 && (ttl < sessionTTLMin || ttl > sessionTTLMax) {
			m.fail(c, 500, fmt.Sprintf("Invalid Session TTL '%d', must be between [%v=%v]", ttl, sessionTTLMin, sessionTTLMax))
			return
		}
		s.ttl = ttl
	}
	if what := m.checkSession(s); what != "" {
		m.next() // the state store refuses it, so the entry was written
		m.applyFailed(c, "apply failed: ", what)
		return
	}
	s.ID = m.uuid()
	m.addSession(s)
	m.reply(c, 200, []byte(`{"ID":"`+s.ID+`"}`))
}

// checkSession says what the state store has against s: its node or a check is unknown, or critical.
func (m *Model) checkSession(s *session) string {
	checks, ok := m.nodes[s.Node]
	if !ok {
		return "Missing node registration"
	}
	all := append([]string(nil), s.Checks...)
	all = append(all, s.NodeChecks...)
	for _, x := range s.ServiceChecks {
		all = append(all, x.ID)
	}
	for _, x := range all {
		passing, ok := checks[x]
		if !ok {
			return fmt.Sprintf("Missing check '%s' registration", x)
		}
		if !passing {
			return fmt.Sprintf("Check '%s' is in critical state", x)
		}
	}
	return ""
}

func (m *Model) sessionRenew(c *call) {
	s := m.lookup(c)
	if s == nil {
		if !c.done {
			m.fail(c, 404, fmt.Sprintf("Session id '%s' not found", c.req.Session))
		}
		return
	}
	if !m.allowed(c, SessionWrite, s.Node) {
		return
	}
	// A follower that serves ?stale answers 200 and resets the timer of nobody
	// (SessionSpecificRequest.IsRead in agent/structs, canServeReadRequest in agent/consul/rpc.go).
	if !c.par.stale && m.leader {
		s.start(m)
		m.note(Event{Op: SessionRenewed, Session: s.ID})
		m.flush()
	}
	m.reply(c, 200, appendSessions(nil, []*session{s}))
}

func (m *Model) sessionDestroy(c *call) {
	s := m.lookup(c)
	if s == nil {
		if !c.done {
			m.reply(c, 200, bodyTrue)
		}
		return
	}
	if !m.allowed(c, SessionWrite, s.Node) {
		return
	}
	m.destroy(s, CauseDestroy)
	m.reply(c, 200, bodyTrue)
}

// lookup finds the session that c names. 1.8 parses ids as UUIDs and answers 500 for others; then c is done.
func (m *Model) lookup(c *call) *session {
	if what := m.malformed(c.req.Session); what != "" {
		m.fail(c, 500, what)
		return nil
	}
	return m.sessions[c.req.Session]
}
