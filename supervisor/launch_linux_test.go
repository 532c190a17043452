package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/nasty"
)

// TestShimsWords: what a shim's words mean, and its silence.
func TestShimsWords(t *testing.T) {
	errno := []byte{byte(syscall.ENOEXEC), 0, 0, 0}
	for _, c := range []struct {
		name string
		born bool
		said [][]byte // one write each
		open bool     // it lives on
		want word
	}{
		{name: "nothing yet", born: true, open: true, want: wordNone},
		{name: "alive", born: true, said: [][]byte{{shimAlive}}, open: true, want: wordNone},
		{name: "executing", born: true, said: [][]byte{{shimAlive}, {shimExecutes}}, open: true, want: wordNone},
		{name: "executed", born: true, said: [][]byte{{shimAlive}, {shimExecutes}}, want: wordExecuted},
		{name: "failed", born: true, said: [][]byte{{shimAlive}, {shimExecutes}, errno}, want: wordFailed},
		{name: "failed, in one piece", said: [][]byte{append([]byte{shimAlive, shimExecutes}, errno...)}, want: wordFailed},
		{name: "ended before it executed", born: true, said: [][]byte{{shimAlive}}, want: wordSilent},
		{name: "killed at birth", born: true, want: wordSilent},
		{name: "killed, but not for its birth", want: wordSilent},
	} {
		t.Run(c.name, func(t *testing.T) {
			words, err := newPipe()
			if err != nil {
				t.Fatal(err)
			}
			order, err := newPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(order[0])
			for _, b := range c.said {
				if _, err := unix.Write(words[1], b); err != nil {
					t.Fatal(err)
				}
			}
			if c.open {
				defer unix.Close(words[1])
			} else {
				unix.Close(words[1])
			}
			p := &procTree{launch: &launch{born: c.born, words: words[0], order: order[1]}}
			got, e := p.hear()
			if got != c.want || got == wordFailed && e != syscall.ENOEXEC {
				t.Errorf("word %d, errno %d, want %d", got, e, c.want)
			}
			if gone := p.launch == nil; gone != (got == wordExecuted || got == wordFailed) {
				t.Errorf("the launch is forgotten: %v", gone)
			}
			if again, _ := p.hear(); got == wordSilent && again != wordSilent {
				t.Error("its silence is forgotten")
			}
			p.forget()
		})
	}
}

// TestSignalBeforeAShimIsAlive: only SIGKILL is a death at birth. A signal that was meant for the
// command (a terminal's ^C) ends it, and so does a kill when it is to be stopped.
func TestSignalBeforeAShimIsAlive(t *testing.T) {
	for _, c := range []struct {
		sig   syscall.Signal
		phase guardPhase
	}{{unix.SIGINT, guardRunning}, {unix.SIGTERM, guardStopping}, {unix.SIGKILL, guardStopping}, {unix.SIGKILL, guardKilling}} {
		words, err := newPipe()
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(words[1])
		order, err := newPipe()
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(order[0])
		l := &guardLoop{procs: &procTree{launch: &launch{born: true, words: words[0], order: order[1]}, pid: 1}}
		l.phase, l.send = c.phase, func(e Event) { t.Errorf("%s in phase %d: event %+v", c.sig, c.phase, e) }
		l.ended(syscall.WaitStatus(c.sig))
		if l.procs.launch != nil {
			t.Errorf("%s in phase %d: it is forked anew", c.sig, c.phase)
		}
	}
}

// TestShimThatFails: a shim that ends by itself before it executes (Go's runtime ends with status 2
// where it can't have a thread or memory) isn't a command that ended with that status: a period
// that never ran would be done.
func TestShimThatFails(t *testing.T) {
	for _, c := range []struct{ born, alive bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		for _, phase := range []guardPhase{guardRunning, guardStopping, guardKilling} {
			l := &guardLoop{procs: &procTree{launch: deadShim(t, c.born, c.alive), pid: 1}}
			out, err := newPipe()
			if err != nil {
				t.Fatal(err)
			}
			l.out, l.phase, l.records = out[1], phase, RecordAll
			l.ended(syscall.WaitStatus(2 << 8))
			said := make([]byte, 4096)
			n, _ := unix.Read(out[0], said)
			var f frames
			f.add(said[:max(n, 0)])
			var e Event
			if _, payload, ok, _ := f.next(); ok {
				_ = json.Unmarshal(payload, &e)
			}
			if e.Kind != StartFailed || e.Unforked || l.records != RecordHook || l.procs.launch != nil {
				t.Errorf("%+v, phase %d: event %+v, records %d", c, phase, e, l.records)
			}
			closePipe(out)
		}
	}
}

// deadShim is one that has ended before it executed anything; if alive, after it had said that it lives.
func deadShim(t *testing.T, born, alive bool) *launch {
	t.Helper()
	words, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	if alive {
		_, _ = unix.Write(words[1], []byte{shimAlive})
	}
	unix.Close(words[1])
	order, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(order[0])
	return &launch{born: born, words: words[0], order: order[1]}
}

// TestShimThatEndsIdle: one that ends before there is an order is forked anew at once only if it
// was killed at birth: else the next one may end as it did, and the next.
func TestShimThatEndsIdle(t *testing.T) {
	l := &guardLoop{procs: &procTree{launch: deadShim(t, true, true)}}
	l.hear()
	if l.procs.launch != nil {
		t.Error("it is forked anew")
	}
}

