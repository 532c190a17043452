//go:build linux

package main_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// counter passes connections on to a server, and counts them.
type counter struct {
	addr       string
	mu         sync.Mutex
	open, most int
	since      [8]time.Time // since[n]: n or more are open
}

// settled is how long a connection must be there to count: one that takes the place of
// another is seen before the other one's end is.
const settled = 2 * time.Second

func newCounter(t *testing.T, s *consultest.Server) *counter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{addr: l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.pass(conn, s.Addr) })
		}
	})
	return c
}

// pass ends when either side does.
func (c *counter) pass(conn net.Conn, to string) {
	c.count(1)
	defer c.count(-1)
	defer conn.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer conn.Close()
		_, _ = io.Copy(conn, server)
	})
	_, _ = io.Copy(server, conn)
	server.Close()
	wg.Wait()
}

func (c *counter) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	c.open += n
	for i := range c.since {
		switch {
		case i > c.open:
			c.since[i] = time.Time{}
		case c.since[i].IsZero():
			c.since[i] = time.Now()
		}
	}
}

// settle counts what has been there for long enough.
func (c *counter) settle() {
	for i, t := range c.since {
		if !t.IsZero() && time.Since(t) >= settled {
			c.most = max(c.most, i)
		}
	}
}

func (c *counter) peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	return c.most
}

// TestConnections: an onlyone has two connections to Consul at most, and one while it waits.
func TestConnections(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"", "--copies 1"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			consultest.Each(t, func(t *testing.T, version string) {
				s := shared(t, version)
				holding, waiting := newCounter(t, s), newCounter(t, s)
				j := newJob(t, s) // last: what a failed test leaves running ends before the counters wait for its connections
				gate, open := j.gate("gate")
				flags := flags + " --poll 1s --lease 10s -k 1s"
				child := func(tag string) []string {
					if strings.Contains(flags, "copies") {
						return perCopy(j.file, consultest.ChildOptions{Tag: tag, Until: gate})
					}
					return j.child(consultest.ChildOptions{Tag: tag, Until: gate})
				}
				a := j.run(flags+" --http-addr "+holding.addr, child("a")...)
				j.await("a holds the lock", func() bool {
					return len(j.s.Sessions(t, "onlyone/"+j.name)) == 1 && holding.peak() == 2 // its watch has one
				})
				b := j.run(flags+" --http-addr "+waiting.addr, child("b")...)
				j.queued(1)
				time.Sleep(15 * time.Second) // two watches, two renewals of b; fifteen of a
				if n := waiting.peak(); n != 1 {
					t.Errorf("a waiting onlyone had up to %d connections, want 1", n)
				}
				if n := holding.peak(); n != 2 {
					t.Errorf("a running onlyone had up to %d connections, want 2", n)
				}
				open()
				a.wait(0)
				b.wait(0)
				for who, c := range map[string]*counter{"the first": holding, "the second": waiting} {
					if n := c.peak(); n > 2 {
						t.Errorf("%s had up to %d connections, want 2 at most", who, n)
					}
				}
			})
		})
	}
}

// TestConnectionLimit: 190 contenders of one host are no trouble with Consul's own limit of
// 200 connections. The one that is too many says so, waits, and has its turn.
// https://github.com/hashicorp/consul/issues/7527
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		s := consultest.Start(t, consultest.Options{Version: version, Conns: 200})
		j := newJob(t, s)
		t.Cleanup(func() { sweepDead(t, j) })
		gate, open := j.gate("gate")
		holder := j.run("", j.child(consultest.ChildOptions{Tag: "holder", Until: gate})...)
		j.running(1)
		crowd := newCrowd(t, j)
		for n := 10; n <= 190; n += 10 { // not all in one instant: it is the connections that are many here
			crowd.join(10)
			j.queued(n)
		}

		crowd.join(20)
		j.await("some of them are refused", func() bool { return crowd.refused.Load() > 0 })
		// Between two of its watches a contender may lose its place to one that comes, so more come
		// until one gets none.
		var more []*proc
		var one *proc
		var next time.Time
		j.await("one more says what the limit is", func() bool {
			if time.Now().After(next) && len(more) < 6 {
				one, next = j.run("", j.child(consultest.ChildOptions{Tag: "one", For: 20 * time.Millisecond})...), time.Now().Add(5*time.Second)
				more = append(more, one)
			}
			return strings.Contains(one.stderr(), "http_max_conns_per_client")
		})
		t.Log(one.stderr())
		oneLine(t, one.stderr(), j.s.Addr, "200 by default", "waiting")
		var refused *proc // one that doesn't wait may find such a place, too: then it is told who has the lock
		j.await("one that doesn't wait is refused", func() bool {
			refused = j.run("-n", "true")
			<-refused.done
			return refused.cmd.ProcessState.ExitCode() != 75
		})
		refused.wait(69)
		oneLine(t, refused.stderr(), "http_max_conns_per_client")

		crowd.leave(len(crowd.leavers)) // their cancelled watches keep their places for some seconds
		open()
		holder.wait(0)
		for _, p := range more {
			p.wait(0)
		}
		consultest.NoOverlap(t, j.intervals())
		j.run("-n", "true").wait(0) // and Consul is as before
		j.sweep()
	})
}

// crowd are contenders in this process, each with a connection of its own.
type crowd struct {
	j       *job
	wg      sync.WaitGroup
	leavers []context.CancelFunc
	refused atomic.Int64 // so many times one of them said that the limit is reached
}

// Write takes what they log.
func (c *crowd) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("http_max_conns_per_client")) {
		c.refused.Add(1)
	}
	return len(line), nil
}

func newCrowd(t *testing.T, j *job) *crowd {
	c := &crowd{j: j}
	t.Cleanup(func() { c.leave(len(c.leavers)) })
	return c
}

func (c *crowd) join(n int) {
	start := time.Now()
	for range n {
		contender, err := consulsession.NewContender(consulsession.Config{
			Client: consulsession.ClientConfig{Addresses: []string{c.j.s.Addr}}, Prefix: "onlyone", Name: c.j.name,
			Lease: 20 * time.Second, TTL: 10 * time.Second, Poll: 2 * time.Second, Host: "crowd", Log: zerolog.New(c),
			Now:    func() time.Duration { return time.Since(start) },
			Jitter: func(most time.Duration) time.Duration { return most / 2 },
		})
		if err != nil {
			c.j.t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		c.leavers = append(c.leavers, cancel)
		c.wg.Go(func() {
			defer contender.Close()
			if _, err := contender.Acquire(ctx, func([]byte) error { return nil }); ctx.Err() == nil {
				c.j.t.Errorf("one of the crowd: %v", err)
			}
		})
	}
}

// leave has the n that came first give up.
func (c *crowd) leave(n int) {
	for _, cancel := range c.leavers[:n] {
		cancel()
	}
	if c.leavers = c.leavers[n:]; len(c.leavers) == 0 {
		c.wg.Wait()
	}
}

// sweepDead removes the queue entries of contenders that could not say goodbye: about 200 leave at
// once, and Consul refuses some. Their sessions end by themselves, and the entries are swept by
// whoever queues next; here nobody does.
func sweepDead(t *testing.T, j *job) {
	soon(patience, func() bool { return len(j.s.Sessions(t, "onlyone/"+j.name)) == 0 })
	for _, key := range j.s.Keys(t, "onlyone/"+j.name+"/~queue/") {
		if kv := j.s.Key(t, key); kv != nil && kv.Session == "" {
			req, err := http.NewRequest(http.MethodDelete, "http://"+j.s.Addr+"/v1/kv/"+key, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
