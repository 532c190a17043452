package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// The exit codes of a monitoring plugin, and their words.
const (
	checkOK = iota
	checkWarning
	checkCritical
	checkUnknown
)

var checkWords = [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// checkJSON is what check prints with --json.
type checkJSON struct {
	Schema      int    `json:"schema"`
	Name        string `json:"name"`
	Status      string `json:"status"` // OK, WARNING, CRITICAL or UNKNOWN
	Message     string `json:"message"`
	Age         *int64 `json:"age_seconds,omitempty"` // since the end of the last success
	LastSuccess string `json:"last_success,omitempty"`
	Host        string `json:"host,omitempty"` // where it was
	Failures    int    `json:"failures"`       // since then
	LastExit    *int   `json:"last_exit,omitempty"`
}

func (in *invocation) checkCommand() *cli.Command {
	maxAge, warnAge := &durationValue{}, &durationValue{}
	return in.operation(&cli.Command{
		Name:      "check",
		Usage:     "monitoring plugin: did the job succeed in time?",
		ArgsUsage: "NAME",
		Description: `onlyone check --max-age DUR [flags] NAME

  onlyone check --max-age 26h --warn-age 25h backup
  OK: backup succeeded 3h ago on db-2 | age=10800s;90000;93600 failures=0

One line, as Nagios, Icinga and others read it. Success: it ended with 0. With
copies: any of them; NAME/2 is one.
Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (it never ran, Consul isn't
there, not allowed, wrong command line).
`,
		Flags: []cli.Flag{
			valueFlag("", "max-age", "", maxAge, "CRITICAL if the last success is older than `DUR`"),
			valueFlag("", "warn-age", "", warnAge, "WARNING if it is older than `DUR`"),
		},
	}, func(op *operation) error {
		name, err := op.name()
		switch {
		case err != nil:
			return err
		case maxAge.d == 0:
			return usageError("try: "+op.command("check "+name+" --max-age 26h"), "--max-age is missing")
		case warnAge.d >= maxAge.d && warnAge.d > 0:
			return usageError("", "--warn-age %s is not less than --max-age %s", formatDuration(warnAge.d), formatDuration(maxAge.d))
		}
		l, t, err := op.Find(op.ctx(), name)
		if err != nil {
			return op.problem(name, err)
		}
		if runs := runsOf(l, t); len(runs) == 0 && len(l.Problems) > 0 {
			return errors.New(l.Problems[0])
		}
		v := judge(name, l, runsOf(l, t), maxAge.d, warnAge.d, time.Now())
		if op.json {
			err = op.encode(v.json(name))
		} else {
			op.say("%s", v)
		}
		if v.code != checkOK && err == nil {
			err = &exitError{code: v.code}
		}
		return err
	})
}

// verdict is the answer of check.
type verdict struct {
	code         int
	text         string
	limits       string               // ;warn;crit
	success      *consulsession.Run   // the last one
	age          time.Duration        // since its end
	failures     int                  // since then
	last         consulsession.Run    // the last failure
	neverRan     bool                 // there is nothing to measure
	running      *consulsession.Party // it runs now
	runningSince time.Duration
}

// judge finds out when a job succeeded last. A run that an operator ended is neither a
// success nor a failure. A success in the future, by a clock that is ahead, has age 0.
func judge(name string, l consulsession.Lock, runs []consulsession.CopyRun, maxAge, warnAge time.Duration, now time.Time) verdict {
	v := verdict{limits: fmt.Sprintf(";;%d", int64(maxAge.Seconds())), neverRan: len(runs) == 0}
	if warnAge > 0 {
		v.limits = fmt.Sprintf(";%d;%d", int64(warnAge.Seconds()), int64(maxAge.Seconds()))
	}
	runs = byEnd(runs)
	for i := range runs {
		switch r := &runs[i].Run; {
		case r.Outcome == "exited" && r.Exit == 0:
			v.success, v.failures = r, 0
		case r.Outcome != "stopped":
			v.failures++
			v.last = *r
		}
	}
	for _, h := range append([]consulsession.Copy{{Hold: l.Hold}}, l.Each...) {
		if h.Holder != nil && v.running == nil {
			v.running = h.Holder
			v.runningSince, _ = ago(h.Holder.Since, now)
		}
	}
	known := false
	if v.success != nil {
		if v.age, known = ago(v.success.Ended, now); !known {
			v.success = nil
		}
	}
	switch {
	case v.neverRan:
		v.code = checkUnknown
		v.text = fmt.Sprintf("%s has no recorded run", name)
	case !known: // the last success is older than what is recorded
		v.code = checkCritical
		v.text = fmt.Sprintf("%s did not succeed in any of its last %d recorded runs", name, len(runs))
	case v.age > maxAge:
		v.code = checkCritical
		v.text = fmt.Sprintf("%s last succeeded %s ago on %s (limit %s)", name, short(v.age), v.success.Host, short(maxAge))
	case warnAge > 0 && v.age > warnAge:
		v.code = checkWarning
		v.text = fmt.Sprintf("%s last succeeded %s ago on %s (limit %s)", name, short(v.age), v.success.Host, short(warnAge))
	default:
		v.text = fmt.Sprintf("%s succeeded %s ago on %s", name, short(v.age), v.success.Host)
	}
	if v.failures > 0 {
		v.text += fmt.Sprintf("; %d %s since; last %s", v.failures, plural(v.failures, "failure"), outcome(v.last))
	}
	if v.running != nil && v.code != checkOK {
		v.text += fmt.Sprintf("; runs on %s since %s", v.running.Host, short(v.runningSince))
	}
	return v
}

// byEnd is runs in the order in which they ended. Those of one lock have it: one ends before the next
// begins, whatever their hosts' clocks say. Those of several copies run side by side.
func byEnd(runs []consulsession.CopyRun) []consulsession.CopyRun {
	if !slices.ContainsFunc(runs, func(r consulsession.CopyRun) bool { return r.Copy != runs[0].Copy }) {
		return runs
	}
	end := func(r consulsession.CopyRun) time.Time { t, _ := time.Parse(time.RFC3339, r.Ended); return t }
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b consulsession.CopyRun) int { return end(a).Compare(end(b)) })
	return runs
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func (v verdict) String() string {
	s := checkWords[v.code] + ": " + oneField(v.text)
	if v.neverRan {
		return s
	}
	age := "U" // the convention for a value that can't be had
	if v.success != nil {
		age = strconv.FormatInt(int64(v.age.Seconds()), 10) + "s"
	}
	return fmt.Sprintf("%s | age=%s%s failures=%d", s, age, v.limits, v.failures)
}

func (v verdict) json(name string) checkJSON {
	j := checkJSON{Schema: consulsession.Schema, Name: name, Status: checkWords[v.code], Message: v.text, Failures: v.failures}
	if v.success != nil {
		age := int64(v.age.Seconds())
		j.Age, j.LastSuccess, j.Host = &age, v.success.Ended, v.success.Host
	}
	if v.failures > 0 {
		j.LastExit = &v.last.Exit
	}
	return j
}

// oneField keeps a text from beginning what comes after it: performance data.
func oneField(s string) string { return strings.ReplaceAll(s, "|", "/") }

// unknown is how check ends on an error: what reads it knows no other codes, and looks at
// stdout only.
func unknown(stdout io.Writer, err error) error {
	if e, ok := errors.AsType[*exitError](err); ok && e.what == nil {
		return err // it has said itself
	}
	fmt.Fprintf(stdout, "%s: %s\n", checkWords[checkUnknown], printable(oneField(err.Error())))
	return &exitError{code: checkUnknown}
}
