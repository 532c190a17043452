//go:build linux

package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// TestContainer builds the Containerfile of packaging/examples with Podman, and runs it as two
// hosts with what compose.yaml says of the service: onlyone is PID 1 without any rights, one
// works, a stop of its container hands over in order, and a kill leaves nothing.
func TestContainer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for the end of a session (20 s); -short leaves that out")
	}
	e := newEngine(t)
	// With ACLs, so that the token in the secret's file matters.
	j := newJob(t, consultest.Start(t, consultest.Options{ACL: true}))
	j.name, j.slowLeave = "billing", true // the name in the Containerfile; web-1 is killed
	e.build(j.s.Addr)

	// The exit code of an image whose command dies of a signal is 128 + n.
	e.host(137, "web-0", "--rm", "--env=BILLING=die")

	e.host(0, "web-1", "--detach")
	j.await("web-1 works", func() bool { return len(e.lives()) == 1 })
	e.host(0, "web-2", "--detach")
	j.await("web-2 stands by", func() bool { return strings.Contains(e.logs("web-2"), "held by web-1 ") })
	e.says("web-1", "billing: pid 1 is onlyone, parent leaseguard, user 65534:65534, root writable: false\n",
		"billing: CapBnd:\t0000000000000000\n", "billing: NoNewPrivs:\t1\n", "onlyone: billing: running (")
	// Without any rights and a cgroup of its own, there is nothing to warn of.
	if _, said := e.try("exec", "web-1", "/onlyone", "doctor", "billing"); !strings.Contains(said, "ok    cgroup: ") {
		t.Errorf("doctor says:\n%s", said)
	}
	// PID 1 reaps what is orphaned in the container, though it never was the command's.
	e.podman(0, "exec", "web-1", "/billing", "orphan")
	j.await("nothing but onlyone, its guard, the command and what that leaves behind, below a headline", func() bool {
		lines := strings.Split(e.podman(0, "top", "web-1", "state", "args"), "\n")
		return len(lines) == 5 && !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Z") })
	})

	e.podman(0, "stop", "web-1")
	e.ended("web-1", 7) // as the command did
	e.says("web-1", "onlyone: billing: stopping the command, SIGKILL in 20s\n", "onlyone: billing: 1 process outlived the command: ")
	j.await("web-2 works", func() bool { return len(e.lives()) == 2 })
	lives := e.lives()
	if lives[0].Tag != "web-1" || lives[1].Tag != "web-2" || lives[0].End == 0 {
		t.Errorf("web-1 was to end in order before web-2 starts: %+v", lives)
	}

	// A standby ends at once, too.
	e.podman(0, "start", "web-1")
	j.await("web-1 stands by", func() bool { return strings.Contains(e.logs("web-1"), "held by web-2 ") })
	e.podman(0, "stop", "web-1")
	e.ended("web-1", 143)

	// A drain of the host is one of the container.
	e.podman(0, "start", "web-1")
	j.await("web-1 stands by", func() bool { return strings.Count(e.logs("web-1"), "held by web-2 ") >= 2 })
	if code, out := e.inside(e.image("onlyone"), "drain", "--runtime-dir", "/run/web-2"); code != 0 {
		t.Fatalf("drain ended with %d: %s", code, out)
	}
	j.await("web-1 works again", func() bool { return len(e.lives()) == 3 })
	e.podman(0, "stop", "web-2")
	e.ended("web-2", 143)

	// This time without a queue, in which a killed one's entry stays until somebody contends.
	e.podman(0, "stop", "web-1")
	e.ended("web-1", 7)
	e.podman(0, "start", "web-1")
	j.await("web-1 works again", func() bool { return len(e.lives()) == 4 })
	e.podman(0, "kill", "--signal=KILL", "web-1")
	e.ended("web-1", 137)
	consultest.NoOverlap(t, e.lives())
}

// An engine is a Podman of a test's own: in a PID and a mount namespace with a /run, /var/lib
// and /dev/shm that end with them, and so does each container. The network is the machine's.
type engine struct {
	t         *testing.T
	dir       string
	init      int      // PID 1 of the namespace
	flags     []string // of podman
	run       []string // of podman run
	cgroup    string
	contained []string // the flags that compose.yaml comes to
	volumes   []string // in the order of compose.yaml
}

