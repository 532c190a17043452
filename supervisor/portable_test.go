//go:build unix

package supervisor

import (
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// What only FreeBSD and macOS use is built everywhere, so that it is tested here.

func TestTickAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() Instant { return 5*time.Second + time.Since(start) }
		a := newTickAlarm(now)
		defer a.Close()
		a.Set(now() + 250*time.Millisecond)
		a.Set(now() + 1010*time.Millisecond) // replaces it
		<-a.C()
		if took := time.Since(start); took != 1010*time.Millisecond {
			t.Errorf("an alarm set for 1.01s came after %s", took)
		}
		select {
		case <-a.C():
			t.Error("an alarm came twice")
		case <-time.After(time.Minute):
		}
		a.Set(now() - time.Second)
		<-a.C()
	})
}

// The clock that counts suspend runs on while Go's timers stand still: when they go on, the
// alarm comes within a tick of them.
func TestTickAlarmAfterSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var suspended atomic.Int64
		a := newTickAlarm(func() Instant { return time.Second + time.Since(start) + Instant(suspended.Load()) })
		defer a.Close()
		a.Set(time.Hour)
		synctest.Wait() // it has looked at the clock and waits
		suspended.Store(int64(2 * time.Hour))
		<-a.C()
		if took := time.Since(start); took != clockTick {
			t.Errorf("the alarm came %s after the resume, want %s", took, clockTick)
		}
	})
}

func TestTickWait(t *testing.T) {
	for _, c := range []struct {
		at, now Instant
		want    int
	}{
		{0, time.Second, -1},
		{time.Second, time.Second, 0},
		{time.Second, 2 * time.Second, 0},
		{time.Second + 1, time.Second, 1}, // rounded up: not a busy loop
		{time.Second + 150*time.Millisecond, time.Second, 150},
		{time.Hour, time.Second, 200},
	} {
		if got := tickWait(c.at, c.now); got != c.want {
			t.Errorf("tickWait(%s, %s) = %d, want %d", c.at, c.now, got, c.want)
		}
	}
}

func TestProcessGroups(t *testing.T) {
	var g processGroups
	if !g.empty() {
		t.Fatal("no group, but not empty")
	}
	leader := exec.Command("sleep", "60")
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	g.started(leader.Process.Pid)
	member := exec.Command("sleep", "60")
	member.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: leader.Process.Pid}
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	_ = leader.Process.Kill()
	_ = leader.Wait()
	if g.empty() {
		t.Error("empty, but a member outlives the leader")
	}
	g.signal(syscall.SIGKILL)
	if err := member.Wait(); err == nil {
		t.Error("the member ended by itself")
	}
	if !g.empty() || g.ids != nil {
		t.Errorf("not empty: %v", g.ids)
	}
}
