//go:build booted

package booted

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what ought to take a second.
const patience = 40 * time.Second

// shared is a folder that all hosts have, at the same path.
const shared = "/shared"

// A host is a booted systemd.
type host struct {
	name   string
	root   string // its file system, as seen from here
	nspawn *exec.Cmd
	ended  chan struct{} // closed when the host is off
	init   int           // the pid of its systemd, as seen from here
	log    bytes.Buffer
}

// base is where the hosts' file systems are; scripts/test-systemd makes it.
func base() string { return os.Getenv("BOOTED") }

// boot starts a host and waits until its systemd has booted.
func boot(name string) (*host, error) {
	h := &host{name: name, root: filepath.Join(base(), name)}
	upper := filepath.Join(base(), "upper", name)
	work := filepath.Join(base(), "work", name)
	for _, dir := range []string{h.root, upper, work, filepath.Join(base(), "shared")} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(filepath.Join(base(), "shared"), 0o1777); err != nil {
		return nil, err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(base(), "tree"), upper, work)
	if err := unix.Mount("overlay", h.root, "overlay", 0, options); err != nil {
		return nil, fmt.Errorf("cannot mount the root of %s: %w", name, err)
	}
	if err := os.MkdirAll(filepath.Join(h.root, "etc/default"), 0o755); err != nil {
		return nil, err
	}
	err := errors.Join(
		os.WriteFile(filepath.Join(h.root, "etc/hostname"), []byte(name+"\n"), 0o644),
		os.WriteFile(filepath.Join(h.root, "etc/default/onlyone"), []byte("CONSUL_HTTP_ADDR="+consul.Addr+"\n"), 0o644),
	)
	return h, errors.Join(err, h.start())
}

// start powers the host on, for the first time or once more.
func (h *host) start() error {
	// Each in a cgroup of its own: nspawn divides the one that it is in.
	group := filepath.Join("/sys/fs/cgroup", h.name)
	if err := os.MkdirAll(group, 0o755); err != nil {
		return err
	}
	h.nspawn = exec.Command("sh", "-c", `echo 0 >"$1/cgroup.procs"; shift; exec "$@"`, "sh", group,
		"systemd-nspawn", "-q", "-D", h.root, "--boot", "--register=no", "--keep-unit", "--machine="+h.name, "--hostname="+h.name,
		"--console=pipe", "--bind="+filepath.Join(base(), "shared")+":"+shared, "--kill-signal=SIGRTMIN+4")
	h.nspawn.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	h.nspawn.Stdout, h.nspawn.Stderr = &h.log, &h.log
	h.nspawn.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.nspawn.Start(); err != nil {
		return err
	}
	h.ended = make(chan struct{})
	go func() {
		_ = h.nspawn.Wait()
		close(h.ended)
	}()
	h.init = 0
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		h.init = systemdBelow(h.nspawn.Process.Pid)
		if h.init != 0 {
			if out, err := h.try("systemctl is-system-running"); err == nil || strings.TrimSpace(out) == "degraded" {
				return nil
			}
		}
		select {
		case <-h.ended:
			return fmt.Errorf("%s doesn't boot:\n%s", h.name, h.log.Bytes())
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s hasn't booted after %s:\n%s", h.name, patience, h.log.Bytes())
		}
	}
}

// systemdBelow is the pid of the systemd that descends from a nspawn, or 0.
func systemdBelow(pid int) int {
	for _, child := range children(pid) {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
		if string(comm) == "systemd\n" {
			return child
		}
		if found := systemdBelow(child); found != 0 {
			return found
		}
	}
	return 0
}

func children(pid int) (pids []int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, f := range strings.Fields(string(b)) {
		if n, err := strconv.Atoi(f); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// try runs a line of shell on the host, as root.
func (h *host) try(line string) (string, error) {
	ctx, done := context.WithTimeout(context.Background(), 2*patience)
	defer done()
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(h.init), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "sh", "-c", line)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// sh is try that must succeed.
func (h *host) sh(t *testing.T, line string) string {
	t.Helper()
	out, err := h.try(line)
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", h.name, line, err, out)
	}
	return strings.TrimSpace(out)
}

// write makes a file on the host.
func (h *host) write(t *testing.T, path, content string) {
	t.Helper()
	file := filepath.Join(h.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// show is a property of a unit.
func (h *host) show(t *testing.T, unit, property string) string {
	t.Helper()
	return h.sh(t, "systemctl show -P "+property+" '"+unit+"'")
}

// journal is what the unit's processes have said.
func (h *host) journal(unit string) string {
	out, _ := h.try("journalctl -q -b --no-pager -o short-precise -u '" + unit + "'")
	return out
}

// eventually waits until f is true.
func (h *host) eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	if !soon(f) {
		t.Fatalf("%s: not after %s: %s", h.name, patience, what)
	}
}

func soon(f func() bool) bool {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// state waits for a unit's ActiveState and, unless it is empty, a beginning of its status.
func (h *host) state(t *testing.T, unit, active, status string) {
	t.Helper()
	var got string
	if !soon(func() bool {
		got = h.sh(t, "systemctl show -P ActiveState '"+unit+"'; systemctl show -P StatusText '"+unit+"'")
		a, s, _ := strings.Cut(got, "\n")
		return a == active && strings.HasPrefix(s, status)
	}) {
		t.Fatalf("%s: %s is %q, want %s %q\n%s", h.name, unit, got, active, status, h.journal(unit))
	}
}

// off waits until the host is off.
func (h *host) off(t *testing.T) {
	t.Helper()
	select {
	case <-h.ended:
	case <-time.After(patience):
		t.Fatalf("%s doesn't power off\n%s", h.name, h.log.Bytes())
	}
}
