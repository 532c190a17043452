//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// lab is what all measurements share: one Consul server, the binaries, a folder.
type lab struct {
	programs
	dir     string
	version string
	child   string
	addr    string   // the server's
	log     *os.File // stderr of all that is started
	stop    context.CancelFunc
	wg      sync.WaitGroup
	names   atomic.Int64
}

// programs are the binaries that are compared.
type programs struct{ onlyone, consul, floor string }

func (p programs) runOnlyone(name string, command ...string) []string {
	return append([]string{p.onlyone, "run", name, "--"}, command...)
}

func (p programs) runLock(name string, command ...string) []string {
	return []string{p.consul, "lock", name, strings.Join(command, " ")}
}

func (p programs) runLockDirect(name string, command ...string) []string {
	return append([]string{p.consul, "lock", "-shell=false", name}, command...)
}

// runFloor is the bare program, see floor.
func (p programs) runFloor(name string, command ...string) []string {
	return append([]string{p.floor, name}, command...)
}

func newLab(ctx context.Context, consul, bin string) (l *lab, err error) {
	l = &lab{programs: programs{onlyone: bin, consul: consul}}
	ctx, l.stop = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.dir, err = os.MkdirTemp("", "onlyone-bench-"); err != nil {
		return l, err
	}
	if l.log, err = os.Create(l.file("stderr")); err != nil {
		return l, err
	}
	clearEnv()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return l, errors.New("this binary does not know its module")
	}
	if l.child, err = l.build(ctx, info.Path+"/child", "child"); err != nil {
		return l, err
	}
	if l.floor, err = l.build(ctx, info.Path+"/floor", "floor"); err != nil {
		return l, err
	}
	if l.onlyone == "" {
		l.onlyone, err = l.build(ctx, info.Main.Path, "onlyone")
	} else {
		l.onlyone, err = filepath.Abs(l.onlyone)
	}
	if err != nil {
		return l, err
	}
	if l.consul == "" {
		if l.consul, err = findConsul(ctx); err != nil {
			return l, err
		}
	}
	return l, l.serve(ctx)
}

// onlyoneVersion is what onlyone says of itself, and the commit that is checked out.
func (l *lab) onlyoneVersion(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, l.onlyone, "--version").Output()
	version, _, _ := strings.Cut(string(out), "\n")
	if commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output(); err == nil {
		version += ", commit " + strings.TrimSpace(string(commit))
	}
	return version
}

func (l *lab) file(name string) string { return filepath.Join(l.dir, name) }

// name is a name for a lock that nobody has used.
func (l *lab) name() string { return fmt.Sprintf("bench-%d", l.names.Add(1)) }

// clearEnv takes out what would change the programs that are measured.
func clearEnv() {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"CONSUL_HTTP_", "CONSUL_CLIENT_", "CONSUL_CA", "CONSUL_TLS_", "CONSUL_NAMESPACE", "CONSUL_PARTITION", "ONLYONE_", "NOTIFY_SOCKET", "WATCHDOG_", "JOURNAL_STREAM", "http_proxy", "HTTP_PROXY", "GODEBUG", "GOGC", "GOMEMLIMIT"} {
			if strings.HasPrefix(name, prefix) {
				os.Unsetenv(name)
			}
		}
	}
}

// build builds a package as a release is built.
func (l *lab) build(ctx context.Context, pkg, name string) (string, error) {
	file := l.file(name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=urfave_cli_no_docs", "-buildvcs=false", "-ldflags=-s -w", "-o", file, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w\n%s", pkg, err, out)
	}
	return file, nil
}

func findConsul(ctx context.Context) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find this module: %w", err)
	}
	script := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "scripts", "consul")
	cmd := exec.CommandContext(ctx, script)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("cannot get Consul: %s: %w", script, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// serve starts a Consul server in dev mode and waits until it can write.
func (l *lab) serve(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, l.consul, "version").Output()
	if err != nil {
		return fmt.Errorf("cannot run %s: %w", l.consul, err)
	}
	l.version, _, _ = strings.Cut(string(out), "\n")
	var ports [4]string
	for i := range ports {
		port, err := consultest.FreePort()
		if err != nil {
			return err
		}
		ports[i] = strconv.Itoa(port)
	}
	log, err := os.Create(l.file("consul"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, l.consul, "agent", "-dev", "-bind", "127.0.0.1", "-client", "127.0.0.1", "-node", "bench",
		"-http-port", ports[0], "-server-port", ports[1], "-serf-lan-port", ports[2], "-serf-wan-port", ports[3],
		"-dns-port", "-1", "-grpc-port", "-1", "-log-level", "warn")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended := make(chan error, 1)
	started := make(chan error)
	l.wg.Go(func() {
		runtime.LockOSThread() // Pdeathsig is about the thread
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	})
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start Consul: %w", err)
	}
	l.addr = "127.0.0.1:" + ports[0]
	for until := time.Now().Add(30 * time.Second); ; {
		if _, err = l.ask(ctx, "PUT", "/v1/kv/bench-ready", ""); err == nil {
			return nil
		}
		select {
		case <-ended:
			err = errors.New("it ended")
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(100 * time.Millisecond):
			if time.Now().Before(until) {
				continue
			}
		}
		words, _ := os.ReadFile(l.file("consul"))
		return fmt.Errorf("consul is not up: %w\n%s", err, words)
	}
}

// ask sends one request to the server; everything but 200 is an error.
func (l *lab) ask(ctx context.Context, method, path, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+l.addr+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return string(answer), err
}

// lastWords is the end of what was said on stderr, for an error.
func (l *lab) lastWords() string {
	b, _ := os.ReadFile(l.file("stderr"))
	if b = bytes.TrimSpace(b[max(0, len(b)-1000):]); len(b) == 0 {
		return ""
	}
	return "\nlast words on stderr:\n" + string(b)
}

func (l *lab) close() {
	l.stop()
	l.wg.Wait()
	if l.log != nil {
		l.log.Close()
	}
	_ = os.RemoveAll(l.dir)
}

// load is the machine's load average over the last minute.
func load() float64 {
	var load float64
	b, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, _ = fmt.Sscan(string(b), &load)
	}
	return load
}

func hostInfo() string {
	var u syscall.Utsname
	release := []byte{}
	if syscall.Uname(&u) == nil {
		for _, c := range u.Release {
			if c == 0 {
				break
			}
			release = append(release, byte(c))
		}
	}
	return fmt.Sprintf("%s %s %s, %d cores, %s", runtime.GOOS, release, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
}
