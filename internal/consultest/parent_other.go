//go:build !linux

package consultest

import (
	"syscall"
	"time"
)

func dieWithParent() *syscall.SysProcAttr { return nil }

func awaitStop(int) { time.Sleep(100 * time.Millisecond) }
