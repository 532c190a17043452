//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

func slicesSorted(t times) times { return slices.Sorted(slices.Values(t)) }

// count is requests by what they are for.
type count struct {
	all      atomic.Int64
	renewals atomic.Int64
	repeated atomic.Int64 // watches that saw no change, so that they are sent again
	checks   atomic.Int64 // of a holder, every poll
}

// handingOver are the requests that aren't the price of time.
func (c *count) handingOver() int64 {
	return c.all.Load() - c.renewals.Load() - c.repeated.Load() - c.checks.Load()
}

// counting counts what goes through it.
type counting struct {
	to http.RoundTripper
	n  *count
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := c.to.RoundTrip(r)
	c.n.all.Add(1)
	switch index := r.URL.Query().Get("index"); {
	case strings.Contains(r.URL.Path, "/session/renew/"):
		c.n.renewals.Add(1)
	case index != "" && err == nil && resp.Header.Get("X-Consul-Index") == index:
		c.n.repeated.Add(1)
	case bytes.Contains(body, []byte(`"check-session"`)) && !bytes.Contains(body, []byte(`"lock"`)):
		c.n.checks.Add(1)
	}
	return resp, err
}

// proxy counts the requests of processes.
type proxy struct {
	addr   string
	n      *count
	server *http.Server
	done   chan struct{}
}

func newProxy(server string, n *count) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	back := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server})
	back.Transport = counting{&http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}, n}
	back.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	p := &proxy{l.Addr().String(), n, &http.Server{Handler: back}, make(chan struct{})}
	go func() { defer close(p.done); _ = p.server.Serve(l) }()
	return p, nil
}

func (p *proxy) close() {
	_ = p.server.Close()
	<-p.done
}

// raft is the index of a write that is made for it: the difference of two is the number of
// Raft entries between, the second one included.
func (l *lab) raft() (uint64, error) {
	ok, r, _, err := l.server.Client().Txn().Txn(api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVSet, Key: "benchscale", Value: []byte(time.Now().String())}}}, nil)
	if err != nil || !ok || len(r.Results) == 0 {
		return 0, fmt.Errorf("cannot write: %v", err)
	}
	return r.Results[0].KV.ModifyIndex, nil
}

// until waits for f, at most most.
func until(ctx context.Context, most time.Duration, what string, f func() bool) error {
	for end := time.Now().Add(most); !f(); {
		if time.Now().After(end) {
			return fmt.Errorf("after %s still not: %s", most, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// keys is how many there are below prefix.
func (l *lab) keys(prefix string) int {
	keys, _, err := l.server.Client().KV().Keys(prefix, "", nil)
	if err != nil {
		return -1
	}
	return len(keys)
}
