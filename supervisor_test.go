//go:build linux

package main_test

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// The end-to-end tests: this program, as users run it, on a real Consul.
//
// Each test has a lock of its own on a shared server, and ends with a check that no
// session, no queue entry, no process and no temporary file is left. Instants are read on
// the boot clock. Where a limit is asserted, it is generous, since the machine may be
// busy; what was measured is logged (go test -v).

// onlyone is the path of the binary under test.
var onlyone string

// slack is what a busy machine may add to a time that is measured from outside.
const slack = 4 * time.Second

// patience is how long a test waits for what ought to take milliseconds.
const patience = 90 * time.Second

// cpuLimit is what an onlyone may use in the seconds that these tests last: ten times
// what it needs.
const cpuLimit = 700 * time.Millisecond

func TestMain(m *testing.M) {
	consultest.ChildMain()
	hostMain()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	flag.Parse()
	log.SetOutput(io.Discard) // as in onlyone itself
	// Where the tests were started with these ignored (nohup, a script's "&"), everything that
	// they start would ignore them, too. With a handler here it gets their default action.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "CONSUL_HTTP_") || strings.HasPrefix(name, "ONLYONE_") && name != "ONLYONE_TEST_CONSUL" {
			os.Unsetenv(name)
		}
		switch name {
		case "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "CONSUL_CACERT", "CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY", "CONSUL_NAMESPACE", "CONSUL_PARTITION":
			os.Unsetenv(name)
		}
	}
	// These tests wait more than they work, so more of them than cores may run at once.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "32")
	}
	dir, err := os.MkdirTemp("", "onlyone-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	onlyone = filepath.Join(dir, "onlyone")
	if out, err := exec.Command("go", "build", "-o", onlyone, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	leaveCgroup := ownCgroup()
	code := m.Run()
	closeShared()
	if left := leaveCgroup(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "left behind: cgroups %s\n", strings.Join(left, ", "))
		code = max(code, 1)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// cgroup is the cgroup (v2) of this process and all that it starts; empty if there is none.
var cgroup string

// ownCgroup moves this process into a fresh cgroup, where that is allowed, so that the
// cgroups which onlyone makes for its commands can be told from those of others. leave
// moves it back and returns what was left.
func ownCgroup() (leave func() []string) {
	nothing := func() []string { return nil }
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nothing
	}
	_, path, ok := strings.Cut("\n"+string(own), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if !ok || err != nil {
		return nothing
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if !strings.Contains(line, " - cgroup2 ") || len(f) < 5 || f[3] != "/" {
			continue
		}
		parent := filepath.Join(f[4], path)
		dir := filepath.Join(parent, fmt.Sprintf("test-%d", os.Getpid()))
		move := func(to string) error {
			return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(fmt.Sprint(os.Getpid())), 0)
		}
		if os.Mkdir(dir, 0o755) != nil {
			return nothing
		}
		if move(dir) != nil {
			_ = os.Remove(dir)
			return nothing
		}
		cgroup = dir
		return func() []string {
			left := cgroupsOf("*")
			for _, dir := range left {
				_ = os.Remove(dir)
			}
			if move(parent) == nil {
				soon(time.Second, func() bool { return os.Remove(dir) == nil }) // our zombies leave a moment later
			}
			return left
		}
	}
	return nothing
}

// cgroupsOf are the cgroups that an onlyone has made, by its pid.
func cgroupsOf(pid string) []string {
	if cgroup == "" {
		return nil
	}
	dirs, _ := filepath.Glob(filepath.Join(cgroup, "onlyone-"+pid+"-*"))
	return dirs
}

var (
	sharedMu sync.Mutex
	servers  = map[string]*consultest.Server{}
)

// shared is the server of a version that most tests use together.
func shared(t *testing.T, version string) *consultest.Server {
	t.Helper()
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if servers[version] == nil {
		s, err := consultest.New(consultest.Options{Version: version})
		if err != nil {
			t.Fatal(err)
		}
		servers[version] = s
	}
	return servers[version]
}

func closeShared() {
	for _, s := range servers {
		s.Close()
	}
}

// A job is one lock and what a test starts to contend for it.
type job struct {
	t     *testing.T
	s     *consultest.Server
	name  string // of the lock
	file  string // where children write their intervals
	dir   string
	tmp   string // TMPDIR of all that is started
	procs []*proc
	// slowLeave: an onlyone may not have come to leave properly; its session ends by its TTL.
	slowLeave bool
}

// newJob makes a job and checks at the end of the test that nothing of it is left.
func newJob(t *testing.T, s *consultest.Server) *job {
	// The number is for go test -count: what a failed test has left is in nobody's way.
	name := fmt.Sprintf("%s-%d", unusual.ReplaceAllString(t.Name(), "-"), jobs.Add(1))
	j := &job{t: t, s: s, name: name, dir: t.TempDir()}
	j.file, j.tmp = filepath.Join(j.dir, "intervals"), filepath.Join(j.dir, "tmp")
	if err := os.Mkdir(j.tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.check)
	return j
}

var jobs atomic.Int64

var unusual = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// check is what holds after every test.
func (j *job) check() {
	for _, p := range j.procs {
		select {
		case <-p.done:
		default:
			j.t.Errorf("%s still runs at the end of the test; it says:\n%s", p, p.stderr())
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	limit := 10 * time.Second
	if j.slowLeave || slices.ContainsFunc(j.procs, (*proc).hurried) {
		limit = 40 * time.Second
	}
	nothingLeft(j.t, j.s, j.name, j.t.Name(), j.tmp, limit)
}

// nothingLeft checks that a lock is free, and that no session, queue entry, process or
// temporary file is left. What a killed onlyone's guard does may take a moment.
func nothingLeft(t testing.TB, s *consultest.Server, name, mark, tmp string, limit time.Duration) {
	t.Helper()
	var left []string
	soon(limit, func() bool {
		left = nil
		for _, line := range consultest.Marked(mark) {
			left = append(left, "process "+line)
		}
		for _, id := range s.Sessions(t, "onlyone/"+name) {
			left = append(left, "session "+id)
		}
		for _, key := range s.Keys(t, "onlyone/"+name+"/") {
			switch ofCopy.ReplaceAllString(strings.TrimPrefix(key, "onlyone/"+name+"/"), "") {
			case ".runs", ".holder", ".period", ".copies", ".lock-bell":
			case ".lock", "~held":
				if kv := s.Key(t, key); kv != nil && kv.Session != "" {
					left = append(left, "lock held by session "+kv.Session)
				}
			default:
				left = append(left, "key "+key)
			}
		}
		return len(left) == 0
	})
	for _, l := range left {
		t.Errorf("left behind: %s", l)
	}
	for pid := range consultest.Marked(mark) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	files, err := os.ReadDir(tmp)
	if err != nil {
		t.Error(err)
	}
	for _, f := range files {
		t.Errorf("left behind: temporary file %s", f.Name())
	}
}

// ofCopy is the number of a copy in a key below its lock.
var ofCopy = regexp.MustCompile(`^\d+/|/\d+$`)

// soon calls f until it returns true, or the limit has passed.
func soon(limit time.Duration, f func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// await waits until f returns true.
func (j *job) await(what string, f func() bool) {
	j.t.Helper()
	if !soon(patience, f) {
		for _, p := range j.procs {
			j.t.Logf("%s says:\n%s", p, p.stderr())
		}
		j.t.Fatalf("after %s still not: %s", patience, what)
	}
}

// A proc is a process that a job started.
type proc struct {
	j     *job
	cmd   *exec.Cmd
	mark  string
	log   string
	done  chan struct{}
	ended time.Duration // on the boot clock; after done
	asked time.Duration // when it was told to stop, on the same clock; 0: never
}

// run starts "onlyone run FLAGS NAME -- COMMAND".
func (j *job) run(flags string, command ...string) *proc {
	j.t.Helper()
	args := append([]string{onlyone, "run"}, strings.Fields(flags)...)
	return j.start(append(append(args, j.name, "--"), command...)...)
}

// start starts any program, with this job's server.
func (j *job) start(args ...string) *proc {
	j.t.Helper()
	return j.startWith(func(*exec.Cmd) {}, args...)
}

// startWith lets edit change what is about to be started.
func (j *job) startWith(edit func(*exec.Cmd), args ...string) *proc {
	j.t.Helper()
	n := len(j.procs)
	p := &proc{j: j, mark: fmt.Sprintf("%s/%d", j.t.Name(), n), log: filepath.Join(j.dir, fmt.Sprintf("log%d", n)), done: make(chan struct{})}
	// A file and not a pipe: waiting for the process isn't waiting for its descendants.
	log, err := os.Create(p.log)
	if err != nil {
		j.t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, j.dir
	// A group of its own, as a shell gives it: when a command ends beside a stopped onlyone, and
	// with it the last one of their group whose parent is in another, the kernel sends the group a SIGHUP.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // if the test is killed
	p.cmd.Env = append(os.Environ(), "CONSUL_HTTP_ADDR="+j.s.Addr, "TMPDIR="+j.tmp, consultest.Mark(p.mark))
	edit(p.cmd)
	if err := p.cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
		p.ended = consultest.BootNow()
	}()
	j.procs = append(j.procs, p)
	return p
}

func (p *proc) String() string { return fmt.Sprintf("process %d of the test", p.cmd.Process.Pid) }

// stderr is what it has written, to stdout or stderr.
func (p *proc) stderr() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

func (p *proc) signal(s syscall.Signal) {
	p.j.t.Helper()
	if p.asked == 0 {
		p.asked = consultest.BootNow()
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		p.j.t.Errorf("%s to %s: %v", s, p, err)
	}
}

// kill is kill -9 of onlyone, and only of it.
func (p *proc) kill() { p.signal(syscall.SIGKILL) }

// hurried: it was stopped, and may have come to the end of the time in which it leaves the queue;
// then its session ends by its TTL, and the next one sweeps.
func (p *proc) hurried() bool { return p.asked != 0 && p.ended-p.asked > 80*time.Millisecond }

// wait waits for the end of the process, which must be as wanted: an exit code, or minus
// a signal. If it wasn't killed, nothing of what it started may be alive then.
func (p *proc) wait(want int) {
	p.j.t.Helper()
	select {
	case <-p.done:
	case <-time.After(3 * patience):
		p.j.t.Fatalf("%s doesn't end; it says:\n%s", p, p.stderr())
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	got := status.ExitStatus()
	if status.Signaled() {
		got = -int(status.Signal())
	}
	if got != want {
		p.j.t.Errorf("%s ended with %d, want %d; it says:\n%s", p, got, want, p.stderr())
	}
	// With its guard and its command, which it has waited for. A guard that reaps while it has
	// real-time priority can spin in the kernel for a second (shrink_dcache_parent waits for a
	// thread of the dead that gets no processor).
	if cpu := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(); cpu > cpuLimit {
		p.j.t.Errorf("%s has used the processor for %s", p, cpu)
	}
	if got != -int(syscall.SIGKILL) {
		for _, left := range consultest.Marked(p.mark) {
			p.j.t.Errorf("%s ended, but this lives: %s", p, left)
		}
		for _, left := range cgroupsOf(fmt.Sprint(p.cmd.Process.Pid)) {
			p.j.t.Errorf("%s ended, but its cgroup is there: %s", p, left)
		}
	}
}

// child is the command line of a command that writes its life into the job's file.
func (j *job) child(o consultest.ChildOptions) []string { return consultest.Child(j.file, o) }

// intervals are the lives of the children so far.
func (j *job) intervals() []consultest.Interval {
	j.t.Helper()
	return consultest.ReadIntervals(j.t, j.file)
}

// running waits until n children have started, and returns the last of them.
func (j *job) running(n int) consultest.Interval {
	j.t.Helper()
	var all []consultest.Interval
	j.await(fmt.Sprintf("%d commands started", n), func() bool { all = j.intervals(); return len(all) >= n })
	return all[n-1]
}

// queued waits until n contenders are in the queue.
func (j *job) queued(n int) {
	j.t.Helper()
	j.await(fmt.Sprintf("%d in the queue", n), func() bool { return len(j.s.Keys(j.t, "onlyone/"+j.name+"/~queue/")) == n })
}

func (j *job) lockKey() string { return "onlyone/" + j.name + "/.lock" }

// gate is a file for ChildOptions.Until, and what creates it.
func (j *job) gate(name string) (file string, open func()) {
	file = filepath.Join(j.dir, name)
	return file, func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			j.t.Error(err)
		}
	}
}

// dies waits for an instant of consultest.Death.
func (j *job) dies(death <-chan time.Duration) time.Duration {
	j.t.Helper()
	select {
	case at := <-death:
		return at
	case <-time.After(patience):
		j.t.Fatalf("the command still lives after %s", patience)
		return 0
	}
}

// measured logs a figure.
func measured(t *testing.T, what string, d time.Duration, goal string) {
	t.Helper()
	t.Logf("measured: %s: %s (%s)", what, d.Round(100*time.Microsecond), goal)
}

// TestKill: kill -9 of the running onlyone. Its command is dead, and the next one's
// command runs, at once. Not parallel, for the sake of the figures.
func TestKill(t *testing.T) {
	for _, c := range []struct {
		name       string
		ignoreTerm bool
		killAfter  time.Duration
		goal       string
	}{
		{"a command that ends at TERM", false, 4 * time.Second, "goal: 500ms on an idle machine"},
		{"a command that ignores TERM", true, time.Second, "goal: kill-after of 1s + 500ms on an idle machine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			consultest.Each(t, func(t *testing.T, version string) {
				j := newJob(t, shared(t, version))
				gate, open := j.gate("gate")
				flags := fmt.Sprintf("-k %s", c.killAfter)
				a := j.run(flags, j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: c.ignoreTerm})...)
				first := j.running(1)
				b := j.run(flags, j.child(consultest.ChildOptions{Tag: "b", Until: gate})...)
				j.queued(1)

				death := consultest.Death(t, first.Pid)
				killed := consultest.BootNow()
				a.kill()
				died := j.dies(death)
				next := j.running(2)
				if r := j.lastRun(); r.Token != first.Token || r.Outcome != "failed" || r.Exit != -1 || r.Started == "" || r.Ended == "" {
					t.Errorf("the record of runs ends with %+v, want that the one with token %d was cut short", r, first.Token)
				}
				least := time.Duration(0)
				if c.ignoreTerm {
					least = c.killAfter
				}
				measured(t, "kill -9 of onlyone until its command is dead", died-killed, c.goal)
				measured(t, "kill -9 of onlyone until the next command runs", next.Start-killed, c.goal)
				if next.Start < died {
					t.Errorf("the next command started %s before the first was dead", died-next.Start)
				}
				if took := next.Start - killed; took > least+slack {
					t.Errorf("the next command started after %s", took)
				}
				open()
				a.wait(-int(syscall.SIGKILL))
				b.wait(0)
				consultest.NoOverlap(t, j.intervals())
			})
		})
	}
}

