package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/nasty"
)

// The tests in this file stop a keeper in every way that users and service managers do,
// and look at what a command inherits. Limits are generous: what is asserted is the order
// of things and that they happen; the exact instants are asserted in fake time.

// patience is for what ought to take milliseconds.
const patience = 30 * time.Second

// The probe is this test binary as the command: "BIN -tag TAG -probe MODE DIR ...".
func init() {
	if a := os.Args; len(a) >= 6 && a[1] == "-tag" && a[3] == "-probe" {
		os.Exit(probeMain(a[4], a[5], a[6:]))
	}
}

func probeMain(mode, dir string, more []string) int {
	switch mode {
	case "facts":
		b, _ := json.Marshal(probeFacts())
		_ = os.WriteFile(filepath.Join(dir, "facts.new"), b, 0o666)
		_ = os.Rename(filepath.Join(dir, "facts.new"), filepath.Join(dir, "facts"))
		return logSignals(filepath.Join(dir, "signals"), filepath.Join(dir, "ready"), unix.SIGTERM, 0)
	case "log": // more: the signal that ends it, the exit code, and with a third one a bystander below it
		end, _ := strconv.Atoi(more[0])
		code, _ := strconv.Atoi(more[1])
		if len(more) > 2 {
			args := slices.Clone(os.Args)
			args = append(args[:4], "bystander", dir, more[0], more[1])
			if _, err := syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}}); err != nil {
				return 1
			}
			for i := 0; ; i++ {
				if _, err := os.Stat(filepath.Join(dir, "bystander")); err == nil {
					break
				}
				if i > 6000 {
					return 1
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		return logSignals(filepath.Join(dir, "signals"), filepath.Join(dir, "ready"), syscall.Signal(end), code)
	case "bystander":
		end, _ := strconv.Atoi(more[0])
		return logSignals(filepath.Join(dir, "bystander"), "", syscall.Signal(end), 0)
	}
	return 1
}

// logSignals appends a line for each signal that comes, until end does.
func logSignals(file, ready string, end syscall.Signal, code int) int {
	c := make(chan os.Signal, 1000)
	signal.Notify(c)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return 1
	}
	if ready != "" {
		_ = os.WriteFile(ready, fmt.Appendf(nil, `{"main":[%d]}`, os.Getpid()), 0o666)
	}
	life := time.After(2 * time.Minute)
	for {
		select {
		case s := <-c:
			fmt.Fprintln(f, signalName(s.(syscall.Signal)))
			if s == end {
				return code
			}
		case <-life:
			return 1
		}
	}
}

func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return "signal " + strconv.Itoa(int(s))
}

// facts is what a process is given at its birth.
type facts struct {
	Pid       int
	Listen    map[string]string
	Umask     int
	Dir       string
	Nice      int
	Policy    int
	Pdeathsig int32
	Blocked   string
	Ignored   string
}

func probeFacts() facts {
	f := facts{Pid: os.Getpid(), Listen: map[string]string{}}
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "LISTEN_") {
			f.Listen[name] = value
		}
	}
	f.Umask = unix.Umask(0)
	f.Dir, _ = os.Getwd()
	if attr, err := unix.SchedGetAttr(0, 0); err == nil {
		f.Nice, f.Policy = int(attr.Nice), int(attr.Policy)
	}
	// Of this thread, which is the first one in an init function. It can't fail.
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&f.Pdeathsig)), 0)
	f.Blocked, f.Ignored = statusLine(os.Getpid(), "SigBlk"), statusLine(os.Getpid(), "SigIgn")
	return f
}

// facts waits for what the probe has found, and until it can be stopped.
func (k *keeper) facts() (f facts) {
	k.t.Helper()
	until(k.t, patience, "the probe tells what it found", func() bool {
		b, err := os.ReadFile(k.dir.path("facts"))
		_, ready := os.Stat(k.dir.path("signals"))
		return err == nil && ready == nil && json.Unmarshal(b, &f) == nil
	})
	return f
}

