package systemd

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// listen is a service manager's socket.
func listen(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "")
	t.Setenv("WATCHDOG_PID", "")
	return c
}

func read(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestMessages(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@onlyone-test-%d", os.Getpid())} {
		c := listen(t, name)
		n := New()
		for _, m := range []struct {
			say  func()
			want string
		}{
			{n.Ready, "READY=1"},
			{func() { n.Status("standby: a\nREADY=1") }, "STATUS=standby: a READY=1"},
			{n.Alive, "WATCHDOG=1"},
			{func() { n.ExtendTimeout(1500 * time.Millisecond) }, "EXTEND_TIMEOUT_USEC=1500000"},
			{n.Stopping, "STOPPING=1"},
		} {
			m.say()
			if got := read(t, c); got != m.want {
				t.Errorf("got %q, want %q", got, m.want)
			}
		}
		n.Reloading()
		var usec int64
		if got := read(t, c); !strings.HasPrefix(got, "RELOADING=1\n") {
			t.Errorf("got %q", got)
		} else if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &usec); err != nil || usec <= 0 {
			t.Errorf("got %q: %v", got, err)
		}
		n.Close()
	}
}

// A manager that doesn't read for a while misses no event, gets the latest status, and
// doesn't keep anybody waiting.
func TestManagerThatDoesNotRead(t *testing.T) {
	c := listen(t, filepath.Join(t.TempDir(), "notify"))
	n := New()
	for i := range 5000 { // more than its queue has room for
		n.Status(fmt.Sprint("full ", i))
		n.Alive()
	}
	n.Ready()
	for i := range 1000 {
		n.Status(fmt.Sprint("later ", i))
	}
	n.mu.Lock()
	kept := len(n.pending)
	n.mu.Unlock()
	if kept > 3 {
		t.Errorf("%d messages are kept, want 3 at most", kept)
	}
	var got []string
	for !slices.Contains(got, "STATUS=later 999") {
		got = append(got, read(t, c))
	}
	if !slices.Contains(got, "READY=1") {
		t.Errorf("READY=1 got lost among %d messages", len(got))
	}
	n.Close()
}

// Close waits for a manager that doesn't read, but not for long, and then nothing is left.
func TestClose(t *testing.T) {
	listen(t, filepath.Join(t.TempDir(), "notify"))
	n := New()
	for range 5000 {
		n.Ready()
	}
	n.Close() // returns
	n.Ready() // says nothing
}

func TestNobodyListens(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "1000000")
	n := New()
	n.Ready()
	if n.Active() || n.Watchdog() != 0 {
		t.Error("it speaks to nobody")
	}
	n.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "missing"))
	n = New()
	n.Ready()
	n.Close()
}

func TestWatchdogIsForThisProcess(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"10000000", fmt.Sprint(os.Getpid()), 10 * time.Second},
		{"10000000", "", 10 * time.Second},
		{"10000000", "1", 0},
		{"", "", 0},
		{"0", "", 0},
		{"-5", "", 0},
		{"much", "", 0},
	} {
		listen(t, filepath.Join(t.TempDir(), "notify"))
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		n := New()
		if got := n.Watchdog(); got != c.want {
			t.Errorf("WATCHDOG_USEC=%s WATCHDOG_PID=%s: %s, want %s", c.usec, c.pid, got, c.want)
		}
		n.Close()
	}
}

func TestEnvironmentOfTheCommand(t *testing.T) {
	env := []string{"A=1", "NOTIFY_SOCKET=/x", "WATCHDOG_USEC=5", "WATCHDOG_PID=7", "NOTIFY_SOCKETS=1", "B=NOTIFY_SOCKET=/x"}
	if got, want := WithoutNotify(env), []string{"A=1", "NOTIFY_SOCKETS=1", "B=NOTIFY_SOCKET=/x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := WithNotify(env), []string{"A=1", "NOTIFY_SOCKET=/x", "WATCHDOG_USEC=5", "NOTIFY_SOCKETS=1", "B=NOTIFY_SOCKET=/x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
