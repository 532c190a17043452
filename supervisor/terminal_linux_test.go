package supervisor

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/nasty"
)

// The tests in this file type on a real terminal, at the prompt of an interactive shell
// whose job is a keeper.

// What the keys send.
const (
	ctrlC         = "\x03"
	ctrlD         = "\x04"
	ctrlZ         = "\x1a"
	ctrlBackslash = "\x1c"
)

const (
	prompt       = "outer$ "
	nestedPrompt = "nested$ "
)

// terminal is a pseudo-terminal with an interactive bash as its session leader.
type terminal struct {
	t      *testing.T
	load   *nasty.Load
	dir    folder
	fd     int // of master, which isn't asked for it: that would make it block
	master *os.File
	reader sync.WaitGroup
	shell  *exec.Cmd
	ended  chan struct{} // the shell was reaped

	mu   sync.Mutex
	text []byte // all that was shown
	seen int    // how much of it was waited for
}

// newTerminal starts the shell and waits for its prompt; in it, `sh keeper` becomes a
// keeper of what edit says. The lease is long, unless edit makes it short.
func newTerminal(t *testing.T, edit func(*keeperSpec)) *terminal {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash: ", err)
	}
	x := &terminal{t: t, load: nasty.New(t), ended: make(chan struct{})}
	x.dir = folder(x.load.Dir)
	x.writeKeeper(edit)
	x.fd, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("needs pseudo-terminals: ", err)
	}
	x.master = os.NewFile(uintptr(x.fd), "/dev/ptmx")
	x.resize(24, 80)
	number, err := unix.IoctlGetUint32(x.fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(x.fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(int(number)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	x.shell = exec.Command(bash, "--noprofile", "--norc", "--noediting", "-i")
	x.shell.Dir = x.load.Dir
	x.shell.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + x.load.Dir, "PS1=" + prompt, "TERM=dumb", "LC_ALL=C", "HISTFILE="}
	x.shell.Stdin, x.shell.Stdout, x.shell.Stderr = slave, slave, slave
	x.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.shell.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = x.shell.Wait(); close(x.ended) }()
	x.reader.Go(x.read)
	t.Cleanup(x.cleanUp)
	x.expect(prompt)
	x.line("stty -echo") // what is typed is not to be taken for what is answered
	x.expect(prompt)
	return x
}

func (x *terminal) writeKeeper(edit func(*keeperSpec)) {
	spec := keeperSpec{Folder: x.load.Dir, Tag: x.load.Tag, Dials: testDials(), Stop: 10 * time.Minute,
		Options: GuardOptions{KillAfter: time.Second, StopSignal: syscall.SIGTERM}}
	spec.Dials.Lease = time.Minute
	edit(&spec)
	b, err := json.Marshal(spec)
	if err != nil {
		x.t.Fatal(err)
	}
	script := keeperEnv + `=$(cat spec); export ` + keeperEnv + `; exec '` + testBinary(x.t) + `'` + "\n"
	for name, text := range map[string]string{"spec": string(b), "keeper": script} {
		if err := os.WriteFile(x.dir.path(name), []byte(text), 0o666); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *terminal) cleanUp() {
	x.hangUp()
	_ = x.shell.Process.Kill()
	<-x.ended
}

// hangUp is what the end of a connection does.
func (x *terminal) hangUp() {
	x.master.Close()
	x.reader.Wait()
}

func (x *terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := x.master.Read(buf)
		if err != nil {
			return // EIO: nobody has the terminal open any more
		}
		x.mu.Lock()
		x.text = append(x.text, buf[:n]...)
		x.mu.Unlock()
	}
}

func (x *terminal) resize(rows, cols uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(x.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		x.t.Fatal(err)
	}
}

// foreground is the terminal's foreground process group.
func (x *terminal) foreground() int {
	group, err := unix.IoctlGetInt(x.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func (x *terminal) keys(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) line(text string) { x.t.Helper(); x.keys(text + "\n") }

// expect waits for text below what was waited for before.
func (x *terminal) expect(text string) {
	x.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		x.mu.Lock()
		at := strings.Index(string(x.text[x.seen:]), text)
		if at >= 0 {
			x.seen += at + len(text)
		}
		late := at < 0 && time.Now().After(end)
		shown := string(x.text)
		x.mu.Unlock()
		if at >= 0 {
			return
		}
		if late {
			x.t.Fatalf("the terminal doesn't show %q within %s; it shows:\n%s", text, patience, shown)
		}
	}
}

// wantStatus asserts $?, at the prompt.
func (x *terminal) wantStatus(code int) {
	x.t.Helper()
	x.line(`echo "status $?."`)
	x.expect("status " + strconv.Itoa(code) + ".")
	x.expect(prompt)
}

// job is what a keeper below the shell consists of.
type job struct{ keeper, guard, command int }

// up waits until the command runs.
func (x *terminal) up() job {
	x.t.Helper()
	pids, err := x.load.WaitReady(patience)
	if err != nil || len(pids["main"]) != 1 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.t.Fatalf("the command isn't up: %v %v; the terminal shows:\n%s", pids, err, x.text)
	}
	j := job{command: pids["main"][0]}
	j.guard = parentOf(j.command)
	j.keeper = parentOf(j.guard)
	if comm, _, _, _ := procStat(j.guard); comm != guardName {
		x.t.Fatalf("above the command is %q, want the guard", comm)
	}
	for _, pid := range []int{j.keeper, j.guard} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			x.t.Fatal(err)
		}
		x.t.Cleanup(func() {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			unix.Close(fd)
		})
	}
	return j
}

