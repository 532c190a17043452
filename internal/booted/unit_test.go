//go:build booted

package booted

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// A job is a lock and the command under it, as units on some hosts.
type job struct {
	t     *testing.T
	lock  string
	unit  string
	file  string // where its commands write when they live, see consultest.Child
	hosts []*host
}

// newJob makes the unit of a lock on each host, by "onlyone systemd". A command that is empty
// is a consultest.Child.
func newJob(t *testing.T, hosts []*host, flags string, child consultest.ChildOptions, command ...string) *job {
	t.Helper()
	j := &job{t: t, lock: strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), hosts: hosts}
	j.unit = "onlyone-" + j.lock + ".service"
	j.file = filepath.Join(base(), "shared", j.lock)
	for _, h := range hosts {
		argv := command
		if len(argv) == 0 {
			argv = childOn(h, j.lock, child)
		}
		h.sh(t, fmt.Sprintf("onlyone systemd --directory /etc/systemd/system %s %s -- %s && systemctl daemon-reload", flags, j.lock, quoted(argv...)))
	}
	t.Cleanup(j.end)
	return j
}

// childOn is a consultest.Child as a command on a host.
func childOn(h *host, file string, o consultest.ChildOptions) []string {
	o.Tag = h.name
	if o.For == 0 && o.Until == "" {
		o.For = time.Hour // a static Go program that waits for nothing ends as a deadlock
	}
	argv := consultest.Child(filepath.Join(shared, file), o)
	argv[0] = "/usr/local/bin/booted"
	return argv
}

// end stops all units, and checks that nothing is left in Consul and that no two commands
// lived at once.
func (j *job) end() {
	for _, h := range j.hosts {
		_, _ = h.try("systemctl stop '" + j.unit + "'")
	}
	if j.t.Failed() {
		for _, h := range j.hosts {
			j.t.Logf("%s:\n%s", h.name, h.journal(j.unit))
		}
	}
	if !soon(func() bool { return len(consul.Sessions(j.t, "onlyone/"+j.lock)) == 0 }) {
		j.t.Errorf("sessions are left")
	}
	if keys := consul.Keys(j.t, "onlyone/"+j.lock+"/~queue/"); len(keys) > 0 {
		j.t.Errorf("queue entries are left: %q", keys)
	}
	consultest.NoOverlap(j.t, j.runs())
}

func (j *job) runs() []consultest.Interval { return consultest.ReadIntervals(j.t, j.file) }

// running waits until the n-th command is the last one that was started, and is on h.
func (j *job) running(n int, h *host) consultest.Interval {
	j.t.Helper()
	var runs []consultest.Interval
	if !soon(func() bool { runs = j.runs(); return len(runs) >= n }) {
		j.t.Fatalf("%d commands have been started after %s, want %d", len(runs), patience, n)
	}
	if last := runs[n-1]; len(runs) != n || last.Tag != h.name {
		j.t.Fatalf("command %d of %d is on %s, want %d on %s", n, len(runs), last.Tag, n, h.name)
	}
	return runs[n-1]
}

// start starts the unit and waits for its state.
func (j *job) start(h *host, status string) {
	j.t.Helper()
	h.sh(j.t, "systemctl start '"+j.unit+"'")
	h.state(j.t, j.unit, "active", status)
}

// pids are the processes of the unit, by their command names, as h sees them.
func (j *job) pid(h *host, comm string) int {
	j.t.Helper()
	main := h.show(j.t, j.unit, "MainPID")
	if comm == "onlyone" {
		n, _ := strconv.Atoi(main)
		return n
	}
	out := h.sh(j.t, fmt.Sprintf(`for p in $(cat /proc/%s/task/*/children); do echo "$p $(cat /proc/$p/comm)"; done`, main))
	for line := range strings.Lines(out) {
		if pid, name, _ := strings.Cut(strings.TrimSpace(line), " "); name == comm {
			n, _ := strconv.Atoi(pid)
			return n
		}
	}
	j.t.Fatalf("%s: there is no %s below %s: %q", h.name, comm, main, out)
	return 0
}

// handOver is the time from a fault to the start of the next command, which must be far below
// what a host that died takes (2 x TTL + lease).
func (j *job) handOver(fault time.Duration, next consultest.Interval, most time.Duration) {
	j.t.Helper()
	took := next.Start - fault
	j.t.Logf("the next command started after %s", took.Round(time.Millisecond))
	if took > most {
		j.t.Errorf("the next command started after %s, want %s at most", took, most)
	}
}

// quoted is words for a shell.
func quoted(words ...string) string {
	var out []string
	for _, w := range words {
		out = append(out, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(out, " ")
}
