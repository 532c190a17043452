package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/nasty"
	"github.com/a-seed-0bc5ead7/onlyone/signals"
)

// The tests in this file run real processes: this test binary as keeper, guard and exec
// shim, and the hostile load of internal/nasty as the command. The lock is a folder, so
// that what is shown doesn't depend on a network.

func TestMain(m *testing.M) {
	switch {
	case IsShim(os.Args):
		os.Exit(ShimMain(os.Args))
	case IsGuard(os.Args):
		os.Exit(GuardMain(os.Args, func(_ context.Context, info []byte, _ RunResult) error { return folder(info).release("guard") }))
	case os.Getenv(keeperEnv) != "":
		os.Exit(keeperMain())
	case os.Getenv(bornEnv) != "":
		os.Exit(bornMain())
	case os.Getenv(threadsEnv) != "":
		os.Exit(threadsMain())
	case os.Getenv(stormEnv) != "":
		os.Exit(stormMain())
	case os.Getenv(unlistedEnv) != "":
		os.Exit(unlistedMain())
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "16") // they wait, they don't compute
	}
	// Ignored ones (nohup, a script's "&") would be inherited by all that these tests start.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	code := m.Run()
	nasty.Remove()
	os.Exit(code)
}

const keeperEnv = "ONLYONE_TEST_KEEPER"

// keeperSpec is what a keeper process of these tests is told.
type keeperSpec struct {
	Folder  string
	Tag     string // of the load
	Args    []string
	Options GuardOptions
	Dials   Dials
	Stop    time.Duration
	TooLong bool // an argument that no exec takes (MAX_ARG_STRLEN is 128 KiB)
}

// testDials make D = 2.42 s, so that a table of hostile cases takes seconds.
func testDials() Dials {
	return Dials{Lease: 4 * time.Second, KillAfter: 500 * time.Millisecond, TTL: 10 * time.Second, Poll: 400 * time.Millisecond}
}

// folder is a lock that is held until the file "silent" exists. With a file "refused" it can't be
// acquired, and with one "held" others have it.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

// release notes who released and what of the load was alive in that moment.
func (f folder) release(by string) error {
	tag, _ := os.ReadFile(f.path("tag"))
	return os.WriteFile(f.path("released"), fmt.Appendf(nil, "%s %d %v", by, len(nasty.Survivors(string(tag))), nasty.Survivors(string(tag))), 0o666)
}

func (f folder) Acquire(ctx context.Context, ready func([]byte) error, looks func(bool)) (Term, error) {
	looks(true)
	for _, why := range []string{"refused", "held"} {
		if _, err := os.Stat(f.path(why)); err != nil {
			continue
		}
		looks(false)
		_ = os.WriteFile(f.path("contended"), nil, 0o666)
		if why == "held" {
			<-ctx.Done()
		}
		return nil, errors.New(why)
	}
	if err := ready([]byte(f)); err != nil {
		return nil, err
	}
	return folderTerm{f, bootNow()}, nil
}

type folderTerm struct {
	folder
	sent Instant
}

func (t folderTerm) Token() uint64                            { return 1 }
func (t folderTerm) Sent() Instant                            { return t.sent }
func (t folderTerm) Env() []string                            { return []string{"FENCE_TOKEN=1"} }
func (t folderTerm) Check(ctx context.Context) (Order, error) { return Order{}, t.Renew(ctx) }
func (t folderTerm) Renew(context.Context) error {
	if _, err := os.Stat(t.path("silent")); err == nil {
		return errors.New("silence")
	}
	return nil
}
func (t folderTerm) Watch(ctx context.Context, _ func())     { <-ctx.Done() }
func (t folderTerm) Unclean() [][]string                     { return nil }
func (t folderTerm) Unlock(context.Context, RunResult) error { return t.release("keeper") }
func (t folderTerm) End(context.Context)                     {}