func (x *terminal) wantReleased(by string) {
	x.t.Helper()
	k := &keeper{t: x.t, load: x.load, dir: x.dir}
	k.wantReleased(by, slack)
}

// wantGone asserts that nothing of a job is left.
func (x *terminal) wantGone(j job) {
	x.t.Helper()
	for name, pid := range map[string]int{"keeper": j.keeper, "guard": j.guard, "command": j.command} {
		until(x.t, patience, "the "+name+" ends", func() bool { return !running(pid) })
	}
	if left := x.load.Survivors(); len(left) > 0 {
		x.t.Errorf("left alive: %v", left)
	}
}

// sleeper is a command with all signals at their default.
func sleeper(s *keeperSpec) { shell(s, `up; exec sleep 1000`) }

// TestTerminalKeysThatEnd: Ctrl-C and Ctrl-\ end a command that does nothing about them,
// and the shell sees the same as without onlyone.
func TestTerminalKeysThatEnd(t *testing.T) {
	for key, status := range map[string]int{ctrlC: 130, ctrlBackslash: 131} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			x := newTerminal(t, sleeper)
			x.line("sh keeper")
			j := x.up()
			x.keys(key)
			x.expect(prompt)
			x.wantStatus(status)
			x.wantGone(j)
			x.wantReleased("keeper")
		})
	}
}

// TestTerminalSignalsOnce: what the terminal sends reaches the command, and once: it isn't
// forwarded, too. A change of the window's size is one of them.
func TestTerminalSignalsOnce(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, func(s *keeperSpec) { probe(t, s, "log", strconv.Itoa(int(unix.SIGINT)), "5") })
	x.line("sh keeper")
	j := x.up()
	x.resize(41, 99)
	waitLogged(t, x.dir, unix.SIGWINCH, 1)
	x.keys(ctrlBackslash)
	waitLogged(t, x.dir, unix.SIGQUIT, 1)
	for i := 1; i < 3; i++ { // forwarded behind whatever the keeper would have forwarded
		_ = unix.Kill(j.keeper, unix.SIGUSR1)
		waitLogged(t, x.dir, unix.SIGUSR1, i)
	}
	x.keys(ctrlC)
	x.expect(prompt)
	x.wantStatus(5)
	x.line("stty size")
	x.expect("41 99")
	x.wantGone(j)
	x.wantReleased("keeper")
	if got, want := sent(x.dir, "signals"), []string{"SIGWINCH", "SIGQUIT", "SIGUSR1", "SIGUSR1", "SIGINT"}; !slices.Equal(got, want) {
		t.Errorf("the command was sent %v, want %v", got, want)
	}
}

// TestTerminalSignalsOnceInANamespace: with --pid-namespace the guard is in the foreground group,
// too. Its copy of Ctrl-C isn't one more request to stop.
func TestTerminalSignalsOnceInANamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for i := range 4 { // which of the two is heard first is chance
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			x := newTerminal(t, func(s *keeperSpec) {
				probe(t, s, "log", strconv.Itoa(int(unix.SIGUSR2)), "5")
				s.Options.PIDNamespace = true
			})
			x.line("sh keeper")
			until(t, patience, "the command is up", func() bool {
				_, err := os.Stat(x.dir.path("ready"))
				return err == nil
			})
			keeper := childrenOf(x.shell.Process.Pid)
			if len(keeper) != 1 {
				t.Fatalf("below the shell: %v", keeper)
			}
			x.keys(ctrlC)
			waitLogged(t, x.dir, unix.SIGINT, 1)
			for i := 1; i < 3; i++ { // forwarded behind whatever else the keeper would have sent
				_ = unix.Kill(keeper[0], unix.SIGUSR1)
				waitLogged(t, x.dir, unix.SIGUSR1, i)
			}
			_ = unix.Kill(keeper[0], unix.SIGUSR2)
			x.expect(prompt)
			x.wantStatus(5)
			if got, want := sent(x.dir, "signals"), []string{"SIGINT", "SIGUSR1", "SIGUSR1", "SIGUSR2"}; !slices.Equal(got, want) {
				t.Errorf("the command was sent %v, want %v", got, want)
			}
		})
	}
}

