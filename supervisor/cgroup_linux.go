package supervisor

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A cgroup is a fresh sub-cgroup (v2) that the command is started in, so that
// cgroup.kill (Linux 5.14) reaches all of it at once. Nothing is written to
// subtree_control, and our own cgroup is never killed.
type cgroup struct{ dir string }

// newCgroup makes the sub-cgroup of the keeper with this pid, below our own. An error means
// "do without": not mounted, read-only (containers), or not delegated to us.
func newCgroup(keeper int) (*cgroup, error) {
	parent, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(parent, fmt.Sprintf("onlyone-%d-%d", keeper, time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	c := &cgroup{dir}
	for _, file := range []string{"cgroup.kill", "cgroup.procs"} {
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err != nil {
			c.remove()
			return nil, err
		}
		f.Close()
	}
	return c, nil
}

// bear has a fork with attr start its child in the cgroup. See launch for when that child is
// killed at birth.
func (c *cgroup) bear(attr *syscall.SysProcAttr) (done func(), err error) {
	fd, err := unix.Open(c.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	attr.UseCgroupFD, attr.CgroupFD = true, fd
	return func() { unix.Close(fd) }, nil
}

// enterCgroup moves the calling process in. That always works, but takes long.
func enterCgroup(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

func (c *cgroup) kill() { _ = os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0) }

// remove deletes the empty cgroup and what the command may have made below it.
func (c *cgroup) remove() {
	var dirs []string
	_ = filepath.WalkDir(c.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = os.Remove(dirs[i])
	}
}

// removeCgroups deletes what a killed guard of this keeper left behind.
func removeCgroups(keeper int) {
	parent, err := ownCgroup()
	if err != nil {
		return
	}
	entries, _ := os.ReadDir(parent) // not Glob: systemd's names have backslashes
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fmt.Sprintf("onlyone-%d-", keeper)) {
			(&cgroup{filepath.Join(parent, e.Name())}).remove()
		}
	}
}

// populated reports whether a living process is in the cgroup (zombies don't count). Newer
// kernels let a dead task go later than its parent has reaped it, and on a busy host the
// event comes late: so the lists of processes have the last word.
func (c *cgroup) populated() bool {
	b, err := os.ReadFile(filepath.Join(c.dir, "cgroup.events"))
	if err != nil || !strings.Contains(string(b), "populated 1") {
		return false
	}
	found := false
	_ = filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "cgroup.procs" {
			pids, err := os.ReadFile(path)
			found = found || err != nil || len(bytes.TrimSpace(pids)) > 0 // a threaded cgroup can't be read
		}
		return nil
	})
	return found
}

// ownCgroup is the folder of the v2 cgroup that we are in, on a unified or hybrid layout.
func ownCgroup() (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path := ""
	for line := range strings.Lines(string(own)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = p
		}
	}
	if path == "" || strings.HasPrefix(path, "/..") {
		return "", fmt.Errorf("no cgroup v2 of our own")
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		// "ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS ... - TYPE SOURCE OPTIONS"
		pre, post, ok := strings.Cut(sc.Text(), " - ")
		if !ok || !strings.HasPrefix(post, "cgroup2 ") {
			continue
		}
		fields := strings.Fields(pre)
		if len(fields) < 5 {
			continue
		}
		rel, err := filepath.Rel(fields[3], path)
		if err != nil || strings.HasPrefix(rel, "..") {
			continue
		}
		return filepath.Join(fields[4], rel), nil
	}
	return "", fmt.Errorf("cgroup v2 isn't mounted")
}