// keeperMain is a keeper process: its exit code is 100 + the outcome's kind, or it dies by
// the command's signal.
func keeperMain() int {
	var s keeperSpec
	if err := json.Unmarshal([]byte(os.Getenv(keeperEnv)), &s); err != nil {
		return 1
	}
	os.Unsetenv(keeperEnv)
	if s.TooLong {
		s.Args = append(s.Args, strings.Repeat("x", 1<<20))
	}
	_ = os.WriteFile(filepath.Join(s.Folder, "tag"), []byte(s.Tag), 0o666)
	in, stop := signals.Receive()
	defer stop()
	sigs := make(chan Signal, 8)
	go func() {
		for x := range in {
			sigs <- Signal{Signal: x.Signal, FromTerminal: x.FromTerminal}
		}
	}()
	out := Run(context.Background(), Config{
		Dials: s.Dials, Command: Command{Path: s.Args[0], Args: s.Args, Env: os.Environ()},
		StopSignal: s.Options.StopSignal, StopTimeout: s.Stop, Wait: -1,
		Clock: BootClock(), Lock: folder(s.Folder),
		StartGuard: func() (Guard, error) { return StartGuard(s.Options) },
		Signals:    sigs, Jitter: func(most time.Duration) time.Duration { return most / 2 },
		Log: zerolog.New(os.Stderr),
	})
	if out.Err != nil {
		fmt.Fprintln(os.Stderr, out.Err)
	}
	if out.Kind == Ended && out.Status.Signaled() {
		signals.Die(out.Status.Signal())
	}
	if out.Kind == Ended {
		return out.Status.ExitStatus()
	}
	return 100 + int(out.Kind)
}

// keeper is a running keeper process with its load.
type keeper struct {
	t     *testing.T
	load  *nasty.Load
	cmd   *exec.Cmd
	dir   folder
	log   said
	guard int
	done  chan error
}

// said is what a process writes, also while it does.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// onLastingThread calls f on a thread that lives as long as the tests: "parent died" means the
// thread that forked, and Go's end when a goroutine ends that is locked to one.
func onLastingThread(f func() error) error {
	err := make(chan error)
	lasting() <- func() { err <- f() }
	return <-err
}

var lasting = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range calls {
			f()
		}
	}()
	return calls
})

// startKeeper starts a keeper over the kinds of load and waits until all are up.
func startKeeper(t *testing.T, kinds string, edit func(*keeperSpec, *exec.Cmd), more ...string) *keeper {
	t.Helper()
	k := &keeper{t: t, load: nasty.New(t), done: make(chan error, 1)}
	k.dir = folder(k.load.Dir)
	spec := keeperSpec{Folder: k.load.Dir, Tag: k.load.Tag, Dials: testDials(), Stop: time.Second,
		Options: GuardOptions{KillAfter: testDials().KillAfter, StopSignal: syscall.SIGTERM}}
	spec.Args = k.load.Args(kinds, more...)
	k.cmd = exec.Command("/proc/self/exe")
	k.cmd.Stderr = &k.log
	k.cmd.WaitDelay = 5 * time.Second
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if edit != nil {
		edit(&spec, k.cmd)
	}
	b, _ := json.Marshal(spec)
	k.cmd.Env = append(os.Environ(), keeperEnv+"="+string(b))
	if err := onLastingThread(k.cmd.Start); err != nil {
		t.Fatal(err)
	}
	go func() { k.done <- k.cmd.Wait() }()
	t.Cleanup(k.cleanUp)
	if _, err := k.load.WaitReady(30 * time.Second); err != nil {
		t.Fatalf("%v\n%s", err, k.log.String())
	}
	for _, pid := range childrenOf(k.cmd.Process.Pid) {
		if comm, _, _, _ := procStat(pid); comm == guardName {
			k.guard = pid
		}
	}
	if k.guard == 0 {
		t.Fatalf("no guard below the keeper: %v", childrenOf(k.cmd.Process.Pid))
	}
	return k
}

func (k *keeper) cleanUp() {
	_ = k.cmd.Process.Kill()
	if comm, _, _, _ := procStat(k.guard); comm == guardName {
		_ = unix.Kill(k.guard, unix.SIGKILL)
	}
	_ = k.load.KillAll()
	<-k.done
}

func (k *keeper) silence() {
	if err := os.WriteFile(k.dir.path("silent"), nil, 0o666); err != nil {
		k.t.Fatal(err)
	}
}

func (k *keeper) signal(s syscall.Signal, victims string) {
	if victims != "guard" {
		_ = k.cmd.Process.Signal(s)
	}
	if victims != "keeper" {
		_ = unix.Kill(k.guard, s)
	}
}

// wait returns the keeper's exit status.
func (k *keeper) wait(most time.Duration) syscall.WaitStatus {
	k.t.Helper()
	select {
	case err := <-k.done:
		k.done <- err
		return k.cmd.ProcessState.Sys().(syscall.WaitStatus)
	case <-time.After(most):
		k.t.Fatalf("the keeper is still there after %s\n%s", most, k.log.String())
		panic("unreachable")
	}
}