// newEngine skips the test where no container can be run, whatever is in it.
func newEngine(t *testing.T) *engine {
	t.Helper()
	needPID1(t)
	for tool, pkg := range map[string]string{"podman": "podman and runc", "nsenter": "util-linux"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing (Debian's %s)", tool, pkg)
		}
	}
	e := &engine{t: t, dir: t.TempDir(), cgroup: fmt.Sprintf("onlyone-test-%d-%d", os.Getpid(), jobs.Add(1))}
	e.flags = []string{"--root=" + filepath.Join(e.dir, "root"), "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"}
	e.run = []string{"--cgroup-parent=/" + e.cgroup, "--log-driver=k8s-file"}
	// By default Podman raises two limits, which a root without CAP_SYS_RESOURCE may not.
	for name, which := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(which, &limit); err != nil {
			t.Fatal(err)
		}
		n := min(limit.Max, 1<<20)
		e.run = append(e.run, fmt.Sprintf("--ulimit=%s=%d:%d", name, n, n))
	}
	e.namespace()
	for name, source := range map[string]string{"onlyone": ".", "billing": "./testdata/billing"} {
		build := exec.Command("go", "build", "-o", e.image(name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	e.probe()
	return e
}

// image is the path of a file that the image is built from.
func (e *engine) image(name string) string { return filepath.Join(e.dir, "image", name) }

// namespace starts what the engine lives in.
func (e *engine) namespace() {
	t := e.t
	t.Helper()
	keeper := exec.Command("unshare", "--fork", "--kill-child=KILL", "--pid", "--mount-proc", "sh", "-ec", `
		for dir in /run /var/lib /dev/shm; do mount -t tmpfs -o mode=755 tmpfs $dir; done
		echo ready
		exec sleep 3600`)
	keeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	keeper.Stderr = &said
	out, err := keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
		e.removeCgroups()
	})
	if n, _ := out.Read(make([]byte, 6)); n == 0 {
		_ = keeper.Wait()
		t.Skipf("no /run of a test's own can be mounted here: %s", said.String())
	}
	e.init = consultest.Children(keeper.Process.Pid)[0]
}

// removeCgroups removes what Podman leaves: the parent of its containers' cgroups, which is
// empty a moment after the end of the last one.
func (e *engine) removeCgroups() {
	var left []string
	if !soon(patience, func() bool {
		left = nil
		for _, mount := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			tops, _ := filepath.Glob(mount + e.cgroup)
			for _, top := range tops {
				_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
					if err == nil && d.IsDir() {
						left = append(left, path)
					}
					return nil
				})
			}
		}
		for _, dir := range slices.Backward(left) { // what is below goes first
			_ = os.Remove(dir)
		}
		return len(left) == 0
	}) {
		e.t.Errorf("left behind: cgroups %s", strings.Join(left, ", "))
	}
}

// try runs podman in the namespace.
func (e *engine) try(args ...string) (code int, out string) {
	e.t.Helper()
	return e.inside(append(append([]string{"podman"}, e.flags...), args...)...)
}

// inside runs a program in the namespace.
func (e *engine) inside(args ...string) (code int, out string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(e.init), "-p", "-m"}, args...)...)
	// A file and not a pipe: conmon, which watches over a container, inherits it.
	log, err := os.CreateTemp(e.dir, "podman")
	if err != nil {
		e.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), "TMPDIR="+e.dir)
	err = cmd.Run()
	said, _ := os.ReadFile(log.Name())
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return exit.ExitCode(), strings.TrimSpace(string(said))
	} else if err != nil {
		e.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, said)
	}
	return 0, strings.TrimSpace(string(said))
}

// podman is try for what must end with a code.
func (e *engine) podman(want int, args ...string) string {
	e.t.Helper()
	code, out := e.try(args...)
	if code != want {
		e.t.Fatalf("podman %s ended with %d, want %d: %s", strings.Join(args, " "), code, want, out)
	}
	return out
}