// openFiles are the open descriptors of a process and what they are.
func openFiles(pid int) map[int]string {
	files := map[int]string{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, _ := os.ReadDir(dir)
	for _, name := range names {
		fd, _ := strconv.Atoi(name.Name())
		if file, err := os.Readlink(filepath.Join(dir, name.Name())); err == nil {
			files[fd] = file
		}
	}
	return files
}

// ownInheritable are this process's descriptors from first on that all its children get.
func ownInheritable(first int) map[int]string {
	files := openFiles(os.Getpid())
	maps.DeleteFunc(files, func(fd int, _ string) bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return fd < first || err != nil || flags&unix.FD_CLOEXEC != 0
	})
	return files
}

// statusLine is a value of /proc/PID/status.
func statusLine(pid int, name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// ignores reports whether a process ignores a signal.
func ignores(pid int, s syscall.Signal) bool {
	mask, _ := strconv.ParseUint(statusLine(pid, "SigIgn"), 16, 64)
	return mask&(1<<(s-1)) != 0
}

// until polls, and fails the test if what never happens.
func until(t *testing.T, most time.Duration, what string, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", most, what)
		}
	}
}

// running reports whether a process exists and isn't a zombie.
func running(pid int) bool {
	_, state, _, ok := procStat(pid)
	return ok && state != 'Z' && state != 'X'
}

// isStopped reports whether a process was stopped by a signal.
func isStopped(pid int) bool {
	_, state, _, _ := procStat(pid)
	return state == 'T'
}

func testBinary(t *testing.T) string {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// probe makes the probe the command of s.
func probe(t *testing.T, s *keeperSpec, mode string, more ...string) {
	s.Args = append([]string{testBinary(t), "-tag", s.Tag, "-probe", mode, s.Folder}, more...)
}

// shell makes a shell script the command of s; $DIR is the folder, and "up" tells that
// it runs, with its pid.
func shell(s *keeperSpec, script string) {
	s.Args = []string{"/usr/bin/env", "NASTY_TAG=" + s.Tag, "DIR=" + s.Folder, "/bin/sh", "-c",
		`up() { echo "{\"main\":[$$]}" > "$DIR/ready.new"; mv "$DIR/ready.new" "$DIR/ready"; }` + "\n" + script}
}

// logged returns the lines that the probe has written.
func logged(dir folder, file string) []string {
	b, _ := os.ReadFile(dir.path(file))
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// sent is logged without SIGCONT, which comes with a stop, and the Go runtime's own SIGURG.
func sent(dir folder, file string) []string {
	return slices.DeleteFunc(logged(dir, file), func(s string) bool { return s == "SIGCONT" || s == "SIGURG" })
}

// waitLogged waits until the command has noted a signal n times.
func waitLogged(t *testing.T, dir folder, sig syscall.Signal, n int) {
	t.Helper()
	until(t, patience, fmt.Sprintf("%d of %s at the command", n, signalName(sig)), func() bool {
		return count(logged(dir, "signals"), signalName(sig)) >= n
	})
}

func count(list []string, name string) (n int) {
	for _, s := range list {
		if s == name {
			n++
		}
	}
	return n
}

// main is the pid of the command.
func (k *keeper) main() int {
	k.t.Helper()
	pids, err := k.load.WaitReady(patience)
	if err != nil || len(pids["main"]) != 1 {
		k.t.Fatal(pids, err)
	}
	return pids["main"][0]
}

// wantExit asserts how the keeper ended.
func (k *keeper) wantExit(code int) {
	k.t.Helper()
	if s := k.wait(patience); !s.Exited() || s.ExitStatus() != code {
		k.t.Errorf("the keeper's status is %#x, want exit %d\n%s", s, code, k.log.String())
	}
}

func (k *keeper) wantDeath(sig syscall.Signal) {
	k.t.Helper()
	if s := k.wait(patience); !s.Signaled() || s.Signal() != sig {
		k.t.Errorf("the keeper's status is %#x, want death by %s\n%s", s, signalName(sig), k.log.String())
	}
}

// noHurry gives a lease that a starved machine can't miss, for tests that aren't about its end.
func noHurry(s *keeperSpec) {
	s.Dials.Lease = time.Minute
	s.Stop = 10 * time.Minute
}

// TestStopTimeout: a deaf command is killed when the stop timeout has passed, not sooner.
func TestStopTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 1500 * time.Millisecond
	k := startKeeper(t, "plain,deaf", func(s *keeperSpec, _ *exec.Cmd) { noHurry(s); s.Stop = timeout }, "-main", "deaf")
	start := time.Now()
	k.signal(unix.SIGTERM, "keeper")
	k.wantDeath(unix.SIGKILL)
	if took := time.Since(start); took < timeout {
		t.Errorf("killed after %s, want at least %s", took, timeout)
	}
	k.wantReleased("keeper", slack)
}

// TestSecondStopSignalKills: TERM or INT, in any order.
func TestSecondStopSignalKills(t *testing.T) {
	for _, sigs := range [][2]syscall.Signal{{unix.SIGTERM, unix.SIGTERM}, {unix.SIGINT, unix.SIGTERM}, {unix.SIGTERM, unix.SIGINT}} {
		t.Run(signalName(sigs[0])+" "+signalName(sigs[1]), func(t *testing.T) {
			t.Parallel()
			k := startKeeper(t, "", func(s *keeperSpec, _ *exec.Cmd) {
				noHurry(s)
				probe(t, s, "log", "0", "0", "bystander")
			})
			k.signal(sigs[0], "keeper")
			waitLogged(t, k.dir, unix.SIGTERM, 1)
			k.signal(sigs[1], "keeper")
			k.wantDeath(unix.SIGKILL)
			k.wantReleased("keeper", slack)
			if got := sent(k.dir, "signals"); !slices.Equal(got, []string{"SIGTERM"}) {
				t.Errorf("the command was sent %v, want one SIGTERM", got)
			}
			if got := sent(k.dir, "bystander"); len(got) > 0 {
				t.Errorf("its child was sent %v, want nothing before SIGKILL", got)
			}
		})
	}
}

// TestStopSignal: -s replaces TERM for the command, and only for it.
func TestStopSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGUSR1, unix.SIGQUIT} {
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stopped=%t", signalName(sig), stopped), func(t *testing.T) {
				t.Parallel()
				k := startKeeper(t, "", func(s *keeperSpec, _ *exec.Cmd) {
					noHurry(s)
					s.Options.StopSignal = sig
					probe(t, s, "log", strconv.Itoa(int(sig)), "7")
				})
				want := []string{signalName(sig)}
				if stopped {
					k.stopMain()
				}
				k.signal(unix.SIGTERM, "keeper")
				k.wantExit(7)
				k.wantReleased("keeper", slack)
				if got := sent(k.dir, "signals"); !slices.Equal(got, want) {
					t.Errorf("the command was sent %v, want %v", got, want)
				}
			})
		}
	}
}

