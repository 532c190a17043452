// Package systemd is what a process of a service has to say to its service manager, and
// what it may know of its unit. Without a manager every call does nothing.
//
// The protocol is that of sd_notify(3): datagrams to the socket in NOTIFY_SOCKET, a path or,
// after an '@', a name in the abstract namespace.
package systemd

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier tells a service manager the state. Its methods are safe for concurrent use and
// don't wait: while a manager doesn't read (it reloads its configuration), what was said is
// kept in order, and of a status only the latest.
type Notifier struct {
	socket   string
	watchdog time.Duration

	mu      sync.Mutex
	pending []string
	conn    *net.UnixConn // of the message that is under way
	more    chan struct{} // something is pending, or closed
	closed  time.Time     // when Close gave up on the manager; zero before
	gone    chan struct{}
}

// closeLimit is what Close waits for a manager that doesn't read: a hundred times what a busy
// one takes.
const closeLimit = 100 * time.Millisecond

// New takes what the manager wants from the environment. Close must be called.
func New() *Notifier {
	n := &Notifier{socket: os.Getenv("NOTIFY_SOCKET"), more: make(chan struct{}, 1), gone: make(chan struct{})}
	if !n.Active() {
		close(n.gone)
		return n
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID") // empty: whoever reads it
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	go n.speak()
	return n
}

// Close waits until everything is said, for 100 ms at most. Nothing is said after it.
func (n *Notifier) Close() {
	if n.Active() {
		n.mu.Lock()
		n.closed = time.Now().Add(closeLimit)
		if n.conn != nil {
			_ = n.conn.SetWriteDeadline(n.closed)
		}
		n.mu.Unlock()
		n.wake()
	}
	<-n.gone
}

// Active reports whether a service manager listens.
func (n *Notifier) Active() bool { return n.socket != "" }

// Watchdog is how long the manager waits for the next Alive before it ends the service; 0
// if it doesn't.
func (n *Notifier) Watchdog() time.Duration { return n.watchdog }

// Ready says that the service is up, for the first time or after Reloading.
func (n *Notifier) Ready() { n.send("READY=1") }

// Status sets the line that systemctl status shows.
func (n *Notifier) Status(status string) { n.send("STATUS=" + oneLine(status)) }

// Stopping says that the service is ending.
func (n *Notifier) Stopping() { n.send("STOPPING=1") }

// Alive feeds the watchdog.
func (n *Notifier) Alive() { n.send("WATCHDOG=1") }

// Reloading says that the configuration is being read again; Ready ends that.
func (n *Notifier) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return
	}
	n.send("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10))
}

// ExtendTimeout asks for d from now on for a start or a stop that is under way. The first
// one has to come before the unit's own timeout is over.
func (n *Notifier) ExtendTimeout(d time.Duration) {
	n.send("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10))
}

// send queues one message. Of what is a state and not an event, only the latest is kept.
func (n *Notifier) send(assignments ...string) {
	if !n.Active() {
		return
	}
	message := strings.Join(assignments, "\n")
	key, _, _ := strings.Cut(message, "=")
	n.mu.Lock()
	switch key {
	case "STATUS", "WATCHDOG", "EXTEND_TIMEOUT_USEC":
		n.pending = slices.DeleteFunc(n.pending, func(m string) bool { return strings.HasPrefix(m, key+"=") })
	}
	if n.closed.IsZero() {
		n.pending = append(n.pending, message)
	}
	n.mu.Unlock()
	n.wake()
}

func (n *Notifier) wake() {
	select {
	case n.more <- struct{}{}:
	default:
	}
}

// speak says what is pending, until Close.
func (n *Notifier) speak() {
	defer close(n.gone)
	for {
		n.mu.Lock()
		over := !n.closed.IsZero()
		if len(n.pending) == 0 || over && time.Now().After(n.closed) {
			n.mu.Unlock()
			if over {
				return
			}
			<-n.more
			continue
		}
		message := n.pending[0]
		n.pending = n.pending[1:]
		n.mu.Unlock()
		n.say(message)
	}
}

// say sends one datagram. It waits until the manager has room for it, or Close's limit.
func (n *Notifier) say(message string) {
	// net knows that an '@' means the abstract namespace.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	n.mu.Lock()
	n.conn = c
	_ = c.SetWriteDeadline(n.closed) // zero: none
	n.mu.Unlock()
	_, _ = c.Write([]byte(message))
	n.mu.Lock()
	n.conn = nil
	n.mu.Unlock()
}

// oneLine keeps what others wrote into Consul from becoming assignments of its own.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return ' '
		}
		return r
	}, s)
}

// WithoutNotify is env without what is meant for this process and not for the command.
func WithoutNotify(env []string) []string {
	return without(env, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
}

// WithNotify is env for a command that speaks with the manager itself. WATCHDOG_PID names
// this process, and a command would believe that the watchdog isn't for it.
func WithNotify(env []string) []string { return without(env, "WATCHDOG_PID") }

func without(env []string, names ...string) []string {
	var out []string
next:
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		for _, n := range names {
			if n == name {
				continue next
			}
		}
		out = append(out, kv)
	}
	return out
}
