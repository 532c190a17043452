//go:build linux

package main

import (
	"context"
	"net"
	"sync"
	"time"
)

// A mode is what a proxy does to bytes.
type mode int

const (
	modePass        mode = iota
	modeHang             // nothing passes; connections stay open, new ones are accepted
	modeHoldAnswers      // requests pass, answers wait
	modeRefuse           // connections are reset
)

// A proxy stands between a program and what it speaks to, on the program's host. What it has
// held back passes when the mode allows it: late, but in order.
type proxy struct {
	from   place
	target string
	ln     net.Listener

	mu      sync.Mutex
	mode    mode
	delay   time.Duration // each way
	changed chan struct{} // closed when the mode is replaced
	conns   map[net.Conn]bool
	closed  bool
	wg      sync.WaitGroup
}

// A place is where a proxy listens and from where it connects: a host.
type place interface {
	listen(addr string) (net.Listener, error)
	dial(ctx context.Context, addr string) (net.Conn, error)
}

func newProxy(from place, listen, target string) (*proxy, error) {
	ln, err := from.listen(listen)
	if err != nil {
		return nil, err
	}
	p := &proxy{from: from, target: target, ln: ln, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) set(m mode, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.delay = m, delay
	close(p.changed)
	p.changed = make(chan struct{})
	if m == modeRefuse {
		p.reset()
	}
}

// reset ends all connections by RST. The caller has the lock.
func (p *proxy) reset() {
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
	clear(p.conns)
}

func (p *proxy) close() {
	p.ln.Close()
	p.mu.Lock()
	p.closed = true
	p.reset()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		if p.add(c) {
			p.wg.Go(func() { p.serve(c) })
		}
	}
}

// add notes a connection, unless it has to end.
func (p *proxy) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.closed || p.mode == modeRefuse {
		p.reset()
		return false
	}
	return true
}

func (p *proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

func (p *proxy) serve(c net.Conn) {
	defer p.remove(c)
	if !p.wait(true, 0) {
		return
	}
	to, err := p.from.dial(context.Background(), p.target)
	if err != nil || !p.add(to) {
		return
	}
	defer p.remove(to)
	p.wg.Go(func() { p.pump(c, to, false) })
	p.pump(to, c, true)
}

// pump copies one direction until either end is closed.
func (p *proxy) pump(to, from net.Conn, request bool) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 && (!p.wait(request, p.delayed()) || !writeAll(to, b[:n])) {
			return
		}
		if err != nil {
			return
		}
	}
}

func writeAll(c net.Conn, b []byte) bool {
	_, err := c.Write(b)
	return err == nil
}

func (p *proxy) delayed() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// wait returns true when bytes of that direction may pass, at the earliest after delay.
func (p *proxy) wait(request bool, delay time.Duration) bool {
	if delay > 0 {
		time.Sleep(delay) // it only makes bytes late, nothing waits for this goroutine alone
	}
	for {
		p.mu.Lock()
		m, changed, closed := p.mode, p.changed, p.closed
		p.mu.Unlock()
		switch {
		case closed || m == modeRefuse:
			return false
		case m == modePass || m == modeHoldAnswers && request:
			return true
		}
		<-changed
	}
}