func (k *keeper) stopMain() {
	k.t.Helper()
	main := k.main()
	if err := unix.Kill(main, unix.SIGSTOP); err != nil {
		k.t.Fatal(err)
	}
	until(k.t, patience, "the command stops", func() bool { return isStopped(main) })
}

// TestStopOfStoppedCommand: a command in the state T is continued, so that it can end.
func TestStopOfStoppedCommand(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "", func(s *keeperSpec, _ *exec.Cmd) { noHurry(s) }, "-main", "polite", "-code", "9")
	k.stopMain()
	k.signal(unix.SIGTERM, "keeper")
	k.wantExit(9)
	k.wantReleased("keeper", slack)
}

// TestStopDuringOutage: the stop of a polite command doesn't wait for Consul; a deaf one
// gets no longer than the lease, whatever the stop timeout.
func TestStopDuringOutage(t *testing.T) {
	t.Run("polite", func(t *testing.T) {
		t.Parallel()
		k := startKeeper(t, "", func(s *keeperSpec, _ *exec.Cmd) { noHurry(s) }, "-main", "polite", "-code", "9")
		k.silence()
		k.signal(unix.SIGTERM, "keeper")
		k.wantExit(9)
		k.wantReleased("keeper", slack)
	})
	t.Run("deaf", func(t *testing.T) {
		t.Parallel()
		d := testDials()
		k := startKeeper(t, "plain,deaf,daemon", func(s *keeperSpec, _ *exec.Cmd) { s.Stop = 10 * time.Minute }, "-main", "deaf")
		k.silence()
		start := time.Now()
		k.signal(unix.SIGTERM, "keeper")
		if err := k.load.WaitGone(d.RenewDeadline() + d.KillAfter + margin + slack); err != nil {
			t.Errorf("%v\n%s", err, k.log.String())
		}
		t.Logf("all dead %s after the silence began", time.Since(start).Round(time.Millisecond))
		k.wantExit(100 + int(Lost))
		k.wantReleased("keeper", slack)
	})
}

