//go:build linux

package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/cli"
	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// hostClock is the variable with which this test binary is an onlyone on a host whose clock
// is wrong: by so much.
const hostClock = "TEST_HOST_CLOCK"

// hostMain is the whole life of this process if it is such an onlyone, or one of its helpers.
func hostMain() {
	if code, ok := cli.Helper(os.Args); ok {
		os.Exit(code)
	}
	off, err := time.ParseDuration(os.Getenv(hostClock))
	if err != nil {
		return
	}
	os.Exit(cli.MainAt(func() time.Time { return time.Now().Add(off) }, os.Args, os.Stdout, os.Stderr))
}

// on starts "onlyone run FLAGS NAME -- COMMAND" on a host whose clock shows now.
func (j *job) on(host string, now time.Time, flags string, command ...string) *proc {
	j.t.Helper()
	self, err := os.Executable()
	if err != nil {
		j.t.Fatal(err)
	}
	args := append([]string{"env", hostClock + "=" + time.Until(now).String(), self, "run", "--host", host}, strings.Fields(flags)...)
	return j.start(append(append(args, j.name, "--"), command...)...)
}

// Three hosts whose clocks are 10 s apart run a job of 0.2 s once in each of 200 periods, not
// once more or less: ShedLock issues 6, 8, 639, gocron issue 841. Real time is a hundred
// times as fast as theirs, so that a clock which is 5 s late starts 50 ms later.
func TestOncePerPeriod(t *testing.T) { oncePerPeriod(t, false) }

// The same when the onlyone that runs the job is killed in every third period, at a random
// moment: each period is finished, and run a second time only if its first run has died.
func TestOncePerPeriodWithKills(t *testing.T) { oncePerPeriod(t, true) }

func oncePerPeriod(t *testing.T, kills bool) {
	if testing.Short() {
		t.Skip("short: it takes minutes")
	}
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	j := newJob(t, shared(t, consultest.Version()))
	j.slowLeave = kills // also in the moment in which a session is being made or ended
	const periods = 200
	begin := time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC) // over Berlin's change to summer time
	flags := "--once-per 1m --time-zone Europe/Berlin"
	killed := 0
	for k := range periods {
		fire := begin.Add(time.Duration(k) * time.Minute)
		var hosts []*proc
		for h := range 3 { // in the order of their clocks: 5 s ahead, right, 5 s behind
			// By its own clock, its cron is up to a second late, or a little early.
			late := time.Duration(r.IntN(1500)-500) * time.Millisecond
			f := flags
			if !kills && r.IntN(3) == 0 {
				f += " -n -E 0"
			}
			hosts = append(hosts, j.on(fmt.Sprintf("web-%d", h), fire.Add(late), f, j.child(consultest.ChildOptions{Tag: strconv.Itoa(k), For: 200 * time.Millisecond})...))
			time.Sleep(50*time.Millisecond + time.Duration(r.IntN(10))*time.Millisecond)
		}
		dead := 0
		if kills && k%3 == 0 {
			dead = j.killRunner(r, strconv.Itoa(k))
		}
		for _, p := range hosts {
			if p.cmd.Process.Pid == dead {
				p.wait(-int(syscall.SIGKILL))
				killed++
			} else {
				p.wait(0)
			}
		}
		j.procs = nil
	}
	done := map[string]int{}
	runs := 0
	for _, i := range j.intervals() {
		runs++
		if i.Overlaps {
			t.Errorf("period %s: two at once", i.Tag)
		}
		if done[i.Tag] > 0 {
			t.Errorf("period %s was run again after it had ended: %q", i.Tag, j.runsOf(i.Tag))
		}
		if i.End > 0 {
			done[i.Tag]++
		}
	}
	if len(done) != periods {
		t.Errorf("%d of %d periods are done", len(done), periods)
	}
	if most := periods + killed; runs > most || !kills && runs != periods {
		t.Errorf("%d runs of %d periods, with %d killed", runs, periods, killed)
	}
	t.Logf("%d periods, %d runs, %d onlyones killed", periods, runs, killed)
}

// runsOf are the runs with this tag.
func (j *job) runsOf(tag string) (runs []string) {
	for _, i := range j.intervals() {
		if i.Tag == tag {
			runs = append(runs, fmt.Sprintf("%s from %s to %s", i, i.Start, i.End))
		}
	}
	return runs
}

// killRunner kills the onlyone that runs the job with this tag: in the middle of it, or in
// the moment in which the job has ended. It returns its pid, or 0 if it had ended before.
func (j *job) killRunner(r *rand.Rand, tag string) (pid int) {
	var child consultest.Interval
	j.await("the job runs", func() bool {
		for _, i := range j.intervals() {
			child = i
		}
		return child.Tag == tag
	})
	guard := parentOf(child.Pid)
	keeper := parentOf(guard)
	if r.IntN(3) > 0 {
		// Not in the last moment: a command that has done its work and is killed before it has
		// ended hasn't said that it is done.
		time.Sleep(child.Start + time.Duration(r.IntN(150))*time.Millisecond - consultest.BootNow())
	} else {
		soon(patience, func() bool { return syscall.Kill(child.Pid, 0) != nil })
	}
	for _, p := range j.procs {
		if p.cmd.Process.Pid == keeper && p.cmd.Process.Signal(syscall.SIGKILL) == nil {
			<-p.done
			if p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
				return keeper
			}
		}
	}
	return 0
}

// parentOf is the parent of a process; 0 if it has ended.
func parentOf(pid int) int {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(f[1])
	return n
}
