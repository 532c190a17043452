//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prefix begins the names of what is outside of the rig's namespaces; the rig's pid follows.
const prefix = "onlyone-hosts-"

// outsideMain is the rig as it is started: it builds and finds what is needed, and starts
// the rest in namespaces.
func outsideMain(args []string) int {
	o, err := parse(args, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errList):
		listFaults(os.Stdout)
		return exitOK
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		return exitUsage
	}
	if why := missing(); why != "" {
		fmt.Println("skipped: make hosts: " + why)
		return exitOK
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if o.Piece > 0 {
		return pieces(ctx, o)
	}
	if o.Consul == "" {
		o.Consul = consulVersions()[0]
	}
	return piece(ctx, o)
}

// piece is one run.
func piece(ctx context.Context, o options) int {
	o.Command = command(o)
	code, err := outside(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return exitFailed
	}
	return code
}

// patience is how many pieces may fail one after the other: a busy machine is no reason to
// give up the rest of a long run.
const patience = 3

// pieces runs one piece after the other. The worst exit code counts: a broken promise, then
// a rig that failed.
func pieces(ctx context.Context, o options) int {
	versions := consulVersions()
	if o.Consul != "" {
		versions = []string{o.Consul}
	}
	until, failed, worst := time.Now().Add(o.For), 0, exitOK
	for n := 0; failed < patience && ctx.Err() == nil && time.Now().Before(until); n++ {
		p := o
		p.Piece, p.For, p.Seed, p.Consul = 0, o.Piece, o.Seed+uint64(n), versions[n%len(versions)]
		switch code := piece(ctx, p); code {
		case exitFailed:
			failed++
			worst = cmp.Or(worst, exitFailed)
		case exitBroken:
			worst = exitBroken
			failed = 0
		default:
			failed = 0
		}
	}
	return worst
}

// missing says what this machine lacks.
func missing() string {
	if os.Getuid() != 0 {
		return "it needs root"
	}
	for _, tool := range [][2]string{{"ip", "iproute2"}, {"tc", "iproute2"}, {"ss", "iproute2"}, {"nft", "nftables"}} {
		if _, err := exec.LookPath(tool[0]); err != nil {
			return fmt.Sprintf("%s is missing (Debian's %s)", tool[0], tool[1])
		}
	}
	return ""
}

func outside(ctx context.Context, o options) (int, error) {
	removeLeftovers()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("%s%d", prefix, os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	lock, err := lockFolder(dir)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	o.Dir = dir
	if err := find(ctx, &o); err != nil {
		return 0, err
	}
	if o.Log != "" {
		if o.Log, err = filepath.Abs(o.Log); err != nil {
			return 0, err
		}
	}
	if o.Evidence, err = filepath.Abs(o.Evidence); err != nil {
		return 0, err
	}
	if base := cgroup2(); base != "" {
		o.Cgroup = filepath.Join(base, filepath.Base(dir))
		if os.Mkdir(o.Cgroup, 0o755) != nil {
			o.Cgroup = "" // read-only: onlyone has none of its own either
		}
		defer removeCgroup(o.Cgroup)
	}
	return inside(ctx, o)
}

// inside starts the rest in namespaces of its own and waits for its end. If we die, the
// kernel kills its PID 1, and with it everything.
func inside(ctx context.Context, o options) (int, error) {
	runtime.LockOSThread() // "parent died" means this thread
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, initMode, o.encode())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Setpgid:    true, // ^C is for us
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
			fmt.Printf("skipped: make hosts: namespaces can't be made here: %v\n", err)
			return exitOK, nil
		}
		return 0, fmt.Errorf("cannot make namespaces: %w", err)
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
			_ = cmd.Process.Kill()
		case <-ended:
		}
	}()
	err = cmd.Wait()
	close(ended)
	<-watched
	if ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	return exitOK, err
}

// find builds onlyone and finds the other programs.
func find(ctx context.Context, o *options) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	output := func(argv ...string) (string, error) {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir, cmd.Stderr = root, &stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, stderr.Bytes())
		}
		return strings.TrimSpace(string(out)), nil
	}
	firstLine := func(s string) string { line, _, _ := strings.Cut(s, "\n"); return line }

	onlyone := filepath.Join(o.Dir, "onlyone")
	if _, err := output("go", "build", "-trimpath", "-buildvcs=false", "-tags=urfave_cli_no_docs", "-ldflags=-s -w", "-o", onlyone, "."); err != nil {
		return fmt.Errorf("cannot build onlyone: %w", err)
	}
	consul, err := output("scripts/consul", o.Consul)
	if err != nil {
		return fmt.Errorf("cannot get Consul %s: %w", o.Consul, err)
	}
	o.Binaries["onlyone"], o.Binaries["consul"] = onlyone, consul
	for _, tool := range []string{"etcd", "etcdctl", "flock"} {
		if path, err := exec.LookPath(tool); err == nil {
			o.Binaries[tool] = path
		}
	}
	explained, err := output(onlyone, "run", "--explain", "--json")
	if err != nil {
		return fmt.Errorf("cannot get the bound: %w", err)
	}
	if err := json.Unmarshal([]byte(explained), &o.Explanation); err != nil || o.Explanation.TakeOver == 0 {
		return fmt.Errorf("cannot understand %q: %w", explained, err)
	}
	for name, argv := range map[string][]string{
		"onlyone": {onlyone, "version"}, "consul": {consul, "version"},
		"etcd": {o.Binaries["etcd"], "--version"}, "etcdctl": {o.Binaries["etcdctl"], "version"}, "flock": {o.Binaries["flock"], "--version"},
		"kernel": {"uname", "-srm"},
	} {
		if argv[0] == "" {
			continue
		}
		out, err := output(argv...)
		if err != nil {
			return fmt.Errorf("cannot ask %s for its version: %w", name, err)
		}
		o.Versions[name] = firstLine(out)
	}
	if commit, err := output("git", "describe", "--always", "--dirty"); err == nil {
		o.Versions["commit"] = commit
	}
	o.Programs = slices.DeleteFunc(o.Programs, func(name string) bool {
		p, _ := programByName(name)
		for _, b := range p.binaries {
			if o.Binaries[b] == "" {
				fmt.Printf("skipped: %s: %s is missing\n", name, b)
				return true
			}
		}
		return false
	})
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find this module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// lockFolder marks a folder as one of a living rig: the kernel takes the mark off.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// removeLeftovers removes the folders and cgroups of rigs that are dead.
func removeLeftovers() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"[0-9]*"))
	for _, dir := range dirs {
		lock, err := lockFolder(dir)
		if err != nil {
			continue // it lives
		}
		os.RemoveAll(dir)
		lock.Close()
	}
	base := cgroup2()
	groups, _ := filepath.Glob(filepath.Join(base, prefix+"[0-9]*"))
	for _, group := range groups {
		if _, err := os.Stat(filepath.Join(os.TempDir(), filepath.Base(group))); base != "" && errors.Is(err, os.ErrNotExist) {
			removeCgroup(group)
		}
	}
}

// cgroup2 is where the unified hierarchy is, or empty.
func cgroup2() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// removeCgroup removes a cgroup and those below it. None has processes any more: the PID
// namespace is gone.
func removeCgroup(dir string) {
	if dir == "" {
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
