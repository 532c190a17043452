package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// What the commands have in common that look at locks or order their holders about.

// defaultRequestTimeout is twice the longest that an agent takes to answer that there is no
// leader (it tries for 7 s) and no more than what somebody at a terminal waits for.
const defaultRequestTimeout = 10 * time.Second

// An operation is one of these commands on its way to its action.
type operation struct {
	in      *invocation
	prefix  prefixValue
	timeout durationValue
	c       *cli.Context
	names   []string
	json    bool
	*consulsession.Operator
}

// operation makes a command. act gets an Operator, and names that are checked.
func (in *invocation) operation(c *cli.Command, act func(*operation) error) *cli.Command {
	op := &operation{in: in, prefix: prefixValue{defaultPrefix}, timeout: durationValue{d: defaultRequestTimeout}}
	hasTimeout := newFlagSet(c.Flags)["timeout"] != nil
	withoutVariables(c.Flags...)
	if !hasTimeout {
		c.Flags = append(c.Flags, valueFlag("", "timeout", "", &op.timeout, "give up if Consul doesn't answer for `DUR` (10s)"))
	}
	c.Flags = append(c.Flags,
		boolFlag("", "json", "", "write JSON (docs/json.md)"),
		valueFlag("", "prefix", "", &op.prefix, "the locks' keys are below `PATH` (onlyone)"))
	c.Flags = append(c.Flags, in.consulFlagList()...)
	c.Action = func(cc *cli.Context) error {
		op.c, op.names, op.json = cc, cc.Args().Slice(), cc.Bool("json")
		if in.dashes {
			return usageError(fmt.Sprintf("try: onlyone %s %s", c.Name, c.ArgsUsage), "%s runs no command, so nothing may follow '--'", c.Name)
		}
		for _, name := range op.names {
			if err := op.checkArgument(name); err != nil {
				return err
			}
		}
		flags, err := consulFlags(cc)
		if err != nil {
			return err
		}
		op.Operator, err = consulsession.NewOperator(consulsession.OperatorConfig{
			Client: flags.client(), Prefix: op.prefix.prefix, Timeout: op.timeout.d, By: whoami(),
		})
		if err != nil {
			return &exitError{code: exitUsage, what: err}
		}
		defer op.Close()
		return act(op)
	}
	return c
}

func (op *operation) checkArgument(name string) error {
	if op.in.what == "ls" {
		name = strings.TrimSuffix(name, "/")
	}
	return checkName(name)
}

// name is the one NAME that a command takes.
func (op *operation) name() (string, error) {
	if len(op.names) == 1 {
		return op.names[0], nil
	}
	try := fmt.Sprintf("try: %s; to see the locks: %s", op.command(op.in.what+" NAME"), op.command("ls"))
	if len(op.names) == 0 {
		return "", usageError(try, "NAME is missing")
	}
	return "", usageError(try, "want one NAME, got %d: %s", len(op.names), strings.Join(op.names, ", "))
}

// whoami is who gives an order: user@host. Behind sudo it is who typed it.
func whoami() string {
	name := os.Getenv("SUDO_USER")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	if name == "" {
		name = fmt.Sprint(os.Getuid())
	}
	return name + "@" + hostname()
}

// problem makes the error, and so the exit code, of what an Operator answered.
func (op *operation) problem(name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e
	}
	e := consulProblem(err)
	if record, ok := errors.AsType[*consulsession.RecordError](err); ok {
		e = &exitError{code: exitConfig, what: record, hint: "a newer onlyone may know it; to see it: consul kv get " + record.Key}
	}
	if none, ok := errors.AsType[*consulsession.NotHeldError](err); ok {
		e = &exitError{code: exitConflict, what: none, hint: "to see it: " + op.command("status "+name), mild: true}
	}
	if name != "" {
		e.what = fmt.Errorf("%s: %w", name, e.what)
	}
	return e
}

// command is what to type next, for the same prefix.
func (op *operation) command(words string) string { return commandLine(op.prefix.prefix, words) }

