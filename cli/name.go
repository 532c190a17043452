package cli

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
)

// maxName is the longest NAME and --prefix, in bytes. With it the longest key,
// PREFIX/NAME/~queue/SESSION, is 446 bytes long: a NAME also has to fit into one file name
// (255 bytes) with a suffix, and into one line of a listing.
const maxName = 200

// defaultPrefix is where the keys of all locks are.
const defaultPrefix = "onlyone"

// checkName reports why s can't be a NAME: segments of letters, digits, '.', '_' and '-',
// joined by '/', none of which begins with '.' or '~' (those are the keys below a name).
func checkName(s string) error {
	if err := checkPath(s); err != nil {
		err.what = fmt.Errorf("NAME %w", err.what)
		return err
	}
	return nil
}

// A prefixValue is the value of --prefix: like a NAME, but it may end in one '/'.
type prefixValue struct{ prefix string }

func (v *prefixValue) Set(s string) error {
	s = strings.TrimSuffix(s, "/")
	if err := checkPath(s); err != nil {
		return err
	}
	v.prefix = s
	return nil
}

func (v *prefixValue) String() string {
	if v == nil {
		return ""
	}
	return v.prefix
}

func checkPath(s string) *exitError {
	problem := pathProblem(s)
	if problem == "" {
		return nil
	}
	shown := s
	if len(shown) > 40 {
		shown = shown[:40] + "..."
	}
	hint := "use letters, digits, '.', '_' and '-'"
	if better := cleanPath(s); better != "" && len(better) <= 80 {
		hint += fmt.Sprintf(": try %q", better)
	}
	return usageError(hint, "%q %s", shown, problem)
}

func pathProblem(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxName:
		return fmt.Sprintf("is %d bytes long, the most is %d", len(s), maxName)
	case s[0] == '-':
		return "begins with '-'"
	case s[0] == '/':
		return "begins with '/'"
	case s[len(s)-1] == '/':
		return "ends with '/'"
	}
	for segment := range strings.SplitSeq(s, "/") {
		switch {
		case segment == "":
			return "has an empty part between two '/'"
		case segment == "." || segment == "..":
			return fmt.Sprintf("has the part %q", segment)
		case segment[0] == '.' || segment[0] == '~':
			return fmt.Sprintf("has a part that begins with '%c' (kept for onlyone's own keys)", segment[0])
		}
		for _, r := range segment {
			switch {
			case isNameRune(r):
			case r == ' ':
				return "has a space"
			default:
				return fmt.Sprintf("has the character %q", r)
			}
		}
	}
	return ""
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

// cleanPath is the nearest valid NAME, or "" if nothing is left of s.
func cleanPath(s string) string {
	var parts []string
	for segment := range strings.SplitSeq(s, "/") {
		clean := strings.Map(func(r rune) rune {
			if isNameRune(r) {
				return r
			}
			return '-'
		}, segment)
		for strings.Contains(clean, "--") {
			clean = strings.ReplaceAll(clean, "--", "-")
		}
		if clean = strings.TrimLeft(strings.Trim(clean, "-"), ".-"); clean != "" {
			parts = append(parts, clean)
		}
	}
	clean := strings.Join(parts, "/")
	if pathProblem(clean) != "" {
		return ""
	}
	return clean
}

// nameFor is the lock's NAME for a command that was given none: its base name. It is an
// error where that name doesn't say what the job is (shells, interpreters, wrappers): two
// jobs that have nothing to do with each other would exclude each other.
func nameFor(command []string) (string, error) {
	base := path.Base(command[0])
	example := func(name string) string {
		more := ""
		if len(command) > 1 {
			more = " ..."
		}
		return fmt.Sprintf("try: onlyone run %s -- %s%s", name, command[0], more)
	}
	if kind := runsOthers(base); kind != "" {
		return "", usageError(example(jobName(command[1:])),
			"NAME is missing, and %q would be a poor one: it is %s, so its name doesn't say what the job is", base, kind)
	}
	if problem := pathProblem(base); problem != "" || base == "/" {
		name := cleanPath(base)
		if name == "" {
			name = "my-job"
		}
		if problem == "" {
			problem = "is a directory"
		}
		return "", usageError(example(name), "NAME is missing, and the command's base name %q can't be one: it %s", base, problem)
	}
	return base, nil
}

// jobName guesses a name from the arguments of an interpreter: the base name of the first
// one that is a path to something.
func jobName(args []string) string {
	for _, a := range args {
		if strings.HasPrefix(a, "-") || strings.ContainsAny(a, " \t\n;=") || !strings.Contains(a, "/") || strings.Contains(a, "://") {
			continue
		}
		base := path.Base(a)
		if pathProblem(base) == "" && runsOthers(base) == "" {
			return base
		}
	}
	return "my-job"
}

// runsOthers says what kind of program base is if the job is in its arguments rather than
// in its name, and "" otherwise. A version at the end doesn't matter: python3.11, php8.2.
func runsOthers(base string) string {
	base = strings.TrimSuffix(strings.ToLower(base), ".exe")
	for _, name := range []string{base, versionSuffix().ReplaceAllString(base, "")} {
		if kind := jobInArguments()[name]; kind != "" {
			return kind
		}
	}
	return ""
}

var versionSuffix = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[-.]?[0-9][0-9.]*[a-z]?$`) })

var jobInArguments = sync.OnceValue(func() map[string]string {
	kinds := map[string]string{
		"a shell": `sh ash bash csh dash elvish fish ksh lksh mksh nu oksh osh pwsh powershell rbash rc tcsh xonsh yash zsh busybox toybox`,
		"an interpreter": `python pypy ipython perl ruby jruby node nodejs deno bun java javaw php php-cgi php-fpm lua luajit tclsh wish expect
			awk gawk mawk nawk sed m4 bc dc guile racket sbcl clisp emacs scala groovy kotlin clojure clj bb julia r rscript octave
			escript erl elixir iex mix dart swift dotnet mono osascript raku rakudo gdb psql mysql mariadb sqlite sqlite3 mongosh redis-cli`,
		"a program that starts another": `env sudo sudoedit su doas runuser setpriv pkexec gosu su-exec setuidgid envuidgid envdir softlimit pgrphack chpst
			nice ionice chrt taskset numactl prlimit timeout nohup setsid setarch linux32 linux64 stdbuf unbuffer script time catchsegv
			unshare nsenter chroot bwrap firejail fakeroot fakechroot proot faketime eatmydata ip cgexec cgroupexec capsh
			flock setlock lockrun lockfile runlock run-one cronlock s6-setlock s6-setuidgid s6-envdir s6-softlimit s6-sudo execlineb onlyone consul etcdctl
			tini dumb-init catatonit watch xargs parallel find strace ltrace perf valgrind ssh rsh mosh tmux screen at
			chronic cronic cronitor runitor ts logger systemd-run systemd-cat systemd-inhibit systemctl service dbus-run-session
			docker podman nerdctl crictl lxc-attach machinectl kubectl oc nomad vault aws-vault envconsul consul-template direnv dotenv chamber`,
		"a program that runs what a file says": `make gmake bmake ninja just rake ant mvn gradle npm npx yarn pnpm bundle bundler
			uv uvx pipx pipenv poetry conda cargo go ansible-playbook run-parts`,
	}
	all := map[string]string{}
	for kind, names := range kinds {
		for name := range strings.FieldsSeq(names) {
			all[name] = kind
		}
	}
	return all
})
