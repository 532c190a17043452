package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

// An App is onlyone's command line.
type App struct {
	version string
	run     RunFunc
	die     func(syscall.Signal) // ends this process by a signal; nil in tests
	now     func() time.Time     // the wall clock
}

// New makes the command line. run does the work of "onlyone run".
func New(version string, run RunFunc) *App {
	return &App{version: version, run: run, now: time.Now}
}

// Main does what args say (args[0] is the program) and returns the exit code. Flags that
// aren't given are taken from ONLYONE_* variables.
//
// An error of a command is written to stderr as one line. stdout gets help and version, if
// asked for, and what a command is there to print.
func (a *App) Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ours, command, dashes := cut(args[min(1, len(args)):])
	out := &checkedWriter{to: stdout}
	in := &invocation{app: a, command: command, dashes: dashes, stdout: out, stderr: stderr}
	var app *cli.App
	if len(ours) > 0 && ours[0] == "run" { // the one that is used most needn't wait for the others
		app = in.buildWith(in.runCommand())
	} else {
		app = in.build()
	}
	ours, err := in.arrange(app, ours)
	if err == nil {
		err = app.RunContext(ctx, append([]string{app.Name}, ours...))
	}
	if err == nil && out.err != nil { // an empty list isn't an answer
		err = &exitError{code: exitInternal, what: fmt.Errorf("cannot write to stdout: %w", out.err)}
	}
	if err != nil && in.what == "check" {
		err = unknown(stdout, err)
	}
	if err != nil {
		in.fail(err)
	}
	if e, ok := errors.AsType[*exitError](err); ok && e.signal != 0 && a.die != nil {
		a.die(e.signal)
	}
	return exitCode(err)
}

// checkedWriter remembers the first error.
type checkedWriter struct {
	to  io.Writer
	err error
}

func (w *checkedWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if err != nil && w.err == nil {
		w.err = err
		var path *fs.PathError
		if errors.As(err, &path) {
			w.err = path.Err // the rest is a name that nobody gave
		}
	}
	return n, err
}

// An invocation is one command line on its way to its action.
type invocation struct {
	app            *App
	command        []string       // what follows "--"
	dashes         bool           // there was a "--"
	typed          map[string]int // see ordered
	flags          []string       // see ordered
	stdout, stderr io.Writer

	what      string // the command's name, for messages
	logFormat choiceValue
	log       *zerolog.Logger // set by an action that has one
}

// fail writes the error that ends the program.
func (in *invocation) fail(err error) {
	if in.log != nil {
		report(*in.log, err)
		return
	}
	log, _ := newOutput(outputConfig{quiet: true, json: in.logFormat.word == "json", stderr: in.stderr}, "")
	if e, ok := errors.AsType[*exitError](err); ok && in.what != "" && e.what != nil {
		err = &exitError{code: e.code, what: fmt.Errorf("%s: %w", in.what, e.what), hint: e.hint}
	}
	report(log, err)
}

// build makes the library's app for this invocation. A later command is one more entry.
func (in *invocation) build() *cli.App {
	return in.buildWith(in.runCommand(), in.verifyCommand(), in.fenceCommand(), in.statusCommand(), in.lsCommand(), in.historyCommand(), in.checkCommand(),
		in.stepDownCommand(), in.pauseCommand(), in.resumeCommand(), in.unlockCommand(), in.resizeCommand(),
		in.drainCommand(), in.undrainCommand(), in.doctorCommand(), in.systemdCommand(), in.releaseCommand(), in.versionCommand(), in.completionCommand(), in.completeCommand())
}

func (in *invocation) buildWith(commands ...*cli.Command) *cli.App {
	in.logFormat = choiceValue{word: "human", of: []string{"human", "json"}}
	app := &cli.App{
		Name:     "onlyone",
		Usage:    "run a command on exactly one host of many",
		Version:  in.app.version,
		Commands: commands,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "version", Aliases: []string{"V"}, Usage: "print the version"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("version") {
				return in.printVersion(false)
			}
			return noCommand()
		},
		Writer:    in.stdout,
		ErrWriter: in.stderr,
		// The library's own ways of ending, splitting and helping aren't ours.
		HideVersion:               true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		OnUsageError:              onUsageError,
		ExitErrHandler:            func(*cli.Context, error) {},
		CustomAppHelpTemplate:     appHelp,
	}
	for _, c := range app.Commands {
		c.HideHelpCommand = true
		c.OnUsageError = onUsageError
	}
	return app
}

