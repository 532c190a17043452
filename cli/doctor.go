package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/drain"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

const doctorHelp = `onlyone doctor [flags] [NAME]

  onlyone doctor              is all here that a run needs?
  onlyone doctor backup       the same for one lock; are its records sound?

It tries what a run does, on keys of its own, and leaves nothing behind. Each
line is ok, warn or FAIL, with what to do below it. Exit 0: a run works. 1: it
works, but there are warnings. Else what a run would end with: 69 Consul isn't
there, 70 onlyone can't work here, 77 not allowed, 78 impossible settings.
`

// exitWarnings: doctor has warnings and nothing worse.
const exitWarnings = 1

// doctorOptions is what "onlyone doctor" was told.
type doctorOptions struct {
	name, prefix string
	dials        supervisor.Dials
	checks       []string
	sessionNode  string
	consul       ConsulFlags
	drains       []string
	runtimeDir   string
}

func (in *invocation) doctorCommand() *cli.Command {
	var (
		prefix = &prefixValue{defaultPrefix}
		lease  = &durationValue{d: defaultLease}
		kill   = &durationValue{d: defaultKillAfter, zeroOK: true}
		ttl    = &durationValue{d: defaultTTL}
		poll   = &durationValue{d: defaultPoll}
	)
	c := &cli.Command{
		Name:        "doctor",
		Usage:       "try all that a run needs",
		ArgsUsage:   "[NAME]",
		Description: doctorHelp,
		Flags: append([]cli.Flag{
			valueFlag(forLease, "prefix", "", prefix, "keep the lock's keys below `PATH` (onlyone)"),
			valueFlag(forLease, "lease", "", lease, "as the run has it: `DUR` (20s)"),
			valueFlag(forLease, "kill-after", "k", kill, "as the run has it: `DUR` (4s)"),
			valueFlag(forLease, "ttl", "", ttl, "as the run has it: `DUR` (10s)"),
			valueFlag(forLease, "poll", "", poll, "as the run has it: `DUR` (2s)"),
			&cli.StringSliceFlag{Name: "check", Category: forLease, Usage: "as the run has it: check `ID` (repeatable)", EnvVars: variable("check"), KeepSpace: true},
			&cli.StringFlag{Name: "session-node", Category: forLease, Usage: "as the run has it: `NODE`", EnvVars: variable("session-node")},
			runtimeDirFlag(),
			boolFlag(forTelling, "json", "", "print it as JSON"),
		}, in.consulFlagList()...),
	}
	c.Action = func(c *cli.Context) error {
		o := doctorOptions{prefix: prefix.prefix, dials: supervisor.Dials{Lease: lease.d, KillAfter: kill.d, TTL: ttl.d, Poll: poll.d}, sessionNode: c.String("session-node")}
		switch words := c.Args().Slice(); {
		case in.dashes, len(words) > 1:
			return usageError("try: onlyone doctor NAME", "nothing but one NAME may follow doctor")
		case len(words) == 1:
			if err := checkName(words[0]); err != nil {
				return err
			}
			o.name = words[0]
		}
		var err error
		if o.checks, err = checkIDs(c); err != nil {
			return err
		}
		if o.consul, err = consulFlags(c); err != nil {
			return err
		}
		o.runtimeDir = c.String("runtime-dir")
		o.drains = drain.Dirs(o.runtimeDir)
		out := &findings{out: in, json: c.Bool("json")}
		return out.end(in.doctor(c.Context, o, out))
	}
	return c
}

// A finding is one line of doctor's.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // "ok", "warn" or "fail"
	What   string `json:"what"`
	Hint   string `json:"hint,omitempty"`
}

// findings are written as they are found, or as one JSON object at the end.
type findings struct {
	out  *invocation
	json bool
	list []finding
	exit int
}

// doctorReport is what --json prints: schema 1.
type doctorReport struct {
	Schema int       `json:"schema"`
	Exit   int       `json:"exit"`
	Checks []finding `json:"checks"`
}

// add takes a finding and the exit code that it stands for. Of several, what comes first in a
// run counts: Consul isn't there, then what it doesn't allow, then the rest.
func (f *findings) add(n finding, exit int) {
	for _, code := range []int{exitUnavailable, exitDenied, exitConfig, exitInternal, exitWarnings} {
		if exit == code || f.exit == code {
			f.exit = code
			break
		}
	}
	f.list = append(f.list, n)
	if f.json {
		return
	}
	word := n.Status
	if word == "fail" {
		word = "FAIL"
	}
	fmt.Fprintf(f.out.stdout, "%-5s %s: %s\n", word, n.Check, printable(n.What))
	for line := range strings.Lines(n.Hint) {
		fmt.Fprintf(f.out.stdout, "        %s\n", printable(strings.TrimRight(line, "\n")))
	}
}

func (f *findings) ok(check, format string, a ...any) {
	f.add(finding{check, "ok", fmt.Sprintf(format, a...), ""}, exitOK)
}

func (f *findings) warn(check, hint, format string, a ...any) {
	f.add(finding{check, "warn", fmt.Sprintf(format, a...), hint}, exitWarnings)
}

func (f *findings) fail(exit int, check, hint, format string, a ...any) {
	f.add(finding{check, "fail", fmt.Sprintf(format, a...), hint}, exit)
}