// TestKillGuard: kill -9 of the guard. onlyone itself kills the command and releases.
func TestKillGuard(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	a := j.run("", j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true})...)
	first := j.running(1)
	b := j.run("", j.child(consultest.ChildOptions{Tag: "b", For: 20 * time.Millisecond})...)
	j.queued(1)
	guard := consultest.Children(a.cmd.Process.Pid)
	if len(guard) != 1 {
		t.Fatalf("onlyone has the children %v, want one, the guard", guard)
	}
	death := consultest.Death(t, first.Pid)
	killed := consultest.BootNow()
	if err := syscall.Kill(guard[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	died := j.dies(death)
	a.wait(70)
	if !strings.Contains(a.stderr(), "the guard died") {
		t.Errorf("it doesn't say that the guard died:\n%s", a.stderr())
	}
	b.wait(0)
	all := j.intervals()
	consultest.NoOverlap(t, all)
	measured(t, "kill -9 of the guard until the command is dead", died-killed, "goal: milliseconds")
	measured(t, "kill -9 of the guard until the next command runs", all[1].Start-killed, "goal: 500ms on an idle machine")
}

// TestRequests: a run that nobody contends for costs Consul at most 5 requests.
func TestRequests(t *testing.T) {
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		for _, what := range []string{"first run", "second run"} { // the keys exist then
			proxy := consultest.NewProxy(t, j.s)
			j.run("--http-addr "+proxy.Addr, "true").wait(0)
			n, table := proxy.Count()
			t.Logf("measured: %s: %d requests (goal: at most 5)\n%s", what, n, table)
			if n > 5 {
				t.Errorf("%s: %d requests, want at most 5:\n%s", what, n, table)
			}
		}
		// Who finds it taken and doesn't wait has written nothing.
		gate, open := j.gate("gate")
		holder := j.run("", j.child(consultest.ChildOptions{Until: gate})...)
		j.running(1)
		proxy := consultest.NewProxy(t, j.s)
		j.run("-n --http-addr "+proxy.Addr, "true").wait(75)
		if n, table := proxy.Count(); n != 1 {
			t.Errorf("a taken lock: %d requests, want one read:\n%s", n, table)
		}
		open()
		holder.wait(0)
	})
}

