package supervisor

import (
	"sync"
	"time"
)

// Where no timer runs on a clock that counts suspend (all systems but Linux), one looks at
// that clock every clockTick: so an alarm is up to clockTick late, after a suspend, too. A
// fifth of the margin, which has room for it.
const clockTick = margin / 5

// tickAlarm is an Alarm on any clock.
type tickAlarm struct {
	now  func() Instant
	c    chan struct{}
	set  chan Instant
	done chan struct{}
	wg   sync.WaitGroup
}

func newTickAlarm(now func() Instant) *tickAlarm {
	a := &tickAlarm{now: now, c: make(chan struct{}, 1), set: make(chan Instant), done: make(chan struct{})}
	a.wg.Go(a.run)
	return a
}

func (a *tickAlarm) run() {
	var at Instant // 0: not set
	timer := time.NewTimer(clockTick)
	defer timer.Stop()
	for {
		var look <-chan time.Time
		if at > 0 {
			timer.Reset(min(clockTick, max(at-a.now(), 0)))
			look = timer.C
		}
		select {
		case <-a.done:
			return
		case at = <-a.set:
		case <-look:
			if a.now() < at {
				continue
			}
			at = 0
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
	}
}

func (a *tickAlarm) C() <-chan struct{} { return a.c }
func (a *tickAlarm) Set(at Instant)     { a.set <- max(at, 1) }
func (a *tickAlarm) Close()             { close(a.done); a.wg.Wait() }

// tickWait is how long poll(2) may wait at now, in ms, so that at isn't missed; -1 without
// an instant: until something happens.
func tickWait(at, now Instant) int {
	if at <= 0 {
		return -1
	}
	wait := min(clockTick, max(at-now, 0))
	return int((wait + time.Millisecond - 1) / time.Millisecond)
}
