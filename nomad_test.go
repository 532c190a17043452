//go:build linux

package main_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// A nomadTask is the task of an example that runs onlyone.
type nomadTask struct {
	exec bool // the driver is exec, else raw_exec
	args []string
	kill time.Duration
}

func nomadExampleOf(t *testing.T, name string) nomadTask {
	t.Helper()
	path := examples + "nomad/" + name + ".nomad.hcl"
	for block := range strings.SplitSeq(readText(t, path), "\n    task \"") {
		m := regexp.MustCompile(`(?s)command = "/usr/local/bin/onlyone"\s+args = (\[.*?\n\s+\])`).FindStringSubmatch(block)
		if m == nil {
			continue
		}
		kill := regexp.MustCompile(`kill_timeout = "(\d+s)"`).FindStringSubmatch(block)
		driver := regexp.MustCompile(`driver = "(raw_exec|exec)"`).FindStringSubmatch(block)
		if kill == nil || driver == nil || !regexp.MustCompile(`kill_signal += "SIGTERM"`).MatchString(block) {
			t.Fatalf("%s: no kill_timeout, no kill_signal or no driver that is known", path)
		}
		timeout, err := time.ParseDuration(kill[1])
		if err != nil {
			t.Fatal(err)
		}
		return nomadTask{exec: driver[1] == "exec", args: jsonList(t, m[1]), kill: timeout}
	}
	t.Fatalf("%s has no task that runs onlyone", path)
	return nomadTask{}
}

// nomadExample reads an example, and runs the flags that it gives onlyone.
func nomadExample(t *testing.T, name string) {
	if hclfmt, err := exec.LookPath("hclfmt"); err == nil {
		if out, err := exec.Command(hclfmt, "-check", examples+"nomad/"+name+".nomad.hcl").CombinedOutput(); err != nil {
			t.Errorf("hclfmt: %v: %s", err, out)
		}
	}
	task := nomadExampleOf(t, name)
	if name != "sidecar" { // sleep ends at once
		stops(t, task.args, fmt.Sprint(task.kill))
	}
	args := task.on("node-1", 0)
	flagsRun(t, slices.DeleteFunc(args, func(a string) bool {
		return name == "sidecar" && (a == "--on-lost" || a == "wait") // it would wait for ever, were the test's lock lost
	}))
}

// on are the arguments on a node, with what Nomad puts in.
func (n nomadTask) on(node string, port int) []string {
	in := strings.NewReplacer("${node.unique.name}", node, "${NOMAD_PORT_leader}", strconv.Itoa(port), ":9099", ":"+strconv.Itoa(port))
	var args []string
	for _, a := range n.args {
		args = append(args, in.Replace(a))
	}
	return args
}

// An allocation is a task of an example on a node. Nomad isn't here: it is started and stopped
// as Nomad's executor does it (drivers/shared/executor in the source of Nomad 1.7).
type allocation struct {
	*proc
	task nomadTask
	pid  int // of onlyone
	dir  string
	port int
}

// allocate starts the task of an example. What it changes of the arguments is the lock's name,
// a port that other tests would want, too, and, if there is one, the command.
func (j *job) allocate(task nomadTask, node string, command ...string) *allocation {
	j.t.Helper()
	port := freePort(j.t)
	args := task.on(node, port)
	i := slices.Index(args, "--")
	args[i-1] = j.name
	if len(command) > 0 {
		args = append(args[:i+1], command...)
	}
	a := &allocation{task: task, dir: j.t.TempDir(), port: port}
	line := append([]string{onlyone}, args...)
	if task.exec { // of its isolation the PID namespace is what matters for signals
		line = append(unshare(), line...)
	}
	a.proc = j.startWith(func(c *exec.Cmd) { c.Env = append(c.Env, "NOMAD_ALLOC_DIR="+a.dir) }, line...)
	if a.pid = a.cmd.Process.Pid; task.exec {
		a.pid = a.pid1()
	}
	return a
}

// waits returns when it has its place in the queue and knows it.
func (a *allocation) waits() {
	a.j.t.Helper()
	a.j.await(fmt.Sprintf("%s waits", a), func() bool { return strings.Contains(a.stderr(), ": waiting: ") })
}

