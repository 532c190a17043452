package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/drain"
)

const drainHelp = `onlyone drain [--for DUR] [--finish] [--reason TEXT]

  onlyone drain --reason "new kernel"     before a reboot, which undoes it
  onlyone drain --for 1h --finish         what runs may end by itself

This host begins nothing more, and what runs here is stopped gracefully, so that
another host takes over. It lasts until "onlyone undrain" or a reboot. It is a
file on this host, so it works while Consul is away: as root for everybody, in
/run/onlyone; else for the same user, in XDG_RUNTIME_DIR/onlyone. With
--runtime-dir DIR for those that have ONLYONE_RUNTIME_DIR=DIR, too.
`

const undrainHelp = `onlyone undrain

  onlyone undrain

This host may run commands again: it undoes "onlyone drain" of the same user.
`

// forHost is a category of the help.
const forHost = "This host"

func runtimeDirFlag() cli.Flag {
	return &cli.StringFlag{Name: "runtime-dir", Category: forHost, Usage: "`DIR` of drain.json, the file that drain writes", EnvVars: variable("runtime-dir")}
}

func (in *invocation) drainCommand() *cli.Command {
	duration := &durationValue{}
	c := &cli.Command{
		Name:        "drain",
		Usage:       "stop what runs on this host, begin nothing more",
		Description: drainHelp,
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "for", Category: forHost, Value: duration, Usage: "it ends after `DUR` (default: undrain, a reboot)"},
			&cli.BoolFlag{Name: "finish", Category: forHost, Usage: "let what runs come to its end, don't stop it"},
			&cli.StringFlag{Name: "reason", Category: forHost, Usage: "`TEXT` for whoever wonders why nothing starts"},
			runtimeDirFlag(),
			boolFlag(forTelling, "json", "", "print it as JSON"),
		},
	}
	c.Action = func(c *cli.Context) error {
		if err := in.nothingFollows(c); err != nil {
			return err
		}
		dir, err := runtimeDir(c.String("runtime-dir"))
		if err != nil {
			return err
		}
		now := time.Now().Truncate(time.Second)
		s := drain.State{On: true, Finish: c.Bool("finish"), Reason: strings.TrimSpace(c.String("reason")), By: whoami(), Since: now}
		if c.IsSet("for") {
			s.Until = now.Add(duration.d)
		}
		if s.File, err = drain.Set(dir, s); err != nil {
			return drainProblem("drain this host", err)
		}
		return in.printDrain(s, c.Bool("json"))
	}
	return c
}

// undrainLine is what to type to end a drain.
func undrainLine(runtimeDir string) string {
	if runtimeDir == "" {
		return "onlyone undrain"
	}
	return "onlyone undrain --runtime-dir " + runtimeDir
}

func (in *invocation) undrainCommand() *cli.Command {
	c := &cli.Command{
		Name:        "undrain",
		Usage:       "let this host run commands again",
		Description: undrainHelp,
		Flags:       []cli.Flag{runtimeDirFlag(), boolFlag(forTelling, "json", "", "print what is left as JSON")},
	}
	c.Action = func(c *cli.Context) error {
		if err := in.nothingFollows(c); err != nil {
			return err
		}
		dir, err := runtimeDir(c.String("runtime-dir"))
		if err != nil {
			return err
		}
		was, err := drain.Clear(dir)
		if err != nil {
			return drainProblem("undrain this host", err)
		}
		// Of several there may be one more: root's, or that of another folder.
		left, _ := drain.Read(append(drain.Dirs(c.String("runtime-dir")), dir), time.Now())
		switch {
		case c.Bool("json"):
			err = in.printDrain(left, true)
		case left.On: // said below
		case was:
			_, err = fmt.Fprintln(in.stdout, "this host is not drained any more")
		default:
			_, err = fmt.Fprintln(in.stdout, "this host is not drained")
		}
		if err == nil && left.On {
			hint := "that is another drain; undo it as its user, or: rm " + left.File
			if left.File == filepath.Join(drain.Dirs("")[0], filepath.Base(left.File)) {
				hint = "as root: onlyone undrain"
			}
			err = &exitError{code: exitDenied, what: fmt.Errorf("this host is still %s, by %s", left, left.File), hint: hint}
		}
		return err
	}
	return c
}

// nothingFollows refuses words after a command that has only flags.
func (in *invocation) nothingFollows(c *cli.Context) error {
	if c.Args().Present() || in.dashes {
		return usageError("see: onlyone "+c.Command.Name+" --help", "nothing but flags may follow %s", c.Command.Name)
	}
	return nil
}

// runtimeDir is where a drain of this user is written.
func runtimeDir(given string) (string, error) {
	switch {
	case given != "" && !filepath.IsAbs(given):
		return "", usageError("", "--runtime-dir %q isn't a full path: each process would look in a folder of its own", given)
	case given != "":
		return given, nil
	}
	dir := drain.OwnDir()
	if dir == "" {
		return "", &exitError{code: exitConfig, what: errors.New("this user has no folder for it: XDG_RUNTIME_DIR isn't set"),
			hint: "as root: onlyone drain; or give --runtime-dir DIR, and ONLYONE_RUNTIME_DIR=DIR to what runs"}
	}
	return dir, nil
}

func drainProblem(what string, err error) error {
	e := &exitError{code: exitInternal, what: fmt.Errorf("cannot %s: %w", what, err)}
	if errors.Is(err, fs.ErrPermission) {
		e.code, e.hint = exitDenied, "as root, or with a --runtime-dir that you may write to"
	}
	return e
}

// drainReport is what --json prints: schema 1.
type drainReport struct {
	Schema  int    `json:"schema"`
	Drained bool   `json:"drained"`
	Finish  bool   `json:"finish"`
	Since   string `json:"since,omitempty"`
	Until   string `json:"until,omitempty"`
	Reason  string `json:"reason,omitempty"`
	By      string `json:"by,omitempty"`
	File    string `json:"file,omitempty"`
}

func (in *invocation) printDrain(s drain.State, asJSON bool) error {
	if asJSON {
		r := drainReport{Schema: 1, Drained: s.On, Finish: s.Finish, Reason: s.Reason, By: s.By, File: s.File}
		if !s.Since.IsZero() {
			r.Since = s.Since.UTC().Format(time.RFC3339)
		}
		if !s.Until.IsZero() {
			r.Until = s.Until.UTC().Format(time.RFC3339)
		}
		return json.NewEncoder(in.stdout).Encode(r)
	}
	what, who, until := "what runs here is stopped gracefully", "for all of this host", undrainLine("")
	if s.Finish {
		what = "what runs here may come to its end"
	}
	switch dir := filepath.Dir(s.File); {
	case dir == drain.OwnDir() && dir != drain.Dirs("")[0]:
		who = "for this user on this host (for all of it: as root)"
	case dir != drain.Dirs("")[0]:
		who = "for those on this host that have ONLYONE_RUNTIME_DIR=" + dir
		until = undrainLine(dir)
	}
	switch {
	case strings.HasPrefix(s.File, "/run/user/"):
		until += ", a reboot, or the user's last logout"
	case strings.HasPrefix(s.File, "/run/"):
		until += ", or a reboot"
	}
	if !s.Until.IsZero() {
		until = s.Until.UTC().Format(time.RFC3339) + ", or " + until
	}
	_, err := fmt.Fprintf(in.stdout, "drained %s: %s, and nothing more is begun\n  until: %s\n  file:  %s\n", who, what, until, s.File)
	return err
}
