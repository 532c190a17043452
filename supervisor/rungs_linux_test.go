package supervisor

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Only where a program can gain rights is it worth a warning that there is no cgroup.
func TestCgroupIsMissedWhereProgramsGainRights(t *testing.T) {
	if noNewPrivs() {
		t.Skip("these tests were started with no_new_privs")
	}
	lacks := make(chan [2]string)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread without rights is not used again
		var lack [2]string
		defer func() { lacks <- lack }()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		lack[0] = cgroupRung().Lack
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			t.Error(err)
			return
		}
		lack[1] = cgroupRung().Lack
	}()
	lack := <-lacks
	if lack[0] == "" {
		t.Error("nothing is said where a setuid-root program can be started")
	}
	if lack[1] != "" {
		t.Errorf("with no_new_privs it says %q", lack[1])
	}
}

// What was tried is given back: no cgroup, no subreaper, no real-time thread and no locked
// memory is left.
func TestRungsAreGivenBack(t *testing.T) {
	subreaper := func() (on int32) {
		if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&on)), 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		return on
	}
	cgroups := func() (all []string) {
		if parent, err := ownCgroup(); err == nil {
			all, _ = filepath.Glob(filepath.Join(parent, "onlyone-"+strconv.Itoa(os.Getpid())+"-*"))
		}
		return all
	}
	was, before := subreaper(), cgroups() // of one that was killed with its guard and had our pid
	names := map[string]Rung{}
	for _, r := range Rungs() {
		names[r.Name] = r
		t.Logf("%s: %v", r.Name, r.Err)
		if r.Use == "" {
			t.Errorf("%s isn't explained", r.Name)
		}
	}
	if r := names["subreaper"]; !r.Needed || r.Err != nil {
		t.Errorf("%+v: no guard could run here", r)
	}
	if subreaper() != was {
		t.Errorf("subreaper was %d and is %d", was, subreaper())
	}
	if left := cgroups(); !slices.Equal(left, before) {
		t.Errorf("cgroups are left: %s, before: %s", left, before)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if policy := fields[38]; policy != "0" { // field 41 of proc(5)
			t.Errorf("thread %s has the scheduling policy %s", task.Name(), policy)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if _, rest, ok := strings.Cut(string(status), "\nVmLck:"); !ok || !strings.HasPrefix(strings.TrimSpace(rest), "0 kB") {
		t.Errorf("memory is locked: %.20s", rest)
	}
}
