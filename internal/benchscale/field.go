//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// field is contenders for one lock, in this process.
type field struct {
	l     *lab
	name  string
	n     *count
	start time.Time
	wg    sync.WaitGroup
	next  chan *contender // who holds it now

	mu       sync.Mutex
	released time.Time // when the last holder began to release
	gaps     times     // from then to the next one's success
	waiting  int       // have seen their place in the queue
	errs     []error
}

func newField(l *lab, name string) *field {
	return &field{l: l, name: name, n: &count{}, start: time.Now(), next: make(chan *contender, 1)}
}

// contender is one of a field.
type contender struct {
	*consulsession.Contender
	f      *field
	cut    chan struct{} // closed when its host has crashed
	cancel context.CancelFunc
	got    chan struct{} // closed when it holds the lock, or has given up
	at     time.Time
	term   *consulsession.Term
}

// RoundTrip is the network of a host that may crash.
type network struct {
	to  http.RoundTripper
	cut <-chan struct{}
}

func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-n.cut:
		<-r.Context().Done()
		return nil, r.Context().Err()
	default:
		return n.to.RoundTrip(r)
	}
}

func (f *field) join(ctx context.Context) (*contender, error) {
	c := &contender{f: f, cut: make(chan struct{}), got: make(chan struct{})}
	tr := &http.Transport{MaxConnsPerHost: 2, MaxIdleConnsPerHost: 2, DisableCompression: true, ReadBufferSize: 2048, WriteBufferSize: 2048}
	told := false
	var err error
	c.Contender, err = consulsession.NewContender(consulsession.Config{
		Client: consulsession.ClientConfig{Addresses: []string{f.l.server.Addr}, Transport: network{counting{tr, f.n}, c.cut}},
		Prefix: "onlyone", Name: f.name, Lease: 20 * time.Second, TTL: 10 * time.Second, Poll: 2 * time.Second,
		Host: "bench", Command: "bench", Log: zerolog.Nop(),
		Now:    func() time.Duration { return time.Since(f.start) },
		Jitter: func(most time.Duration) time.Duration { return rand.N(max(most, 1)) },
		Waiting: func(consulsession.Queue) {
			if told {
				return
			}
			told = true
			f.mu.Lock()
			defer f.mu.Unlock()
			f.waiting++
		},
	})
	if err != nil {
		return nil, err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	f.wg.Go(func() {
		defer tr.CloseIdleConnections()
		defer close(c.got)
		term, err := c.Acquire(ctx, func([]byte) error { return nil })
		f.mu.Lock()
		defer f.mu.Unlock()
		c.at, c.term = time.Now(), term
		if err != nil && ctx.Err() == nil {
			f.errs = append(f.errs, err)
		}
		if err != nil {
			return
		}
		if !f.released.IsZero() {
			f.gaps = append(f.gaps, c.at.Sub(f.released))
		}
		select {
		case f.next <- c:
		default: // nobody takes them
		}
	})
	return c, nil
}

// joinAll has n join, one after the other, so that they are queued in this order.
func (f *field) joinAll(ctx context.Context, n int) ([]*contender, error) {
	var all []*contender
	for i := range n {
		c, err := f.join(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		if err := until(ctx, time.Minute, "contenders are queued", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.waiting > i
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// keep renews a holder's session until stop is called or its host has crashed.
func (c *contender) keep() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(2 * time.Second); ; {
			select {
			case <-tick.C:
				_ = c.term.Renew(ctx)
			case <-c.cut:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// crash ends a contender as the power failure of its host would.
func (c *contender) crash() {
	close(c.cut)
	c.cancel()
}

// release gives the lock back after hold.
func (c *contender) release(ctx context.Context, hold time.Duration) error {
	started := time.Now()
	time.Sleep(hold)
	c.f.mu.Lock()
	c.f.released = time.Now()
	c.f.mu.Unlock()
	return c.term.Release(ctx, consulsession.Ended{Started: started, Ended: time.Now(), Outcome: "exited"})
}

func (f *field) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.errs...)
}
