package cli

import (
	"errors"
	"fmt"
	"syscall"
)

// The exit codes of onlyone, beside those of the guarded command. 64 to 78 are the ones of
// sysexits.h; 124 to 127 and 137 are those of timeout(1), env(1) and the shell.
const (
	exitOK            = 0
	exitFree          = 1   // status, history: there is nothing of what was asked for
	exitUsage         = 64  // the command line is wrong
	exitUnavailable   = 69  // Consul can't be reached before the start
	exitInternal      = 70  // onlyone itself failed
	exitConflict      = 75  // the lock is taken, the wait is over, paused; -E changes it
	exitDenied        = 77  // Consul doesn't allow it
	exitConfig        = 78  // settings that can't work together
	exitLost          = 79  // the lock was lost, and the command was stopped in time
	exitLostAlive     = 80  // the lock was lost, and the command isn't known to be dead
	exitTimeout       = 124 // --max-runtime was reached, SIGTERM was enough
	exitNotExecutable = 126 // the command can't be executed
	exitNotFound      = 127 // the command isn't found
	exitKilled        = 137 // --max-runtime was reached, SIGKILL was needed
)

// An exitError is an error that knows onlyone's exit code and what to type next.
//
// It is shown as one line: "onlyone: NAME: what; hint". One without a what shows nothing:
// a command that ended with 3 has said itself why.
type exitError struct {
	code int
	what error  // what happened and why: "cannot X: cause"
	hint string // what to type next; may be empty

	signal syscall.Signal // end by this signal instead, if that is possible
	mild   bool           // nothing is wrong (another host has the lock): -q says nothing of it
}

func (e *exitError) Error() string {
	switch {
	case e.what == nil:
		return fmt.Sprintf("exit status %d", e.code)
	case e.hint == "":
		return e.what.Error()
	}
	return e.what.Error() + "; " + e.hint
}

func (e *exitError) Unwrap() error { return e.what }

// usageError is an exitError for a command line that is wrong.
func usageError(hint, format string, a ...any) *exitError {
	return &exitError{code: exitUsage, what: fmt.Errorf(format, a...), hint: hint}
}

// exitCode is the code that an error of an action stands for.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return exitInternal
}
