//go:build darwin || freebsd

package supervisor

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootClock returns CLOCK_MONOTONIC, which counts suspend on these systems (what Go reads
// on macOS doesn't), with alarms that are up to clockTick late.
func BootClock() Clock {
	return Clock{Now: bootNow, NewAlarm: func() (Alarm, error) { return newTickAlarm(bootNow), nil }}
}

func bootNow() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("cannot read CLOCK_MONOTONIC: " + err.Error()) // POSIX demands it
	}
	return time.Duration(ts.Nano())
}

// There is no timerfd: poll(2) leaves out a negative descriptor, and pollLimit wakes it.
func newTimerfd() (int, error)      { return -1, nil }
func setTimerfd(int, Instant) error { return nil }

func pollLimit(at Instant) int { return tickWait(at, bootNow()) }
