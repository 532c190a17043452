package consulmodel

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Endpoint is what a request is for.
type Endpoint uint8

const (
	Unknown Endpoint = iota
	SessionCreate
	SessionRenew
	SessionDestroy
	SessionGet
	SessionList
	KVGet
	KVList
	KVKeys
	KVPut // also ?cas
	KVAcquire
	KVRelease
	KVDelete
	TxnRead  // a transaction of checks and gets: no raft entry
	TxnWrite // any other
	StatusLeader
	AgentSelf
	endpoints
)

var endpointNames = [endpoints]string{"unknown", "session-create", "session-renew", "session-destroy", "session-get",
	"session-list", "kv-get", "kv-list", "kv-keys", "kv-put", "kv-acquire", "kv-release", "kv-delete", "txn-read",
	"txn-write", "status-leader", "agent-self"}

func (e Endpoint) String() string { return endpointNames[e] }

// Counts are numbers of requests by endpoint.
type Counts [endpoints]int

// Total is the number of all requests.
func (c Counts) Total() (n int) {
	for _, x := range c {
		n += x
	}
	return n
}

// Request is what a Faults function decides on.
type Request struct {
	Client   int // number of the Transport, from 1
	N        int // how many requests of this Transport came before
	Time     time.Time
	Endpoint Endpoint
	Method   string
	Key      string // of the KV endpoints
	Session  string // of the session endpoints, and of acquire and release
	Token    string
	Blocking bool    // has ?index
	Ops      []TxnOp // of the transaction endpoint
}

// TxnOp is one operation of a transaction.
type TxnOp struct {
	Verb    string
	Key     string
	Value   []byte
	Flags   uint64
	Index   uint64
	Session string
}

// Has reports whether a transaction has an operation with this verb.
func (r *Request) Has(verb string) bool {
	for i := range r.Ops {
		if r.Ops[i].Verb == verb {
			return true
		}
	}
	return false
}

// Plan is what happens to one request; the zero value is a healthy network. A request that was sent is carried out
// even if its client has gone away in the meantime.
type Plan struct {
	RequestDelay time.Duration // until it reaches the server
	DropRequest  bool          // it never does; the client hangs until its context ends
	Refuse       error         // it never does; the client has this error (after RequestDelay)

	// Deposed sends the request to the leader of Model.Depose, which believes to be one still: reads without ?consistent
	// show the state of then, renewals are answered 200 and do nothing, all else fails. It needs a call of Depose.
	Deposed bool

	Status  int    // this is answered, not what the server says
	Body    string // with Status
	Execute bool   // with Status: the request is carried out all the same

	DropAnswer  bool          // carried out; the client hangs until its context ends
	Break       error         // carried out; the client has this error (after AnswerDelay)
	AnswerDelay time.Duration // from the server to the client
}

// ErrRefused is what a client has when nobody listens: a Refuse for Plan.
var ErrRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// Faults decides what happens to each request of a Transport. Calls for one Transport don't overlap.
type Faults func(*Request) Plan

// Transport is the way of one client to the cluster. It is an http.RoundTripper.
type Transport struct {
	m      *Model
	number int

	mu     sync.Mutex // of faults and sent; never held while waiting
	faults Faults
	sent   int

	// The model's lock guards these.
	counts Counts
	open   int
}

// Transport returns a new client's way to the cluster; f may be nil.
func (m *Model) Transport(f Faults) *Transport {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transports++
	return &Transport{m: m, number: m.transports, faults: f}
}

// SetFaults replaces the Faults function, for the requests that are sent from now on.
func (t *Transport) SetFaults(f Faults) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = f
}

// Sent is how many requests the client has made, those that were lost included.
func (t *Transport) Sent() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent
}

// Requests counts the requests of this client that reached the server.
func (t *Transport) Requests() Counts {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.counts
}

// RoundTrip carries out one request. Like net/http's it returns the context's cause as soon as that is done.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	c, err := t.read(r)
	if err != nil {
		return nil, err
	}
	if err := t.do(r.Context(), c); err != nil {
		return nil, err
	}
	return c.res.http(r), nil
}

