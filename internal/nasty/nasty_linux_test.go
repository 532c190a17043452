package nasty

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const soon = 10 * time.Second // only a failure takes that long

func TestMain(m *testing.M) {
	if os.Getenv("NASTY_TEST_REAPER") != "" {
		reap(os.Args[1:])
	}
	code := m.Run()
	Remove()
	os.Exit(code)
}

// reap runs a load as its subreaper until no descendant is left (wait4 says ECHILD), and
// exits as the load's main process did.
func reap(args []string) {
	os.Unsetenv("NASTY_TEST_REAPER")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	main, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		panic(err)
	}
	code := 0
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, unix.WALL, nil); {
		case err == syscall.ECHILD:
			os.Exit(code)
		case pid == main && status.Signaled():
			code = 128 + int(status.Signal())
		case pid == main:
			code = status.ExitStatus()
		}
	}
}

// start starts the load below a reaper and waits until it is up.
func start(t *testing.T, l *Load, user *syscall.Credential, kinds string, more ...string) (reaper *exec.Cmd, pids map[string][]int) {
	t.Helper()
	reaper = startOnly(t, l, user, kinds, more...)
	pids, err := l.WaitReady(soon)
	if err != nil {
		t.Fatal(err)
	}
	return reaper, pids
}

func startOnly(t *testing.T, l *Load, user *syscall.Credential, kinds string, more ...string) *exec.Cmd {
	t.Helper()
	reaper := exec.Command("/proc/self/exe", l.Args(kinds, more...)...)
	reaper.Env = append(os.Environ(), "NASTY_TEST_REAPER=1")
	reaper.Stderr = os.Stderr
	reaper.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if err := reaper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.KillAll() // else the Wait could last
		_ = reaper.Wait()
	})
	return reaper
}

func killAll(t *testing.T, l *Load) {
	t.Helper()
	if err := l.KillAll(); err != nil {
		t.Error(err)
	}
	if l.Alive() || len(l.Survivors()) > 0 {
		t.Errorf("after KillAll: lock held %v, %v", l.Alive(), l.Survivors())
	}
}

// tree is what a kind's check looks at.
type tree struct {
	*testing.T
	load   *Load
	reaper int
	main   Proc
	pids   []int // of the kind
}