// wantReleased asserts that the lock was released, and with nothing alive.
func (k *keeper) wantReleased(by string, most time.Duration) {
	k.t.Helper()
	for end := time.Now().Add(most); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(k.dir.path("released"))
		if err == nil && len(b) > 0 {
			if !strings.HasPrefix(string(b), by+" 0 ") {
				k.t.Errorf("released: %q, want by %s with 0 alive\n%s", b, by, k.log.String())
			}
			return
		}
		if time.Now().After(end) {
			k.t.Errorf("the lock was not released within %s\n%s", most, k.log.String())
			return
		}
	}
}

// slack is what a busy machine may add to a bound; the exact instants are asserted in
// fake time.
const slack = 4 * time.Second

// TestVictims: whatever part of onlyone is hit by whatever signal while Consul is silent,
// everything that the command started is dead when the lease ends.
func TestVictims(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute of real leases")
	}
	d := testDials()
	lease := d.RenewDeadline() + d.KillAfter + margin
	signals := []struct {
		name string
		sig  syscall.Signal
		cont bool
	}{{"KILL", unix.SIGKILL, false}, {"STOP", unix.SIGSTOP, false}, {"STOP and CONT after the lease", unix.SIGSTOP, true},
		{"TERM", unix.SIGTERM, false}, {"HUP", unix.SIGHUP, false}, {"QUIT", unix.SIGQUIT, false}, {"SEGV", unix.SIGSEGV, false}}
	for _, load := range []struct{ name, kinds, main string }{
		{"polite child", "", "polite"}, {"stubborn tree", nasty.Standard(), "deaf"},
	} {
		for _, victims := range []string{"keeper", "guard", "both"} {
			for _, s := range signals {
				t.Run(fmt.Sprintf("%s/%s/%s", victims, s.name, load.name), func(t *testing.T) {
					lease := lease
					t.Parallel()
					k := startKeeper(t, load.kinds, nil, "-main", load.main)
					k.silence()
					start := time.Now()
					k.signal(s.sig, victims)
					switch {
					case victims == "both" && (s.sig == unix.SIGKILL || s.sig == unix.SIGSEGV):
						// The one cell that can't be held without a PID namespace: the command itself
						// dies at once (PDEATHSIG), a stubborn rest lives on.
						if err := waitChildGone(k, slack); err != nil {
							t.Error(err)
						}
						return
					case victims == "both" && s.sig == unix.SIGSTOP:
						// Nothing can act until one of them is continued, and then it acts first.
						time.Sleep(lease + 500*time.Millisecond - time.Since(start))
						if len(k.load.Survivors()) == 0 {
							t.Error("all dead although both were stopped: this test shows nothing")
						}
						if !s.cont {
							return
						}
						k.signal(unix.SIGCONT, "guard")
						start = time.Now()
						lease = 0
					case s.cont:
						go func() {
							time.Sleep(lease + 500*time.Millisecond)
							k.signal(unix.SIGCONT, victims)
						}()
					}
					if err := k.load.WaitGone(lease + slack - time.Since(start)); err != nil {
						t.Errorf("%v\n%s", err, k.log.String())
					}
					t.Logf("all dead after %s (the lease ends after at most %s)", time.Since(start).Round(time.Millisecond), lease)
				})
			}
		}
	}
}

func waitChildGone(k *keeper, most time.Duration) error {
	for end := time.Now().Add(most); ; time.Sleep(5 * time.Millisecond) {
		alive := false
		for _, p := range k.load.Survivors() {
			if p.Comm == "nasty" || p.Comm == "nasty-main" {
				alive = true
			}
		}
		if !alive {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the command lives on: %v", k.load.Survivors())
		}
	}
}

// TestKeeperDeathHandsOver: the guard stops the child in order, then releases with
// nothing alive.
func TestKeeperDeathHandsOver(t *testing.T) {
	for name, load := range map[string][]string{"polite": {"plain"}, "stubborn": {nasty.Standard()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := startKeeper(t, load[0], nil, "-main", map[string]string{"polite": "polite", "stubborn": "deaf"}[name])
			start := time.Now()
			k.signal(unix.SIGKILL, "keeper")
			k.wantReleased("guard", slack)
			t.Logf("released %s after the keeper's death", time.Since(start).Round(time.Millisecond))
		})
	}
}

