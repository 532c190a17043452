package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUnitWord(t *testing.T) {
	for in, want := range map[string]string{
		"plain":     "plain",
		"":          `""`,
		";":         `";"`,
		"a b":       `"a b"`,
		"$HOME":     "$$HOME",
		"50%":       "50%%",
		`"`:         `"\""`,
		`\`:         `"\\"`,
		"it's":      `"it's"`,
		"a\tb\n":    `"a\x09b\x0a"`,
		"grüße 世":   `"grüße 世"`,
		"\xff":      `"\xff"`,
		"\uFFFD":    "\uFFFD",
		`$ % "\`:    `"$$ %% \"\\"`,
		"--x=${A}b": "--x=$${A}b",
	} {
		if got := unitWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func units(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	a := New("test", nil)
	a.now = time.Now
	code = a.Main(t.Context(), append([]string{"onlyone", "systemd"}, args...), &out, &err)
	return out.String(), err.String(), code
}

// The template of the packages has the lines of a unit that is printed, and none besides.
func TestTemplateHasTheSameLines(t *testing.T) {
	file, err := os.ReadFile("../packaging/systemd/onlyone@.service")
	if err != nil {
		t.Fatal(err)
	}
	printed, _, _ := units(t, "billing", "--", "/bin/true")
	settings := func(text string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			key, _, ok := strings.Cut(line, "=")
			if !ok || strings.HasPrefix(line, "#") {
				continue
			}
			switch key {
			case "ExecStart", "ExecStopPost", "RuntimeDirectory", "Description": // of the name and the place
				line = key
			}
			set[line] = true
		}
		return set
	}
	own := map[string]bool{"EnvironmentFile=/etc/default/onlyone-%i": true, "Environment=NAME=%i": true, "Documentation=https://github.com/a-seed-0bc5ead7/onlyone": true}
	a, b := settings(string(file)), settings(printed)
	for line := range a {
		if !b[line] && !own[line] {
			t.Errorf("only the template has %s", line)
		}
	}
	for line := range b {
		if !a[line] {
			t.Errorf("only the printed unit has %s", line)
		}
	}
}

func TestSystemdUnits(t *testing.T) {
	t.Setenv("ONLYONE_LEASE", "50s") // of this shell, not of the unit
	for _, c := range []struct {
		args string
		has  []string
		not  []string
	}{
		{"billing -- /bin/sleep 5", []string{"run billing -- /bin/sleep 5\n", "WatchdogSec=10\n", "Type=notify\n", "NotifyAccess=main\n", "TimeoutStopSec=49\n", "RuntimeDirectory=onlyone-billing\n", "# /etc/systemd/system/onlyone-billing.service\n"}, []string{"--lease", "OnCalendar"}},
		{"db/vacuum --lease 40s --stop-timeout 5m -- /bin/sleep 5", []string{"run --lease=40s --stop-timeout=5m db/vacuum -- ", "WatchdogSec=20\n", "TimeoutStopSec=319\n", "RuntimeDirectory=onlyone-db-vacuum\n"}, nil},
		{"a --notify child -- /bin/true", []string{"NotifyAccess=all\n", "TimeoutStartSec=infinity\n"}, []string{"WatchdogSec", "NotifyAccess=main"}},
		{"a --notify running -- /bin/true", []string{"NotifyAccess=main\n", "TimeoutStartSec=infinity\n", "WatchdogSec"}, nil},
		{"a --on-calendar hourly,UTC -- /bin/true", []string{`run "--once-per=cron:0 * * * *" a --`, "Type=oneshot\n", "OnCalendar=hourly UTC\n", "Persistent=true\n", "# /etc/systemd/system/onlyone-a.timer\n"}, []string{"Restart=", "WatchdogSec", "--on-calendar"}},
		{"a --once-per 1d --on-calendar 03:00 -- /bin/true", []string{"run --once-per=1d a --", "OnCalendar=03:00\n", "Persistent=true\n"}, []string{"cron:"}},
		{"a --on-calendar *:*:0/10 -- /bin/true", []string{"run --no-wait --conflict-exit-code=0 a --", "Persistent=false\n"}, []string{"--once-per"}},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.Replace(args[i], ",UTC", " UTC", 1)
		}
		out, stderr, code := units(t, args...)
		if code != 0 {
			t.Errorf("%s: exit %d: %s", c.args, code, stderr)
		}
		for _, s := range c.has {
			if !strings.Contains(out, s) {
				t.Errorf("%s: no %q in\n%s", c.args, s, out)
			}
		}
		for _, s := range c.not {
			if strings.Contains(out, s) {
				t.Errorf("%s: %q in\n%s", c.args, s, out)
			}
		}
	}
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"billing", "no '--'", exitUsage},
		{"a --lease 1s -- /bin/true", "this works", exitConfig},
		{"a --nonsense -- /bin/true", "unknown flag", exitUsage},
		{"a --explain -- /bin/true", "unknown flag", exitUsage},
		{"a --once-per 1d -- /bin/true", "--on-calendar", exitUsage},
		{"a -n -- /bin/true", "--on-calendar", exitUsage},
		{"a b -- /bin/true", "want one NAME", exitUsage},
		{"a --token secret -- /bin/true", "--token-file", 0},
		{"a --on-calendar *:*:0/10 -- /bin/true", "add --once-per", 0},
		{"a --directory /nonexistent -- /bin/true", "cannot write the unit", exitInternal},
		{"a -- no-such-command", "full path", 0},
	} {
		if _, stderr, code := units(t, strings.Fields(c.args)...); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit %d, %q; want %d and %q", c.args, code, stderr, c.code, c.says)
		}
	}
}

// A command that is given from where one stands is that file also in a unit, whose folder is /.
func TestSystemdRelativeCommand(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("billing", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, stderr, code := units(t, "a", "--", "./billing", "x"); code != 0 || stderr != "" || !strings.Contains(out, " run a -- "+dir+"/billing x\n") {
		t.Errorf("exit %d, %q:\n%s", code, stderr, out)
	}
	if out, stderr, _ := units(t, "a", "--", "./none"); !strings.Contains(stderr, dir+"/none can't be executed here") || !strings.Contains(out, " run a -- "+dir+"/none\n") {
		t.Errorf("%q:\n%s", stderr, out)
	}
}

// Where the files were written is said, and what to type next.
func TestSystemdDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ args, says string }{
		{"db/a -- /bin/true", "wrote " + dir + "/onlyone-db-a.service; to start it: systemctl daemon-reload && systemctl enable --now onlyone-db-a.service\n"},
		{"b --on-calendar 03:00 -- /bin/true", "wrote " + dir + "/onlyone-b.service and " + dir + "/onlyone-b.timer; to start it: systemctl daemon-reload && systemctl enable --now onlyone-b.timer\n"},
	} {
		if out, stderr, code := units(t, append([]string{"--directory", dir}, strings.Fields(c.args)...)...); code != 0 || out != c.says {
			t.Errorf("%s: exit %d, %q, %q; want %q", c.args, code, out, stderr, c.says)
		}
	}
}

// A timer that systemd wouldn't start isn't written, where systemd is here to say so.
func TestSystemdCalendar(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing (Debian's systemd)")
	}
	for _, args := range [][]string{{"--on-calendar", "garbage"}, {"--on-calendar", " "}, {"--on-calendar", "--help"}, {"--on-calendar", "*:*/5"}, {"--on-calendar", "03:00 Local"}, {"--on-calendar", "*:1/100"}, {"--once-per", "1d", "--on-calendar", "25:00"}} {
		stdout, stderr, code := units(t, append(append([]string{"a"}, args...), "--", "/bin/true")...)
		if code != exitUsage || !strings.Contains(stderr, fmt.Sprintf("systemd can't use --on-calendar %q", args[len(args)-1])) || stdout != "" {
			t.Errorf("%q: exit %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

// What is printed is a unit as systemd reads it.
func TestSystemdVerifies(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing (Debian's systemd)")
	}
	for _, args := range [][]string{
		{"billing", "--", "/bin/true", "a b", "$x", "%i", `"`, `\`, ";", "ü", "\xff", ""},
		{"a/b", "--notify", "child", "--", "/bin/true"},
		{"a", "--notify", "running", "--", "/bin/true"},
		{"nightly", "--on-calendar", "Mon..Fri 03:00 UTC", "--", "/bin/true"},
	} {
		dir := t.TempDir()
		if _, stderr, code := units(t, append([]string{"--directory", dir}, args...)...); code != 0 {
			t.Fatalf("%q: exit %d: %s", args, code, stderr)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, files...)...).CombinedOutput()
		var ours []string
		for line := range strings.Lines(string(out)) { // it looks at all units of this host that ours name
			if strings.Contains(line, "onlyone") {
				ours = append(ours, line)
			}
		}
		if len(ours) > 0 || err != nil && len(out) == 0 {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}
