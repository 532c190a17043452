// Package systemd tells a service manager the state, through NOTIFY_SOCKET.
// Without one every call does nothing. Safe for concurrent use.
package systemd

import (
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notifier speaks sd_notify's protocol.
type Notifier struct{ socket string }

// New takes the socket from the environment.
func New() *Notifier { return &Notifier{os.Getenv("NOTIFY_SOCKET")} }

// Active reports whether a service manager listens.
func (n *Notifier) Active() bool { return n.socket != "" }

// Ready says that the service is up: it contends for the lock. A standby must not hang
// the boot, so this doesn't wait for the lock.
func (n *Notifier) Ready(status string) { n.send(daemon.SdNotifyReady, "STATUS="+status) }

// Status sets the line that systemctl status shows.
func (n *Notifier) Status(status string) { n.send("STATUS=" + status) }

// Stopping says that the service is ending.
func (n *Notifier) Stopping(status string) { n.send(daemon.SdNotifyStopping, "STATUS="+status) }

func (n *Notifier) send(state ...string) {
	if n.socket == "" {
		return
	}
	// A service manager that doesn't listen must not stop the job.
	_, _ = daemon.SdNotify(false, strings.Join(state, "\n"))
}

// WithoutNotify removes from env what is meant for this process and not for the command.
func WithoutNotify(env []string) []string {
	var out []string
	for _, kv := range env {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID":
		default:
			out = append(out, kv)
		}
	}
	return out
}