// probe finds a runtime that can run a container here: crun doesn't on a machine that has both
// versions of cgroups, runc is on fewer machines.
func (e *engine) probe() {
	t := e.t
	t.Helper()
	text := "FROM scratch\nCOPY billing /billing\nENTRYPOINT [\"/billing\", \"orphan\"]\n"
	if err := os.WriteFile(e.image("Probe"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out := e.try("build", "--file="+e.image("Probe"), "--tag=probe", e.image("")); code != 0 {
		t.Skipf("Podman can't build an image here: %s", out)
	}
	var why []string
	for _, runtime := range []string{"runc", "crun"} {
		if _, err := exec.LookPath(runtime); err != nil {
			why = append(why, runtime+" is missing (Debian's "+runtime+")")
			continue
		}
		flags := e.flags
		e.flags = append(flags[:len(flags):len(flags)], "--runtime="+runtime)
		code, out := e.try(append(append([]string{"run", "--rm", "--network=host"}, e.run...), "probe")...)
		if code == 0 {
			return
		}
		e.flags = flags
		why = append(why, fmt.Sprintf("%s: %s", runtime, out))
	}
	t.Skipf("Podman can't run a container here: %s", strings.Join(why, "; "))
}

// build builds the example's image, and reads how its compose.yaml runs it.
func (e *engine) build(consul string) {
	t := e.t
	t.Helper()
	copyFile(t, examples+"container/Containerfile", e.image("Containerfile"))
	e.podman(0, "build", "--file="+e.image("Containerfile"), "--tag=billing", e.image(""))
	var compose struct {
		Services map[string]struct {
			Environment map[string]string
			Volumes     []string
			Network     string   `yaml:"network_mode"`
			Stop        string   `yaml:"stop_grace_period"`
			ReadOnly    bool     `yaml:"read_only"`
			Drop        []string `yaml:"cap_drop"`
			Security    []string `yaml:"security_opt"`
			Init        bool
		}
	}
	readYAML(t, examples+"container/compose.yaml", &compose)
	service := compose.Services["billing"]
	e.contained = []string{
		"--network=" + service.Network, "--stop-timeout=" + strings.TrimSuffix(service.Stop, "s"),
		fmt.Sprintf("--read-only=%v", service.ReadOnly), "--read-only-tmpfs=false", fmt.Sprintf("--init=%v", service.Init),
		"--cap-drop=" + strings.Join(service.Drop, ","), "--security-opt=" + strings.Join(service.Security, ","),
	}
	e.volumes = service.Volumes
	secret := filepath.Join(e.dir, "consul-token")
	if err := os.WriteFile(secret, []byte(consultest.RootToken+"\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	lives := filepath.Join(e.dir, "lives")
	if err := os.Mkdir(lives, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{secret, lives} {
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	inside := service.Environment["CONSUL_HTTP_TOKEN_FILE"]
	e.contained = append(e.contained, "--volume="+secret+":"+inside+":ro", "--volume="+lives+":/lives",
		"--env=CONSUL_HTTP_TOKEN_FILE="+inside, "--env=CONSUL_HTTP_ADDR="+consul)
}

// host runs the image as a host, with a /run/onlyone of its own.
func (e *engine) host(want int, name string, flags ...string) {
	e.t.Helper()
	if code, out := e.inside("mkdir", "/run/"+name); code != 0 {
		e.t.Fatal(out)
	}
	for _, v := range e.volumes {
		flags = append(flags, "--volume="+strings.Replace(v, "/run/onlyone:", "/run/"+name+":", 1))
	}
	line := append([]string{"run", "--name=" + name, "--env=ONLYONE_HOST=" + name, "--env=HOST=" + name, "--env=" + consultest.Mark(e.mark(name))}, e.run...)
	e.podman(want, append(append(append(line, e.contained...), flags...), "billing")...)
}

func (e *engine) mark(name string) string { return e.t.Name() + "/" + name }

// logs are what a host has said.
func (e *engine) logs(name string) string {
	e.t.Helper()
	return e.podman(0, "logs", name) + "\n"
}

// says checks what a host has said.
func (e *engine) says(name string, want ...string) {
	e.t.Helper()
	said := e.logs(name)
	for _, w := range want {
		if !strings.Contains(said, w) {
			e.t.Errorf("%s doesn't say %q, but:\n%s", name, w, said)
		}
	}
}

func (e *engine) lives() []consultest.Interval {
	e.t.Helper()
	return consultest.ReadIntervals(e.t, filepath.Join(e.dir, "lives", "lives"))
}

// ended checks the exit code of a host's container, and that nothing of it is alive.
func (e *engine) ended(name string, want int) {
	e.t.Helper()
	if code := e.podman(0, "wait", name); code != strconv.Itoa(want) {
		e.t.Errorf("%s ended with %s, want %d; it says:\n%s", name, code, want, e.logs(name))
	}
	for _, left := range consultest.Marked(e.mark(name)) {
		e.t.Errorf("%s has ended, but this lives: %s", name, left)
	}
}