// TestOrderLongerThanAPipe: the rest of an order follows when the shim has read some of it.
func TestOrderLongerThanAPipe(t *testing.T) {
	words, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(words[1])
	order, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetNonblock(order[0], false)
	want := Command{Path: "/bin/job", Args: []string{"job", strings.Repeat("x", 1<<20)}, Env: []string{"A=\xff"}}
	p := &procTree{launch: &launch{words: words[0], order: order[1]}, command: commandFrame(want)}
	p.give()
	if len(p.waitsFor()) != 2 {
		t.Fatal("a mebibyte fits into the pipe: this test shows nothing")
	}
	read := make(chan Command)
	go func() {
		c, _ := readOrder(order[0])
		unix.Close(order[0])
		read <- c
	}()
	for end := time.Now().Add(30 * time.Second); len(p.waitsFor()) == 2 && time.Now().Before(end); {
		_, _ = unix.Poll(p.waitsFor(), 1000)
		p.hear()
	}
	if got := <-read; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the order is %.100q", fmt.Sprint(got))
	}
	p.forget()
}

// bornEnv makes this binary fork something into a fresh cgroup below its own, and print
// whether that was killed at birth.
const bornEnv = "ONLYONE_TEST_BORN"

func bornMain() int {
	c, err := newCgroup(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer c.remove()
	sys := &syscall.SysProcAttr{}
	done, err := c.bear(sys)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer done()
	pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}, Sys: sys})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var s syscall.WaitStatus
	_, _ = syscall.Wait4(pid, &s, 0, nil)
	fmt.Println(s.Signaled() && s.Signal() == unix.SIGKILL)
	return 0
}

// TestKilledAtBirth: in a cgroup that was once killed, as systemd kills units, current kernels
// kill at birth what is started into a cgroup below. The command is executed all the same:
// once, and in its cgroup.
func TestKilledAtBirth(t *testing.T) {
	parent, err := ownCgroup()
	if err == nil {
		err = unix.Access(parent, unix.W_OK)
	}
	if err != nil {
		t.Skipf("needs a cgroup v2 to write to: %v", err)
	}
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed once: %v", killed), func(t *testing.T) {
			dir := filepath.Join(parent, fmt.Sprintf("onlyone-test-%d-%v", os.Getpid(), killed))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { (&cgroup{dir}).remove() })
			if killed {
				(&cgroup{dir}).kill()
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			inside := func(env string) *exec.Cmd {
				cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$1"`, dir, exe)
				cmd.Env = append(os.Environ(), env)
				return cmd
			}
			out, err := inside(bornEnv + "=1").CombinedOutput()
			if err != nil {
				t.Skipf("cannot start anything in a cgroup: %v: %s", err, out)
			}
			atBirth := string(out) == "true\n"
			if atBirth && !killed {
				t.Error("killed at birth in a cgroup that was never killed")
			}
			d := testDials()
			ran := filepath.Join(t.TempDir(), "ran")
			spec, _ := json.Marshal(keeperSpec{Folder: t.TempDir(), Dials: d, Stop: time.Second,
				Options: GuardOptions{KillAfter: d.KillAfter, StopSignal: syscall.SIGTERM},
				Args:    []string{"/bin/sh", "-c", `sed -n s/^0:://p /proc/self/cgroup >>"$0"; exit 7`, ran}})
			cmd := inside(keeperEnv + "=" + string(spec))
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 7 {
				t.Errorf("exit %d, want the command's 7\n%s", code, said.String())
			}
			where, _ := os.ReadFile(ran)
			own := fmt.Sprintf("/%s/onlyone-%d-", filepath.Base(dir), cmd.Process.Pid)
			if strings.Count(string(where), "\n") != 1 || !strings.Contains(string(where), own) {
				t.Errorf("the command ran in %q, want it once, below %s", where, own)
			}
			if left, _ := filepath.Glob(dir + "/onlyone-*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if killed && !atBirth {
				t.Skip("this kernel kills nothing at birth, so the fall-back wasn't needed")
			}
		})
	}
}

// TestNoGuardWhileOthersHoldTheLock: the early guard and its shim end when others have the
// lock, and when the acquire fails; with the keeper dead nothing is left in any case.
func TestNoGuardWhileOthersHoldTheLock(t *testing.T) {
	for _, c := range []struct {
		name string
		file string // what the folder says
		do   func(t *testing.T, keeper *exec.Cmd)
		code int
	}{
		{"waiting, then terminated", "held", func(t *testing.T, k *exec.Cmd) {
			waitFor(t, "the guard's end", func() bool { return len(childrenOf(k.Process.Pid)) == 0 })
			_ = k.Process.Signal(unix.SIGTERM)
		}, 100 + int(Interrupted)},
		{"waiting, then killed", "held", func(_ *testing.T, k *exec.Cmd) { _ = k.Process.Kill() }, -1},
		{"refused", "refused", func(*testing.T, *exec.Cmd) {}, 100 + int(NotAcquired)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			load := nasty.New(t)
			if err := os.WriteFile(filepath.Join(load.Dir, c.file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			d := testDials()
			spec, _ := json.Marshal(keeperSpec{Folder: load.Dir, Dials: d, Stop: time.Second,
				Options: GuardOptions{KillAfter: d.KillAfter, StopSignal: syscall.SIGTERM}, Args: []string{"/bin/true"}})
			all, held, err := os.Pipe() // all that descends from the keeper has its end
			if err != nil {
				t.Fatal(err)
			}
			defer all.Close()
			k := exec.Command("/proc/self/exe")
			k.Env = append(os.Environ(), keeperEnv+"="+string(spec))
			k.ExtraFiles = []*os.File{held}
			if err := k.Start(); err != nil {
				t.Fatal(err)
			}
			held.Close()
			waitFor(t, "the keeper", func() bool {
				_, err := os.Stat(filepath.Join(load.Dir, "contended"))
				return err == nil
			})
			c.do(t, k)
			_ = k.Wait()
			if code := k.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			_ = all.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := all.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("something outlives the keeper: %v", err)
			}
		})
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s didn't come", what)
		}
	}
}
