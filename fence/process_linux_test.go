package fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// This test binary is also the process that enters: see helper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "enter" {
		os.Exit(helper(os.Args[2], os.Args[3], os.Args[4:]))
	}
	os.Exit(m.Run())
}

// helper enters the file at path and executes a command in its own place, as "onlyone
// fence" does. If the command is "die at STEP", it kills itself when the record is written
// that far. Exit 79: too old.
func helper(path, token string, command []string) int {
	n, err := strconv.ParseUint(token, 10, 64)
	if err != nil {
		return 64
	}
	r := Record{Token: n, Name: "report", Host: "web-1", Pid: os.Getpid(), Time: time.Now()}
	if command[0] == "die at" {
		if _, err := takeLock(context.Background(), path); err != nil {
			return 70
		}
		_ = write(path, r, func(step string) {
			if step == command[1] {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
		return 70
	}
	h, err := Enter(context.Background(), path, r)
	if err == nil {
		err = h.Inherit()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if is[*StaleError](err) {
			return 79
		}
		return 70
	}
	fmt.Fprintln(os.Stderr, syscall.Exec(command[0], command, append(os.Environ(), "FENCE_TOKEN="+token)))
	return 126
}

func process(path string, token uint64, command ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"enter", path, strconv.FormatUint(token, 10)}, command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// waiting reports whether somebody is blocked in flock(2) on a file: /proc/locks has a line
// with "->" and its inode.
func waiting(t *testing.T, file string) bool {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		return false
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	inode := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
	for line := range strings.Lines(string(locks)) {
		if strings.Contains(line, "->") && strings.Contains(line, inode) {
			return true
		}
	}
	return false
}

// Killed while it writes, at each step: the file has the old record or the new one, and the
// next one gets in.
func TestKilledWhileRecording(t *testing.T) {
	for _, first := range []bool{true, false} {
		for _, c := range []struct {
			step string
			done bool // the new record is there
		}{{"created", false}, {"half written", false}, {"written", false}, {"synced", false}, {"renamed", true}, {"recorded", true}} {
			path := filepath.Join(t.TempDir(), "state")
			want := uint64(0)
			if !first {
				enter(t, path, 5)
				want = 5
			}
			if c.done {
				want = 8
			}
			err := process(path, 8, "die at", c.step).Run()
			if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s: %v, want SIGKILL", c.step, err)
			}
			if got := recorded(t, path); got != want {
				t.Errorf("killed when %s: recorded %d, want %d", c.step, got, want)
			}
			enter(t, path, 9)
		}
	}
}

// What the command leaves behind holds the lock as long as it lives, though the command is
// gone.
func TestLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	cmd := process(path, 5, "/bin/sh", "-c", "cat <&3 >/dev/null 2>&1 & exit 7")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{r} // cat lives until w is closed
	err = cmd.Run()
	r.Close()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 7 {
		t.Fatalf("%v, want exit status 7", err)
	}
	if _, err := Enter(now(), path, Record{Token: 6}); !is[*BusyError](err) {
		t.Fatalf("%v, want a BusyError", err)
	}
	w.Close()
	h, err := Enter(context.Background(), path, Record{Token: 6})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
}

// A folder that we may not write to, and a read-only file system: what was recorded can be
// read, nothing can be recorded.
func TestNotWritable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user, and mount")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "folder", "state")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	enter(t, path, 5)
	const nobody = 65534
	inside := func(token, script string) string {
		// In a mount namespace of its own, so that nothing has to be unmounted.
		cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", script+`; exec /proc/self/fd/3 enter "$1" "$2" /bin/true`, "sh", path, token)
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		defer self.Close()
		cmd.ExtraFiles = []*os.File{self}
		out, err := cmd.CombinedOutput()
		return fmt.Sprintf("%v: %s", err, out)
	}
	const readOnly = `mount --bind "${1%/*}" "${1%/*}" && mount -o remount,ro,bind "${1%/*}" || exit 99`
	switch got := inside("6", readOnly); {
	case strings.HasPrefix(got, "exit status 99"):
		t.Skipf("cannot mount here: %s", got)
	case !strings.HasPrefix(got, "exit status 70") || !strings.Contains(got, "read-only file system") || !strings.Contains(got, path):
		t.Errorf("read-only: %s", got)
	}
	if got := inside("4", readOnly); !strings.HasPrefix(got, "exit status 79") {
		t.Errorf("read-only, old token: %s", got)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Open("/proc/self/exe") // its folder may be closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3", "enter", path, "6", "/bin/true")
	cmd.ExtraFiles = []*os.File{self}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "permission denied") || !strings.Contains(string(out), path) {
		t.Errorf("as another user: %v: %s", err, out)
	}
	if got := recorded(t, path); got != 5 {
		t.Errorf("recorded %d, want 5", got)
	}
}