// stop is Nomad's: kill_signal to onlyone alone, and SIGKILL after kill_timeout, which must not
// be needed. It returns a function that waits for the end, by the signal that ended the command.
func (a *allocation) stop(signal syscall.Signal) (ended func()) {
	a.j.t.Helper()
	code := -int(signal)
	if a.task.exec {
		code = 128 + int(signal) // PID 1 can't end by a signal
	}
	begin := time.Now()
	a.asked = consultest.BootNow()
	if err := syscall.Kill(a.pid, syscall.SIGTERM); err != nil {
		a.j.t.Fatal(err)
	}
	return func() {
		a.j.t.Helper()
		select {
		case <-a.done:
		case <-time.After(a.task.kill - time.Since(begin)):
			a.j.t.Errorf("Nomad would kill it after %s; it says:\n%s", a.task.kill, a.stderr())
		}
		measured(a.j.t, "from the stop to the end", time.Since(begin), fmt.Sprintf("Nomad kills after %s", a.task.kill))
		a.wait(code)
	}
}

// killed is kill -9 of onlyone, and what comes of it: all in exec's namespace dies, too; of a
// raw_exec task Nomad kills the process group.
func (a *allocation) killed() {
	a.j.t.Helper()
	pid := a.pid
	if !a.task.exec {
		pid = -pid
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		a.j.t.Fatal(err)
	}
	select { // not wait: unshare can't end by the same signal everywhere
	case <-a.done:
	case <-time.After(patience):
		a.j.t.Fatalf("%s doesn't end", a)
	}
}

