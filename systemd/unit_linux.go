package systemd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// killPause is the time between two looks at what is left.
const killPause = 5 * time.Millisecond

// KillRest is for a process in ExecStopPost=: it sends SIGKILL to every other process of the
// service, and to every process on this host whose environment has one of marks ("NAME=VALUE":
// systemd-run --scope and the like move a process out of the service), until nothing is left
// or ctx ends. The manager runs ExecStopPost= when the main process has ended; it kills the
// rest only after it.
//
// What it can't see: processes outside of the service whose environment another user made or
// which was cleared (su -l).
func KillRest(ctx context.Context, marks []string) error {
	u, err := ownUnit()
	if err != nil {
		return err
	}
	tick := time.NewTicker(killPause)
	defer tick.Stop()
	for {
		left, err := u.rest(marks)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			u.kill(pid, marks)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("cannot kill %s", strings.Trim(fmt.Sprint(left), "[]"))
		}
	}
}

// A unit is the service that this process belongs to.
type unit struct{ dir string } // its folder in the cgroup file system

func ownUnit() (unit, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return unit{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return unit{}, err
	}
	dir, err := unitDir(string(own), string(mounts))
	return unit{dir}, err
}

// unitDir finds a service's cgroup: in the v2 hierarchy, or in systemd's own of v1.
func unitDir(own, mounts string) (string, error) {
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] != "" && f[1] != "name=systemd" {
			continue
		}
		// Commands such as ExecStopPost= of a service with Delegate= have a place of their own.
		path := strings.TrimSuffix(f[2], "/.control")
		if !strings.HasSuffix(path, ".service") {
			continue
		}
		if dir := mounted(path, f[1], mounts); dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("this process is not part of a service")
}

// mounted is where a cgroup is in the file system. A line of mountinfo is
// "ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS ... - TYPE SOURCE OPTIONS".
func mounted(path, controller, mounts string) string {
	for sc := bufio.NewScanner(strings.NewReader(mounts)); sc.Scan(); {
		pre, post, ok := strings.Cut(sc.Text(), " - ")
		fields, kind := strings.Fields(pre), strings.Fields(post)
		if !ok || len(fields) < 5 || len(kind) < 3 {
			continue
		}
		v1 := kind[0] == "cgroup" && controller != "" && slices.Contains(strings.Split(kind[2], ","), controller)
		if v2 := kind[0] == "cgroup2" && controller == ""; !v1 && !v2 {
			continue
		}
		if rel, err := filepath.Rel(fields[3], path); err == nil && !strings.HasPrefix(rel, "..") {
			return filepath.Join(fields[4], rel)
		}
	}
	return ""
}

// rest is what is alive and has to go.
func (u unit) rest(marks []string) ([]int, error) {
	left, err := u.members()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() && !slices.Contains(left, pid) && marked(pid, marks) {
			left = append(left, pid)
		}
	}
	return left, nil
}

// members are the processes of the service but this one. Zombies aren't among them.
func (u unit) members() (pids []int, err error) {
	err = filepath.WalkDir(u.dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a cgroup that was just removed
		}
		if err != nil || !e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		for _, field := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}

// marked reports whether a process was started with one of marks in its environment. A
// zombie has none.
func marked(pid int, marks []string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(env) == 0 {
		return false
	}
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if slices.Contains(marks, string(kv)) {
			return true
		}
	}
	return false
}

// kill signals a process only if it still is one of ours when its pid can't be anybody
// else's any more.
func (u unit) kill(pid int, marks []string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	members, err := u.members()
	if err == nil && slices.Contains(members, pid) || marked(pid, marks) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