// TestContenders: twenty for one lock. No two at once, every one runs, in the order in
// which they came, with tokens that rise.
func TestContenders(t *testing.T) {
	t.Parallel()
	const contenders = 20
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		gate, open := j.gate("gate")
		for i := range contenders {
			o := consultest.ChildOptions{Tag: fmt.Sprint(i), For: 20 * time.Millisecond}
			if i == 0 {
				o.For, o.Until = 0, gate
			}
			j.run("", j.child(o)...)
			if i == 0 {
				j.running(1)
			}
			j.queued(i)
		}
		open()
		for _, p := range j.procs {
			p.wait(0)
		}
		all := j.intervals()
		consultest.NoOverlap(t, all)
		if len(all) != contenders {
			t.Fatalf("%d commands ran, want %d", len(all), contenders)
		}
		var sum, longest time.Duration
		for i, a := range all {
			if a.Tag != fmt.Sprint(i) {
				t.Errorf("%s ran as number %d", a, i)
			}
			if a.End == 0 {
				t.Errorf("%s never came to its end", a)
			}
			if i > 0 {
				gap := a.Start - all[i-1].End
				sum, longest = sum+gap, max(longest, gap)
			}
		}
		measured(t, "a hand-over, on average", sum/(contenders-1), "goal: milliseconds")
		measured(t, "a hand-over, at most", longest, "goal: milliseconds")
		t.Logf("tokens: %d to %d", all[0].Token, all[contenders-1].Token)
	})
}