// leader is what /leader answers, 0 for nothing.
func (a *allocation) leader() int {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d/leader", a.port))
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (a *allocation) says(code int) {
	a.j.t.Helper()
	a.j.await(fmt.Sprintf("/leader says %d", code), func() bool { return a.leader() == code })
}

// lose ends the holder's session: the lock is lost, and free for others after the lock-delay.
func (j *job) lose() {
	j.t.Helper()
	if _, err := j.s.Client().Session().Destroy(j.s.Key(j.t, j.lockKey()).Session, nil); err != nil {
		j.t.Fatal(err)
	}
}

// TestNomadService: one works, one stands by, and takes over when Nomad stops the first, when
// that one loses the lock, and when it is killed.
func TestNomadService(t *testing.T) {
	t.Parallel()
	task := nomadExampleOf(t, "service")
	begin := func(t *testing.T, second consultest.ChildOptions) (j *job, a, b *allocation) {
		t.Parallel()
		if needPID1(t); testing.Short() {
			t.Skip("waits for a lock-delay, a dead session or --stop-timeout (20 s and more); -short leaves that out")
		}
		j = newJob(t, shared(t, consultest.Version()))
		a = j.allocate(task, "node-1", j.child(consultest.ChildOptions{})...)
		j.running(1)
		b = j.allocate(task, "node-2", j.child(second)...)
		b.waits()
		a.says(200)
		b.says(503)
		return j, a, b
	}
	t.Run("stop", func(t *testing.T) {
		j, a, b := begin(t, consultest.ChildOptions{IgnoreTerm: true})
		a.stop(syscall.SIGTERM)()
		j.running(2)
		b.says(200)
		c := j.allocate(task, "node-1", j.child(consultest.ChildOptions{})...) // Nomad places it anew
		c.waits()
		waitB, waitC := b.stop(syscall.SIGKILL), c.stop(syscall.SIGTERM) // nomad job stop
		waitC()
		waitB()
		if all := j.intervals(); len(all) != 2 || all[1].Term == 0 {
			t.Errorf("want two runs, and that the last one saw SIGTERM: %+v", all)
		}
		consultest.NoOverlap(t, j.intervals())
	})
	t.Run("lost", func(t *testing.T) {
		j, a, b := begin(t, consultest.ChildOptions{})
		j.lose()
		a.wait(79)
		c := j.allocate(task, "node-1", j.child(consultest.ChildOptions{})...) // Nomad restarts it there
		c.waits()
		j.running(2)
		b.says(200)
		c.says(503)
		waitB, waitC := b.stop(syscall.SIGTERM), c.stop(syscall.SIGTERM)
		waitC()
		waitB()
		consultest.NoOverlap(t, j.intervals())
	})
	t.Run("killed", func(t *testing.T) {
		j, a, b := begin(t, consultest.ChildOptions{})
		j.slowLeave = true
		removeCgroup := j.cgroupOfPID1(a.pid)
		dead := j.s.Key(t, j.lockKey()).Session
		begin := consultest.BootNow()
		a.killed()
		removeCgroup()
		for _, left := range consultest.Marked(a.mark) {
			t.Errorf("this lives on: %s", left)
		}
		// By its TTL, or at once: the guard may see the death before the kernel ends it, too.
		j.await("the dead one's session has ended", func() bool { return j.s.Key(t, j.lockKey()).Session != dead })
		next := j.running(2)
		measured(t, "from kill -9 until the next one starts", next.Start-begin, "41s at most on an idle machine")
		b.stop(syscall.SIGTERM)()
		consultest.NoOverlap(t, j.intervals())
	})
}

// TestNomadSystem: one of three works; the next one when it is killed, and the next one when its
// command has failed four times.
func TestNomadSystem(t *testing.T) {
	t.Parallel()
	task := nomadExampleOf(t, "system")
	j := newJob(t, shared(t, consultest.Version()))
	a := j.allocate(task, "node-1", j.child(consultest.ChildOptions{Tag: "1"})...)
	j.running(1)
	b := j.allocate(task, "node-2", j.child(consultest.ChildOptions{Tag: "2", For: 20 * time.Millisecond, Exit: 3})...)
	b.waits()
	c := j.allocate(task, "node-3", j.child(consultest.ChildOptions{Tag: "3"})...)
	c.waits()
	if got := j.status(); !strings.Contains(got, "node-1") {
		t.Errorf("onlyone status says:\n%s", got)
	}
	begin := consultest.BootNow()
	a.killed()
	next := j.running(2)
	measured(t, "from kill -9 until the next one starts", next.Start-begin, "at once")
	if next.Start-begin > 15*time.Second {
		t.Errorf("the guard didn't hand over: the next one started after %s", next.Start-begin)
	}
	b.wait(3)
	j.running(6)
	again := j.allocate(task, "node-2", j.child(consultest.ChildOptions{Tag: "2"})...)
	again.waits()
	waitC, waitAgain := c.stop(syscall.SIGTERM), again.stop(syscall.SIGTERM)
	waitAgain()
	waitC()
	var order string
	var terms []consultest.Interval // the last run of each
	for _, i := range j.intervals() {
		if order += i.Tag; i.Overlaps {
			t.Errorf("%s began while another one was alive", i)
		}
		if len(terms) > 0 && terms[len(terms)-1].Token == i.Token {
			terms = terms[:len(terms)-1]
		}
		terms = append(terms, i)
	}
	if order != "122223" || len(terms) != 3 {
		t.Errorf("they ran in the order %s, in %d terms", order, len(terms))
	}
	consultest.NoOverlap(t, terms)
}

// status is what onlyone status says of the job's lock.
func (j *job) status() string {
	j.t.Helper()
	cmd := exec.Command(onlyone, "status", "--http-addr", j.s.Addr, j.name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		j.t.Errorf("onlyone status: %v: %s", err, out)
	}
	return string(out)
}

// TestNomadSidecar: /leader and the file with the token, when the lock is lost and when it is
// handed over.
func TestNomadSidecar(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a lock-delay (20 s); -short leaves that out")
	}
	task := nomadExampleOf(t, "sidecar")
	j := newJob(t, shared(t, consultest.Version()))
	token := func(a *allocation) int {
		text, _ := os.ReadFile(filepath.Join(a.dir, "fence-token"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	a := j.allocate(task, "node-1")
	a.says(200)
	b := j.allocate(task, "node-2")
	b.waits()
	b.says(503)
	j.await("the token", func() bool { return token(a) > 0 })
	if token(b) != 0 {
		t.Errorf("the standby has the token %d", token(b))
	}
	j.lose()
	a.says(503)
	j.await("the other one has a newer token", func() bool { return token(b) > token(a) })
	b.says(200)
	a.says(503)
	first := token(a)
	b.stop(syscall.SIGTERM)()
	if code := b.leader(); code != 0 {
		t.Errorf("/leader says %d when all is over", code)
	}
	j.await("the first one is back, with a newer token", func() bool { return token(a) > token(b) && first < token(b) })
	a.says(200)
	a.stop(syscall.SIGTERM)()
}
