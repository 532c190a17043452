//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// A process is a program that runs on a host.
type process struct {
	name  string
	host  *host
	pid   int
	ended chan struct{} // closed when it has been reaped
	how   string        // how it ended: its exit code, or the signal's name; after ended
}

// starter starts processes; their output goes into a file each, below dir.
type starter struct {
	self string
	dir  string
}

func (s starter) start(h *host, name string, env []string, argv ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Fprintf(log, "=== %.3f %s %s\n", bootNow().Seconds(), h.name, strings.Join(argv, " "))
	cmd := exec.Command(s.self, append([]string{enterMode, h.name, h.path, strconv.Itoa(h.ahead)}, argv...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(baseEnv(), env...)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	p := &process{name: name, host: h, pid: cmd.Process.Pid, ended: make(chan struct{})}
	go func() { // it ends with the process, and that at the latest with the rig
		defer close(p.ended)
		_ = cmd.Wait()
		p.how = describe(cmd.ProcessState)
	}()
	return p, nil
}

// baseEnv is our environment without what is meant for another Consul or etcd.
func baseEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CONSUL_") && !strings.HasPrefix(kv, "ETCD") && !strings.HasPrefix(kv, "ONLYONE_") &&
			!strings.HasPrefix(kv, "NOTIFY_SOCKET=") && !strings.HasPrefix(kv, "WATCHDOG_") && !strings.HasPrefix(strings.ToLower(kv), "http_proxy=") {
			env = append(env, kv)
		}
	}
	return append(env, "CHECKPOINT_DISABLE=1", "ETCDCTL_API=3")
}

func describe(s *os.ProcessState) string {
	if s == nil {
		return "?"
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return signalName(w.Signal())
	}
	return strconv.Itoa(s.ExitCode())
}

func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGKILL:
		return "KILL"
	case syscall.SIGTERM:
		return "TERM"
	}
	return fmt.Sprintf("signal %d", int(s))
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends a signal unless the process has been reaped.
func (p *process) signal(s syscall.Signal) {
	if p != nil && p.running() {
		_ = syscall.Kill(p.pid, s)
	}
}

// kill ends it and waits for that.
func (p *process) kill() {
	if p != nil {
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

// stop asks it to end, and kills it after a while.
func (p *process) stop(patience time.Duration) {
	if p == nil {
		return
	}
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		p.kill()
	}
}

// tree are a process and all its descendants.
func tree(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, consultest.Children(pids[i])...)
	}
	return pids
}

// alive says whether a process exists and isn't a zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

// An exit is how a contender's program ended.
type exit struct {
	Host string        `json:"host"`
	At   time.Duration `json:"-"`
	How  string        `json:"how"`
}

// A unit is a contender that is started again when it has ended, as systemd does with
// Restart=always.
type unit struct {
	start func() (*process, error)
	stop  chan struct{}
	ended chan struct{}

	mu    sync.Mutex
	proc  *process
	exits []exit
	err   error
}

// restartPause is RestartSec.
const restartPause = time.Second

func startUnit(start func() (*process, error)) *unit {
	u := &unit{start: start, stop: make(chan struct{}), ended: make(chan struct{})}
	go u.run()
	return u
}

func (u *unit) run() {
	defer close(u.ended)
	for {
		p, err := u.start()
		u.mu.Lock()
		u.proc, u.err = p, err
		u.mu.Unlock()
		if err != nil {
			return
		}
		select {
		case <-u.stop:
			p.stop(stopPatience)
			return
		case <-p.ended:
		}
		u.mu.Lock()
		u.exits = append(u.exits, exit{p.host.name, bootNow(), p.how})
		u.mu.Unlock()
		pause := time.NewTimer(restartPause)
		select {
		case <-u.stop:
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// stopPatience is how long a contender may take to end after SIGTERM: `consul lock` takes
// 15 s while it waits.
const stopPatience = 3 * time.Second

// process is the one that runs, or ran last.
func (u *unit) process() *process {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.proc
}

func (u *unit) failed() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// end stops it for good and returns how its program ended, each time.
func (u *unit) end() []exit {
	close(u.stop)
	<-u.ended
	return u.exits
}
