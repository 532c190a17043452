package consultest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Mode is what a Proxy does to requests.
type Mode int

// The modes of a proxy. A new mode also counts for requests that are under way: only
// what was answered before is answered. What has hung once is never answered.
const (
	Pass        Mode = iota // forwards
	Hang                    // neither forwards nor answers; old connections stay open, new ones are accepted
	Fail                    // answers 500, forwards nothing
	DropAnswers             // forwards, never answers
	Delay                   // forwards at once, answers later, see SetDelay
)

// A Request is what came to a proxy.
type Request struct {
	Method, Path string        // Path without the query; session ids are "ID"
	Body         string        //
	At           time.Duration // on the boot clock, when it had come
	Answered     time.Duration // when the answer was written; 0: never
	Status       int           // of that answer
}

// A Proxy stands between a client and a server.
type Proxy struct {
	Addr string // 127.0.0.1:PORT

	target string
	server *http.Server
	to     *http.Transport
	done   chan struct{}

	mu       sync.Mutex
	mode     Mode
	delay    time.Duration
	changed  chan struct{} // closed when mode is replaced
	requests []*Request
}

// NewProxy starts a proxy to s, which lives as long as the test.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: s.Addr, done: make(chan struct{}), changed: make(chan struct{}),
		to: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}}
	p.server = &http.Server{Handler: p}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = p.server.Serve(l)
	}()
	tb.Cleanup(func() {
		close(p.done)
		p.server.Close()
		<-served
		p.to.CloseIdleConnections()
	})
	return p
}

// Set changes the mode, and returns the boot clock at that instant.
func (p *Proxy) Set(m Mode) time.Duration { return p.set(m, 0) }

// SetDelay changes to Delay: each answer comes d after its request.
func (p *Proxy) SetDelay(d time.Duration) time.Duration { return p.set(Delay, d) }

func (p *Proxy) set(m Mode, d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.delay = m, d
	close(p.changed)
	p.changed = make(chan struct{})
	return BootNow()
}

// Requests are those that have come, in order.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Request
	for _, r := range p.requests {
		all = append(all, *r)
	}
	return all
}

// LastProof is when the last ownership check (or acquire) came that was answered with
// success; 0 if there was none. The client's own clock was read before that.
func (p *Proxy) LastProof() time.Duration {
	var last time.Duration
	for _, r := range p.Requests() {
		if r.Path == "/v1/txn" && r.Status == http.StatusOK && r.Answered != 0 &&
			(strings.Contains(r.Body, `"check-session"`) || strings.Contains(r.Body, `"lock"`)) && !strings.Contains(r.Body, `"unlock"`) {
			last = max(last, r.At)
		}
	}
	return last
}

// Count is how many requests came, by method and path: "PUT /v1/txn  3", one a line.
func (p *Proxy) Count() (n int, table string) {
	count := map[string]int{}
	for _, r := range p.Requests() {
		n++
		count[r.Method+" "+r.Path]++
	}
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(&b, "%s  %d\n", what, count[what])
	}
	return n, b.String()
}

var sessionID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func (p *Proxy) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	body, _ := io.ReadAll(in.Body)
	r := &Request{Method: in.Method, Path: sessionID.ReplaceAllString(in.URL.Path, "ID"), Body: string(body), At: BootNow()}
	p.mu.Lock()
	p.requests = append(p.requests, r)
	mode, changed := p.mode, p.changed
	p.mu.Unlock()

	var answer *http.Response
	if mode == Pass || mode == DropAnswers || mode == Delay {
		var err error
		if answer, err = p.forward(in, body, changed); err == nil {
			defer answer.Body.Close()
			body, err = io.ReadAll(answer.Body)
		}
		if err != nil {
			answer = nil
		}
	}
	p.mu.Lock()
	same := p.changed == changed
	mode = p.mode
	delay := p.delay
	p.mu.Unlock()
	if same && mode == Pass && answer == nil {
		panic(http.ErrAbortHandler) // as if the server had cut the connection
	}
	wait := make(<-chan time.Time)
	switch {
	case mode == Fail:
		answer, body = &http.Response{StatusCode: http.StatusInternalServerError}, []byte("the proxy was told to fail")
		fallthrough
	case mode == Pass && answer != nil:
		now := make(chan time.Time)
		close(now)
		wait = now
	case mode == Delay && answer != nil:
		timer := time.NewTimer(delay)
		defer timer.Stop()
		wait = timer.C
	}
	select {
	case <-wait:
	case <-in.Context().Done(): // the client gave up
		return
	case <-p.done:
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	p.mu.Lock()
	r.Answered, r.Status = BootNow(), answer.StatusCode
	p.mu.Unlock()
	_, _ = w.Write(body)
}

// forward sends the request on. It goes its way even if the client gives up; only a
// blocking read, which would have no end, ends with it or with the mode.
func (p *Proxy) forward(in *http.Request, body []byte, changed <-chan struct{}) (*http.Response, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(in.Context()))
	out := in.Clone(ctx)
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", p.target
	out.Body = io.NopCloser(bytes.NewReader(body))
	gone := in.Context().Done()
	if in.Method != http.MethodGet {
		gone, changed = nil, nil
	}
	go func() {
		defer cancel()
		select {
		case <-ctx.Done():
		case <-gone:
		case <-changed:
		case <-p.done:
		}
	}()
	answer, err := p.to.RoundTrip(out)
	if err != nil {
		cancel()
		return nil, err
	}
	answer.Body = &cancelBody{answer.Body, cancel}
	return answer, nil
}

type cancelBody struct {
	io.ReadCloser
	cancel func()
}

func (b *cancelBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
