//go:build linux && (amd64 || arm64)

// Nasty is the test load that hunts what kills process trees: it starts processes
// that are hard to find or hard to kill, says when all are up, and then behaves
// as it was told. See the doc of package nasty for the kinds and the options.
//
// Whatever happens, each of its processes ends by itself when its life is over.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxLife  = 10 * time.Minute // of anything, whatever the options say
	wildLife = time.Minute      // of what forks or spins without end
	upWithin = 20 * time.Second // generous: a loaded machine starts 300 processes
)

// options of one run.
type options struct {
	tag, kinds, mode         string
	setuid, ready, log, hold string
	role                     string
	code                     int
	life                     time.Duration
	end                      int64 // CLOCK_BOOTTIME, ns
}

func init() {
	// The main goroutine stays on the main thread, whose name and state /proc shows.
	runtime.LockOSThread()
}

func main() {
	var o options
	flag.StringVar(&o.tag, "tag", "", "what all processes carry in environment or arguments; must come first")
	flag.StringVar(&o.kinds, "kinds", "", "comma separated kinds, each with an optional count: plain,many300")
	flag.StringVar(&o.mode, "main", "deaf", "plain, deaf, polite, dawdle=DUR or sleep=DUR")
	flag.IntVar(&o.code, "code", 0, "exit code of polite, dawdle and sleep")
	flag.DurationVar(&o.life, "life", 2*time.Minute, "when all ends by itself")
	flag.StringVar(&o.setuid, "setuid", "", "set-user-ID copy of this program, for the kind setuid")
	flag.StringVar(&o.ready, "ready", "", "file to create once all are up: JSON, kind to pids")
	flag.StringVar(&o.log, "log", "", "file to append to: when this ran")
	flag.StringVar(&o.hold, "hold", "", "file that is locked as long as one of the processes lives")
	flag.StringVar(&o.role, "role", "", "for its own use")
	flag.Int64Var(&o.end, "end", 0, "for its own use")
	flag.Parse()

	if os.Getuid() != os.Geteuid() && o.role != kinds[setuid].name {
		fail(2, "set-user-ID, but not in the role for that")
	}
	if o.tag == "" || len(os.Args) < 3 || os.Args[1] != "-tag" {
		fail(2, "-tag T must be the first argument")
	}
	now := boottime()
	if o.end == 0 {
		o.end = now + int64(o.life)
	}
	o.end = min(o.end, now+int64(maxLife))
	if o.role != "" {
		play(o)
	}
	if os.Getenv("NASTY_TAG") != o.tag {
		// /proc shows the environment that exec gave; what is forked shares it.
		err := unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), "NASTY_TAG="+o.tag))
		fail(1, "cannot execute itself: %v", err)
	}
	if err := run(o); err != nil {
		fail(1, "%v", err)
	}
}

// run is the main process.
func run(o options) error {
	mode, wait, err := parseMode(o.mode)
	if err != nil {
		return err
	}
	if o.hold != "" {
		if err := hold(o.hold); err != nil {
			return fmt.Errorf("cannot hold %s: %w", o.hold, err)
		}
	}
	me := newJob(plain, nil, o.end)
	me.setName("nasty-main")
	me.beMortal()

	// Notify, not Ignore: the children must not inherit it.
	signals := make(chan os.Signal, 16)
	switch mode {
	case "deaf":
		signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	case "polite", "dawdle":
		signal.Notify(signals, unix.SIGTERM)
	}
	logged := func() {}
	if o.log != "" {
		if logged, err = startLog(o.log, os.Getenv("FENCE_TOKEN")); err != nil {
			return fmt.Errorf("cannot log to %s: %w", o.log, err)
		}
	}
	up, err := startAll(o)
	if err != nil {
		return err
	}
	if o.ready != "" {
		if err := writeReady(o.ready, up); err != nil {
			return fmt.Errorf("cannot write %s: %w", o.ready, err)
		}
	}

	life := time.After(time.Duration(o.end - boottime()))
	var over <-chan time.Time // when a sleep or a dawdle ends
	if mode == "sleep" {
		over = time.After(wait)
	}
	for {
		select {
		case sig := <-signals:
			if sig == unix.SIGTERM {
				logged()
				switch {
				case mode == "polite":
					os.Exit(o.code)
				case mode == "dawdle" && over == nil:
					over = time.After(wait)
				}
			}
		case <-over:
			os.Exit(o.code)
		case <-life:
			return nil
		}
	}
}

func parseMode(s string) (mode string, wait time.Duration, err error) {
	mode, dur, timed := strings.Cut(s, "=")
	switch {
	case timed && (mode == "dawdle" || mode == "sleep"):
		wait, err = time.ParseDuration(dur)
	case timed || mode != "plain" && mode != "deaf" && mode != "polite":
		err = fmt.Errorf("unknown -main %q", s)
	}
	return mode, wait, err
}

// startAll starts the kinds and waits until all are up.
func startAll(o options) (map[string][]int, error) {
	jobs, err := parseKinds(o)
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if kinds[j.kind].exec {
			err = j.exec(o)
		} else if pid := j.start(); pid < 0 {
			err = syscall.Errno(-pid)
		} else if j.kind == pidns {
			j.outer = int(pid) // it calls itself 1
		}
		if err != nil {
			return nil, fmt.Errorf("cannot start kind %s: %w", kinds[j.kind].name, err)
		}
	}
	up := map[string][]int{"main": {os.Getpid()}}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(upWithin)
	for _, j := range jobs {
		for !j.isUp() {
			select {
			case <-tick.C:
			case <-late:
				return nil, fmt.Errorf("kind %s isn't up after %v", kinds[j.kind].name, upWithin)
			}
		}
		name := kinds[j.kind].name
		up[name] = append(up[name], j.reported()...)
	}
	for { // those who only made a daemon
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && err != unix.EINTR {
			return up, nil
		}
	}
}