// The dials of tests that wait for the end of a lease.
const (
	shortDials    = "--lease 6s --kill-after 1s --poll 1s"
	shortLease    = 6 * time.Second
	shortKill     = time.Second
	shortDeadline = 3880 * time.Millisecond // 6s - 1s - 1s - 2%
)

// TestSilence: Consul doesn't answer the holder any more, in one of several ways (the
// command of consul lock still ran after 240 s), or the holder can't ask. The command is
// gone by the renew deadline and kill-after, counted from the last proof, and another
// contender, which reaches Consul, starts only then.
// https://github.com/hashicorp/consul/issues/18271, https://github.com/hashicorp/consul/issues/9788
func TestSilence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fault   func(*consultest.Proxy, *proc)
		stopped bool
	}{
		{"no answer, connections stay open", func(p *consultest.Proxy, _ *proc) { p.Set(consultest.Hang) }, false},
		{"500 to everything", func(p *consultest.Proxy, _ *proc) { p.Set(consultest.Fail) }, false},
		{"only the answers are lost", func(p *consultest.Proxy, _ *proc) { p.Set(consultest.DropAnswers) }, false},
		{"each answer 3s late", func(p *consultest.Proxy, _ *proc) { p.SetDelay(3 * time.Second) }, false},
		{"onlyone is stopped", func(_ *consultest.Proxy, p *proc) { p.signal(syscall.SIGSTOP) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			consultest.Each(t, func(t *testing.T, version string) {
				j := newJob(t, shared(t, version))
				j.slowLeave = true // who gets no answer tries only once, and not for long
				proxy := consultest.NewProxy(t, j.s)
				a := j.run(shortDials+" --http-addr "+proxy.Addr, j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true})...)
				first := j.running(1)
				b := j.run(shortDials, j.child(consultest.ChildOptions{Tag: "b", For: 50 * time.Millisecond})...)
				j.queued(1)
				j.await("a check of the lock", func() bool { return proxy.LastProof() > first.Start })

				death := consultest.Death(t, first.Pid)
				c.fault(proxy, a)
				died := j.dies(death)
				if c.stopped {
					time.Sleep(2 * time.Second) // it finds all of its deadlines in the past
					a.signal(syscall.SIGCONT)
				}
				proof := proxy.LastProof()
				a.wait(79)
				if !strings.Contains(a.stderr(), "lost") {
					t.Errorf("it doesn't say that the lock was lost:\n%s", a.stderr())
				}
				b.wait(0)
				all := j.intervals()
				consultest.NoOverlap(t, all)
				if len(all) != 2 {
					t.Fatalf("%d commands ran, want 2", len(all))
				}
				first, second := all[0], all[1]
				if first.Term == 0 {
					t.Log("the command found no time to write that SIGTERM came")
					first.Term = died
				}
				measured(t, "last proof until SIGTERM", first.Term-proof, fmt.Sprintf("renew deadline: %s", shortDeadline))
				measured(t, "last proof until the command is dead", died-proof, fmt.Sprintf("limit: %s, lease: %s", shortDeadline+shortKill, shortLease))
				measured(t, "dead until the next command runs", second.Start-died, "it must be more than 0")
				if second.Start < died {
					t.Errorf("the next command started %s before the first was dead", died-second.Start)
				}
				// The proof counts from before its request was sent, a moment before the
				// proxy saw it.
				if early := proof + shortDeadline - first.Term; early > 2*time.Second {
					t.Errorf("SIGTERM came %s before the renew deadline", early)
				}
				if late := died - (proof + shortDeadline + shortKill); late > slack {
					t.Errorf("the command died %s after its time", late)
				}
			})
		})
	}
}

