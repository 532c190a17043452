package supervisor

import "time"

// An Instant is a reading of CLOCK_BOOTTIME: the time since boot, suspend included.
// It is never compared between machines.
type Instant = time.Duration

// A Clock reads the boot clock and wakes at instants of it. Go's own timers stop
// while a machine is suspended (CLOCK_MONOTONIC), so they may pace requests but never
// decide a kill.
type Clock struct {
	// Now returns the present instant. Safe for concurrent use.
	Now func() Instant
	// NewAlarm makes an alarm that isn't set.
	NewAlarm func() (Alarm, error)
}

// An Alarm wakes its owner at an instant. A value on C is only a hint to look at the
// clock: an alarm that was set anew may still deliver an older one.
type Alarm interface {
	C() <-chan struct{}
	Set(at Instant) // replaces what was set before
	Close()
}