// TestForwardedSignals: those that a command may want reach it once each, and nobody else.
func TestForwardedSignals(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "", func(s *keeperSpec, _ *exec.Cmd) {
		noHurry(s)
		probe(t, s, "log", strconv.Itoa(int(unix.SIGTERM)), "6", "bystander")
		// Go's own SIGURG can't be told from a forwarded one.
		s.Args = append([]string{"/usr/bin/env", "GODEBUG=asyncpreemptoff=1"}, s.Args...)
	})
	want := []syscall.Signal{unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH, unix.SIGIO, unix.SIGPWR}
	for n := syscall.Signal(35); n <= 64; n++ { // 34 is not Go's to catch: see TestSignal34
		want = append(want, n)
	}
	var names []string
	for _, s := range want {
		k.signal(s, "keeper")
		waitLogged(t, k.dir, s, 1)
		names = append(names, signalName(s))
	}
	// None of these: the kernel's, the runtime's and the terminal's own.
	for _, s := range []syscall.Signal{unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE, unix.SIGCONT} {
		k.signal(s, "keeper")
	}
	for _, s := range []syscall.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		k.signal(s, "keeper")
		until(t, patience, "the keeper stops", func() bool { return isStopped(k.cmd.Process.Pid) })
		k.signal(unix.SIGCONT, "keeper")
		until(t, patience, "the keeper continues", func() bool { return !isStopped(k.cmd.Process.Pid) })
	}
	// The guard keeps to itself what it is sent.
	for _, s := range []syscall.Signal{unix.SIGCHLD, unix.SIGURG, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH, unix.SIGPIPE, unix.SIGCONT} {
		k.signal(s, "guard")
	}
	for i := 2; i < 4; i++ { // what is on its way now would arrive before these
		k.signal(unix.SIGUSR1, "keeper")
		waitLogged(t, k.dir, unix.SIGUSR1, i)
		names = append(names, "SIGUSR1")
	}
	k.signal(unix.SIGTERM, "keeper")
	k.wantExit(6)
	k.wantReleased("keeper", slack)
	got := logged(k.dir, "signals")
	if n := len(got); n > 1 && got[n-1] == "SIGCONT" {
		got = got[:n-1] // it comes with TERM
	}
	if want := append(names, "SIGTERM"); !slices.Equal(got, want) {
		t.Errorf("the command was sent\n%v, want\n%v", got, want)
	}
	// It outlived the command, so it was told to end.
	if got := sent(k.dir, "bystander"); !slices.Equal(got, []string{"SIGTERM"}) {
		t.Errorf("the command's child was sent %v, want one SIGTERM", got)
	}
}

// TestSignal34: Go programs can't receive the first real-time signal (golang/go#39343: it
// is musl's own), so it ends the keeper as it ends most programs; the guard takes over.
func TestSignal34(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "plain,daemon", nil, "-main", "polite")
	k.signal(34, "keeper")
	k.wantDeath(34)
	k.wantReleased("guard", slack)
}

// TestStopOfGroup: a TERM to the keeper's process group hits the command, too, and not
// the guard; all ends in order.
func TestStopOfGroup(t *testing.T) {
	for name, kinds := range map[string]string{"alone": "", "with a tree": nasty.Standard()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := startKeeper(t, kinds, func(s *keeperSpec, _ *exec.Cmd) { noHurry(s); s.Stop = 3 * time.Second }, "-main", "dawdle=500ms", "-code", "9")
			group, err := unix.Getpgid(k.main())
			if err != nil || group != k.cmd.Process.Pid {
				t.Fatalf("the command's group is %d (%v), want the keeper's %d", group, err, k.cmd.Process.Pid)
			}
			if group, _ := unix.Getpgid(k.guard); group == k.cmd.Process.Pid {
				t.Error("the guard is in the keeper's group")
			}
			if err := unix.Kill(-group, unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			k.wantExit(9)
			k.wantReleased("keeper", slack)
			if strings.Contains(k.log.String(), "second stop signal") {
				t.Errorf("one TERM counted as two:\n%s", k.log.String())
			}
		})
	}
}