// TestOutage: Consul is away for less than the renew deadline. Nothing moves: same
// process, same token, and who waits still waits.
// https://github.com/hashicorp/consul/issues/1162
func TestOutage(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		s := consultest.Start(t, consultest.Options{Version: version, Persistent: true})
		j := newJob(t, s)
		proxy := consultest.NewProxy(t, s)
		gate, open := j.gate("gate")
		// The renew deadline is 24.4s: on a busy machine a server may take long to start.
		const renewDeadline = 24400 * time.Millisecond
		flags := "--lease 30s --http-addr " + proxy.Addr
		a := j.run(flags, j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
		first := j.running(1)
		b := j.run(flags, j.child(consultest.ChildOptions{Tag: "b", For: 50 * time.Millisecond})...)
		j.queued(1)
		outage := func(what string, f func()) {
			t.Helper()
			before := proxy.LastProof()
			from := consultest.BootNow()
			f()
			back := consultest.BootNow()
			j.await("ownership is proven again", func() bool { return proxy.LastProof() > back })
			measured(t, what+": Consul was away for", back-from, fmt.Sprintf("renew deadline: %s", renewDeadline))
			if gap := proxy.LastProof() - before; gap > renewDeadline {
				t.Fatalf("this machine is too slow for this test: %s without a proof, the renew deadline is %s", gap, renewDeadline)
			}
			if all := j.intervals(); len(all) != 1 || all[0] != first || consultest.Marked(a.mark)[first.Pid] == "" {
				t.Errorf("%s: the job has moved: %+v", what, all)
			}
		}
		j.await("a check of the lock", func() bool { return proxy.LastProof() > first.Start })
		outage("killed and started again", func() {
			s.Kill()
			if err := s.Restart(); err != nil {
				t.Fatal(err)
			}
		})
		outage("SIGSTOP and SIGCONT", func() {
			s.Pause()
			time.Sleep(5 * time.Second)
			s.Resume()
		})
		open()
		a.wait(0)
		b.wait(0)
		all := j.intervals()
		consultest.NoOverlap(t, all)
		if len(all) != 2 || all[0].Term != 0 || all[0].End == 0 || all[0].Token != first.Token {
			t.Errorf("the first command didn't come to its end in peace, or others ran: %+v", all)
		}
	})
}

