package telling

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxConns is how many connections are open at once: some scrapers, a load balancer or
	// two. Each is a descriptor that the requests to Consul might lack.
	maxConns = 32
	// requestLimit bounds a request and its answer, some 10 KiB, together with the time between
	// the requests of one connection (a scrape every 15 s is usual).
	requestLimit = 10 * time.Second
	idleLimit    = 60 * time.Second
)

// Server serves Metrics on an address of its own, without encryption or passwords:
//
//	/metrics  all metrics, as Prometheus reads them
//	/healthz  200 as long as the process answers
//	/leader   200 while the command runs under a lease that isn't over, else 503
type Server struct {
	http     *http.Server
	listener net.Listener
	done     chan struct{}
}

// Listen opens addr, HOST:PORT or :PORT (0: any free one), and serves m until Close. A Unix
// socket isn't possible: Prometheus doesn't scrape one.
func Listen(addr string, m *Metrics) (*Server, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("cannot serve metrics on %q: it is not HOST:PORT, as 127.0.0.1:9099 or :9099", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // the rest is the address again
		}
		return nil, fmt.Errorf("cannot serve metrics on %s: %w", addr, err)
	}
	s := &Server{listener: l, done: make(chan struct{}), http: &http.Server{
		Handler:     m.handler(),
		ReadTimeout: requestLimit, WriteTimeout: requestLimit, IdleTimeout: idleLimit,
		MaxHeaderBytes: maxHeaders,
		ErrorLog:       log.New(io.Discard, "", 0), // what a scraper does wrong isn't our user's
	}}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(&cappedListener{Listener: l, slots: make(chan struct{}, maxConns)}) // it ends with Close
	}()
	return s, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close ends all connections.
func (s *Server) Close() {
	if s == nil {
		return
	}
	_ = s.http.Close()
	<-s.done
}

func (m *Metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(m.text())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /leader", func(w http.ResponseWriter, _ *http.Request) {
		leading, state := m.leading()
		if !leading {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, state)
	})
	return mux
}

// A cappedListener closes connections above a number at once, instead of letting them wait:
// those that are open may be idle for a long time.
type cappedListener struct {
	net.Listener
	slots chan struct{}
}

func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &cappedConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			c.Close()
		}
	}
}

type cappedConn struct {
	net.Conn
	free func()
}

func (c *cappedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
