package consultest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Mark is an environment variable that marks a process and its descendants, for Marked.
// The marks of other test processes are others, even of the same tests.
func Mark(value string) string { return fmt.Sprintf("%s=%d/%s", markVariable, os.Getpid(), value) }

const markVariable = "ONLYONE_TEST_MARK"

// Marked are the living processes that carry a mark, or one that begins with it and a '/',
// wherever they are in the tree of processes; as "PID COMMAND LINE". A process that has
// another environment than it was started with isn't found.
func Marked(value string) map[int]string {
	mark := Mark(value)
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || len(env) == 0 { // gone, a zombie, or not ours
			continue
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if s := string(kv); s == mark || strings.HasPrefix(s, mark+"/") {
				line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
				found[pid] = fmt.Sprintf("%d %s", pid, bytes.TrimSpace(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
			}
		}
	}
	return found
}

// Death watches a process and delivers the boot clock when it has ended. Call it while the
// process is sure to be alive.
func Death(tb testing.TB, pid int) <-chan time.Duration {
	tb.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		tb.Fatalf("cannot watch process %d: %v", pid, err)
	}
	died := make(chan time.Duration, 1)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer unix.Close(fd)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
			if n > 0 {
				died <- BootNow()
			}
			if n > 0 || err != nil && err != unix.EINTR {
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	tb.Cleanup(func() { close(done); <-ended })
	return died
}

// Children are the pids of a process's children.
func Children(pid int) []int {
	var pids []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}
