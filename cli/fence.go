package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/fence"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

const fenceHelp = `onlyone fence --state FILE [flags] -- CMD [ARG...]

  onlyone run report -- onlyone fence --state /srv/reports/.fence -- ./report

FILE remembers the highest fencing token that was seen there. With a lower one
CMD isn't started (exit 79). Otherwise the token is recorded durably and CMD is
executed in the place of onlyone. CMD, and what it starts, holds the lock on
FILE.lock: one at a time. FILE belongs beside what it protects, where all hosts
see it; each lock needs a FILE of its own. See docs/fencing.md.
`

// forFencing is a category of the help.
const forFencing = "Fencing"

// fenceCommand has flags without variables: the environment is that of a command of
// "onlyone run", whose ONLYONE_WAIT isn't meant for us.
func (in *invocation) fenceCommand() *cli.Command {
	var (
		token    = &tokenValue{}
		wait     = &durationValue{zeroOK: true}
		conflict = &codeValue{exitConflict}
	)
	c := &cli.Command{
		Name:        "fence",
		Usage:       "run a command unless a newer fencing token was seen",
		ArgsUsage:   "--state FILE -- CMD [ARG...]",
		Description: fenceHelp,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "state", Category: forFencing, Usage: "remember the highest token in `FILE`"},
			tokenFlag("token", token),
			&cli.BoolFlag{Name: "no-wait", Aliases: []string{"n"}, Category: forWaiting, Usage: "don't wait while another CMD runs"},
			&cli.GenericFlag{Name: "wait", Aliases: []string{"w"}, Category: forWaiting, Value: wait, Usage: "wait for it at most `DUR` (default: for ever)"},
			&cli.GenericFlag{Name: "conflict-exit-code", Aliases: []string{"E"}, Category: forWaiting, Value: conflict, Usage: "exit with `N` if it still runs then (75)"},
			&cli.GenericFlag{Name: "log-format", Category: forTelling, Value: &in.logFormat, Usage: "write messages as `FORMAT`: human or json (human)"},
		},
	}
	c.Action = func(c *cli.Context) error {
		state := c.String("state")
		if err := in.checkFence(c.Args().Slice(), state, token.n); err != nil {
			return err
		}
		path, err := findCommand(in.command[0])
		if err != nil {
			return err
		}
		noWait, err := in.beats("no-wait", c.Bool("no-wait"), "wait", c.IsSet("wait"))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(c.Context)
		switch {
		case noWait:
			cancel() // a free lock is taken all the same
		case c.IsSet("wait"):
			ctx, cancel = context.WithTimeout(c.Context, wait.d)
		}
		defer cancel()
		held, err := fence.Enter(ctx, state, fence.Record{Token: token.n, Name: os.Getenv("ONLYONE_NAME"),
			Host: hostname(), Pid: os.Getpid(), Time: time.Now().UTC().Truncate(time.Millisecond)})
		if err != nil {
			return fenceProblem(err, conflict.code)
		}
		defer held.Close()
		if err := held.Inherit(); err != nil {
			return err
		}
		err = syscall.Exec(path, in.command, supervisor.WithEnv(os.Environ(), []string{"FENCE_TOKEN=" + token.String()}))
		errno, _ := errors.AsType[syscall.Errno](err)
		return notExecutable(path, errno, err)
	}
	return c
}

// checkFence finds what is missing on the command line.
func (in *invocation) checkFence(words []string, state string, token uint64) error {
	try := "try: onlyone fence --state FILE -- " + abbreviated(in.command)
	switch {
	case len(words) > 0 && !in.dashes:
		return usageError("try: onlyone fence --state FILE -- "+abbreviated(words), "there is no '--' before the command")
	case len(words) > 0:
		return usageError(try, "nothing but flags may stand before '--', and %s isn't one", words[0])
	case !in.dashes:
		return usageError(try, "there is no '--' and no command after it")
	case len(in.command) == 0:
		return usageError(try, "there is no command after '--'")
	case in.command[0] == "":
		return usageError("", "the command after '--' is an empty string")
	case state == "":
		return usageError(try, "there is no --state FILE to remember tokens in")
	case strings.HasSuffix(state, "/"):
		return usageError("give the file, as in --state "+state+".fence", "--state %s is a folder", state)
	case token == 0:
		return usageError(fmt.Sprintf("try: onlyone run NAME -- onlyone fence --state %s -- %s; or give --token N", state, abbreviated(in.command)), "there is no fencing token: FENCE_TOKEN isn't set")
	case closesFiles(in.command[0]):
		word := filepath.Base(in.command[0])
		return usageError(fmt.Sprintf("let it come first: %s onlyone fence --state FILE --token %d -- CMD", word, token),
			"%s closes the descriptor that holds the lock", word)
	}
	return nil
}

// closesFiles knows programs that close what they inherit before they do anything: with
// them CMD would run without the lock.
func closesFiles(command string) bool {
	switch filepath.Base(command) {
	case "sudo", "doas":
		return true
	}
	return false
}

// fenceProblem makes the error, and so the exit code, of what kept CMD from starting.
func fenceProblem(err error, conflict int) error {
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		hint := "CMD wasn't started; another host has had the lock since"
		if name := os.Getenv("ONLYONE_NAME"); stale.Seen.Name != name && name != "" && stale.Seen.Name != "" {
			hint = fmt.Sprintf("CMD wasn't started; %s and %s are two locks, give each a FILE of its own", name, stale.Seen.Name)
		}
		return &exitError{code: exitLost, what: stale, hint: hint}
	}
	if busy, ok := errors.AsType[*fence.BusyError](err); ok {
		return &exitError{code: conflict, what: busy, hint: "its command, or something that it left behind, still runs; to see it: fuser -v " + busy.Path + ".lock", mild: true}
	}
	if bad, ok := errors.AsType[*fence.FileError](err); ok {
		return &exitError{code: exitConfig, what: bad, hint: "FILE is left as it was; see: ls -ld " + bad.Path}
	}
	return err
}

// tokenFlag is the flag of a fencing token; without it FENCE_TOKEN counts.
func tokenFlag(name string, v *tokenValue) cli.Flag {
	f := &cli.GenericFlag{Name: name, Category: forFencing, Value: v, Usage: "the fencing token is `N` (FENCE_TOKEN)"}
	if os.Getenv("FENCE_TOKEN") != "" {
		f.EnvVars = []string{"FENCE_TOKEN"}
	}
	return f
}

// A tokenValue is the value of a flag that takes a fencing token. 0 is none.
type tokenValue struct{ n uint64 }

func (v *tokenValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a fencing token; it is a number from 1 on", s)
	}
	v.n = n
	return nil
}

func (v *tokenValue) String() string {
	if v == nil || v.n == 0 {
		return ""
	}
	return strconv.FormatUint(v.n, 10)
}