// TestStopOfAll: a TERM to each process, as systemd's KillMode=control-group (its default)
// sends it, is one stop and not two, whoever gets it first.
func TestStopOfAll(t *testing.T) {
	for _, first := range []string{"keeper", "guard", "command"} {
		t.Run(first+" first", func(t *testing.T) {
			t.Parallel()
			k := startKeeper(t, "", func(s *keeperSpec, _ *exec.Cmd) {
				noHurry(s)
				probe(t, s, "log", strconv.Itoa(int(unix.SIGUSR1)), "9")
			})
			pids := map[string]int{"keeper": k.cmd.Process.Pid, "guard": k.guard, "command": k.main()}
			_ = unix.Kill(pids[first], unix.SIGTERM)
			waitLogged(t, k.dir, unix.SIGTERM, 1) // directly, or because the stop has begun
			for name, pid := range pids {
				if name != first {
					_ = unix.Kill(pid, unix.SIGTERM)
				}
			}
			for i := 1; i < 3; i++ { // behind whatever those have led to
				k.signal(unix.SIGUSR2, "keeper")
				until(t, patience, "the command gets USR2", func() bool {
					return count(logged(k.dir, "signals"), "SIGUSR2") >= i || !running(pids["command"])
				})
			}
			k.signal(unix.SIGUSR1, "keeper")
			k.wantExit(9)
			k.wantReleased("keeper", slack)
			if strings.Contains(k.log.String(), "second stop signal") {
				t.Errorf("one TERM counted as two:\n%s", k.log.String())
			}
		})
	}
}

// unprivileged makes a keeper run as nobody.
func unprivileged(t *testing.T) func(*keeperSpec, *exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	return func(_ *keeperSpec, c *exec.Cmd) {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
}

// TestUnprivileged: without root, and so without a cgroup, every kind of tree ends.
func TestUnprivileged(t *testing.T) {
	var kinds []string
	for kind := range strings.SplitSeq(nasty.Standard(), ",") {
		if kind != "pidns" && kind != "nobody" {
			kinds = append(kinds, kind)
		}
	}
	d := testDials()
	for _, how := range []string{"stop", "outage", "keeper killed", "guard killed"} {
		t.Run(how, func(t *testing.T) {
			if testing.Short() && how == "outage" {
				t.Skip("takes a real lease")
			}
			t.Parallel()
			k := startKeeper(t, strings.Join(kinds, ","), unprivileged(t), "-main", "deaf")
			if uid := strings.Fields(statusLine(k.main(), "Uid")); len(uid) == 0 || uid[0] != "65534" {
				t.Fatalf("the command runs as %v, want 65534", uid)
			}
			by := "keeper"
			switch how {
			case "stop":
				k.signal(unix.SIGTERM, "keeper")
				k.wantDeath(unix.SIGKILL)
			case "outage":
				k.silence()
				if err := k.load.WaitGone(d.RenewDeadline() + d.KillAfter + margin + slack); err != nil {
					t.Error(err)
				}
				k.wantExit(100 + int(Lost))
			case "keeper killed":
				k.signal(unix.SIGKILL, "keeper")
				by = "guard"
			case "guard killed":
				k.signal(unix.SIGKILL, "guard")
				k.wantExit(100 + int(Failed))
			}
			k.wantReleased(by, slack)
			if left := k.load.Survivors(); len(left) > 0 {
				t.Errorf("left alive: %v", left)
			}
		})
	}
}

// TestHeldByADebugger: what was killed under a debugger that doesn't look is dead, but not gone: the
// guard can't reap it until the debugger lets go. The message says whom to look for.
func TestHeldByADebugger(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "plain", func(s *keeperSpec, _ *exec.Cmd) { s.Dials.Lease = time.Minute }, "-main", "deaf")
	pids, err := k.load.WaitReady(patience)
	if err != nil || len(pids["main"]) != 1 {
		t.Fatal(pids, err)
	}
	seized, letGo := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread is the tracer
		defer runtime.UnlockOSThread()
		seized <- unix.PtraceSeize(pids["main"][0])
		<-letGo
		_, _ = unix.Wait4(pids["main"][0], nil, unix.WALL, nil) // it has looked: now the guard may
	}()
	if err := <-seized; err != nil {
		t.Skipf("cannot trace: %v", err)
	}
	k.signal(unix.SIGTERM, "keeper")
	k.signal(unix.SIGTERM, "keeper") // kills
	want := fmt.Sprintf("(pid %d, dead but held by its debugger, pid ", pids["main"][0])
	until(t, patience, "the keeper says who holds it", func() bool { return strings.Contains(k.log.String(), want) })
	if _, err := os.Stat(k.dir.path("released")); err == nil {
		t.Error("the lock is released")
	}
	close(letGo)
	k.wantReleased("keeper", slack)
}

