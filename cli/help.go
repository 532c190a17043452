package cli

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// The help leads with what is typed most, is 80 columns wide and fits a screen.

const appHelp = `onlyone runs a command on exactly one host of many, for as long as that host
can prove that it holds the lock in Consul.

  onlyone run backup -- /usr/local/bin/backup --full
  onlyone run -w 10m db/vacuum -- psql -f vacuum.sql    wait at most 10 minutes
  onlyone run -n -E 0 -q report -- ./report.sh          quiet if another has it

Commands:
  run [flags] [NAME] -- CMD [ARG...]   run CMD while holding the lock NAME
  verify                               inside CMD: is the lock still ours?
  fence --state FILE -- CMD [ARG...]   run CMD if FILE has seen no newer token
  status [NAME...], ls [PREFIX]        who has it, since when, who waits
  history NAME                         the last runs
  check NAME --max-age DUR             did it succeed in time? (for monitoring)
  step-down NAME                       the holder stops CMD and hands over
  pause NAME, resume NAME              the holder stops, and nobody starts
  resize NAME --copies N               change how many copies there may be
  unlock NAME --force                  take it away, if all else fails
  drain, undrain                       begin nothing on this host; undo that
  doctor [NAME]                        try all that a run needs
  systemd NAME -- CMD                  print a unit, or a timer, that runs it
  release                              for ExecStopPost= of such a unit
  version, help [COMMAND], completion bash|zsh|fish

Exit codes: CMD's own, or 64 usage, 69 Consul isn't there, 70 onlyone failed,
75 the lock is taken, 77 not allowed, 78 impossible settings, 79 the lock was
lost and CMD was stopped in time, 80 it was lost and CMD may be alive, 124
--max-runtime is over, 137 and SIGKILL was needed, 126 CMD can't be executed,
127 it isn't found.
`

const runHelp = `onlyone run [flags] [NAME] -- CMD [ARG...]

  onlyone run backup -- /usr/local/bin/backup --full
  onlyone run -w 10m db/vacuum -- psql -f vacuum.sql    wait at most 10 minutes
  onlyone run --once-per 1d report -- ./report.sh       once a day for all hosts
  onlyone run --lease 30s --explain                     what happens when

Without NAME the lock is named after CMD. CMD's FENCE_TOKEN only ever grows.
Durations: 90, 1.5s, 5m, 1h30m, 1d. Each flag has a variable: ONLYONE_WAIT=5m.
`

// seldom are flags of run that its short help leaves out.
var seldom = map[string]bool{
	"prefix": true, "host": true, "on-lost": true, "min-hold": true, "runtime-dir": true, "splay": true, "start-deadline": true, "early": true, "retry": true, "ttl": true, "poll": true, "check": true, "session-node": true,
	"restart-delay": true, "max-restarts": true, "drop-consul-token": true, "pid-namespace": true,
	"fence-cmd": true, "on-acquire": true, "on-release": true, "on-loss": true, "hook-timeout": true,
	"ping-file": true, "metrics-listen": true, "metrics-file": true, "json": true, "time-zone": true, "result-file": true, "notify": true,
}

// commandHelp is a command's help as a template of the library, without anything to fill in.
// That of run is the short one, unless all is set.
func commandHelp(c *cli.Command, all bool) string {
	var b strings.Builder
	switch {
	case c.Name == "run":
		b.WriteString(runHelp)
	case c.Description != "":
		b.WriteString(c.Description)
		if len(c.Flags) == 0 || c.Flags[0].(cli.CategorizableFlag).GetCategory() == "" {
			b.WriteString("\n") // a category brings its own
		}
	default:
		fmt.Fprintf(&b, "onlyone %s [flags]: %s\n\n", c.Name, c.Usage)
	}
	category := ""
	var consul, left []string
	for _, f := range append(c.Flags, cli.HelpFlag) {
		d := f.(cli.DocGenerationFlag)
		if k, ok := f.(cli.CategorizableFlag); ok && c.Name == "systemd" && k.GetCategory() != forUnit && f != cli.HelpFlag {
			continue // those of run
		}
		if c.Name == "run" && !all && seldom[d.Names()[0]] {
			left = append(left, "--"+d.Names()[0])
			continue
		}
		if k, ok := f.(cli.CategorizableFlag); ok && k.GetCategory() != "" && k.GetCategory() != category {
			if category = k.GetCategory(); category != forConsul {
				fmt.Fprintf(&b, "\n%s:\n", category)
			}
		}
		if category == forConsul && f != cli.HelpFlag {
			consul = append(consul, "--"+d.Names()[0])
			continue
		}
		if f == cli.HelpFlag && len(consul) == 0 || f != cli.HelpFlag {
			fmt.Fprintln(&b, flagLine(d))
		}
	}
	if len(left) > 0 {
		b.WriteString("\nLess often (onlyone run --help-all explains them):\n")
		b.WriteString(wrapWords(left, "  ", 80))
	}
	if len(consul) > 0 {
		b.WriteString("\nConsul, as consul itself names them (its CONSUL_* variables work, too):\n")
		b.WriteString(wrapWords(consul, "  ", 80))
	}
	return b.String()
}

func flagLine(d cli.DocGenerationFlag) string {
	long := "--" + d.Names()[0]
	short := "   "
	for _, name := range d.Names()[1:] {
		short = dashed(name) + ","
	}
	if d.TakesValue() {
		long += " " + placeholder(d)
	}
	return fmt.Sprintf("  %s %-22s %s", short, long, strings.ReplaceAll(d.GetUsage(), "`", ""))
}

// wrapWords fills lines of at most width columns.
func wrapWords(words []string, indent string, width int) string {
	var b strings.Builder
	column := 0
	for _, w := range words {
		switch {
		case column == 0:
			b.WriteString(indent + w)
			column = len(indent) + len(w)
		case column+1+len(w) > width:
			b.WriteString("\n" + indent + w)
			column = len(indent) + len(w)
		default:
			b.WriteString(" " + w)
			column += 1 + len(w)
		}
	}
	return b.String() + "\n"
}
