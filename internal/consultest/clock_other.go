//go:build !linux

package consultest

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootNow reads CLOCK_MONOTONIC, which runs during a suspend on these systems.
func BootNow() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
