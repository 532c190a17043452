package consulmodel

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// call is one request on its way through the model.
type call struct {
	t    *Transport
	req  Request
	par  params
	body []byte
	bad  *response // what is wrong with the request itself
	plan Plan

	hold *time.Timer   // ends the wait for a leader
	ch   chan struct{} // closed when done; nil unless somebody waits
	done bool
	res  response
}

// params are the query parameters that the model knows.
type params struct {
	recurse, keys, raw    bool
	consistent, stale     bool
	acquire, release, cas bool
	namespace, partition  bool
	badWait, badIndex     bool
	badNumber             error // of cas or flags
	index                 uint64
	wait                  time.Duration
	session               string // of acquire or release
	casIndex, flags       uint64
	separator, token, dc  string
}

// parseParams reads a query string. It is hand-written because url.ParseQuery would be a third of a request's cost.
func parseParams(query string) (p params) {
	for query != "" {
		var part string
		part, query, _ = strings.Cut(query, "&")
		name, value, _ := strings.Cut(part, "=")
		if strings.ContainsAny(value, "%+") {
			if v, err := url.QueryUnescape(value); err == nil {
				value = v
			}
		}
		switch name {
		case "recurse":
			p.recurse = true
		case "keys":
			p.keys = true
		case "raw":
			p.raw = true
		case "consistent":
			p.consistent = true
		case "stale":
			p.stale = true
		case "index":
			if value != "" {
				var err error
				p.index, err = strconv.ParseUint(value, 10, 64)
				p.badIndex = err != nil
			}
		case "wait":
			if value != "" {
				var err error
				p.wait, err = time.ParseDuration(value)
				p.badWait = err != nil
			}
		case "acquire":
			p.acquire, p.session = true, value
		case "release":
			p.release, p.session = true, value
		case "cas":
			p.cas = true
			p.casIndex, p.badNumber = parseUint(value, p.badNumber)
		case "flags":
			p.flags, p.badNumber = parseUint(value, p.badNumber)
		case "separator", "seperator":
			p.separator = value
		case "token":
			p.token = value
		case "dc":
			p.dc = value
		case "ns":
			p.namespace = true
		case "partition":
			p.partition = true
		}
	}
	return p
}

func parseUint(s string, earlier error) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if earlier != nil {
		err = earlier
	}
	return n, err
}