// end writes what isn't written yet. An error says that not all was tried.
func (f *findings) end(err error) error {
	if err != nil {
		return err
	}
	if f.json {
		if err := json.NewEncoder(f.out.stdout).Encode(doctorReport{1, f.exit, f.list}); err != nil {
			return err
		}
	}
	if f.exit != exitOK {
		return &exitError{code: f.exit}
	}
	return nil
}

// doctor looks at settings and Consul, then at this host.
func (in *invocation) doctor(ctx context.Context, o doctorOptions, out *findings) error {
	ctx, interruptedBy := untilSignal(ctx)
	defer interruptedBy()
	if err := o.dials.Validate(); err != nil {
		hint := ""
		if b, ok := errors.AsType[*supervisor.BudgetError](err); ok {
			hint = "this works: " + b.Fix
		}
		out.fail(exitConfig, "dials", hint, "%v", err)
	} else if o.dials.NeedsPatience() {
		out.warn("dials", "--lease 20s or more rides it out", "an election of a Consul leader (up to 13s) may outlast the renew deadline of %s and move the job", o.dials.RenewDeadline())
	}
	c, err := consulsession.NewContender(consulsession.Config{
		Client: o.consul.client(), Prefix: o.prefix, Name: o.name, Lease: o.dials.Lease, TTL: o.dials.TTL, Poll: o.dials.Poll,
		Checks: o.checks, SessionNode: o.sessionNode, Host: hostname(), Pid: os.Getpid(), Command: "onlyone doctor",
		Now: supervisor.BootClock().Now, Log: zerolog.Nop(),
		Jitter: func(most time.Duration) time.Duration { return rand.N(max(most, 1)) },
	})
	if err != nil {
		return &exitError{code: exitUsage, what: err}
	}
	defer c.Close()
	c.Doctor(ctx, func(f consulsession.Finding) {
		switch f.Status {
		case consulsession.StatusOK:
			out.ok(f.Check, "%s", f.What)
		case consulsession.StatusWarn:
			out.warn(f.Check, f.Hint, "%s", f.What)
		case consulsession.StatusImpossible:
			out.fail(exitConfig, f.Check, f.Hint, "%s", f.What)
		case consulsession.StatusDenied:
			out.fail(exitDenied, f.Check, f.Hint, "%s", f.What)
		case consulsession.StatusUnreachable:
			out.fail(exitUnavailable, f.Check, f.Hint, "%s", f.What)
		}
	})
	if sig := interruptedBy(); sig != 0 {
		return diedBy(sig)
	}
	in.lookAtHost(o, out)
	return nil
}

// untilSignal is a context that ends by a signal which would end this process, so that what is
// in Consul can be taken away first. by stops that and says which signal came; 0: none.
func untilSignal(ctx context.Context) (_ context.Context, by func() syscall.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	sigs := make(chan os.Signal, 1)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} { // PIPE: onlyone doctor | head
		if !signal.Ignored(s) {
			signal.Notify(sigs, s)
		}
	}
	var got syscall.Signal
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		select {
		case s := <-sigs:
			got = s.(syscall.Signal)
		case <-ctx.Done():
		}
	}()
	return ctx, func() syscall.Signal {
		signal.Stop(sigs)
		cancel()
		<-done
		return got
	}
}

// lookAtHost is what doesn't depend on Consul.
func (in *invocation) lookAtHost(o doctorOptions, out *findings) {
	for _, r := range supervisor.Rungs() {
		switch {
		case r.Err == nil:
			out.ok(r.Name, "%s", r.Use)
		case r.Needed:
			out.fail(exitInternal, r.Name, r.Hint, "it doesn't work here: %v", r.Err)
		case r.Name == "cgroup" && r.Lack != "":
			out.warn(r.Name, r.Hint, "not here: %v: %s", r.Err, r.Lack)
		case r.Lack != "":
			out.ok(r.Name, "not here (%v), and a run does without: %s", r.Err, r.Lack)
		default:
			out.ok(r.Name, "not here (%v), and a run does without", r.Err)
		}
	}
	p := surroundings(in.stderr)
	switch {
	case os.Getenv("NOTIFY_SOCKET") != "":
		out.ok("systemd", "it is told of READY and STATUS")
	case p.systemd:
		out.ok("systemd", "it isn't told of READY and STATUS: the unit has no Type=notify")
	}
	if usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && time.Duration(usec)*time.Microsecond < 2*o.dials.Poll {
		out.warn("systemd", fmt.Sprintf("WatchdogSec=%s or more", 2*o.dials.Poll), "WatchdogSec is %s, shorter than two checks of the lock (--poll %s)", time.Duration(usec)*time.Microsecond, o.dials.Poll)
	}
	switch {
	case p.terminal:
		out.ok("messages", "to a terminal: each change of state")
	case p.systemd:
		out.ok("messages", "to systemd: each change of state")
	default:
		out.ok("messages", "only what went wrong; -v for more")
	}
	drained, err := drain.Read(o.drains, time.Now())
	undrain := undrainLine(o.runtimeDir)
	switch {
	case err != nil:
		out.warn("drain", undrain, "this host is drained, since %v", err)
	case drained.On:
		out.warn("drain", undrain, "this host is %s: nothing is begun here", drained)
	default:
		out.ok("drain", "this host isn't drained")
	}
}
