//go:build linux

package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// proxy passes requests on to the server, counts them, and knows when the first byte came.
type proxy struct {
	addr     string
	requests atomic.Int64
	first    atomic.Int64 // boot clock, ns
	server   *http.Server
	wg       sync.WaitGroup
}

func (l *lab) proxy() (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{addr: ln.Addr().String()}
	back := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: l.addr})
	back.Transport = &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}
	back.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		back.ServeHTTP(w, r)
	})}
	p.wg.Go(func() { _ = p.server.Serve(firstByteListener{ln, p}) })
	return p, nil
}

func (p *proxy) reset() {
	p.requests.Store(0)
	p.first.Store(0)
}

// close waits for the requests under way, but not for blocking reads.
func (p *proxy) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = p.server.Shutdown(ctx)
	_ = p.server.Close()
	p.wg.Wait()
}

type firstByteListener struct {
	net.Listener
	p *proxy
}

func (l firstByteListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return firstByteConn{c, l.p}, err
}

type firstByteConn struct {
	net.Conn
	p *proxy
}

func (c firstByteConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.p.first.CompareAndSwap(0, bootNow())
	}
	return n, err
}
