package nasty

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// built is one build for each test binary, which is why it is package-wide.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// Build builds the program, once for each test binary, and says where it is.
func Build(tb testing.TB) string {
	tb.Helper()
	built.once.Do(func() { built.dir, built.err = build() })
	if built.err != nil {
		tb.Fatal(built.err)
	}
	return filepath.Join(built.dir, "nasty")
}

func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "nasty-bin-"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir, reflect.TypeFor[Load]().PkgPath()+"/nasty")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("cannot build the test load: %w\n%s", err, out)
	}
	return dir, os.Chmod(dir, 0o755) // other users run it too
}

// Remove removes what Build built. It belongs into TestMain, after the tests.
func Remove() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// Load is a load: the same one, however often it is started.
type Load struct {
	Tag string // carried by all its processes
	Bin string // the program
	Dir string // of its files; any user may write there
}

// New makes a load that isn't started yet. When the test ends, what is left of it dies.
func New(tb testing.TB) *Load {
	tb.Helper()
	bin := Build(tb)
	dir, err := os.MkdirTemp("", "nasty-")
	if err != nil {
		tb.Fatal(err)
	}
	l := &Load{Tag: rand.Text(), Bin: bin, Dir: dir}
	tb.Cleanup(func() {
		if err := l.KillAll(); err != nil {
			tb.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	err = errors.Join(os.Chmod(dir, 0o777), os.WriteFile(l.file("hold"), nil, 0o644))
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// Standard are the kinds that all killers should be tried against, as far as this user
// can start them. They come up in some 30 ms and need no CPU.
func Standard() string {
	kinds := "plain,deaf,group,session,daemon,stopped,subreaper,vfork,threads,headless"
	if os.Geteuid() == 0 {
		kinds += ",pidns,nobody"
	}
	return kinds
}

// Args is the command line, the program first. Kinds are separated by commas; more are
// options as in the package doc.
func (l *Load) Args(kinds string, more ...string) []string {
	args := []string{l.Bin, "-tag", l.Tag, "-ready", l.file("ready"), "-hold", l.file("hold"), "-kinds", kinds}
	return append(args, more...)
}

// Command is Args as a command.
func (l *Load) Command(kinds string, more ...string) *exec.Cmd {
	args := l.Args(kinds, more...)
	return exec.Command(args[0], args[1:]...)
}

// Setuid makes the kind setuid possible and returns the options for it. The program that
// it makes does nothing but become root and sleep. It skips the test where that can't be.
func (l *Load) Setuid(tb testing.TB) []string {
	tb.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(l.Dir, &fs); err != nil {
		tb.Fatal(err)
	}
	if os.Geteuid() != 0 || fs.Flags&unix.ST_NOSUID != 0 {
		tb.Skipf("a set-user-ID program needs root and a file system without nosuid in %s", os.TempDir())
	}
	file := l.file("setuid")
	// Not written by this process: a fork of it elsewhere would have the file open for
	// writing a moment longer, and executing it would fail (golang/go#22315).
	err := exec.Command("cp", l.Bin, file).Run()
	if err == nil {
		err = os.Chmod(file, 0o755|os.ModeSetuid)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return []string{"-setuid", file}
}

// WaitReady waits until all kinds are up and verified. The result is their process IDs,
// by kind; "main" is the main process.
func (l *Load) WaitReady(most time.Duration) (map[string][]int, error) {
	var pids map[string][]int
	if !poll(most, func() bool {
		data, err := os.ReadFile(l.file("ready"))
		return err == nil && json.Unmarshal(data, &pids) == nil
	}) {
		return nil, fmt.Errorf("load isn't up after %v; there are: %v", most, l.Survivors())
	}
	return pids, nil
}

// Restart forgets that the load was ready, so that WaitReady waits for the next start.
func (l *Load) Restart() {
	_ = os.Remove(l.file("ready"))
}

// Alive says whether any process of the load lives. There is no race in it: all of them
// have inherited one lock, which the kernel drops when the last one ends.
func (l *Load) Alive() bool {
	f, err := os.Open(l.file("hold"))
	if err != nil {
		return false // no such load was made here
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// WaitGone waits until no process of the load lives. The error names those who do.
func (l *Load) WaitGone(most time.Duration) error {
	if poll(most, func() bool { return !l.Alive() && len(l.Survivors()) == 0 }) {
		return nil
	}
	return fmt.Errorf("alive after %v: %v (lock held: %v)", most, l.Survivors(), l.Alive())
}

// Survivors are the living processes of the load. See the function Survivors.
func (l *Load) Survivors() []Proc {
	return Survivors(l.Tag)
}

// KillAll is the last resort. It returns when nothing is left, or after 10 s.
func (l *Load) KillAll() error {
	if poll(10*time.Second, func() bool { return killPass(l.Tag) == 0 && !l.Alive() }) {
		return nil
	}
	return fmt.Errorf("cannot kill %v (lock held: %v)", l.Survivors(), l.Alive())
}

// Run is one run of a main process, as its log tells it. Times are those of Now.
type Run struct {
	Pid   int
	Token string        // FENCE_TOKEN
	Start time.Duration // of main
	Last  time.Duration // main certainly ran then; it may have run 2 ms longer
	Term  time.Duration // first TERM that came to a main other than plain and sleep, or 0
}

// ReadLog reads what -log wrote, in the order of starts. Last isn't reliable as long as
// the process runs.
func ReadLog(file string) ([]Run, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var runs []Run
	for line := range strings.Lines(string(data)) {
		var r Run
		// A token may be empty.
		line, r.Token, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " token ")
		if n, _ := fmt.Sscanf(line, "start %d last %d pid %d", &r.Start, &r.Last, &r.Pid); n == 3 {
			runs = append(runs, r)
			continue
		}
		if n, _ := fmt.Sscanf(line, "term %d pid %d", &r.Term, &r.Pid); n != 2 {
			return nil, fmt.Errorf("cannot read line %q of %s", line, file)
		}
		for i := range runs {
			if runs[i].Pid == r.Pid && runs[i].Term == 0 {
				runs[i].Term = r.Term
			}
		}
	}
	return runs, nil
}

// Now is the time since boot, suspends included (CLOCK_BOOTTIME).
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func (l *Load) file(name string) string {
	return filepath.Join(l.Dir, name)
}

// poll asks every 2 ms, and once at the end.
func poll(most time.Duration, done func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(most)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			return done()
		}
	}
	return true
}
