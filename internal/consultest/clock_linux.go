package consultest

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootNow reads CLOCK_BOOTTIME, the clock of leases.
func BootNow() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // it exists since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