// TestTerminalReading: the command reads what is typed, and Ctrl-D is the end of it.
func TestTerminalReading(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, func(s *keeperSpec) { shell(s, `up; exec cat`) })
	x.line("sh keeper")
	j := x.up()
	x.line("hello")
	x.expect("hello")
	x.keys(ctrlD)
	x.expect(prompt)
	x.wantStatus(0)
	x.wantGone(j)
	x.wantReleased("keeper")
}

// TestTerminalSuspend: Ctrl-Z stops keeper and command and gives the prompt back; fg
// continues both, and the command reads on.
func TestTerminalSuspend(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, func(s *keeperSpec) { shell(s, `up; read line; echo "got $line"; exit 4`) })
	x.line("sh keeper")
	j := x.up()
	for range 2 {
		x.keys(ctrlZ)
		x.expect("Stopped")
		x.expect(prompt)
		until(t, patience, "both stop", func() bool { return isStopped(j.keeper) && isStopped(j.command) })
		if isStopped(j.guard) {
			t.Error("the guard is stopped, too")
		}
		x.line("fg")
		until(t, patience, "both continue", func() bool { return !isStopped(j.keeper) && !isStopped(j.command) })
	}
	x.line("hello")
	x.expect("got hello")
	x.expect(prompt)
	x.wantStatus(4)
	x.wantGone(j)
	x.wantReleased("keeper")
}

// TestTerminalKillOfSuspended: kill %1 on a job that Ctrl-Z has stopped ends it in order.
func TestTerminalKillOfSuspended(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, sleeper)
	x.line("sh keeper")
	j := x.up()
	x.keys(ctrlZ)
	x.expect("Stopped")
	x.expect(prompt)
	x.line("kill %1")
	x.expect(prompt)
	x.wantGone(j)
	x.wantReleased("keeper")
	x.line("")
	x.expect("Terminated")
}

// TestTerminalSuspendedPastTheLease: a keeper that Ctrl-Z has stopped can't renew. The
// guard, which isn't stopped, kills everything in time, and fg tells what has happened.
func TestTerminalSuspendedPastTheLease(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a real lease")
	}
	for name, after := range map[string]time.Duration{"fg at once": 0, "fg later": 2 * margin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := testDials()
			x := newTerminal(t, func(*keeperSpec) {})
			x.writeKeeper(func(s *keeperSpec) {
				s.Dials = d
				s.Args = x.load.Args("plain,deaf,daemon,session", "-main", "deaf")
			})
			x.line("sh keeper")
			j := x.up()
			x.keys(ctrlZ)
			start := time.Now()
			x.expect("Stopped")
			x.expect(prompt)
			if err := x.load.WaitGone(d.RenewDeadline() + d.KillAfter + margin + slack); err != nil {
				t.Fatal(err)
			}
			t.Logf("all dead %s after Ctrl-Z (the lease ends after at most %s)", time.Since(start).Round(time.Millisecond), d.RenewDeadline()+d.KillAfter+margin)
			if !isStopped(j.keeper) {
				t.Error("the keeper isn't stopped, so this test shows nothing")
			}
			time.Sleep(after)
			x.line("fg")
			x.expect(prompt)
			x.wantStatus(100 + int(Lost))
			x.wantGone(j)
			x.wantReleased("keeper")
		})
	}
}

// TestTerminalHangUp: the end of the terminal ends the shell, and with it the command,
// whether it does something about SIGHUP or not.
func TestTerminalHangUp(t *testing.T) {
	for name, edit := range map[string]func(*keeperSpec){
		"default": sleeper,
		"handler": func(s *keeperSpec) {
			shell(s, `trap 'echo hup > "$DIR/hup"; exit 3' HUP; up; while :; do sleep 0.05; done`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTerminal(t, edit)
			x.line("sh keeper")
			j := x.up()
			x.hangUp()
			select {
			case <-x.ended:
			case <-time.After(patience):
				t.Fatal("the shell is still there")
			}
			x.wantGone(j)
			x.wantReleased("keeper")
			if _, err := os.Stat(x.dir.path("hup")); name == "handler" && err != nil {
				t.Error("the command wasn't sent SIGHUP: ", err)
			}
		})
	}
}