// lighten spares the library what only its own help needs, and the question to each flag about
// each other flag whether that one is set (2 x 55 x 55 regular expressions for run): half of
// the time from the start of the process to the first request.
func lighten(c *cli.Command) {
	for _, f := range c.Flags {
		switch f := f.(type) {
		case *cli.GenericFlag:
			f.Category = ""
		case *cli.StringFlag:
			f.Category = ""
		case *cli.StringSliceFlag:
			f.Category = ""
		case *cli.BoolFlag:
			f.Category = ""
		}
	}
	c.Before = func(*cli.Context) error { // what the command line has set is known otherwise
		c.Flags = slices.DeleteFunc(c.Flags, func(f cli.Flag) bool { return !f.IsSet() })
		return nil
	}
}

// onUsageError is for what the library finds and arrange didn't.
func onUsageError(_ *cli.Context, err error, _ bool) error {
	return usageError("see --help", "%w", err)
}

func noCommand() error {
	return usageError("try: onlyone run NAME -- CMD, or onlyone --help", "no command given")
}

// arrange brings the arguments before "--" into the order that the library can't get wrong:
// global flags, command, its flags, what is left.
func (in *invocation) arrange(app *cli.App, args []string) ([]string, error) {
	root, err := newFlagSet(app.Flags).order(args, true)
	if err != nil {
		return nil, misplaced(app, args, err)
	}
	words := root.positionals
	switch {
	case root.typed["help"] > 0 || root.typed["version"] > 0:
		return root.flags, nil
	case len(words) == 0 && in.dashes:
		return nil, usageError("try: onlyone run NAME -- CMD", "there is no command of onlyone before '--'")
	case len(words) == 0:
		return nil, noCommand()
	case words[0] == "help" && !in.dashes: // help COMMAND is COMMAND --help
		if len(words) == 1 || words[1] == "help" {
			return []string{"--help"}, nil
		}
		words = []string{words[1], "--help"}
	}
	c := app.Command(words[0])
	if c == nil {
		return nil, in.unknownCommand(app, words[0])
	}
	in.what = c.Name
	if err := checkVariables(c.Flags); err != nil {
		return nil, err
	}
	o, err := newFlagSet(c.Flags).order(words[1:], false)
	if err := noLongDash(o.positionals); err != nil {
		return nil, err
	}
	switch {
	case err != nil && !in.dashes && c.Name == "run" && (len(o.positionals) > 1 || len(o.positionals) == 1 && isPath(o.positionals[0])):
		return nil, noDashes(o.positionals) // it was a flag of the guarded command
	case err != nil:
		return nil, err
	}
	in.typed, in.flags = o.typed, o.flags
	if o.typed["help"] > 0 {
		c.CustomHelpTemplate = commandHelp(c, false)
		return []string{c.Name, "--help"}, nil
	}
	if err := checkEmpty(c, o); err != nil {
		return nil, err
	}
	lighten(c)
	return append(append([]string{c.Name}, o.flags...), o.positionals...), nil
}

// noLongDash finds what a program that sets text, such as a wiki, has made of "--".
func noLongDash(words []string) error {
	for _, w := range words {
		if strings.HasPrefix(w, "—") || strings.HasPrefix(w, "–") {
			return usageError("type two hyphens", "%q has a long dash in the place of '--'", w)
		}
	}
	return nil
}

// sayThemselves are flags that may be empty, or whose commands have a better word for it.
var sayThemselves = map[string]bool{"reason": true, "once-per": true, "state": true}

