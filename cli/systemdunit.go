package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

const (
	// watchdogPart of the lease is WatchdogSec: with keeper and guard stopped at once only
	// systemd can kill, and half of the lease leaves room for the age of the last proof.
	watchdogPart = 2
	// stopRoom is for what follows SIGKILL: reaping, the release (4s), the end.
	stopRoom = 15 * time.Second
)

const forUnit = "Unit"

const systemdHelp = `onlyone systemd [NAME] [flags of run] -- CMD [ARG...]

  onlyone systemd billing -- /usr/local/bin/billing >unit.service
  onlyone systemd --directory /etc/systemd/system billing -- /opt/billing
  onlyone systemd --on-calendar 'Mon..Fri 03:00' nightly -- /opt/report

prints a finished unit, with the reason of each line: a service that runs CMD on
one host while the others stand by, or a timer. The flags of onlyone run become
part of it; variables of this shell don't.
`

// systemdCommand prints units: "onlyone run" with its flags as a service, or as a timer.
func (in *invocation) systemdCommand() *cli.Command {
	// What run would refuse is refused here: its own action checks, and gives us the result.
	var o RunOptions
	as := &invocation{app: &App{now: in.app.now, run: func(_ context.Context, given RunOptions) error { o = given; return nil }},
		command: in.command, dashes: in.dashes, stdout: in.stdout, stderr: in.stderr, logFormat: in.logFormat}
	run := as.runCommand()
	return &cli.Command{
		Name:        "systemd",
		Description: systemdHelp,
		Usage:       "print a systemd unit that runs CMD on one host of many",
		ArgsUsage:   "[NAME] [flags of run] -- CMD [ARG...]",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "on-calendar", Category: forUnit, Usage: "a timer that starts it at `EXPR`, see systemd.time(7)"},
			&cli.StringFlag{Name: "directory", Category: forUnit, Usage: "write the files into `DIR` instead of printing them"},
		}, forUnits(run.Flags)...),
		Action: func(c *cli.Context) error {
			as.typed = in.typed
			if err := run.Action(c); err != nil {
				return meantForSystemd(err)
			}
			s, err := in.service(c, o)
			if err != nil {
				return err
			}
			return in.writeUnits(c.String("directory"), s)
		},
	}
}

// meantForSystemd has what run says to type begin with this command.
func meantForSystemd(err error) error {
	if e, ok := errors.AsType[*exitError](err); ok {
		e.hint = strings.Replace(e.hint, "try: onlyone run ", "try: onlyone systemd ", 1)
	}
	return err
}

// forUnits are flags whose values come from the command line only: what is set in the shell
// of whoever prints a unit isn't set when it runs.
func forUnits(flags []cli.Flag) (out []cli.Flag) {
	for _, f := range withoutVariables(flags...) {
		if name := f.Names()[0]; name != "explain" && name != "help-all" {
			out = append(out, f)
		}
	}
	return out
}

// A service is what the units are made of.
type service struct {
	RunOptions
	program  string   // onlyone
	flags    []string // of run, as they were typed
	calendar string   // "": a service that always runs
}

func (in *invocation) service(c *cli.Context, o RunOptions) (*service, error) {
	dials := supervisor.Dials{Lease: o.Lease, KillAfter: o.KillAfter, TTL: o.TTL, Poll: o.Poll}
	if err := checkDials(dials); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find out where onlyone is: %w", err)
	}
	s := &service{RunOptions: o, program: program, calendar: c.String("on-calendar")}
	for _, f := range in.flags {
		if !strings.HasPrefix(f, "--on-calendar=") && !strings.HasPrefix(f, "--directory=") {
			s.flags = append(s.flags, f)
		}
	}
	if s.calendar == "" && (o.NoWait || in.typed["once-per"] > 0) {
		return nil, usageError("add --on-calendar EXPR", "with --no-wait or --once-per a service would end and be started again, all the time")
	}
	if in.typed["token"] > 0 {
		o.Log.Warn().Msg("everybody can read the token in a unit; use --token-file, or CONSUL_HTTP_TOKEN_FILE in /etc/default/onlyone")
	}
	// systemd finds a command by a PATH of its own, and from its own folder.
	command := o.Command[0]
	if strings.Contains(command, "/") && !filepath.IsAbs(command) {
		if command, err = filepath.Abs(command); err != nil {
			return nil, fmt.Errorf("cannot find out where %s is: %w", o.Command[0], err)
		}
	}
	switch path, err := exec.LookPath(command); {
	case err == nil && filepath.IsAbs(path):
		command = path
	case filepath.IsAbs(command):
		o.Log.Warn().Msgf("%s can't be executed here; is it there where the unit runs?", command)
	default:
		o.Log.Warn().Msgf("%s isn't found here; give its full path, or systemd looks in /usr/local/bin, /usr/bin and the like", command)
	}
	s.Command = append([]string{command}, o.Command[1:]...)
	if s.calendar != "" {
		if why := notCalendar(c.Context, s.calendar); why != "" {
			return nil, usageError("see CALENDAR EVENTS in systemd.time(7); for example: --on-calendar '*-*-* 02:15', or '*:0/5' for each 5 minutes", "systemd can't use --on-calendar %q: %s", s.calendar, why)
		}
		spec, calendar, err := oncePer(s.calendar, localZone())
		switch {
		case in.typed["once-per"] > 0:
		case err != nil:
			o.Log.Warn().Msgf("%v: add --once-per, so that a host whose clock is late doesn't run it again", err)
			s.flags = append(s.flags, "--no-wait", "--conflict-exit-code=0")
		default:
			s.calendar = calendar
			s.flags = append(s.flags, spec...)
		}
	}
	return s, nil
}