func TestKinds(t *testing.T) {
	same := func(t tree, p Proc) {
		if p.PPid != t.main.Pid || p.Pgid != t.main.Pgid || p.Sid != t.main.Sid {
			t.Errorf("%+v: want a child in the group and session of %+v", p, t.main)
		}
	}
	orphan := func(t tree, p Proc) {
		if p.PPid != t.reaper || p.Sid == t.main.Sid || p.Sid == p.Pid || !ignoresStops(t, p.Pid) {
			t.Errorf("%+v: want a deaf child of %d, not a session leader, not in session %d", p, t.reaper, t.main.Sid)
		}
	}
	for _, test := range []struct {
		kind  string
		root  bool
		check func(tree, Proc)
	}{
		{kind: "plain", check: func(t tree, p Proc) {
			same(t, p)
			if ignoresStops(t, p.Pid) {
				t.Error("is deaf")
			}
		}},
		{kind: "deaf", check: func(t tree, p Proc) {
			same(t, p)
			if !ignoresStops(t, p.Pid) {
				t.Error("isn't deaf")
			}
		}},
		{kind: "many", check: func(t tree, p Proc) {
			same(t, p)
			if len(t.pids) != 300 {
				t.Errorf("%d pids", len(t.pids))
			}
		}},
		{kind: "group", check: func(t tree, p Proc) {
			if p.PPid != t.main.Pid || p.Pgid != p.Pid || p.Sid != t.main.Sid {
				t.Errorf("%+v: want a leader of a group only", p)
			}
		}},
		{kind: "session", check: func(t tree, p Proc) {
			if p.PPid != t.main.Pid || p.Pgid != p.Pid || p.Sid != p.Pid {
				t.Errorf("%+v: want a leader of a session", p)
			}
		}},
		{kind: "daemon", check: orphan},
		{kind: "stopped", check: func(t tree, p Proc) {
			orphan(t, p)
			if p.State != "T" {
				t.Errorf("state %s", p.State)
			}
		}},
		{kind: "subreaper", check: func(t tree, p Proc) {
			same(t, p)
			if d := proc(t, t.load, t.pids[1]); d.PPid != p.Pid || d.Sid == t.main.Sid {
				t.Errorf("%+v: want a daemon of %+v", d, p)
			}
		}},
		{kind: "pidns", root: true, check: func(t tree, p Proc) {
			same(t, p)
			if ids := status(t, p.Pid, "NSpid"); len(ids) < 2 || ids[len(ids)-1] != "1" {
				t.Errorf("NSpid: %v", ids)
			}
		}},
		{kind: "nobody", root: true, check: func(t tree, p Proc) {
			orphan(t, p)
			for _, field := range []string{"Uid", "Gid"} {
				if ids := status(t, p.Pid, field); strings.Join(ids, " ") != "65534 65534 65534 65534" {
					t.Errorf("%s: %v", field, ids)
				}
			}
		}},
		{kind: "vfork", check: func(t tree, p Proc) {
			same(t, p)
			if p.State != "D" {
				t.Errorf("state %s", p.State)
			}
			if c := proc(t, t.load, t.pids[1]); c.PPid != p.Pid {
				t.Errorf("%+v: want a child of %+v", c, p)
			}
		}},
		{kind: "busy", check: func(t tree, p Proc) {
			same(t, p)
			if !ignoresStops(t, p.Pid) || !poll(soon, func() bool { return proc(t, t.load, p.Pid).State == "R" }) {
				t.Errorf("%+v: want it deaf and running", p)
			}
		}},
		{kind: "hopper", check: func(t tree, _ Proc) {
			seen := map[int]bool{}
			if !poll(soon, func() bool {
				for _, p := range t.load.Survivors() {
					if p.Pgid == t.pids[0] {
						seen[p.Pid] = true
					}
				}
				return len(seen) > 3
			}) {
				t.Errorf("in group %d only %v", t.pids[0], seen)
			}
		}},
		{kind: "bomb", check: func(t tree, _ Proc) {
			members := func() (pids []int) {
				for _, p := range t.load.Survivors() {
					if p.Pgid == t.pids[0] {
						pids = append(pids, p.Pid)
					}
				}
				return pids
			}
			full := func() bool { return len(members()) >= 120 } // between two forks a few are missing
			if !poll(soon, full) {
				t.Fatalf("only %d", len(members()))
			}
			before := members()
			for _, pid := range before[:100] {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if !poll(soon, full) {
				t.Errorf("only %d after killing 100", len(members()))
			}
			if n := len(members()); n > 2*128 {
				t.Errorf("%d are too many", n)
			}
		}},
		{kind: "threads", check: func(t tree, p Proc) {
			same(t, p)
			if p.Threads < 16 {
				t.Errorf("%d threads", p.Threads)
			}
		}},
		{kind: "headless", check: func(t tree, p Proc) {
			same(t, p)
			if p.State != "Z" || p.Threads < 2 {
				t.Errorf("%+v: want a zombie with threads", p)
			}
		}},
	} {
		t.Run(test.kind, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				t.Skip("only root can start this kind")
			}
			l := New(t)
			reaper, up := start(t, l, nil, test.kind)
			tree := tree{t, l, reaper.Process.Pid, proc(t, l, up["main"][0]), up[test.kind]}
			var first Proc
			if test.kind != "hopper" && test.kind != "bomb" {
				first = proc(t, l, tree.pids[0])
				if first.Comm != "nasty-"+test.kind {
					t.Errorf("comm %s", first.Comm)
				}
				if got, want := len(l.Survivors()), 1+len(tree.pids); got != want {
					t.Errorf("%d processes, want %d: %v", got, want, l.Survivors())
				}
			}
			test.check(tree, first)
			killAll(t, l)
			if err := reaper.Wait(); reaper.ProcessState.ExitCode() != 128+9 {
				t.Errorf("main process: %v", err)
			}
		})
	}
}

func TestAllAtOnce(t *testing.T) {
	l := New(t)
	_, up := start(t, l, nil, Standard()+",busy,hopper4,bomb,many")
	seen := map[string]bool{}
	if !poll(soon, func() bool {
		for _, p := range l.Survivors() {
			seen[strings.TrimPrefix(p.Comm, "nasty-")] = true
		}
		return len(seen) == len(up)
	}) {
		t.Errorf("saw only %v", seen)
	}
	killAll(t, l)
}

// Nothing may be left for ever, whatever happens to the test.
func TestLifeEnds(t *testing.T) {
	const life = 700 * time.Millisecond
	l := New(t)
	before := Now()
	reaper := startOnly(t, l, nil, Standard()+",busy,hopper,bomb,many", "-life", life.String())
	_ = reaper.Wait() // its ECHILD
	if lived := Now() - before; lived < life {
		t.Errorf("lived only %v", lived)
	}
	if err := l.WaitGone(0); err != nil {
		t.Error(err)
	}
}

