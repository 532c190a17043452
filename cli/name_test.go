package cli

import (
	"regexp"
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	for _, good := range []string{"a", "A9", "backup", "team/db/backup", "nightly-report", "report.py", "a_b", "9", "a.", "a..b", "a/-b", "a/b~"[:3], strings.Repeat("n", maxName)} {
		if err := checkName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, test := range []struct{ name, problem, try string }{
		{"", "is empty", ""},
		{"a b", "has a space", "a-b"},
		{" a", "has a space", "a"},
		{"a\tb", `has the character '\t'`, "a-b"},
		{"a\nb", `has the character '\n'`, "a-b"},
		{"a:b", "has the character ':'", "a-b"},
		{"ä", "has the character 'ä'", ""},
		{"bäckup", "has the character 'ä'", "b-ckup"},
		{"\xff", `has the character '�'`, ""},
		{".", `has the part "."`, ""},
		{"..", `has the part ".."`, ""},
		{"a/../b", `has the part ".."`, "a/b"},
		{".a", "begins with '.'", "a"},
		{"a/.runs", "begins with '.'", "a/runs"},
		{"~queue", "begins with '~'", "queue"},
		{"-a", "begins with '-'", "a"},
		{"/a", "begins with '/'", "a"},
		{"a/", "ends with '/'", "a"},
		{"a//b", "an empty part", "a/b"},
		{"/", "begins with '/'", ""},
		{strings.Repeat("n", 201), "is 201 bytes long, the most is 200", ""},
		{strings.Repeat("n", 300), "is 300 bytes long, the most is 200", ""},
	} {
		err := checkName(test.name)
		if err == nil {
			t.Errorf("%q is taken", test.name)
			continue
		}
		if !strings.HasPrefix(err.Error(), "NAME ") || !strings.Contains(err.Error(), test.problem) || test.try == "" == strings.Contains(err.Error(), "try") ||
			test.try != "" && !strings.HasSuffix(err.Error(), `: try "`+test.try+`"`) {
			t.Errorf("%q: %v, want %q and try %q", test.name, err, test.problem, test.try)
		}
		if exitCode(err) != exitUsage {
			t.Errorf("%q: exit %d", test.name, exitCode(err))
		}
	}
}

func TestPrefix(t *testing.T) {
	v := &prefixValue{defaultPrefix}
	for in, want := range map[string]string{"batch": "batch", "batch/": "batch", "ops/jobs": "ops/jobs"} {
		if err := v.Set(in); err != nil || v.String() != want {
			t.Errorf("%q: %q, %v", in, v.prefix, err)
		}
	}
	for _, bad := range []string{"", "/", "a//", "/a", "a b", ".a", "~a", "a/.b", strings.Repeat("n", 300)} {
		if v.Set(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestNameFor(t *testing.T) {
	for command, want := range map[string]string{
		"report": "report", "/usr/local/bin/report": "report", "./report.sh": "report.sh", "../backup2 -x": "backup2", "restic backup": "restic",
		"thanos compact": "thanos", "report-1.2": "report-1.2", "python-report": "python-report", "true": "true", "s3sync": "s3sync", "pg_dump x": "pg_dump", "env2json": "env2json", "bash.d/job": "job",
	} {
		if got, err := nameFor(strings.Fields(command)); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", command, got, err, want)
		}
	}
	for command, want := range map[string]string{
		"sh -c x": "a shell", "/bin/bash x": "a shell", "bash5.2 x": "a shell", "bash-5.2 x": "a shell", "/bin/busybox wget": "a shell",
		"python x": "an interpreter", "python3 x": "an interpreter", "python3.11 x": "an interpreter", "/opt/python-3.12.1 x": "an interpreter", "php8.2 x": "an interpreter", "perl5.36.0 x": "an interpreter",
		"ruby3.1 x": "an interpreter", "node x": "an interpreter", "node18 x": "an interpreter", "java -jar x": "an interpreter", "Rscript x": "an interpreter", "lua5.4 x": "an interpreter", "guile-3.0 x": "an interpreter", "psql -f x": "an interpreter",
		"env x": "starts another", "sudo x": "starts another", "nice x": "starts another", "timeout 5 x": "starts another", "nohup x": "starts another", "setsid x": "starts another", "flock x": "starts another",
		"docker run x": "starts another", "podman x": "starts another", "systemd-run x": "starts another", "xargs x": "starts another", "ssh h x": "starts another", "onlyone run x": "starts another", "consul lock x": "starts another",
		"make x": "runs what a file says", "npm run x": "runs what a file says", "PYTHON.EXE x": "an interpreter",
	} {
		name, err := nameFor(strings.Fields(command))
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != exitUsage {
			t.Errorf("%q: %q, %v, want %q", command, name, err, want)
		}
	}
	for command, want := range map[string]string{
		"sh /opt/report.sh": "report.sh", "python3 -u /opt/report.py x": "report.py", "sudo -u app /usr/bin/report": "report", "env A=/b/c /usr/bin/report": "report", "env /bin/bash /opt/report": "report",
		"sh -c x": "my-job", "timeout 5 report": "my-job", "docker run https://x/y": "my-job", "java -jar /opt/.hidden": "my-job",
	} {
		_, err := nameFor(strings.Fields(command))
		if err == nil || !strings.Contains(err.Error(), "onlyone run "+want+" -- ") {
			t.Errorf("%q: %v, want %q", command, err, want)
		}
	}
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)

// FuzzName: what is taken follows the rule, what is proposed is taken, and a refusal is one
// short line.
func FuzzName(f *testing.F) {
	for _, s := range []string{"a", "a b", "..", ".lock", "a/~queue/x", "a//b", "/a/", "-x", "ä", "\xff", strings.Repeat("n", 300), "team/db/backup", "python3.11", "report.sh", "/", "a/-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := checkName(s)
		if follows := nameRule.MatchString(s) && len(s) <= maxName && s[0] != '-'; follows != (err == nil) {
			t.Fatalf("%q: %v", s, err)
		}
		if clean := cleanPath(s); clean != "" && checkName(clean) != nil {
			t.Fatalf("%q: proposes %q, which is refused", s, clean)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\n\r\x1b") || len(err.Error()) > 500) {
			t.Fatalf("%q: not a short line: %q", s, err)
		}
		if name, err := nameFor([]string{s, s}); err == nil && checkName(name) != nil {
			t.Fatalf("%q: named %q, which is refused", s, name)
		}
	})
}
