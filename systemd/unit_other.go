//go:build !linux

package systemd

import (
	"context"
	"errors"
)

// KillRest is for Linux: nowhere else is there a systemd.
func KillRest(context.Context, []string) error {
	return errors.New("there is no systemd on this system")
}
