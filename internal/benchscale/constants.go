//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	holders = 2000             // locks that are held
	atWork  = 20 * time.Second // how long each kind of request is sent
)

// cpu is the processor time that the server has used.
func (l *lab) cpu() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.server.Pid()))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var user, system int64
	_, _ = fmt.Sscan(f[11], &user)
	_, _ = fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// memory is the server's anonymous memory in MB, and its goroutines.
func (l *lab) memory() (mb float64, goroutines int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.server.Pid()))
	for line := range bytes.Lines(b) {
		var kb float64
		if n, _ := fmt.Sscanf(string(line), "RssAnon: %f kB", &kb); n == 1 {
			mb = kb * 1024 / 1e6
		}
	}
	var m struct {
		Gauges []struct {
			Name  string
			Value float64
		}
	}
	if _, err := l.server.Client().Raw().Query("/v1/agent/metrics", &m, nil); err != nil {
		return mb, 0
	}
	for _, g := range m.Gauges {
		if strings.HasSuffix(g.Name, "runtime.num_goroutines") {
			goroutines = int(g.Value)
		}
	}
	return mb, goroutines
}

// constants: what a check, a renewal, a watch and a lock cost the server, with 2000 locks
// that are held.
func (l *lab) constants(ctx context.Context) error {
	l.server.Close() // what it did before is in its memory
	if err := l.serve(); err != nil {
		return err
	}
	tr := &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64, DisableCompression: true}
	defer tr.CloseIdleConnections()
	send := func(ctx context.Context, rt http.RoundTripper, method, path, body string) (string, error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+l.server.Addr+path, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		resp, err := rt.RoundTrip(r)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s %s: %s %s", method, path, resp.Status, b)
		}
		return string(b), err
	}
	mb, _ := l.memory()
	cpu := l.cpu()
	time.Sleep(5 * time.Second)
	say("  an idle server: %.2f ms of CPU a second, %.0f MB", (l.cpu()-cpu).Seconds()*1000/5, mb)

	ids := make([]string, holders)
	key := func(i int) string { return fmt.Sprintf("onlyone/load/%d/.lock", i) }
	value := strings.Repeat("QUJD", 75) // 225 bytes: a record
	before, cpu := time.Now(), l.cpu()
	if err := each(ctx, holders, 16, func(i int) error {
		b, err := send(ctx, tr, "PUT", "/v1/session/create", `{"Name":"onlyone/load","TTL":"600s","LockDelay":"20s","Behavior":"release","NodeChecks":[]}`)
		if err != nil {
			return err
		}
		var s struct{ ID string }
		if err := json.Unmarshal([]byte(b), &s); err != nil {
			return err
		}
		ids[i] = s.ID
		_, err = send(ctx, tr, "PUT", "/v1/txn", fmt.Sprintf(`[{"KV":{"Verb":"lock","Key":%q,"Session":%q,"Value":%q}},{"KV":{"Verb":"set","Key":"%s-holder","Value":%q}}]`, key(i), s.ID, value, key(i), value))
		return err
	}); err != nil {
		return err
	}
	mb2, _ := l.memory()
	say("  %d sessions and locks: %.2f ms of CPU each (2 raft writes), %.1f kB of memory each; at %.0f a second", holders,
		(l.cpu()-cpu).Seconds()*1000/holders, (mb2-mb)*1000/holders, holders/time.Since(before).Seconds())

	for _, kind := range []struct {
		what   string
		target func(i int) (method, path string)
		body   func(i int) string
	}{
		{"checks", func(int) (string, string) { return "PUT", "/v1/txn?consistent" }, func(i int) string {
			return fmt.Sprintf(`[{"KV":{"Verb":"check-session","Key":%q,"Session":%q}},{"KV":{"Verb":"get-tree","Key":"onlyone/load/%d/.step-down"}},{"KV":{"Verb":"get-tree","Key":"onlyone/load/%d/.paused"}}]`, key(i), ids[i], i, i)
		}},
		{"renewals", func(i int) (string, string) { return "PUT", "/v1/session/renew/" + ids[i] }, func(int) string { return "" }},
	} {
		var sent atomic.Int64
		wctx, done := context.WithTimeout(ctx, atWork)
		begin, cpu := time.Now(), l.cpu()
		var wg sync.WaitGroup
		var failed atomic.Pointer[error]
		for w := range 16 {
			wg.Go(func() {
				for i := w; wctx.Err() == nil; i = (i + 16) % holders {
					m, path := kind.target(i)
					if _, err := send(wctx, tr, m, path, kind.body(i)); err == nil {
						sent.Add(1)
					} else if wctx.Err() == nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		wg.Wait()
		done()
		if err := failed.Load(); err != nil {
			return *err
		}
		took := time.Since(begin)
		say("  %d %s in %s, as fast as they were answered: %.0f a second, %.3f ms of CPU each", sent.Load(), kind.what, took.Round(time.Second),
			float64(sent.Load())/took.Seconds(), (l.cpu()-cpu).Seconds()*1000/float64(sent.Load()))
	}
	return l.watches(ctx, key)
}

// watches: 2000 blocking reads of 15 s, each on a connection of its own.
func (l *lab) watches(ctx context.Context, key func(int) string) error {
	time.Sleep(5 * time.Second)
	mb, gor := l.memory()
	wctx, done := context.WithTimeout(ctx, 2*atWork)
	defer done()
	var wg sync.WaitGroup
	var returned, open atomic.Int64
	dialer := &net.Dialer{}
	for i := range holders {
		wg.Go(func() {
			tr := &http.Transport{DisableCompression: true, MaxConnsPerHost: 1, ReadBufferSize: 2048, WriteBufferSize: 2048,
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					open.Add(1)
					return dialer.DialContext(ctx, network, addr)
				}}
			defer tr.CloseIdleConnections()
			for index := "1"; wctx.Err() == nil; {
				r, _ := http.NewRequestWithContext(wctx, "GET", fmt.Sprintf("http://%s/v1/kv/%s?recurse&wait=15s&index=%s", l.server.Addr, key(i), index), nil)
				resp, err := tr.RoundTrip(r)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				index = resp.Header.Get("X-Consul-Index")
				returned.Add(1)
			}
		})
	}
	if err := until(ctx, time.Minute, "all watch", func() bool { return returned.Load() >= holders }); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	mb2, _ := l.memory()
	cpu, begin, from := l.cpu(), time.Now(), returned.Load()
	time.Sleep(15 * time.Second)
	took, n := time.Since(begin), returned.Load()-from
	used := l.cpu() - cpu
	mb3, gor3 := l.memory() // goroutines are those of an instant up to 10 s ago
	say("  %d watches on %d connections: %.1f kB of memory each (%.1f after 15 s), %.1f goroutines each", holders, open.Load(),
		(mb2-mb)*1000/holders, (mb3-mb)*1000/holders, float64(gor3-gor)/holders)
	say("  %d of them came back in %s: %.3f ms of CPU each, what else the server did included", n, took.Round(time.Second), used.Seconds()*1000/max(float64(n), 1))
	done()
	wg.Wait()
	return nil
}

// each calls f for 0 to n-1, some at a time, until one fails.
func each(ctx context.Context, n, atOnce int, f func(int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, atOnce)
	for range atOnce {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func exists(file string) bool { _, err := os.Stat(file); return err == nil }