// TestFifty: 50 processes at once with tokens in random order, each killed at a random
// moment or left to end. The file never goes back, is never empty or half written, and no
// command begins, or works, with a lower token after one with a higher has begun.
//
// In a random order few tokens are the highest so far. So in other rounds many have the same
// one: most commands begin, and many are killed at work.
func TestFifty(t *testing.T) {
	for _, same := range []int{1, 2, 10, 25} {
		t.Run(fmt.Sprint(same, " with each token"), func(t *testing.T) { fifty(t, same) })
	}
}

func fifty(t *testing.T, same int) {
	const processes = 50
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	path, log := filepath.Join(dir, "state"), filepath.Join(dir, "log")

	stop, read := make(chan struct{}), make(chan int)
	go func() { read <- watch(t, path, stop) }()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends, wanted := map[string]int{}, []string{"<nil>", "signal: killed", "exit status 79"}
	for _, n := range random.Perm(processes) {
		token := uint64(n/same + 1)
		cmd := process(path, token, "/bin/sh", "-c", `echo begin $FENCE_TOKEN $$ >>"$0"; sleep 0.01; echo end $FENCE_TOKEN $$ >>"$0"`, log)
		kill, after := random.IntN(2) == 0, time.Duration(random.IntN(300))*time.Millisecond
		var said strings.Builder
		cmd.Stderr = &said
		wg.Go(func() {
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			if kill {
				time.Sleep(after)
				_ = cmd.Process.Kill()
			}
			how := fmt.Sprint(cmd.Wait())
			if !slices.Contains(wanted, how) { // else what was said (a shell's "cannot change locale") is no matter
				how += " " + said.String()
			}
			mu.Lock()
			ends[how]++
			mu.Unlock()
		})
	}
	wg.Wait()
	close(stop)
	reads := <-read
	begun, overlapping := checkLog(t, log)
	t.Logf("%d reads; ended: %v; %d commands began", reads, ends, begun)
	if overlapping > 0 || begun == 0 {
		t.Errorf("%d of %d commands worked while another one did", overlapping, begun)
	}
	for how := range ends {
		if !slices.Contains(wanted, how) {
			t.Errorf("one ended with: %s", how)
		}
	}
	// It works as before, once what the killed ones have left behind is gone.
	h, err := Enter(context.Background(), path, Record{Token: processes})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
}

// watch reads the file all the time until stop is closed: it must be whole, and never go
// back.
func watch(t *testing.T, path string, stop chan struct{}) (reads int) {
	highest := uint64(0)
	for {
		r, exists, err := Read(path)
		switch {
		case err != nil:
			t.Error(err)
		case !exists && highest > 0:
			t.Error("the file has vanished")
		case r.Token < highest:
			t.Errorf("the file went back from %d to %d", highest, r.Token)
		}
		highest = max(highest, r.Token)
		reads++
		select {
		case <-stop:
			return reads
		case <-time.After(time.Millisecond):
		}
	}
}

// checkLog reads what the commands wrote: the tokens never go down, and the "end" of a
// command comes before anybody else's "begin".
func checkLog(t *testing.T, log string) (begun, overlapping int) {
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	highest, current := uint64(0), ""
	for line := range strings.Lines(string(text)) {
		var what, pid string
		var token uint64
		if _, err := fmt.Sscan(line, &what, &token, &pid); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if token < highest {
			t.Errorf("a command worked with token %d after one with %d had begun:\n%s", token, highest, text)
		}
		highest = max(highest, token)
		switch {
		case what == "begin":
			begun++
			current = pid
		case pid != current:
			overlapping++
		}
	}
	return begun, overlapping
}