// TestOperator: somebody does something to our session or key by hand. Each time another
// contender waits in the queue.
func TestOperator(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		do      func(t *testing.T, j *job, lock *api.KVPair)
		killed  time.Duration // the command is dead this much later; negative: it lives on
		guarded bool          // nobody else gets the lock before the lease has ended
	}{
		{"session destroy", func(t *testing.T, j *job, lock *api.KVPair) {
			if _, err := j.s.Client().Session().Destroy(lock.Session, nil); err != nil {
				t.Error(err)
			}
		}, shortKill, true},
		{"kv delete", func(t *testing.T, j *job, lock *api.KVPair) {
			if _, err := j.s.Client().KV().Delete(lock.Key, nil); err != nil {
				t.Error(err)
			}
		}, 0, false},
		{"unlock by somebody else", func(t *testing.T, j *job, lock *api.KVPair) {
			ok, _, err := j.s.Client().KV().Release(&api.KVPair{Key: lock.Key, Session: lock.Session, Flags: api.LockFlagValue}, nil)
			if err != nil || !ok {
				t.Errorf("%v %v", ok, err)
			}
		}, 0, false},
		{"kv put", func(t *testing.T, j *job, lock *api.KVPair) {
			if _, err := j.s.Client().KV().Put(&api.KVPair{Key: lock.Key, Value: []byte("by hand")}, nil); err != nil {
				t.Error(err)
			}
		}, -1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			consultest.Each(t, func(t *testing.T, version string) {
				j := newJob(t, shared(t, version))
				gate, open := j.gate("gate")
				a := j.run(shortDials, j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true, Until: gate})...)
				first := j.running(1)
				b := j.run(shortDials, j.child(consultest.ChildOptions{Tag: "b", For: 50 * time.Millisecond})...)
				j.queued(1)
				lock := j.s.Key(t, j.lockKey())
				if lock == nil || lock.Session == "" {
					t.Fatalf("%s isn't held: %+v", j.lockKey(), lock)
				}
				time.Sleep(2 * time.Second) // the key is watched from the first poll on
				death := consultest.Death(t, first.Pid)
				at := consultest.BootNow()
				c.do(t, j, lock)
				var died time.Duration
				if c.killed < 0 {
					// For longer than a lease.
					select {
					case <-death:
						t.Errorf("the command was killed; onlyone says:\n%s", a.stderr())
					case <-time.After(shortLease + time.Second):
					}
					open()
					a.wait(0)
				} else {
					died = j.dies(death)
					measured(t, "until the command is dead", died-at, fmt.Sprintf("kill-after here: %s, poll: 1s", c.killed))
					if died-at > c.killed+slack {
						t.Errorf("the command died after %s", died-at)
					}
					if died-at < c.killed {
						t.Errorf("the command died after %s, it had %s after SIGTERM", died-at, c.killed)
					}
					a.wait(79)
				}
				b.wait(0)
				all := j.intervals()
				if len(all) != 2 || all[1].Token <= all[0].Token {
					t.Fatalf("want two commands, with rising tokens: %+v", all)
				}
				if c.guarded {
					consultest.NoOverlap(t, all)
				}
				if c.killed >= 0 {
					measured(t, "until the next command runs", all[1].Start-at, fmt.Sprintf("lease: %s; it counts here: %v", shortLease, c.guarded))
					if all[1].Start < died { // not guarded: this is what the token is for
						measured(t, "both lived for", died-all[1].Start, "it can't be promised to be 0 here")
					}
				}
				if c.guarded && c.killed > 0 && all[1].Start-at < shortLease {
					t.Errorf("the next command ran after %s, before the lease of %s", all[1].Start-at, shortLease)
				}
			})
		})
	}
}