// checkEmpty refuses flags of ours that were typed with an empty text: without its value a
// --fence-cmd would fence nobody, and a --runtime-dir would drain the whole host.
func checkEmpty(c *cli.Command, o ordered) error {
	for _, f := range c.Flags {
		s, ok := f.(*cli.StringFlag)
		if ok && s.Category != forConsul && !sayThemselves[s.Name] && slices.Contains(o.flags, "--"+s.Name+"=") {
			return usageError("is a variable of the script unset?", "--%s is empty", s.Name)
		}
	}
	return nil
}

// misplaced says more of an unknown global flag that is one of a command.
func misplaced(app *cli.App, args []string, err error) error {
	root := newFlagSet(app.Flags)
	for i, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			break
		}
		if _, _, err := root.resolve(arg, args[i+1:]); err == nil {
			continue
		}
		for _, c := range app.Commands {
			if _, _, err := newFlagSet(c.Flags).resolve(arg, args[i+1:]); err != nil {
				continue
			}
			hint := fmt.Sprintf("it stands after the command: onlyone %s %s", c.Name, arg)
			if arg == "-v" {
				hint += "; the version: onlyone -V"
			}
			return usageError(hint, "unknown flag %s", arg)
		}
		break
	}
	return err
}

func (in *invocation) unknownCommand(app *cli.App, word string) error {
	names := []string{"help"}
	if in.dashes { // then it is one that runs a command, or a NAME
		names = nil
	}
	for _, c := range app.Commands {
		if !in.dashes || strings.Contains(c.ArgsUsage, "-- CMD") {
			names = append(names, c.Names()...)
		}
	}
	near := closest(word, names)
	switch {
	case near != "":
		return usageError(fmt.Sprintf("did you mean: onlyone %s?", near), "unknown command %q", word)
	case in.dashes && pathProblem(word) == "":
		return usageError(fmt.Sprintf("try: onlyone run %s -- %s", word, abbreviated(in.command)), "unknown command %q", word)
	}
	return usageError("see: onlyone --help", "unknown command %q", word)
}

// checkVariables finds values of ONLYONE_* variables that their flags refuse. It sets the
// flags, too, as the library does again.
func checkVariables(flags []cli.Flag) error {
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		for _, name := range d.GetEnvVars() {
			value := os.Getenv(name)
			switch f := f.(type) {
			case *cli.GenericFlag:
				if err := f.Value.Set(value); err != nil {
					return usageError("", "the variable %s: %v", name, err)
				}
			case *cli.BoolFlag:
				if _, err := strconv.ParseBool(value); err != nil {
					return usageError(fmt.Sprintf("try: %s=true", name), "the variable %s: %q is neither true nor false", name, value)
				}
			}
		}
	}
	return nil
}

// variable is the environment variable of a flag of ours, unless it is unset or empty: the
// library would take an empty one for a value.
func variable(flag string) []string {
	name := "ONLYONE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	if name == "ONLYONE_COPIES" && os.Getenv("ONLYONE_COPY") != "" {
		return nil // that is what the run around us has told its command
	}
	if os.Getenv(name) == "" {
		return nil
	}
	return []string{name}
}

// withoutVariables takes the variables from flags that say what to do now, not how things are
// set: a variable for "run" mustn't change what another command does.
func withoutVariables(flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.BoolFlag:
			f.EnvVars = nil
		case *cli.IntFlag:
			f.EnvVars = nil
		case *cli.GenericFlag:
			f.EnvVars = nil
		case *cli.StringFlag:
			f.EnvVars = nil
		case *cli.StringSliceFlag:
			f.EnvVars = nil
		}
	}
	return flags
}

func (in *invocation) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version",
		Description: `onlyone version [--json]

  onlyone version
  onlyone version --json | jq -r .version
`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "as JSON", EnvVars: variable("json")},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() || in.dashes {
				return usageError("try: onlyone version", "nothing may follow but --json")
			}
			return in.printVersion(c.Bool("json"))
		},
	}
}

func (in *invocation) printVersion(asJSON bool) error {
	format := "onlyone %s (%s/%s, %s)\n"
	if asJSON {
		format = `{"version":%q,"os":%q,"arch":%q,"go":%q}` + "\n"
	}
	_, err := fmt.Fprintf(in.stdout, format, in.app.version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	return err
}
