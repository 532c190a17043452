package cli

import (
	"bytes"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A listener is a service manager of a test.
type listener struct {
	t *testing.T
	c *net.UnixConn
}

func listenAs(t *testing.T, watchdog string) *listener {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", watchdog)
	t.Setenv("WATCHDOG_PID", "")
	return &listener{t, c}
}

// next is the next message, up to its first line's end; "" if there is none for so long.
func (l *listener) next(limit time.Duration) string {
	_ = l.c.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 4096)
	n, err := l.c.Read(b)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b[:n]), "\n")
	return first
}

// want checks that these messages come, and none besides.
func (l *listener) want(want ...string) {
	l.t.Helper()
	for _, w := range want {
		if got := l.next(20 * time.Second); got != w {
			l.t.Errorf("said %q, want %q", got, w)
		}
	}
	if got := l.next(30 * time.Millisecond); got != "" {
		l.t.Errorf("said %q, want nothing more", got)
	}
}

func TestManagerStandby(t *testing.T) {
	l := listenAs(t, "")
	m, _ := newManager(notifyStandby)
	m.contend("contending")
	l.want("STATUS=contending") // Consul may still refuse us
	m.wait(always("second"))
	m.wait(always("second"))
	l.want("STATUS=second", "READY=1")
	m.wait(always("first"))
	l.want("STATUS=first")
	m.run("running")
	m.started()
	l.want("STATUS=running")
	m.stop("stopping", false) // lost; it contends again
	l.want("STATUS=stopping")
	m.contend("contending")
	l.want("STATUS=contending")
	m.run("running")
	l.want("STATUS=running")
	m.stop("stopping", true)
	l.want("STOPPING=1", "STATUS=stopping")
	m.close()
}

// A start whose lock is free is up when it runs; one that Consul leaves in the dark is up
// after a while, so that it doesn't hang the boot.
func TestManagerIsUpInTime(t *testing.T) {
	l := listenAs(t, "")
	m, _ := newManager(notifyStandby)
	m.contend("contending")
	l.want("STATUS=contending")
	m.run("running")
	l.want("STATUS=running", "READY=1")
	m.close()
	l = listenAs(t, "")
	m, _ = newManager(notifyStandby)
	m.contend("contending")
	m.pulse(m.since.Add(readyLimit - time.Second))
	l.want("STATUS=contending")
	m.pulse(m.since.Add(readyLimit))
	l.want("READY=1")
	m.close()
}

func TestManagerRunning(t *testing.T) {
	l := listenAs(t, "")
	m, _ := newManager(notifyRunning)
	m.wait(always("first"))
	l.want("STATUS=first")
	m.pulse(m.since.Add(2 * readyLimit))
	l.want("EXTEND_TIMEOUT_USEC=15000000")
	m.run("running")
	l.want("STATUS=running") // it may not be executable
	m.started()
	l.want("READY=1")
	m.contend("contending")
	l.want("STATUS=contending")
	m.pulse(m.since.Add(2 * readyLimit)) // it was up
	l.want()
	m.close()
}

func TestManagerChild(t *testing.T) {
	l := listenAs(t, "20000")
	m, _ := newManager(notifyChild)
	m.contend("contending")
	m.wait(always("first"))
	m.run("running")
	m.started()
	passed := 0
	if !m.reload(func() { passed++ }) || passed != 1 {
		t.Errorf("SIGHUP was passed on %d times", passed)
	}
	m.stop("stopping", true)
	stop := m.beat()
	stop()
	l.want()
	if env := m.env([]string{"NOTIFY_SOCKET=x", "WATCHDOG_USEC=1", "WATCHDOG_PID=1"}); !slices.Equal(env, []string{"NOTIFY_SOCKET=x", "WATCHDOG_USEC=1"}) {
		t.Errorf("the command's environment is %q", env)
	}
}

func TestManagerReload(t *testing.T) {
	l := listenAs(t, "")
	m, _ := newManager(notifyStandby)
	m.wait(always("first"))
	l.want("STATUS=first", "READY=1")
	// A standby would end by it.
	if !m.reload(func() { t.Error("a standby's SIGHUP was passed on") }) {
		t.Error("a standby's SIGHUP wasn't taken")
	}
	l.want("RELOADING=1", "READY=1")
	m.run("running")
	l.want("STATUS=running")
	if !m.reload(func() { l.want("RELOADING=1") }) {
		t.Error("SIGHUP wasn't taken")
	}
	l.want("READY=1")
	m.close()

	t.Setenv("NOTIFY_SOCKET", "")
	m, _ = newManager(notifyStandby)
	if m.reload(func() { t.Error("passed on") }) {
		t.Error("SIGHUP was taken without a service manager")
	}
	m.close()
}

// The watchdog is fed only while the loop turns, and a stop gets more time only then.
func TestManagerBeat(t *testing.T) {
	l := listenAs(t, "20000")
	m, turns := newManager(notifyStandby)
	m.run("running")
	l.want("STATUS=running", "READY=1")
	m.stop("stopping", true)
	l.want("STOPPING=1", "STATUS=stopping")
	stop := m.beat()
	l.want() // a loop that hangs isn't alive
	<-turns
	l.want("WATCHDOG=1", "EXTEND_TIMEOUT_USEC=15000000")
	stop()
}

// "since 4m" is kept up to date.
func TestManagerStatusAges(t *testing.T) {
	l := listenAs(t, "")
	m, _ := newManager(notifyStandby)
	m.wait(func(now time.Time) string { return "held since " + now.Sub(m.since).Truncate(time.Minute).String() })
	l.want("STATUS=held since 0s", "READY=1")
	m.pulse(time.Now().Add(statusAge / 2))
	l.want()
	m.pulse(m.since.Add(4*time.Minute + time.Second))
	l.want("STATUS=held since 4m0s")
	m.close()
}

func TestReleaseCommand(t *testing.T) {
	release := func() (string, int) {
		var stdout, stderr bytes.Buffer
		code := New("test", nil).Main(t.Context(), []string{"onlyone", "release"}, &stdout, &stderr)
		return stdout.String() + stderr.String(), code
	}
	dir := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", dir)
	t.Setenv("SERVICE_RESULT", "")
	t.Setenv("MAINPID", "")
	if out, code := release(); code != exitUsage || !strings.Contains(out, "ExecStopPost=") {
		t.Errorf("by hand: exit %d, %q", code, out)
	}
	t.Setenv("SERVICE_RESULT", "success")
	t.Setenv("MAINPID", "4711") // ExecStop=: it still runs
	if out, code := release(); code != exitUsage {
		t.Errorf("beside the main process: exit %d, %q", code, out)
	}
	t.Setenv("MAINPID", "")
	if out, code := release(); code != 0 || out != "" {
		t.Errorf("with nothing to release: exit %d, %q", code, out)
	}
	t.Setenv("RUNTIME_DIRECTORY", "")
	if out, code := release(); code != exitUsage || !strings.Contains(out, "RuntimeDirectory=") {
		t.Errorf("without a runtime directory: exit %d, %q", code, out)
	}
}
