package supervisor

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// BootClock returns the machine's boot clock: CLOCK_BOOTTIME with timerfd alarms.
func BootClock() Clock { return Clock{Now: bootNow, NewAlarm: newTimerfdAlarm} }

func bootNow() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("cannot read CLOCK_BOOTTIME: " + err.Error()) // it exists since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

func newTimerfd() (int, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("cannot create a timer on the boot clock: %w", err)
	}
	return fd, nil
}

// setTimerfd arms fd for at, or disarms it for 0.
func setTimerfd(fd int, at Instant) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// pollLimit is how long poll(2) may wait, in ms: until something happens, since the timer is
// among what it waits for.
func pollLimit(Instant) int { return -1 }

type timerfdAlarm struct {
	fd   int
	file *os.File
	c    chan struct{}
	wg   sync.WaitGroup
}

func newTimerfdAlarm() (Alarm, error) {
	fd, err := newTimerfd()
	if err != nil {
		return nil, err
	}
	a := &timerfdAlarm{fd: fd, file: os.NewFile(uintptr(fd), "timerfd"), c: make(chan struct{}, 1)}
	a.wg.Go(func() {
		buf := make([]byte, 8)
		for {
			if _, err := a.file.Read(buf); err != nil {
				return
			}
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
	})
	return a, nil
}

func (a *timerfdAlarm) C() <-chan struct{} { return a.c }

func (a *timerfdAlarm) Set(at Instant) {
	// It can't fail for an open timerfd and a valid time.
	_ = setTimerfd(a.fd, max(at, 1))
}

func (a *timerfdAlarm) Close() {
	a.file.Close()
	a.wg.Wait()
}