// read takes a request in: what it asks for, and its body.
func (t *Transport) read(r *http.Request) (*call, error) {
	c := &call{t: t}
	if r.Body != nil && r.Body != http.NoBody {
		var err error
		if r.ContentLength > 0 && r.ContentLength <= maxBody {
			c.body = make([]byte, r.ContentLength)
			_, err = io.ReadFull(r.Body, c.body)
		} else {
			c.body, err = io.ReadAll(r.Body)
		}
		r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	c.par = parseParams(r.URL.RawQuery)
	c.req.Client = t.number
	c.req.Method = r.Method
	c.req.Blocking = c.par.index > 0
	c.req.Token = c.par.token
	if c.req.Token == "" {
		c.req.Token = token(r.Header)
	}
	t.m.route(c, r.URL)
	return c, nil
}

func token(h http.Header) string {
	if v := h["X-Consul-Token"]; len(v) > 0 && v[0] != "" {
		return v[0]
	}
	if v := h["Authorization"]; len(v) > 0 {
		if scheme, rest, ok := strings.Cut(v[0], " "); ok && strings.EqualFold(scheme, "bearer") {
			t, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return t
		}
	}
	return ""
}

// route finds the endpoint, and what is wrong with the request before any server sees it.
func (m *Model) route(c *call, u *url.URL) {
	path, ok := strings.CutPrefix(u.Path, "/v1/")
	if !ok {
		c.reject(404, "Invalid URL path: if attempting to use the HTTP API, ensure the path starts with '/v1/'\n")
		return
	}
	method := "PUT"
	switch {
	case path == "txn":
		c.req.Endpoint = TxnRead
	case strings.HasPrefix(path, "kv/"):
		c.req.Key = path[len("kv/"):]
		m.routeKV(c, u)
		return
	case path == "session/create":
		c.req.Endpoint = SessionCreate
	case strings.HasPrefix(path, "session/renew/"):
		c.req.Endpoint, c.req.Session = SessionRenew, path[len("session/renew/"):]
	case strings.HasPrefix(path, "session/destroy/"):
		c.req.Endpoint, c.req.Session = SessionDestroy, path[len("session/destroy/"):]
	case strings.HasPrefix(path, "session/info/"):
		c.req.Endpoint, c.req.Session, method = SessionGet, path[len("session/info/"):], "GET"
	case path == "session/list":
		c.req.Endpoint, method = SessionList, "GET"
	case path == "status/leader":
		c.req.Endpoint, method = StatusLeader, "GET"
	case path == "agent/self":
		c.req.Endpoint, method = AgentSelf, "GET"
	default:
		c.reject(404, "Invalid URL path: not a recognized HTTP API endpoint\n")
		return
	}
	if c.req.Method != method {
		c.wrongMethod(method)
		return
	}
	switch c.req.Endpoint {
	case SessionRenew, SessionDestroy, SessionGet:
		if c.req.Session == "" {
			c.reject(400, "Missing session")
			return
		}
	case TxnRead:
		if !m.parseTxn(c) {
			return
		}
	}
	if c.req.Endpoint != TxnWrite && c.req.Endpoint != SessionCreate && c.req.Endpoint != SessionDestroy {
		m.checkQuery(c)
	}
}

// checkQuery rejects what the agent can't parse.
func (m *Model) checkQuery(c *call) {
	p := &c.par
	switch {
	case p.namespace && m.opts.Version == V1_8:
		c.reject(400, `Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature`)
	case p.namespace:
		c.reject(400, `Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature`)
	case p.partition && m.opts.Version != V1_8: // 1.8 doesn't know the word
		c.reject(400, `Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature`)
	case p.stale && p.consistent:
		c.reject(400, "Cannot specify ?stale with ?consistent, conflicting semantics.")
	case p.badWait:
		c.reject(400, "Invalid wait time")
	case p.badIndex:
		c.reject(400, "Invalid index")
	}
}

func (m *Model) routeKV(c *call, u *url.URL) {
	p := &c.par
	m.checkQuery(c)
	if c.bad != nil {
		return
	}
	conflict := func(a, b, d bool) bool {
		if a && b || a && d || b && d {
			c.reject(400, "Conflicting flags: "+u.Query().Encode())
			return true
		}
		return false
	}
	switch c.req.Method {
	case "GET":
		switch {
		case p.keys:
			c.req.Endpoint = KVKeys
		case p.recurse:
			c.req.Endpoint = KVList
		default:
			c.req.Endpoint = KVGet
			if c.req.Key == "" {
				c.reject(400, "Missing key name")
			}
		}
	case "PUT":
		c.req.Endpoint = KVPut
		switch {
		case c.req.Key == "":
			c.reject(400, "Missing key name")
			return
		case conflict(p.cas, p.acquire, p.release):
			return
		case p.badNumber != nil:
			c.reject(500, p.badNumber.Error())
			return
		case p.acquire:
			c.req.Endpoint = KVAcquire
		case p.release:
			c.req.Endpoint = KVRelease
		}
		c.req.Session = p.session
		if len(c.body) > maxBody {
			c.reject(413, m.tooLarge(len(c.body), "kv_max_value_size"))
		}
	case "DELETE":
		c.req.Endpoint = KVDelete
		switch {
		case conflict(p.recurse, p.cas, false):
		case !p.recurse && c.req.Key == "":
			c.reject(400, "Missing key name")
		case p.badNumber != nil:
			c.reject(500, p.badNumber.Error())
		}
	default:
		c.wrongMethod("GET,PUT,DELETE")
	}
}

func (m *Model) tooLarge(n int, option string) string {
	if m.opts.Version == V1_8 {
		return fmt.Sprintf("Request body(%d bytes) too large, max size: %d bytes. See %s.", n, maxBody, "https://www.consul.io/docs/agent/options.html#"+option)
	}
	return fmt.Sprintf("Request body(%d bytes) too large, max size: %d bytes. See %s.", n, maxBody, "https://www.consul.io/docs/agent/config/config-files#"+option)
}

func (c *call) reject(status int, text string) {
	c.bad = &response{status: status, text: true, body: []byte(text)}
}

func (c *call) wrongMethod(allowed string) {
	c.bad = &response{status: 405, text: true, allow: "OPTIONS," + allowed, body: []byte("method " + c.req.Method + " not allowed")}
}

// arrive is the instant at which a request reaches its agent. The model is locked.
func (m *Model) arrive(c *call) {
	t := c.t
	t.counts[c.req.Endpoint]++
	m.counts[c.req.Endpoint]++
	t.open++
	if m.opts.ConnLimit > 0 && t.number > 0 && t.open > m.opts.ConnLimit {
		if m.opts.Version == V1_8 {
			m.finish(c, response{err: io.EOF})
			return
		}
		m.fail(c, 429, "Your IP is issuing too many concurrent connections, please rate limit your calls\n")
		return
	}
	if m.frozen {
		m.held = append(m.held, func() { m.serve(c) })
		return
	}
	m.serve(c)
}

// serve carries a request out, or has it wait for a leader.
func (m *Model) serve(c *call) {
	if c.bad != nil {
		m.finish(c, *c.bad)
		return
	}
	if c.par.dc != "" && c.par.dc != m.opts.Datacenter {
		m.fail(c, 500, "No path to datacenter")
		return
	}
	switch c.req.Endpoint {
	case StatusLeader:
		if m.leader {
			m.reply(c, 200, []byte(`"127.0.0.1:8300"`))
		} else {
			m.reply(c, 200, []byte(`""`))
		}
		return
	case AgentSelf:
		if m.allowed(c, AgentRead, m.opts.Node) {
			m.reply(c, 200, m.self())
		}
		return
	}
	if c.plan.Deposed && m.deposed != nil {
		m.serveDeposed(c)
		return
	}
	if !m.leader && !(c.par.stale && m.isRead(c)) {
		if c.hold == nil {
			c.hold = m.after(m.opts.RPCHold, func() {
				if m.unwait(c) {
					m.fail(c, 500, "No cluster leader")
				}
			})
		}
		m.waiting = append(m.waiting, c)
		return
	}
	if c.hold != nil {
		c.hold.Stop()
	}
	m.client = c.t.number
	if m.opts.ACL != nil && !m.opts.ACL(c.req.Token, TokenExists, "") {
		m.fail(c, 403, "ACL not found")
		return
	}
	switch c.req.Endpoint {
	case SessionCreate:
		m.sessionCreate(c)
	case SessionRenew:
		m.sessionRenew(c)
	case SessionDestroy:
		m.sessionDestroy(c)
	case SessionGet:
		if what := m.malformed(c.req.Session); what != "" {
			m.finish(c, response{status: 500, text: true, meta: true, index: 1, body: []byte(what)})
			return
		}
		m.query(c)
	case KVGet:
		if m.allowed(c, KeyRead, c.req.Key) {
			m.query(c)
		}
	case SessionList, KVList, KVKeys:
		m.query(c)
	case KVPut, KVAcquire, KVRelease:
		m.kvPut(c)
	case KVDelete:
		m.kvDelete(c)
	case TxnRead, TxnWrite:
		m.txn(c)
	}
}

// serveDeposed is the answer of a leader that doesn't know yet that it is none. What it would write is never committed,
// and ?consistent asks the other servers first.
func (m *Model) serveDeposed(c *call) {
	switch {
	case !m.isRead(c):
		m.applyFailed(c, "raft apply failed: ", "node is not the leader")
	case c.par.consistent:
		m.fail(c, 500, "node is not the leader")
	case c.req.Endpoint == SessionRenew:
		for i := range m.deposed.sessions {
			if s := &m.deposed.sessions[i]; s.ID == c.req.Session {
				m.reply(c, 200, appendSessions(nil, []*session{s}))
				return
			}
		}
		m.fail(c, 404, fmt.Sprintf("Session id '%s' not found", c.req.Session))
	default:
		now, leader := m.kv, m.leader
		m.kv, m.leader = m.deposed.kv, true
		if c.req.Endpoint == TxnRead {
			m.txn(c)
		} else {
			res := m.evaluate(c)
			m.render(c, &res)
		}
		m.kv, m.leader = now, leader
	}
}

// isRead: Consul takes a renewal for a read, too (structs.SessionSpecificRequest).
func (m *Model) isRead(c *call) bool {
	switch c.req.Endpoint {
	case SessionRenew, SessionGet, SessionList, KVGet, KVList, KVKeys, TxnRead:
		return true
	}
	return false
}

// unwait takes c out of those that wait for a leader; false if it wasn't among them.
func (m *Model) unwait(c *call) bool {
	for i, x := range m.waiting {
		if x == c {
			m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// finish answers c.
func (m *Model) finish(c *call, r response) {
	c.t.open--
	c.res = r
	c.done = true
	if c.ch != nil {
		close(c.ch)
	}
}

func (m *Model) reply(c *call, status int, body []byte) {
	m.finish(c, response{status: status, body: body})
}

func (m *Model) fail(c *call, status int, text string) {
	m.finish(c, response{status: status, text: true, body: []byte(text)})
}

// applyFailed is the answer when the state store refuses an entry; 1.8 has no prefix.
func (m *Model) applyFailed(c *call, prefix, what string) {
	if m.opts.Version == V1_8 {
		prefix = ""
	}
	m.fail(c, 500, prefix+what)
}

// may asks the ACL.
func (m *Model) may(c *call, r Right, name string) bool {
	return m.opts.ACL == nil || m.opts.ACL(c.req.Token, r, name)
}

// allowed answers 403 when the ACL says no.
func (m *Model) allowed(c *call, r Right, name string) bool {
	if m.may(c, r, name) {
		return true
	}
	m.fail(c, 403, m.denied(c, r, name))
	return false
}

func (m *Model) denied(c *call, r Right, name string) string {
	if m.opts.Version == V1_8 {
		return "Permission denied"
	}
	accessor := "00000000-0000-0000-0000-000000000002" // anonymous
	if c.req.Token != "" {
		accessor = "00000000-0000-0000-0000-00000000000a"
	}
	return fmt.Sprintf(`Permission denied: token with AccessorID '%s' lacks permission '%s' on "%s"`, accessor, r, name)
}

// malformed says what 1.8 has against a session id that isn't a UUID.
func (m *Model) malformed(id string) string {
	if m.opts.Version != V1_8 || isUUID(id) {
		return ""
	}
	return "failed session lookup: index error: UUID must be 36 characters"
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch i {
		case 8, 13, 18, 23:
			if s[i] != '-' {
				return false
			}
		default:
			if !strings.ContainsRune("0123456789abcdefABCDEF", rune(s[i])) {
				return false
			}
		}
	}
	return true
}

func (m *Model) kvPut(c *call) {
	if !m.allowed(c, KeyWrite, c.req.Key) {
		return
	}
	e := &Entry{Key: c.req.Key, Value: c.body, Flags: c.par.flags}
	if c.req.Endpoint == KVAcquire && m.delayed(e.Key) {
		m.reply(c, 200, bodyFalse)
		return
	}
	m.next()
	ok, what := true, ""
	switch {
	case c.req.Endpoint == KVAcquire:
		e.Session = c.par.session
		ok, what = m.lock(e)
	case c.req.Endpoint == KVRelease:
		e.Session = c.par.session
		ok, what = m.unlock(e)
	case c.par.cas:
		e.ModifyIndex = c.par.casIndex
		ok = m.cas(e)
	default:
		m.put(e, false)
	}
	m.commit()
	switch {
	case what != "":
		m.applyFailed(c, "raft apply failed: ", what)
	case ok:
		m.reply(c, 200, bodyTrue)
	default:
		m.reply(c, 200, bodyFalse)
	}
}

func (m *Model) kvDelete(c *call) {
	if !m.allowed(c, KeyWrite, c.req.Key) {
		return
	}
	m.next()
	ok := true
	switch {
	case c.par.recurse:
		m.removeTree(c.req.Key)
	case c.par.cas:
		ok = m.removeCAS(c.req.Key, c.par.casIndex)
	default:
		m.remove(c.req.Key)
	}
	m.commit()
	if ok {
		m.reply(c, 200, bodyTrue)
	} else {
		m.reply(c, 200, bodyFalse)
	}
}

var (
	bodyTrue  = []byte("true")
	bodyFalse = []byte("false")
)