// TestConsulLock: consul lock and onlyone exclude each other, both ways.
func TestConsulLock(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		j := newJob(t, shared(t, version))
		consulLock := func(flags string, command []string) *proc {
			args := append([]string{j.s.Binary, "lock", "-shell=false"}, strings.Fields(flags)...)
			return j.start(append(append(args, "onlyone/"+j.name), command...)...)
		}
		gate1, open1 := j.gate("gate1")
		gate2, open2 := j.gate("gate2")

		theirs := consulLock("", j.child(consultest.ChildOptions{Tag: "consul", Until: gate1}))
		j.running(1)
		refused := j.run("-n", j.child(consultest.ChildOptions{Tag: "refused"})...)
		refused.wait(75)
		if !strings.Contains(refused.stderr(), "held by") {
			t.Errorf("-n beside consul lock says:\n%s", refused.stderr())
		}
		ours := j.run("", j.child(consultest.ChildOptions{Tag: "onlyone", Until: gate2})...)
		j.queued(1)
		open1()
		theirs.wait(0)
		j.running(2)

		consulLock("-timeout=500ms", j.child(consultest.ChildOptions{Tag: "refused"})).wait(1)
		next := consulLock("", j.child(consultest.ChildOptions{Tag: "consul-again", For: 20 * time.Millisecond}))
		j.await("consul lock waits", func() bool {
			list, _, err := j.s.Client().Session().List(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				if e.Name == "Consul API Lock" || strings.Contains(e.Name, "onlyone/"+j.name) && e.TTL == "15s" {
					return true
				}
			}
			return false
		})
		open2()
		ours.wait(0)
		j.running(3)
		next.wait(0)
		all := j.intervals()
		consultest.NoOverlap(t, all)
		if len(all) != 3 {
			t.Errorf("want 3 commands: %+v", all)
		}
	})
}

// TestStop: TERM to a waiting onlyone ends it at once, by that signal; to a running one it
// is an order to stop, and the second one kills.
// https://github.com/hashicorp/consul/issues/4439
func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("waiting", func(t *testing.T) {
		t.Parallel()
		consultest.Each(t, func(t *testing.T, version string) {
			j := newJob(t, shared(t, version))
			gate, open := j.gate("gate")
			a := j.run("", j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
			j.running(1)
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
				b := j.run("", j.child(consultest.ChildOptions{Tag: "b"})...)
				j.queued(1)
				at := consultest.BootNow()
				b.signal(sig)
				b.wait(-int(sig))
				measured(t, fmt.Sprintf("%s until a waiting onlyone has ended", sig), b.ended-at, "goal: 100ms; consul lock: 15s")
				if b.ended-at > slack {
					t.Errorf("it took %s", b.ended-at)
				}
				if b.stderr() != "" {
					t.Errorf("it says:\n%s", b.stderr())
				}
				if !b.hurried() {
					j.queued(0)
				}
			}
			open()
			a.wait(0)
		})
	})
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		a := j.run("", j.child(consultest.ChildOptions{Tag: "a"})...)
		j.running(1)
		a.signal(syscall.SIGTERM)
		a.wait(-int(syscall.SIGTERM))
	})
	t.Run("second TERM", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		a := j.run("", j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true})...)
		first := j.running(1)
		death := consultest.Death(t, first.Pid)
		a.signal(syscall.SIGTERM)
		j.await("the command got SIGTERM", func() bool { return j.intervals()[0].Term != 0 })
		at := consultest.BootNow()
		a.signal(syscall.SIGTERM)
		took := j.dies(death) - at
		measured(t, "second TERM until the command is dead", took, "goal: milliseconds; --stop-timeout: 30s")
		if took > slack {
			t.Errorf("the command died %s after the second TERM", took)
		}
		a.wait(-int(syscall.SIGKILL))
		nothingMarked(t, a)
	})
	t.Run("stop-timeout", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, shared(t, consultest.Version()))
		a := j.run("--stop-timeout 1s", j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true})...)
		first := j.running(1)
		death := consultest.Death(t, first.Pid)
		at := consultest.BootNow()
		a.signal(syscall.SIGTERM)
		took := j.dies(death) - at
		measured(t, "TERM until a command that ignores it is dead", took, "--stop-timeout: 1s")
		if took < time.Second || took > time.Second+slack {
			t.Errorf("the command died after %s, want 1s", took)
		}
		a.wait(-int(syscall.SIGKILL))
		nothingMarked(t, a)
	})
}