// ServeHTTP serves the model to a real listener. These requests have no Faults and no connection limit.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := m.server.read(r)
	if err != nil {
		return
	}
	if err := m.server.do(r.Context(), c); err != nil {
		panic(http.ErrAbortHandler)
	}
	res := c.res.http(r)
	h := w.Header()
	for k, v := range res.Header {
		h[k] = v
	}
	w.WriteHeader(res.StatusCode)
	w.Write(c.res.body)
}

func (t *Transport) do(ctx context.Context, c *call) error {
	done := ctx.Done()
	if done != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.mu.Lock()
	c.req.N = t.sent
	t.sent++
	if t.faults != nil {
		c.req.Time = time.Now()
		c.plan = t.faults(&c.req)
	}
	t.mu.Unlock()
	p := &c.plan

	if p.DropRequest {
		<-done
		return context.Cause(ctx)
	}
	if p.Refuse != nil || p.Status != 0 && !p.Execute {
		if err := pause(ctx, p.RequestDelay); err != nil {
			return err
		}
	} else if p.RequestDelay > 0 {
		c.ch = make(chan struct{})
		time.AfterFunc(p.RequestDelay, func() {
			t.m.mu.Lock()
			defer t.m.mu.Unlock()
			t.m.arrive(c)
		})
	} else {
		t.m.mu.Lock()
		t.m.arrive(c)
		if !c.done {
			c.ch = make(chan struct{})
		}
		t.m.mu.Unlock()
	}
	if p.Refuse != nil {
		return p.Refuse
	}
	if c.ch != nil {
		select {
		case <-c.ch:
		case <-done:
			return context.Cause(ctx)
		}
	}
	if p.DropAnswer {
		<-done
		return context.Cause(ctx)
	}
	if err := pause(ctx, p.AnswerDelay); err != nil {
		return err
	}
	if p.Break != nil {
		return p.Break
	}
	if p.Status != 0 {
		c.res = response{status: p.Status, body: []byte(p.Body)}
	}
	return c.res.err
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// response is the answer to a call.
type response struct {
	status int
	body   []byte
	err    error // the connection breaks instead
	text   bool  // not JSON
	raw    bool  // a key's value
	meta   bool  // has the headers of a read
	index  uint64
	leader bool
	stale  time.Duration // X-Consul-LastContact
	allow  string
}

// Header values are shared; net/http's clients replace them, they don't write into them.
var (
	typeJSON    = []string{"application/json"}
	typeText    = []string{"text/plain; charset=utf-8"}
	typeRaw     = []string{"text/plain"}
	valueTrue   = []string{"true"}
	valueFalse  = []string{"false"}
	valueZero   = []string{"0"}
	statusLines = map[int]string{200: "200 OK", 404: "404 Not Found", 409: "409 Conflict", 500: "500 Internal Server Error"}
)

// body is an http response body of bytes.
type body struct {
	b []byte
}

func (b *body) Read(p []byte) (int, error) {
	n := copy(p, b.b)
	b.b = b.b[n:]
	if n == 0 && len(p) > 0 || len(b.b) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func (*body) Close() error { return nil }

func (r *response) http(req *http.Request) *http.Response {
	h := make(http.Header, 6)
	h["Content-Type"] = typeJSON
	if r.text {
		h["Content-Type"] = typeText
	}
	if r.raw {
		h["Content-Type"] = typeRaw
	}
	if r.meta {
		h["X-Consul-Knownleader"] = valueFalse
		if r.leader {
			h["X-Consul-Knownleader"] = valueTrue
		}
		h["X-Consul-Lastcontact"] = valueZero
		if r.stale > 0 {
			h["X-Consul-Lastcontact"] = []string{strconv.FormatInt(r.stale.Milliseconds(), 10)}
		}
	}
	if r.index > 0 {
		h["X-Consul-Index"] = []string{strconv.FormatUint(r.index, 10)}
	}
	if r.allow != "" {
		h["Allow"] = []string{r.allow}
	}
	line, ok := statusLines[r.status]
	if !ok {
		line = strconv.Itoa(r.status) + " " + http.StatusText(r.status)
	}
	return &http.Response{
		Status:        line,
		StatusCode:    r.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        h,
		Body:          &body{r.body},
		ContentLength: int64(len(r.body)),
		Request:       req,
	}
}
