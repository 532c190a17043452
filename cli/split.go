package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"
)

// The library stops at the first argument that isn't a flag, keeps or swallows "--" as it
// comes, and takes what follows it for NAMEs and commands of its own. So we cut the command
// line before it sees it, and hand it flags first, each in the one form --name=value.

// cut parts a command line at the first "--". found is false if there is none.
func cut(args []string) (ours, command []string, found bool) {
	i := slices.Index(args, "--")
	if i < 0 {
		return args, nil, false
	}
	return args[:i], args[i+1:], true
}

// A flagSet knows the flags of a command by each of their names.
type flagSet map[string]cli.DocGenerationFlag

func newFlagSet(flags []cli.Flag) flagSet {
	set := flagSet{}
	for _, f := range append(slices.Clone(flags), cli.HelpFlag) {
		if d, ok := f.(cli.DocGenerationFlag); ok {
			for _, name := range d.Names() {
				set[name] = d
			}
		}
	}
	return set
}

// An ordered command line: flags by their long names, in the order in which they were
// typed, and what is left.
type ordered struct {
	flags       []string       // --name or --name=value
	typed       map[string]int // the place of the last use of each flag, from 1; by its long name
	positionals []string
}

// order sorts args into flags with their values and positional arguments, wherever they
// stand. It resolves single-dash long flags (-wait=5s, as in Go and consul) and bundles of
// short ones (-nqw 5s, -w5s). Every value is checked; the first error is returned, with
// what was sorted before it.
//
// With stopAtPositional everything from the first positional argument on is left as it is.
func (set flagSet) order(args []string, stopAtPositional bool) (ordered, error) {
	o := ordered{typed: map[string]int{}}
	for len(args) > 0 {
		arg := args[0]
		if len(arg) == 0 || arg[0] != '-' {
			if stopAtPositional {
				o.positionals = args
				return o, nil
			}
			o.positionals = append(o.positionals, arg)
			args = args[1:]
			continue
		}
		uses, rest, err := set.resolve(arg, args[1:])
		if err != nil {
			return o, err
		}
		args = rest
		for _, u := range uses {
			if err := u.check(); err != nil {
				return o, err
			}
			long := u.flag.Names()[0]
			o.typed[long] = len(o.flags) + 1
			if u.hasValue {
				o.flags = append(o.flags, "--"+long+"="+u.value)
			} else {
				o.flags = append(o.flags, "--"+long)
			}
		}
	}
	return o, nil
}

// A flagUse is one flag as it was typed.
type flagUse struct {
	flag     cli.DocGenerationFlag
	as       string // as typed, with its dashes
	value    string
	hasValue bool
}

// check finds a value that its flag refuses: here the name that the user typed is known.
func (u flagUse) check() error {
	switch f := u.flag.(type) {
	case *cli.GenericFlag:
		if err := f.Value.Set(u.value); err != nil {
			return usageError("", "%s %v", u.as, err)
		}
	case *cli.BoolFlag:
		if _, err := strconv.ParseBool(u.value); u.hasValue && err != nil {
			return usageError("", "%s=%s: say %s or %s=false", u.as, u.value, u.as, u.as)
		}
	}
	return nil
}

// resolve reads one argument that begins with '-', and takes the value from what follows
// it if it needs one. The rest is what it left.
func (set flagSet) resolve(arg string, following []string) (uses []flagUse, rest []string, err error) {
	name, value, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
	as, _, _ := strings.Cut(arg, "=")
	if f := set[name]; f != nil {
		if f.TakesValue() && !hasValue {
			if len(following) == 0 {
				return nil, nil, usageError("", "%s needs a value (%s)", as, placeholder(f))
			}
			value, hasValue, following = following[0], true, following[1:]
		}
		return []flagUse{{f, as, value, hasValue}}, following, nil
	}
	if uses, rest, ok, err := set.bundle(arg, following); ok || err != nil {
		return uses, rest, err
	}
	return nil, nil, set.unknown(as, name)
}