// parseKinds makes the jobs.
func parseKinds(o options) ([]*job, error) {
	var tame, wild []*job
	for word := range strings.SplitSeq(o.kinds, ",") {
		if word == "" {
			continue
		}
		name := strings.TrimRight(word, "0123456789")
		k := lookup(name)
		if k < 0 {
			return nil, fmt.Errorf("unknown kind %q", name)
		}
		n := kinds[k].count
		if digits := word[len(name):]; digits != "" {
			n, _ = strconv.Atoi(digits)
		}
		if n < 1 || n > 1000 {
			return nil, fmt.Errorf("kind %q: count must be from 1 to 1000", word)
		}
		end := o.end
		if kinds[k].wild {
			end = min(end, boottime()+int64(wildLife))
		}
		slots := 2
		if k == bomb {
			slots, n = 1+n, 1
		}
		for range n {
			mem, err := unix.Mmap(-1, 0, 4*slots, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
			if err != nil {
				return nil, fmt.Errorf("cannot map shared memory: %w", err)
			}
			if j := newJob(k, mem, end); kinds[k].wild {
				wild = append(wild, j)
			} else {
				tame = append(tame, j)
			}
		}
	}
	// The wild ones last: they would take the CPU from the starting of the others.
	return append(tame, wild...), nil
}

// exec starts a kind that needs a Go runtime of its own. Its name says that it is up.
func (j *job) exec(o options) (err error) {
	exe := "/proc/self/exe"
	if j.kind == setuid {
		exe = o.setuid
	}
	args := []string{"nasty", "-tag", o.tag, "-role", kinds[j.kind].name, "-end", strconv.FormatInt(j.end, 10)}
	j.outer, err = syscall.ForkExec(exe, args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	return err
}

// play is what exec started.
func play(o options) {
	k := lookup(o.role)
	j := newJob(k, nil, o.end)
	go func() {
		<-time.After(time.Duration(j.end - boottime()))
		os.Exit(0)
	}()
	switch k {
	case setuid:
		// As sudo does: with the real user ID too, its starter may not signal it.
		if err := syscall.Setresuid(0, 0, 0); err != nil {
			fail(1, "cannot become root: %v", err)
		}
	case threads:
		var started sync.WaitGroup
		for range 16 {
			started.Add(1)
			go func() {
				runtime.LockOSThread()
				started.Done()
				_ = unix.ClockNanosleep(unix.CLOCK_BOOTTIME, unix.TIMER_ABSTIME, &j.life.value, nil)
				select {}
			}()
		}
		started.Wait()
	}
	j.beMortal()
	j.setName("nasty-" + kinds[k].name)
	if k == headless {
		// The main thread ends, alone: /proc shows a zombie, and the others live on.
		_, _, _ = syscall.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	select {}
}

// isUp says whether the processes of the job exist and are what they should be.
func (j *job) isUp() bool {
	k := kinds[j.kind]
	for i := range k.pids {
		if j.pid(i) == 0 {
			return false
		}
	}
	switch j.kind {
	case hopper:
		return j.pid(1) > 3
	case bomb:
		for i := range j.slots {
			if j.pid(i) == 0 {
				return false
			}
		}
		return true
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", j.pid(0)))
	_, stat, _ = bytes.Cut(stat, []byte("("))
	comm, rest, _ := bytes.Cut(stat, []byte(") "))
	return string(comm) == "nasty-"+k.name && (k.state == 0 || rest[0] == k.state)
}

// reported are the process IDs that the ready file names.
func (j *job) reported() (pids []int) {
	for i := range kinds[j.kind].pids {
		pids = append(pids, j.pid(i))
	}
	return pids
}

// hold locks the file for as long as one of our processes lives: the descriptor has
// no close-on-exec, and the lock belongs to what all of them have inherited.
func hold(file string) error {
	fd, err := unix.Open(file, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return unix.Flock(fd, unix.LOCK_SH)
}

// startLog appends a line and keeps the instant in it current, every 2 ms. What it
// returns appends that a TERM came.
func startLog(file, token string) (term func(), err error) {
	const lastAt = len("start 01234567890123456789 last ")
	add, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	beat, err := os.OpenFile(file, os.O_WRONLY, 0) // pwrite to an O_APPEND file appends
	if err != nil {
		return nil, err
	}
	now := boottime()
	n, err := fmt.Fprintf(add, "start %020d last %020d pid %d token %s\n", now, now, os.Getpid(), token)
	if err != nil {
		return nil, err
	}
	end, err := add.Seek(0, 1)
	if err != nil {
		return nil, err
	}
	at := end - int64(n) + int64(lastAt)
	go func() {
		runtime.LockOSThread()
		for {
			_, _ = beat.WriteAt(fmt.Appendf(nil, "%020d", boottime()), at)
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
		}
	}()
	return func() { fmt.Fprintf(add, "term %020d pid %d\n", boottime(), os.Getpid()) }, nil
}

func writeReady(file string, up map[string][]int) error {
	data, err := json.Marshal(up)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

func fail(code int, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "nasty: "+format+"\n", args...)
	os.Exit(code)
}