// unitName is the name of the files, without a suffix. A unit of the command's own package is
// not replaced by it.
func (s *service) unitName() string { return "onlyone-" + strings.ReplaceAll(s.Name, "/", "-") }

// description is a line of each unit, and tells by it whose one is: a/b and a-b are two locks
// with one name of a unit.
func (s *service) description() string {
	return fmt.Sprintf("Description=%s, on one host of many", strings.ReplaceAll(s.Name, "%", "%%"))
}

// writeUnits prints the files, or writes them where they were asked for.
func (in *invocation) writeUnits(dir string, s *service) error {
	files := []struct{ name, text string }{{s.unitName() + ".service", s.serviceUnit()}}
	if s.calendar != "" {
		files = append(files, struct{ name, text string }{s.unitName() + ".timer", s.timerUnit()})
	}
	for _, f := range files {
		if dir == "" {
			break
		}
		old, err := os.ReadFile(filepath.Join(dir, f.name))
		if err == nil && !bytes.Contains(old, []byte(s.description()+"\n")) {
			return &exitError{code: exitConfig, what: fmt.Errorf("%s is there, and isn't a unit of the lock %s that onlyone has written; nothing was written", filepath.Join(dir, f.name), s.Name),
				hint: "choose another NAME or --directory, or move it away"}
		}
	}
	var written []string
	for i, f := range files {
		if dir != "" {
			file := filepath.Join(dir, f.name)
			if err := os.WriteFile(file, []byte(f.text), 0o644); err != nil {
				return &exitError{code: exitInternal, what: fmt.Errorf("cannot write the unit: %w", err)}
			}
			written = append(written, file)
			continue
		}
		if i > 0 {
			fmt.Fprintln(in.stdout)
		}
		if _, err := fmt.Fprintf(in.stdout, "# /etc/systemd/system/%s\n%s", f.name, f.text); err != nil {
			return err
		}
	}
	if len(written) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(in.stdout, "wrote %s; to start it: systemctl daemon-reload && systemctl enable --now %s\n", strings.Join(written, " and "), filepath.Base(written[len(written)-1]))
	return err
}

// commandLine is the ExecStart.
func (s *service) commandLine() string {
	words := append([]string{s.program, "run"}, s.flags...)
	words = append(append(words, s.Name, "--"), s.Command...)
	for i, w := range words {
		words[i] = unitWord(w)
	}
	return strings.Join(words, " ")
}

// unitWord is a word of a command line in a unit, see systemd.service(5): '%' begins a
// specifier and '$' a variable also within quotes, where C's escapes count. Bytes that aren't
// UTF-8 make systemd drop the line, so they are escaped, too.
func unitWord(s string) string {
	plain := s != "" && s != ";"
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '%' || r == '$':
			b.WriteString(strings.Repeat(string(r), 2))
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
			plain = false
		case r == '\'' || r == ' ':
			b.WriteRune(r)
			plain = false
		case r < ' ' || r == 0x7f || r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
			plain = false
		default:
			b.WriteRune(r)
		}
		i += size
	}
	if plain {
		return b.String()
	}
	return `"` + b.String() + `"`
}