// bundle resolves short flags that were typed together: -nq, -nw 5s, -nw5s, -nw=5s. Only
// the last one can take a value. ok is false if arg isn't such a bundle.
func (set flagSet) bundle(arg string, following []string) (uses []flagUse, rest []string, ok bool, err error) {
	if len(arg) < 3 || arg[1] == '-' {
		return nil, nil, false, nil
	}
	letters := arg[1:]
	for i := range letters {
		as := "-" + letters[i:i+1]
		f := set[letters[i:i+1]]
		if f == nil {
			return nil, nil, false, nil
		}
		if !f.TakesValue() {
			uses = append(uses, flagUse{flag: f, as: as})
			continue
		}
		// The rest of the argument is the value, or else the next argument.
		value := strings.TrimPrefix(letters[i+1:], "=")
		if letters[i+1:] == "" {
			if len(following) == 0 {
				return nil, nil, false, usageError("", "%s (in %s) needs a value (%s)", as, arg, placeholder(f))
			}
			value, following = following[0], following[1:]
		} else if !couldBeValue(f, value) {
			return nil, nil, false, nil // -sport is a mistyped --sport, not -s PORT
		}
		return append(uses, flagUse{f, as, value, true}), following, true, nil
	}
	return uses, following, true, nil
}

// couldBeValue keeps a mistyped long flag with one dash from being read as a bundle. What
// begins with a digit is a value, if perhaps a wrong one.
func couldBeValue(f cli.Flag, value string) bool {
	g, ok := f.(*cli.GenericFlag)
	return ok && (value != "" && value[0] >= '0' && value[0] <= '9' || g.Value.Set(value) == nil)
}

// foreign says what flags of other lock programs are called here.
var foreign = map[string]string{
	"timeout":          "for the lock: -w/--wait; for the end of the command: --stop-timeout",
	"try":              "try: -n to not wait at all, or -w 30s",
	"nonblock":         "try: -n",
	"nb":               "try: -n",
	"exclusive":        "a lock is always exclusive, leave it out",
	"x":                "a lock is always exclusive, leave it out",
	"shared":           "a lock is always exclusive",
	"command":          "no shell is involved; try: onlyone run NAME -- sh -c '...'",
	"c":                "no shell is involved; try: onlyone run NAME -- sh -c '...'",
	"shell":            "no shell is involved; try: onlyone run NAME -- sh -c '...'",
	"child-exit-code":  "the command's exit code is always passed on, leave it out",
	"pass-stdin":       "the command always has our stdin, leave it out",
	"monitor-retry":    "requests are retried until the lease ends; see --lease",
	"stale":            "a lock can't be judged by stale reads, leave it out",
	"lock":             "the name of the lock stands alone; try: onlyone run NAME -- CMD",
	"name":             "the name of the lock stands alone; try: onlyone run NAME -- CMD",
	"log-level":        "-q says less, -v and -vv say more",
	"log-json":         "try: --log-format json",
	"lock-delay":       "it is --lease",
	"http-address":     "try: --http-addr",
	"consul-http-addr": "try: --http-addr",
}

// unknown is the error for a flag that isn't there, with the one that may be meant.
func (set flagSet) unknown(as, name string) error {
	if hint, ok := foreign[name]; ok {
		return usageError(hint, "unknown flag %s", as)
	}
	if len(name) > 40 {
		return usageError("see --help", "unknown flag %.40q...", as)
	}
	if name == "" || strings.ContainsFunc(as, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return usageError("see --help", "%q is neither a flag nor a NAME", as)
	}
	if near := closest(name, slices.Sorted(maps.Keys(set))); near != "" {
		return usageError(fmt.Sprintf("did you mean %s?", dashed(near)), "unknown flag %s", as)
	}
	return usageError("see --help", "unknown flag %s", as)
}

// closest is the word that s is probably a slip of, or "" if it is like none: one that
// begins with it or has it as a part, or a few letters away.
func closest(s string, words []string) string {
	best, least := "", 3
	if len(s) < 5 {
		least = 2
	}
	for _, w := range words {
		d := distance(s, w)
		switch {
		case len(s) > 2 && len(w) > 2 && strings.HasPrefix(w, s):
			d = min(d, 1)
		case len(s) > 3 && strings.Contains(w, s):
			d = min(d, 2)
		case len(w) < 3:
			continue // every letter is one away from -n
		}
		if d < least {
			best, least = w, d
		}
	}
	return best
}

// distance counts the letters to add, leave out, replace or swap with their neighbour.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j-1], d[i-1][j], d[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], 1+d[i-2][j-2])
			}
		}
	}
	return d[len(a)][len(b)]
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// placeholder is what stands for a flag's value in the help: the word in backquotes.
func placeholder(f cli.DocGenerationFlag) string {
	if _, after, ok := strings.Cut(f.GetUsage(), "`"); ok {
		word, _, _ := strings.Cut(after, "`")
		return word
	}
	return "VALUE"
}