// TestLeftoversAreCounted: what is told of them has the right number, and none if it isn't known.
func TestLeftoversAreCounted(t *testing.T) {
	for _, c := range []struct {
		left []string
		want string
	}{
		{nil, ""}, // the last one has ended in this moment
		{[]string{"a (pid 1)"}, "1 process outlived the command: a (pid 1);"},
		{[]string{"a (pid 1)", "b (pid 2)"}, "2 processes outlived the command: a (pid 1), b (pid 2);"},
		{append(slices.Repeat([]string{"a (pid 1)"}, mostNames), "and 32 more"), "more than 10 processes outlived the command: a (pid 1), "},
	} {
		var b strings.Builder
		h := &holding{supervisor: &supervisor{Config: Config{Log: zerolog.New(&b)}}}
		h.event(Event{Kind: CommandEnded, Leftovers: c.left}, true)
		if !strings.Contains(b.String(), c.want) || c.want == "" && b.Len() > 0 {
			t.Errorf("%d: it says %q, want %q", len(c.left), b.String(), c.want)
		}
	}
}

// TestUnkillable: an unprivileged onlyone without a cgroup can't kill a process that
// became root by a set-user-ID program. It must not release the lock, must say so, and
// must not wait longer than the lease.
func TestUnkillable(t *testing.T) {
	if testing.Short() {
		t.Skip("takes real leases")
	}
	d := testDials()
	lease := d.RenewDeadline() + d.KillAfter + d.Margin()
	for _, how := range []string{"stop", "command ends", "outage", "keeper killed", "guard killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			nobody := unprivileged(t)
			var log string
			more := append([]string{"-main", "deaf"}, nasty.New(t).Setuid(t)...)
			if how == "command ends" {
				more = append(more, "-main", "sleep=300ms", "-code", "7")
			}
			k := startKeeper(t, "plain,setuid", func(s *keeperSpec, c *exec.Cmd) {
				nobody(s, c)
				// Not a pipe: what is left over keeps it open.
				log = filepath.Join(s.Folder, "log")
				f, err := os.Create(log)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				c.Stderr = f
			}, more...)
			start := time.Now()
			most := lease + 2*time.Second + slack // the keeper tries for 2 s more before it ends
			switch how {
			case "stop":
				k.signal(unix.SIGTERM, "keeper")
				most += time.Second // spec.Stop
			case "command ends":
				most += d.KillAfter
			case "outage":
				k.silence()
			case "keeper killed", "guard killed":
				k.signal(unix.SIGKILL, how[:strings.IndexByte(how, ' ')])
			}
			if s := k.wait(most); how != "keeper killed" && s.ExitStatus() != 100+int(LostAlive) {
				t.Errorf("status %#x, want the outcome LostAlive", s)
			}
			until(t, max(most-time.Since(start), 0), "the guard ends", func() bool { return !running(k.guard) })
			t.Logf("gave up after %s (the lease ends after at most %s)", time.Since(start).Round(time.Millisecond), lease)
			left := k.load.Survivors()
			if !slices.ContainsFunc(left, func(p nasty.Proc) bool { return p.Comm == "nasty-setuid" }) {
				t.Errorf("the set-user-ID process isn't left over, so this test shows nothing: %v", left)
			}
			if slices.ContainsFunc(left, func(p nasty.Proc) bool { return p.Comm != "nasty-setuid" }) {
				t.Errorf("left alive although it could be killed: %v", left)
			}
			if b, err := os.ReadFile(k.dir.path("released")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the lock was released: %q", b)
			}
			text, _ := os.ReadFile(log)
			// At the lease's end the outcome is all that the keeper has time for; before it, or
			// when the guard is alone, a line names the process.
			if how != "outage" && how != "guard killed" &&
				(!strings.Contains(string(text), "cannot kill") || !strings.Contains(string(text), "nasty-setuid")) {
				t.Errorf("nothing says that the set-user-ID process can't be killed")
			}
			if t.Failed() {
				t.Logf("the keeper's and the guard's messages:\n%s", text)
			}
		})
	}
}