func (s *service) serviceUnit() string {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("[Unit]")
	line("%s", s.description())
	line("Wants=network-online.target")
	line("# Not Requires= or BindsTo=: an agent that restarts must not stop the command.")
	line("After=network-online.target consul.service")
	if s.calendar == "" {
		line("# A standby must be able to come back for ever.")
		line("StartLimitIntervalSec=0")
	}
	line("")
	line("[Service]")
	s.startLines(line)
	line("# CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN_FILE and the like, for all units.")
	line("EnvironmentFile=-/etc/default/onlyone")
	line("# The command and onlyone run as this user (root without it).")
	line("#User=")
	line("ExecStart=%s", s.commandLine())
	if s.calendar == "" {
		line("# SIGHUP goes to the command; a standby ignores it.")
		line("ExecReload=/bin/kill -HUP $MAINPID")
	}
	s.stopLines(line)
	if s.calendar == "" {
		line("")
		line("[Install]")
		line("WantedBy=multi-user.target")
	}
	return b.String()
}

// startLines are what a service and a timer's one differ in.
func (s *service) startLines(line func(string, ...any)) {
	if s.calendar != "" {
		line("Type=oneshot")
		line("NotifyAccess=main")
		return
	}
	switch s.Notify {
	case notifyChild:
		line("# The command says READY=1, and must not send MAINPID: systemd would watch it instead")
		line("# of onlyone. A standby is \"activating\", for as long as it takes.")
		line("Type=notify")
		line("NotifyAccess=all")
		line("TimeoutStartSec=infinity")
	case notifyRunning:
		line("# It is up when the command runs here. A standby is \"activating\", for as long as it takes.")
		line("Type=notify")
		line("NotifyAccess=main")
		line("TimeoutStartSec=infinity")
	default:
		line("# It is up when it contends for the lock; systemctl status says who has it.")
		line("Type=notify")
		line("NotifyAccess=main")
	}
	if s.Notify != notifyChild {
		line("# If onlyone and its guard are both stopped, nobody else kills the command in time.")
		line("WatchdogSec=%d", int(max(s.Lease/watchdogPart, 5*time.Second)/time.Second))
		line("# SIGABRT makes onlyone say where it hung; then SIGKILL.")
		line("TimeoutAbortSec=2")
	}
	line("Restart=always")
	line("RestartSec=2")
	line("# A wrong command line or impossible settings don't mend themselves.")
	line("RestartPreventExitStatus=64 78")
	line("# How a command ends that caught SIGTERM, such as Java's.")
	line("SuccessExitStatus=143")
}

func (s *service) stopLines(line func(string, ...any)) {
	line("# SIGTERM to onlyone alone, which stops the command in order. If onlyone is killed, the")
	line("# rest gets SIGKILL at once: with control-group it would get TimeoutStopSec.")
	line("KillMode=mixed")
	line("# --stop-timeout and what follows; onlyone asks for more if that isn't enough.")
	line("TimeoutStopSec=%d", int((s.StopTimeout+s.KillAfter+stopRoom)/time.Second))
	line("# What a killed onlyone couldn't do: see that nothing is left, release the lock.")
	line("RuntimeDirectory=%s", strings.ReplaceAll(s.unitName(), "%", "%%"))
	line("ExecStopPost=%s release", unitWord(s.program))
	line("# A cgroup of the command's own: all of it dies at once, also what another user owns.")
	line("Delegate=pids")
	line("# The guard locks its pages in memory, so that a kill isn't late.")
	line("LimitMEMLOCK=infinity")
	line("# Sandboxing that leaves onlyone alone: ProtectSystem=, ProtectHome=, PrivateTmp=,")
	line("# ReadWritePaths=. What it can't do without: the cgroup (no ProtectControlGroups=), a")
	line("# real-time guard (no RestrictRealtime=), kills of other users' processes (CAP_KILL).")
}

func (s *service) timerUnit() string {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("[Unit]")
	line("%s", s.description())
	line("")
	line("[Timer]")
	line("OnCalendar=%s", strings.ReplaceAll(s.calendar, "%", "%%"))
	line("# All hosts at the same time: the default lets each be late by up to a minute.")
	line("AccuracySec=1s")
	if slices.ContainsFunc(s.flags, func(f string) bool { return strings.HasPrefix(f, "--once-per=") }) {
		line("# What was missed is run when the host is up again, unless another host has done it.")
		line("Persistent=true")
	} else {
		line("# What was missed isn't made up for: each host would run it again.")
		line("Persistent=false")
	}
	line("")
	line("[Install]")
	line("WantedBy=timers.target")
	return b.String()
}
