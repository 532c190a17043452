//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asRig makes the test binary the rig. Its name isn't one that baseEnv takes away: all
// processes of the rig are the same binary.
const asRig = "HOSTS_TEST_AS_RIG"

func TestMain(m *testing.M) {
	if os.Getenv(asRig) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestKilledRig: of a rig that is killed nothing is left but a folder and a cgroup, and the
// next one removes these.
func TestKilledRig(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts seven hosts")
	}
	if why := missing(); why != "" {
		t.Skip(why)
	}
	// A file: of a pipe we would see the end only when all of the rig has ended.
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := func() string { b, _ := os.ReadFile(file.Name()); return string(b) }
	rig := exec.Command(os.Args[0], "-script", "cut-short", "-evidence", t.TempDir())
	rig.Env = append(os.Environ(), asRig+"=yes")
	rig.Stdout, rig.Stderr = file, file
	if err := rig.Start(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint(prefix, rig.Process.Pid)
	dir := filepath.Join(os.TempDir(), name)
	limit := time.Now().Add(3 * time.Minute) // it may have to get Consul
	ended := make(chan error, 1)
	go func() { ended <- rig.Wait() }()
	for !up(dir) {
		select {
		case err := <-ended:
			if err == nil && strings.Contains(out(), "skipped: ") {
				t.Skip(out())
			}
			t.Fatalf("the rig ended: %v\n%s", err, out())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(limit) {
			_ = rig.Process.Kill()
			t.Fatalf("the rig isn't up: %s", out())
		}
	}
	if n := len(processesOf(dir)); n < numServers {
		t.Errorf("only %d processes are there: the test sees too little", n)
	}
	if err := rig.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	for deadline := time.Now().Add(20 * time.Second); len(processesOf(dir)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still there: %v", processesOf(dir))
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || bytes.Contains(mounts, []byte(name)) {
		t.Errorf("a mount is left, or not to be seen: %v", err)
	}
	// The last ones may still be dying; their cgroup is busy for so long.
	left := func() (all []string) {
		for _, path := range []string{dir, filepath.Join(cgroup2(), name)} {
			if _, err := os.Stat(path); err == nil {
				all = append(all, path)
			}
		}
		return all
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		removeLeftovers()
		if len(left()) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %v", left())
		}
	}
}

// up says whether all servers of Consul have been started.
func up(dir string) bool {
	logs, _ := filepath.Glob(filepath.Join(dir, "logs", "consul.s*.log"))
	return len(logs) == numServers
}

// processesOf are the command lines of the processes that are of this rig.
func processesOf(dir string) (all []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(dir)) {
			all = append(all, string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return all
}