// TestInheritance: what a command finds when it starts is what onlyone was given.
func TestInheritance(t *testing.T) {
	t.Parallel()
	var files [2]*os.File
	k := startKeeper(t, "", func(s *keeperSpec, c *exec.Cmd) {
		for i := range files {
			f, err := os.Create(filepath.Join(s.Folder, "file"+strconv.Itoa(i)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			files[i] = f
		}
		c.ExtraFiles = []*os.File{files[0], nil, nil, nil, nil, nil, files[1]} // 3 and 9
		if err := os.Mkdir(filepath.Join(s.Folder, "cwd"), 0o777); err != nil {
			t.Fatal(err)
		}
		noHurry(s) // with the race detector, a program takes a second to exit
		probe(t, s, "facts")
		command := s.Args
		shell(s, `ulimit -Sn > limits; ulimit -Sf >> limits; up; while [ ! -e "$DIR/go" ]; do sleep 0.05; done; exec "$@"`)
		s.Args = append(append(s.Args, "sh"), command...)
		// exec keeps the pid, so LISTEN_PID is the keeper's.
		script := `cd "$0" && umask 027 && ulimit -Sn 321 && ulimit -Sf 123456 && export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web LISTEN_PIDFDID=1 && exec nice -n 7 "$1"`
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", script, filepath.Join(s.Folder, "cwd"), testBinary(t)}
	})
	// Looked at from outside, before the probe's Go runtime opens some of its own.
	want := ownInheritable(10)
	want[3], want[9] = k.dir.path("file0"), k.dir.path("file1")
	got := openFiles(k.main())
	for fd := range 3 {
		if got[fd] == "" {
			t.Errorf("descriptor %d isn't open", fd)
		}
		delete(got, fd)
	}
	if !maps.Equal(got, want) {
		t.Errorf("open descriptors above 2: %v, want %v", got, want)
	}
	if err := os.WriteFile(k.dir.path("go"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	f := k.facts()
	k.signal(unix.SIGTERM, "keeper")
	k.wantExit(0)
	if got := f.Listen["LISTEN_PID"]; got != strconv.Itoa(f.Pid) {
		t.Errorf("LISTEN_PID is %q, want the command's pid %d", got, f.Pid)
	}
	if f.Listen["LISTEN_FDS"] != "1" || f.Listen["LISTEN_FDNAMES"] != "web" {
		t.Errorf("socket activation got lost: %v", f.Listen)
	}
	if id, ok := f.Listen["LISTEN_PIDFDID"]; ok {
		t.Errorf("LISTEN_PIDFDID=%s is left: it names onlyone, so systemd's library refuses the descriptors", id)
	}
	if f.Umask != 0o027 {
		t.Errorf("umask %#o, want 027", f.Umask)
	}
	if want := k.dir.path("cwd"); f.Dir != want {
		t.Errorf("working directory %s, want %s", f.Dir, want)
	}
	if nice, policy := niceAndPolicy(t, 0); f.Nice != min(19, 7+nice) || f.Policy != policy {
		t.Errorf("niceness %d and policy %d, want %d and %d", f.Nice, f.Policy, min(19, 7+nice), policy)
	}
	if f.Pdeathsig != int32(unix.SIGKILL) {
		t.Errorf("parent-death signal %d, want SIGKILL", f.Pdeathsig)
	}
	if blocked, _ := strconv.ParseUint(f.Blocked, 16, 64); blocked != 0 {
		t.Errorf("signals are blocked: %s", f.Blocked)
	}
	limits, _ := os.ReadFile(k.dir.path("cwd/limits"))
	if got := strings.Fields(string(limits)); !slices.Equal(got, []string{"321", "123456"}) {
		t.Errorf("soft limits of descriptors and file size: %v, want 321 and 123456", got)
	}
}

func niceAndPolicy(t *testing.T, pid int) (nice, policy int) {
	t.Helper()
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return int(attr.Nice), int(attr.Policy)
}

// TestForeignListenPid: socket activation that was meant for somebody else isn't made the
// command's.
func TestForeignListenPid(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "", func(s *keeperSpec, c *exec.Cmd) {
		noHurry(s) // with the race detector, a program takes a second to exit
		probe(t, s, "facts")
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `export LISTEN_PID=1 LISTEN_FDS=1; exec "$0"`, testBinary(t)}
	})
	f := k.facts()
	k.signal(unix.SIGTERM, "keeper")
	k.wantExit(0)
	if f.Listen["LISTEN_PID"] != "1" {
		t.Errorf("LISTEN_PID is %q, want what it was: 1", f.Listen["LISTEN_PID"])
	}
}

// TestRealtimeGuard: the guard is SCHED_FIFO where that is allowed, the command never.
func TestRealtimeGuard(t *testing.T) {
	t.Parallel()
	if !mayBeRealtime(t) {
		t.Skip("SCHED_FIFO isn't allowed here")
	}
	k := startKeeper(t, "plain,daemon", nil, "-main", "polite")
	until(t, patience, "a thread of the guard is SCHED_FIFO", func() bool {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", k.guard))
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if attr, err := unix.SchedGetAttr(tid, 0); err == nil && attr.Policy == unix.SCHED_FIFO && attr.Priority == 1 {
				return true
			}
		}
		return false
	})
	for _, p := range k.load.Survivors() {
		if _, policy := niceAndPolicy(t, p.Pid); policy != unix.SCHED_NORMAL {
			t.Errorf("%v has the policy %d, want SCHED_OTHER", p, policy)
		}
	}
	k.signal(unix.SIGTERM, "keeper")
	k.wantExit(0)
}

// mayBeRealtime tries it for a moment. The thread must not end: keepers that were forked
// by it would die of their parent-death signal.
func mayBeRealtime(t *testing.T) bool {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0) != nil {
		return false
	}
	if err := unix.SchedSetAttr(0, before, 0); err != nil {
		t.Fatal(err)
	}
	return true
}