// nothingMarked: onlyone has ended by SIGKILL because its command did, so nothing is left.
func nothingMarked(t *testing.T, p *proc) {
	t.Helper()
	for _, left := range consultest.Marked(p.mark) {
		t.Errorf("%s ended, but this lives: %s", p, left)
	}
}

// TestLeftover: what outlives the command is stopped before the lock is released.
// https://github.com/hashicorp/consul/issues/873
func TestLeftover(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	daemon := j.child(consultest.ChildOptions{Tag: "daemon", IgnoreTerm: true})
	gate, open := j.gate("gate")
	// The shell waits until the daemon can ignore SIGTERM.
	script := `setsid "$@" & while ! test -e ` + gate + `; do sleep 0.01; done; exit 7`
	a := j.run("-k 1s", append([]string{"sh", "-c", script, "sh"}, daemon...)...)
	j.running(1)
	b := j.run("", j.child(consultest.ChildOptions{Tag: "next", For: 20 * time.Millisecond})...)
	j.queued(1)
	open()
	a.wait(7)
	if !strings.Contains(a.stderr(), "outlived the command") {
		t.Errorf("it doesn't say what was left:\n%s", a.stderr())
	}
	b.wait(0)
	consultest.NoOverlap(t, j.intervals())
}

// TestNotConsul: what answers at the address isn't Consul. One line, exit 69.
func TestNotConsul(t *testing.T) {
	t.Parallel()
	s := shared(t, consultest.Version())
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
	}{
		{"an HTML page", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html><body>It works!</body></html>")
		}},
		{"404", http.NotFound},
		{"another API", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"status":"ok"}`) }},
		{"301", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusMovedPermanently)
		}},
		{"400 to plain HTTP", func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "Client sent an HTTP request to an HTTPS server.", http.StatusBadRequest)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, s)
			addr := serve(t, c.handler)
			p := j.run("--http-addr "+addr, "echo", "ran")
			p.wait(69)
			oneLine(t, p.stderr(), addr, "CONSUL_HTTP_ADDR")
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, s)
		port := freePort(t)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		for _, flags := range []string{"", "-n "} {
			p := j.run(flags+"--http-addr "+addr, "echo", "ran")
			p.wait(69)
			oneLine(t, p.stderr(), addr, "refused", "CONSUL_HTTP_ADDR")
		}
	})
	t.Run("it never answers", func(t *testing.T) {
		t.Parallel()
		j := newJob(t, s)
		proxy := consultest.NewProxy(t, s)
		proxy.Set(consultest.Hang)
		p := j.run("--http-addr "+proxy.Addr, "echo", "ran")
		p.wait(69)
		oneLine(t, p.stderr(), proxy.Addr, "no answer in time", "CONSUL_HTTP_ADDR")
	})
}

// freePort is a port of 127.0.0.1 for a server that a test will start.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := consultest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// serve answers on a port of 127.0.0.1 as long as the test runs.
func serve(t *testing.T, h http.Handler) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-served })
	return l.Addr().String()
}

// oneLine checks that a message is one line of ours that holds each of want.
func oneLine(t *testing.T, got string, want ...string) {
	t.Helper()
	if strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "onlyone: ") {
		t.Errorf("want one line of onlyone's, got:\n%s", got)
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("want %q in %q", w, got)
		}
	}
}
