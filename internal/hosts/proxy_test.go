//go:build linux

package main

import (
	"bufio"
	"context"
	"net"
	"testing"
	"time"
)

// here is this machine's loopback.
type here struct{}

func (here) listen(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
func (here) dial(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

// TestProxy: what is held back comes later, in order; what is refused doesn't.
func TestProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	came := make(chan string, 10) // what the server has got
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					came <- in.Text()
					_, _ = c.Write([]byte("answer to " + in.Text() + "\n"))
				}
			}()
		}
	}()
	p, err := newProxy(here{}, "127.0.0.1:0", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	connect := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", p.ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, bufio.NewReader(c)
	}
	say := func(c net.Conn, s string) {
		if _, err := c.Write([]byte(s + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(r *bufio.Reader, want string) {
		t.Helper()
		if got, err := r.ReadString('\n'); err != nil || got != want+"\n" {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	silent := func(c net.Conn) { // for a while: it can't be longer without taking longer
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Fatal("an answer came that should have been held back")
		}
		_ = c.SetReadDeadline(time.Time{})
	}

	c, r := connect()
	say(c, "one")
	hear(r, "answer to one")
	<-came

	p.set(modeHoldAnswers, 0)
	say(c, "two")
	if got := <-came; got != "two" {
		t.Fatalf("the server got %q", got)
	}
	silent(c)
	p.set(modeHang, 0)
	say(c, "three")
	silent(c)
	if len(came) > 0 {
		t.Fatalf("the server got %q through a proxy that hangs", <-came)
	}
	p.set(modePass, 0)
	hear(r, "answer to two")
	hear(r, "answer to three")

	p.set(modeRefuse, 0)
	if _, err := r.ReadString('\n'); err == nil {
		t.Fatal("the connection isn't reset")
	}
	// The kernel accepts, the proxy doesn't; the dialer may see it or not.
	if c, err := net.Dial("tcp", p.ln.Addr().String()); err == nil {
		_, _ = c.Write([]byte("four\n"))
		if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			t.Fatal("a new connection isn't refused")
		}
		c.Close()
	}
	p.set(modePass, time.Millisecond)
	c3, r3 := connect()
	say(c3, "five")
	hear(r3, "answer to five")
}