// TestStdin: a pipe's data and its end reach the command, and what it wrote has an end, too.
func TestStdin(t *testing.T) {
	t.Parallel()
	var stdin io.WriteCloser
	k := startKeeper(t, "", func(s *keeperSpec, c *exec.Cmd) {
		shell(s, `up; exec cat > "$DIR/out"`)
		var err error
		if stdin, err = c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	})
	text := strings.Repeat("a line\n", 100_000)
	if _, err := io.WriteString(stdin, text); err != nil {
		t.Fatal(err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	k.wantExit(0)
	if err := <-k.done; err != nil {
		t.Error(err) // exec.ErrWaitDelay: somebody keeps stderr open
	}
	k.done <- nil
	if b, _ := os.ReadFile(k.dir.path("out")); string(b) != text {
		t.Errorf("%d bytes arrived, want %d", len(b), len(text))
	}
}

// TestGuardName: what ends all processes named onlyone leaves the guard, which then ends
// the command and releases.
func TestGuardName(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "plain", func(s *keeperSpec, c *exec.Cmd) {
		file := filepath.Join(s.Folder, "onlyone")
		// Not written by this process: a fork elsewhere would have it open for writing a
		// moment longer (golang/go#22315).
		if err := exec.Command("cp", testBinary(t), file).Run(); err != nil {
			t.Fatal(err)
		}
		c.Path, c.Args = file, []string{"onlyone"}
	}, "-main", "polite")
	if comm, _, _, _ := procStat(k.cmd.Process.Pid); comm != "onlyone" {
		t.Fatalf("the keeper is named %q, so this test shows nothing", comm)
	}
	if comm, _, _, _ := procStat(k.guard); comm != "leaseguard" {
		t.Errorf("the guard is named %q, want leaseguard", comm)
	}
	if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", k.guard)); !strings.HasPrefix(string(b), "leaseguard\x00") {
		t.Errorf("the guard's arguments are %q, want leaseguard first", b)
	}
	if comm, _, _, _ := procStat(k.main()); comm == "onlyone" {
		t.Error("the command is named onlyone")
	}
	k.signal(unix.SIGKILL, "keeper")
	k.wantReleased("guard", slack)
}