// TestTerminalNohup: what ignored SIGHUP from the start goes on without its terminal, and
// can still be stopped.
func TestTerminalNohup(t *testing.T) {
	for _, where := range []string{"", " &"} {
		t.Run("nohup"+where, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("nohup"); err != nil {
				t.Skip("needs nohup: ", err)
			}
			x := newTerminal(t, sleeper)
			x.line("nohup sh keeper" + where)
			j := x.up()
			for name, pid := range map[string]int{"keeper": j.keeper, "guard": j.guard, "command": j.command} {
				if !ignores(pid, unix.SIGHUP) {
					t.Errorf("the %s doesn't ignore SIGHUP: %s", name, statusLine(pid, "SigIgn"))
				}
			}
			x.hangUp()
			<-x.ended
			for _, pid := range []int{j.keeper, j.guard} {
				_ = unix.Kill(pid, unix.SIGHUP)
			}
			_ = unix.Kill(j.keeper, unix.SIGWINCH) // forwarded, and without an effect
			time.Sleep(200 * time.Millisecond)
			for name, pid := range map[string]int{"keeper": j.keeper, "guard": j.guard, "command": j.command} {
				if !running(pid) {
					t.Errorf("the %s has ended with the terminal", name)
				}
			}
			_ = unix.Kill(j.keeper, unix.SIGTERM)
			x.wantGone(j)
			x.wantReleased("keeper")
		})
	}
}

// TestTerminalNestedShell: an interactive shell as the command has its own job control:
// the keys hit its jobs and nothing else.
func TestTerminalNestedShell(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, func(s *keeperSpec) {
		shell(s, `up; exec env PS1='`+nestedPrompt+`' bash --noprofile --norc --noediting -i`)
	})
	x.line("sh keeper")
	j := x.up()
	x.expect(nestedPrompt)
	sleeping := func() {
		t.Helper()
		until(t, patience, "the nested shell's job has the terminal", func() bool {
			group := x.foreground()
			comm, _, parent, _ := procStat(group)
			return comm == "sleep" && parent == j.command
		})
	}
	x.line("sleep 1000")
	sleeping()
	x.keys(ctrlC)
	x.expect(nestedPrompt)
	x.line(`echo "status $?."`)
	x.expect("status 130.")
	x.expect(nestedPrompt)
	x.line("sleep 1000")
	sleeping()
	x.keys(ctrlZ)
	x.expect("Stopped")
	x.expect(nestedPrompt)
	for name, pid := range map[string]int{"keeper": j.keeper, "guard": j.guard, "nested shell": j.command} {
		if isStopped(pid) {
			t.Errorf("Ctrl-Z on a job of the nested shell has stopped the %s", name)
		}
	}
	x.line("fg")
	sleeping()
	x.keys(ctrlC)
	x.expect(nestedPrompt)
	x.line("sleep 1000 & kill %1; wait; echo done.")
	x.expect("done.")
	x.expect(nestedPrompt)
	x.line("exit 7")
	x.expect(prompt)
	x.wantStatus(7)
	x.wantGone(j)
	x.wantReleased("keeper")
}

// TestTerminalBackground: with & and a command that doesn't read the terminal, the keys
// belong to others.
func TestTerminalBackground(t *testing.T) {
	t.Run("to its end", func(t *testing.T) {
		t.Parallel()
		x := newTerminal(t, func(s *keeperSpec) {
			shell(s, `up; while [ ! -e "$DIR/go" ]; do sleep 0.05; done; exit 5`)
		})
		x.line("sh keeper &")
		x.expect(prompt)
		j := x.up()
		if x.foreground() == j.keeper {
			t.Error("the keeper has the terminal")
		}
		x.keys(ctrlC)
		x.expect(prompt)
		x.line("sleep 1000")
		until(t, patience, "sleep has the terminal", func() bool {
			comm, _, _, _ := procStat(x.foreground())
			return comm == "sleep"
		})
		x.keys(ctrlC)
		x.expect(prompt)
		if !running(j.keeper) || !running(j.command) {
			t.Error("Ctrl-C to others has ended the background job")
		}
		if err := os.WriteFile(filepath.Join(x.load.Dir, "go"), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		x.line(`wait %1; echo "waited $?."`)
		x.expect("waited 5.")
		x.wantGone(j)
		x.wantReleased("keeper")
	})
	t.Run("fg and Ctrl-C", func(t *testing.T) {
		t.Parallel()
		x := newTerminal(t, sleeper)
		x.line("sh keeper &")
		x.expect(prompt)
		j := x.up()
		x.line("fg")
		until(t, patience, "the keeper has the terminal", func() bool { return x.foreground() == j.keeper })
		x.keys(ctrlC)
		x.expect(prompt)
		x.wantStatus(130)
		x.wantGone(j)
		x.wantReleased("keeper")
	})
}