// TestLeftovers: what outlives a command that ended by itself is killed before the lock
// is released, one line names it, and the command's exit code stays.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, nasty.Standard(), nil, "-main", "sleep=300ms", "-code", "7")
	if s := k.wait(10 * time.Second); s.ExitStatus() != 7 {
		t.Errorf("exit %d, want 7", s.ExitStatus())
	}
	k.wantReleased("keeper", slack)
	if !strings.Contains(k.log.String(), "outlived the command") {
		t.Errorf("no line names the leftovers:\n%s", k.log.String())
	}
}

// TestHostileTrees: an orderly stop ends every kind of tree, alone and all together.
func TestHostileTrees(t *testing.T) {
	for _, kinds := range []string{nasty.Standard(), "hopper4", "bomb128", "many300", "vfork", "setuid", "busy,threads,headless"} {
		t.Run(kinds, func(t *testing.T) {
			t.Parallel()
			more := []string{"-main", "deaf"}
			if kinds == "setuid" {
				more = append(more, nasty.New(t).Setuid(t)...)
			}
			k := startKeeper(t, kinds, nil, more...)
			start := time.Now()
			k.signal(unix.SIGTERM, "keeper")
			if s := k.wait(30 * time.Second); !s.Signaled() || s.Signal() != unix.SIGKILL {
				t.Errorf("status %#x, want the command's death by SIGKILL\n%s", s, k.log.String())
			}
			k.wantReleased("keeper", slack)
			if left := k.load.Survivors(); len(left) > 0 {
				t.Errorf("left alive: %v", left)
			}
			t.Logf("all dead and released %s after the stop (SIGKILL is due after 1s)", time.Since(start).Round(time.Millisecond))
		})
	}
}

// TestExitStatuses: all 256 statuses and death by every signal are passed on.
func TestExitStatuses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 300 commands")
	}
	t.Parallel()
	run := func(script string) syscall.WaitStatus {
		dir := t.TempDir()
		spec := keeperSpec{Folder: dir, Args: []string{"/bin/sh", "-c", script}, Dials: testDials(), Stop: time.Second,
			Options: GuardOptions{KillAfter: testDials().KillAfter, StopSignal: syscall.SIGTERM}}
		b, _ := json.Marshal(spec)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), keeperEnv+"="+string(b))
		_ = cmd.Run()
		return cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	for code := range 256 {
		if s := run("exit " + strconv.Itoa(code)); !s.Exited() || s.ExitStatus() != code {
			t.Errorf("exit %d: status %#x", code, s)
		}
	}
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, 32, 33:
			continue // they don't end a process
		}
		if s := run(fmt.Sprintf("ulimit -c 0; kill -%d $$; sleep 5", sig)); !s.Signaled() || s.Signal() != sig {
			t.Errorf("death by signal %d: status %#x", sig, s)
		}
	}
}

// TestPIDNamespace: with --pid-namespace even the death of both leaves nothing.
func TestPIDNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Parallel()
	k := startKeeper(t, "daemon,session,stopped,hopper2", func(s *keeperSpec, _ *exec.Cmd) { s.Options.PIDNamespace = true }, "-main", "deaf")
	k.signal(unix.SIGKILL, "both")
	if err := k.load.WaitGone(slack); err != nil {
		t.Error(err)
	}
}

// TestCommandFrame: arguments are bytes, not text (a file name in Latin-1).
func TestCommandFrame(t *testing.T) {
	c := Command{Path: "/bin/x", Args: []string{"x", "", "a\xffb", "<&>"}, Env: []string{"A=\xfe", "B="}}
	var f frames
	f.add(commandFrame(c))
	_, payload, ok, err := f.next()
	got, err2 := parseCommand(payload)
	if !ok || err != nil || err2 != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c) {
		t.Errorf("%q became %q (%v %v)", c, got, err, err2)
	}
}

// TestCommandThatCannotBeForked: an argument list that is too long for the shim ends the
// run; it used to leave the keeper waiting with the lock held.
func TestCommandThatCannotBeForked(t *testing.T) {
	t.Parallel()
	spec := keeperSpec{Folder: t.TempDir(), Args: []string{"/bin/true"}, TooLong: true, Dials: testDials(), Stop: time.Second,
		Options: GuardOptions{KillAfter: time.Second, StopSignal: syscall.SIGTERM}}
	b, _ := json.Marshal(spec)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), keeperEnv+"="+string(b))
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 100+int(NotStarted) {
		t.Errorf("exit %d, want %d\n%s", code, 100+int(NotStarted), out)
	}
}