func commandLine(prefix, words string) string {
	if prefix != defaultPrefix {
		words += " --prefix " + prefix
	}
	return "onlyone " + words
}

// say writes a line for people: what others wrote into Consul can't do anything to a terminal.
func (op *operation) say(format string, a ...any) {
	fmt.Fprintln(op.in.stdout, printable(fmt.Sprintf(format, a...)))
}

// warn writes a line that isn't what the command is there to print.
func (op *operation) warn(format string, a ...any) {
	fmt.Fprintln(op.in.stderr, "onlyone: "+op.in.what+": "+printable(fmt.Sprintf(format, a...)))
}

// encode writes one JSON object.
func (op *operation) encode(v any) error {
	e := json.NewEncoder(op.in.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// holders are who holds a lock: t says which, if it names a copy. all is for a lock with
// copies that was named as a whole.
func holders(l consulsession.Lock, t consulsession.Target, all bool) (targets []consulsession.Target, parties []consulsession.Party, err error) {
	none := &consulsession.NotHeldError{Target: t, Hold: l.At(t.Copy)}
	if l.Copies == 0 && len(l.Each) == 0 || t.Copy >= 0 {
		if none.Hold.Holder == nil {
			return nil, nil, none
		}
		return []consulsession.Target{t}, []consulsession.Party{*none.Hold.Holder}, nil
	}
	var which []string
	for _, c := range l.Each {
		if c.Holder != nil {
			targets = append(targets, consulsession.Target{Name: l.Name, Copy: c.Copy})
			parties = append(parties, *c.Holder)
			which = append(which, fmt.Sprintf("%d (%s)", c.Copy, c.Holder.Host))
		}
	}
	switch {
	case len(targets) == 0:
		none.Copies = l.Copies
		return nil, nil, none
	case !all && len(which) > 8:
		which = append(which[:8], "...")
		fallthrough
	case !all:
		return nil, nil, usageError(fmt.Sprintf("name one (%s) or give --all", targets[0]), "%s has copies, held are: %s", l.Name, strings.Join(which, ", "))
	}
	return targets, parties, nil
}

// isTerminal reports whether a stream is one that can be redrawn or asked.
func isTerminal(stream any) bool {
	if w, ok := stream.(*checkedWriter); ok {
		stream = w.to
	}
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// ago is how long ago t was by this host's clock: another host's may be ahead of it.
func ago(stamp string, now time.Time) (time.Duration, bool) {
	t, err := time.Parse(time.RFC3339, stamp)
	return max(now.Sub(t), 0), err == nil
}

// short is a duration in at most two units: "42s", "4m12s", "31h", "3d5h".
func short(d time.Duration) string {
	unit, parts := time.Second, func() string { return formatDuration(d) }
	switch {
	case d < time.Second:
		return "0s"
	case d >= 48*time.Hour:
		unit = time.Hour
	case d >= time.Hour:
		unit = time.Minute
		parts = func() string {
			s := fmt.Sprintf("%dh", d/time.Hour)
			if m := d % time.Hour / time.Minute; m > 0 {
				s += fmt.Sprintf("%dm", m)
			}
			return s
		}
	}
	d = d.Truncate(unit)
	return parts()
}

// since is "2026-11-29 02:58:03Z (4m12s)", as far as it is known.
func since(stamp string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		return stamp
	}
	return fmt.Sprintf("%s (%s)", instant(t), short(max(now.Sub(t), 0)))
}

func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// instantOf is instant for what stands in a record, which may be anything.
func instantOf(stamp string) string {
	if t, err := time.Parse(time.RFC3339, stamp); err == nil {
		return instant(t)
	}
	return stamp
}

// table writes columns, aligned, two spaces between them.
func (op *operation) table(rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(row[i])))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += cell + strings.Repeat(" ", widths[i]-len([]rune(cell))+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	fmt.Fprint(op.in.stdout, b.String())
}

func (op *operation) ctx() context.Context { return op.c.Context }
