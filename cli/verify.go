package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

const verifyHelp = `onlyone verify [flags]

  onlyone run report -- sh -c './prepare && onlyone verify && ./publish'

Inside a command of "onlyone run": is its lock still its own? Consul is asked
once, by a linearizable read. Exit 0: yes, at some instant during the call; it
says nothing of any later one, so ask each time. 79: no, and stderr says why.
69: Consul gave no answer within --timeout. 77: the token may not read the key.
`

// defaultVerifyTimeout is far more than an agent needs, and less than people wait for.
const defaultVerifyTimeout = 5 * time.Second

func (in *invocation) verifyCommand() *cli.Command {
	var (
		prefix  = &prefixValue{defaultPrefix}
		token   = &tokenValue{}
		timeout = &durationValue{d: defaultVerifyTimeout}
	)
	c := &cli.Command{
		Name:        "verify",
		Usage:       "is the lock still ours?",
		Description: verifyHelp,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "key", Category: forFencing, Usage: "the lock is `KEY` in Consul (ONLYONE_KEY)", EnvVars: variable("key")},
			&cli.StringFlag{Name: "name", Category: forFencing, Usage: "the lock is `NAME`, in the place of --key"},
			valueFlag(forFencing, "prefix", "", prefix, "with --name: its keys are below `PATH` (onlyone)"),
			&cli.StringFlag{Name: "session", Category: forFencing, Usage: "the lock's session is `ID` (ONLYONE_SESSION)", EnvVars: variable("session")},
			tokenFlag("fence-token", token),
			&cli.GenericFlag{Name: "timeout", Category: forFencing, Value: timeout, Usage: "wait for Consul's answer at most `DUR` (5s)"},
			&cli.BoolFlag{Name: "json", Category: forTelling, Usage: "print the answer as JSON"},
			&cli.GenericFlag{Name: "log-format", Category: forTelling, Value: &in.logFormat, Usage: "write messages as `FORMAT`: human or json (human)"},
		}, in.consulFlagList()...),
	}
	c.Action = func(c *cli.Context) error {
		if c.Args().Present() || in.dashes {
			return usageError("try: onlyone verify && CMD", "nothing but flags may follow")
		}
		claim := consulsession.Claim{Key: c.String("key"), Session: c.String("session"), Token: token.n}
		if err := in.settleClaim(&claim, c.String("name"), prefix.prefix); err != nil {
			return err
		}
		flags, err := consulFlags(c)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context, timeout.d)
		defer cancel()
		err = consulsession.Verify(ctx, flags.client(), claim)
		lost, isLost := errors.AsType[*consulsession.LostError](err)
		if c.Bool("json") && (err == nil || isLost) {
			if err := in.printVerdict(claim, lost); err != nil {
				return err
			}
		}
		switch bad, wrong := errors.AsType[*consulsession.ConfigError](err); {
		case err == nil:
			return nil
		case isLost:
			return &exitError{code: exitLost, what: fmt.Errorf("%s is not ours any more: %w", claim.Key, lost), hint: "stop: another host may be at it"}
		case wrong:
			return &exitError{code: exitUsage, what: bad}
		}
		return consulProblem(err)
	}
	return c
}

// sessionID is what Consul makes: a UUID.
var sessionID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
})

// settleClaim finds out what is asked for, and refuses what can't have come from a run.
func (in *invocation) settleClaim(claim *consulsession.Claim, name, prefix string) error {
	const inside = "run it inside a command of onlyone: onlyone run NAME -- sh -c 'onlyone verify && ...'; else give --name and --session"
	switch {
	case name != "" && in.typed["key"] > 0:
		return usageError("leave one out", "--key and --name say the same")
	case name != "":
		if err := checkName(name); err != nil {
			return err
		}
		claim.Key = prefix + "/" + name + "/.lock"
		if os.Getenv("ONLYONE_KEY") != claim.Key && in.typed["fence-token"] == 0 {
			claim.Token = 0 // FENCE_TOKEN is that of another lock
		}
	case claim.Key == "" && claim.Session == "":
		return usageError(inside, "this doesn't run under onlyone: ONLYONE_KEY and ONLYONE_SESSION aren't set")
	case claim.Key == "":
		return usageError(inside, "there is no lock to ask for: ONLYONE_KEY isn't set")
	}
	switch {
	case claim.Session == "":
		return usageError(inside, "there is no session to ask for: ONLYONE_SESSION isn't set")
	case !sessionID().MatchString(claim.Session):
		return usageError("it looks like adf4238a-882b-9ddc-4a9d-5b6758e4159e", "%.60q isn't the ID of a session", claim.Session)
	case strings.HasPrefix(claim.Key, "/"):
		return usageError("it looks like onlyone/NAME/.lock", "the key %.200q begins with '/'", claim.Key)
	}
	return nil
}

// claimJSON is what "verify --json" prints: schema 1.
type claimJSON struct {
	Schema  int    `json:"schema"`
	Held    bool   `json:"held"`
	Key     string `json:"key"`
	Session string `json:"session"`
	Token   uint64 `json:"token,omitempty"`
	Reason  string `json:"reason,omitempty"` // why it isn't held
}

func (in *invocation) printVerdict(claim consulsession.Claim, lost *consulsession.LostError) error {
	v := claimJSON{Schema: 1, Held: lost == nil, Key: claim.Key, Session: claim.Session, Token: claim.Token}
	if lost != nil {
		v.Reason = lost.Reason
	}
	return json.NewEncoder(in.stdout).Encode(v)
}