func TestMainModes(t *testing.T) {
	for _, test := range []struct {
		mode string
		term bool // it gets one
		code int
		took time.Duration // at least
	}{
		{mode: "plain", term: true, code: 128 + 15},
		{mode: "polite", term: true, code: 3},
		{mode: "dawdle=150ms", term: true, code: 3, took: 150 * time.Millisecond},
		{mode: "sleep=100ms", code: 3, took: 100 * time.Millisecond},
		{mode: "sleep=1h", term: true, code: 128 + 15},
		{mode: "deaf", term: true, code: 128 + 9},
	} {
		t.Run(test.mode, func(t *testing.T) {
			l := New(t)
			log := filepath.Join(l.Dir, "log")
			before := Now()
			reaper, up := start(t, l, nil, "plain,daemon", "-main", test.mode, "-code", "3", "-log", log)
			main := up["main"][0]
			if test.term {
				before = Now()
				if err := unix.Kill(main, unix.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			if test.mode == "deaf" {
				if !poll(soon, func() bool { return run(t, log).Term > 0 }) {
					t.Error("no TERM in the log")
				}
				if n := len(l.Survivors()); n != 3 {
					t.Errorf("%d left", n)
				}
			} else if !poll(soon, func() bool { return len(l.Survivors()) == 2 }) {
				t.Errorf("want the main process gone and the others alive: %v", l.Survivors())
			}
			if took := Now() - before; took < test.took {
				t.Errorf("took %v", took)
			}
			killAll(t, l)
			_ = reaper.Wait()
			if code := reaper.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
		})
	}
}

func TestLog(t *testing.T) {
	l := New(t)
	log := filepath.Join(l.Dir, "log")
	type span struct{ from, to time.Duration }
	var died []span
	for _, token := range []string{"41", ""} {
		t.Setenv("FENCE_TOKEN", token)
		l.Restart()
		_, up := start(t, l, nil, "plain", "-log", log)
		now := Now()
		if !poll(soon, func() bool { return run(t, log).Last > now }) {
			t.Error("no heartbeat")
		}
		if err := unix.Kill(up["main"][0], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killAll(t, l)
		died = append(died, span{now, Now()})
	}
	runs, err := ReadLog(log)
	if err != nil || len(runs) != 2 {
		t.Fatalf("%v, %v", runs, err)
	}
	for i, r := range runs {
		if r.Last < died[i].from || r.Last > died[i].to {
			t.Errorf("run %d: %+v, but it died within %v", i, r, died[i])
		}
	}
	if runs[0].Token != "41" || runs[1].Token != "" || runs[0].Last > runs[1].Start {
		t.Errorf("%+v", runs)
	}
}

func TestUnprivilegedLoad(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a load as another user")
	}
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	t.Run("standard", func(t *testing.T) {
		l := New(t)
		kinds := strings.TrimSuffix(Standard(), ",pidns,nobody")
		_, up := start(t, l, nobody, kinds)
		if len(up) != 1+len(strings.Split(kinds, ",")) {
			t.Errorf("%v", up)
		}
		killAll(t, l)
	})
	t.Run("setuid", func(t *testing.T) {
		l := New(t)
		_, up := start(t, l, nobody, "setuid", l.Setuid(t)...)
		pid := up["setuid"][0]
		if ids := status(t, pid, "Uid"); strings.Join(ids, " ") != "0 0 0 0" {
			t.Errorf("Uid: %v", ids)
		}
		try := exec.Command("kill", strconv.Itoa(pid))
		try.SysProcAttr = &syscall.SysProcAttr{Credential: nobody}
		if out, err := try.CombinedOutput(); err == nil {
			t.Errorf("its starter can kill it: %s", out)
		}
		// It may be run by anybody, so it must do nothing else.
		file := filepath.Join(l.Dir, "setuid")
		for _, args := range [][]string{{"-log", l.Dir + "/x"}, {"-ready", l.Dir + "/x"}, {"-role", "threads"}} {
			try := exec.Command(file, append([]string{"-tag", l.Tag}, args...)...)
			try.SysProcAttr = &syscall.SysProcAttr{Credential: nobody}
			if out, _ := try.CombinedOutput(); try.ProcessState.ExitCode() != 2 {
				t.Errorf("%v: %v, %s", args, try.ProcessState, out)
			}
		}
		killAll(t, l)
	})
}

func TestRefusals(t *testing.T) {
	l := New(t)
	for _, args := range [][]string{
		l.Args("nonsense"),
		l.Args("plain0"),
		l.Args("plain1001"),
		l.Args("plain", "-main", "nonsense"),
		l.Args("plain", "-main", "dawdle=x"),
		l.Args("setuid"),
		{l.Bin, "-kinds", "plain", "-tag", l.Tag},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() < 1 || !strings.HasPrefix(string(out), "nasty: ") {
			t.Errorf("%v: %v, %s", args[1:], err, out)
		}
	}
}

func run(t *testing.T, log string) Run {
	t.Helper()
	runs, err := ReadLog(log)
	if err != nil {
		t.Fatal(err)
	}
	return runs[len(runs)-1]
}

func proc(t testing.TB, l *Load, pid int) Proc {
	t.Helper()
	procs := l.Survivors()
	i := slices.IndexFunc(procs, func(p Proc) bool { return p.Pid == pid })
	if i < 0 {
		t.Fatalf("%d isn't among %v", pid, procs)
	}
	return procs[i]
}

// status is a line of /proc/PID/status, split.
func status(t testing.TB, pid int, field string) []string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatalf("no %s in the status of %d", field, pid)
	return nil
}

func ignoresStops(t testing.TB, pid int) bool {
	t.Helper()
	mask, err := strconv.ParseUint(status(t, pid, "SigIgn")[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	const stops = 1<<(unix.SIGTERM-1) | 1<<(unix.SIGHUP-1) | 1<<(unix.SIGINT-1)
	return mask&stops == stops
}
