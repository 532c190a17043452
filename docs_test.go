//go:build linux

package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// TestDocs runs the blocks of README.md and docs/*.md, in their order, against a real Consul.
// A line before a block says how:
//
//	<!-- test: transcript -->  each line "$ CMD" is run, and what follows is what it writes
//	<!-- test: sh -->          a script that ends with 0
//	<!-- test: commands -->    "CMD # what it does", a line each, while web-1 has the lock "report"
//	<!-- test: held -->        what the block before writes while web-1 has the lock of its run
//	<!-- test: cron -->        crontab lines: each ends with 0 and writes nothing
//	<!-- test: unit -->        a systemd unit, or a command that writes one: systemd-analyze accepts it
//	<!-- test: rules -->       ACL rules: with them a run works
//	<!-- test: make -->        targets that exist
//	<!-- test: demo -->        what "make demo" writes, but for the numbers
//
// A block without such a line is listed in untested, with a reason.
func TestDocs(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("docs/*.md")
	seen := map[string]bool{}
	for _, file := range append([]string{"README.md"}, files...) {
		if file == "docs/fencing.md" || file == "docs/exactly-once.md" {
			continue // TestFencing, TestExactlyOnce
		}
		for _, b := range docBlocks(t, file) {
			if b.kind == "" {
				if seen[b.id()] = true; untested[b.id()] == "" {
					t.Errorf("%s:%d: this block has no test; see TestDocs, or list it in untested as %q", file, b.line, b.id())
				}
			} else if docKinds[b.kind] == nil {
				t.Errorf("%s:%d: there is no test of the kind %q", file, b.line, b.kind)
			}
		}
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := newDocRun(t, file)
			for _, b := range docBlocks(t, file) {
				if run := docKinds[b.kind]; run != nil {
					t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) { r.t = t; run(r, b) })
					r.last = b
				}
			}
		})
	}
	for id := range untested {
		if !seen[id] {
			t.Errorf("there is no block %q any more", id)
		}
	}
}

// untested are the blocks that no test runs, by file and first line, and why.
var untested = map[string]string{
	"README.md: UPDATE report SET body = 'new', fence = 25 WHERE id = 1 AND fence <= 25;   -- no row changed: stop": "docs/fencing.md has it as a recipe, which TestFencing runs",
	"docs/copies.md: onlyone status worker        # all copies, and who waits":                                      "the transcripts of status and history have it",
	"docs/systemd.md: echo 'COMMAND=/usr/local/bin/billing --port 8080' >/etc/default/onlyone-billing":              "internal/booted starts the template under a real systemd",
	"docs/metrics.md: time() - max by (name) (onlyone_last_success_timestamp_seconds)":                              "an expression for Prometheus; the alert with it is played by TestPromtool",
	"docs/telling.md: name: backup": "what a ping sends; held by the tests of telling",
}

var docKinds = map[string]func(*docRun, docBlock){
	"transcript": (*docRun).transcript, "sh": (*docRun).script, "commands": (*docRun).commands, "held": (*docRun).held, "cron": (*docRun).cron,
	"unit": (*docRun).unit, "rules": (*docRun).rules, "make": (*docRun).make, "demo": (*docRun).demo,
}

type docBlock struct {
	file, kind, text string
	line             int
}

func (b docBlock) id() string {
	first, _, _ := strings.Cut(b.text, "\n")
	return b.file + ": " + first
}

func docBlocks(t *testing.T, file string) (blocks []docBlock) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^(?:<!-- test: (\\w+) -->\n)?^```[^\n]*\n(.*?)^```$").FindAllStringSubmatchIndex(string(text), -1) {
		b := docBlock{file: file, text: string(text[m[4]:m[5]]), line: 1 + strings.Count(string(text[:m[4]]), "\n")}
		if m[2] >= 0 {
			b.kind = string(text[m[2]:m[3]])
		}
		blocks = append(blocks, b)
	}
	if n := strings.Count("\n"+string(text), "\n```"); n != 2*len(blocks) {
		t.Fatalf("%s has %d lines with ```, but %d blocks were found", file, n, len(blocks))
	}
	return blocks
}

// docRun is a folder in which the blocks of one page are run.
type docRun struct {
	t    *testing.T
	s    *consultest.Server
	dir  string
	env  []string
	in   *strings.Replacer // what stands on the page, and what it is here
	last docBlock
}

func newDocRun(t *testing.T, file string) *docRun {
	s := shared(t, consultest.Version())
	dir := t.TempDir()
	prefix := "docs/" + unusual.ReplaceAllString(file, "-")
	t.Cleanup(func() {
		if out, err := exec.Command(s.Binary, "kv", "delete", "-http-addr", s.Addr, "-recurse", prefix).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	if err := os.Symlink(onlyone, filepath.Join(dir, "onlyone")); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"report", "bill", "billing", "nightly", "migrate.sh", "worker", "shard"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "CONSUL_HTTP_ADDR="+s.Addr, "ONLYONE_PREFIX="+prefix, "ONLYONE_RUNTIME_DIR="+dir /* onlyone drain */, "PATH="+dir+":"+filepath.Dir(s.Binary)+":"+os.Getenv("PATH"))
	return &docRun{s: s, dir: dir, env: env, in: strings.NewReplacer(
		"/usr/local/bin", dir, "/usr/bin/onlyone", onlyone, "/run/", dir+"/", "/var/lib/prometheus/node-exporter", dir,
		"127.0.0.1:9099", "127.0.0.1:0", "sleep 60", "sleep 0")}
}

// sh runs a script and wants an exit code. It returns what the script wrote.
func (r *docRun) sh(want int, script string, env ...string) string {
	r.t.Helper()
	cmd := exec.Command("sh", "-c", r.in.Replace(script))
	cmd.Env, cmd.Dir = append(r.env, env...), r.dir
	out, err := cmd.CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || ok && e.ExitCode() != want || err == nil && want != 0 {
		r.t.Fatalf("it ended with %v, want %d:\n%s\n%s", err, want, script, out)
	}
	return string(out)
}

// same compares what was written with the page, but for what differs each time.
func (r *docRun) same(got, want string) {
	r.t.Helper()
	changing := regexp.MustCompile(`\(pid \d+\)|\d{4}-\d\d-\d\dT[0-9:.]+Z`)
	if got, want := changing.ReplaceAllString(got, "*"), changing.ReplaceAllString(want, "*"); got != want {
		r.t.Errorf("got\n%s\nwant, as on the page,\n%s", got, want)
	}
}

func (r *docRun) transcript(b docBlock) {
	for part := range strings.SplitSeq("\n"+b.text, "\n$ ") {
		if command, want, ok := strings.Cut(part, "\n"); ok && command != "" {
			r.same(r.sh(0, command)+"", strings.TrimSuffix(want, "\n")+"\n")
		}
	}
}

func (r *docRun) script(b docBlock) { r.sh(0, b.text) }

// holder is web-1, which has the lock until it is stopped.
func (r *docRun) holder(name string) (stop func()) {
	holder := exec.Command(onlyone, "run", "--host", "web-1", name, "--", "sleep", "300")
	holder.Env, holder.Dir = r.env, r.dir
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := holder.Start(); err != nil {
		r.t.Fatal(err)
	}
	stop = func() {
		_ = holder.Process.Signal(syscall.SIGTERM)
		_ = holder.Wait()
	}
	if !soon(patience, func() bool {
		c := exec.Command(onlyone, "status", "-q", name)
		c.Env = r.env
		return c.Run() == nil
	}) {
		stop()
		r.t.Fatal("the lock isn't held")
	}
	return stop
}

func (r *docRun) held(b docBlock) {
	defer r.holder(regexp.MustCompile(`onlyone run (?:-\S+ )*(\S+) -- `).FindStringSubmatch(r.last.text)[1])()
	prefix := regexp.MustCompile(` --prefix \S+`) // the tests', in hints
	r.same(prefix.ReplaceAllString(r.sh(0, r.last.text), ""), b.text)
}

func (r *docRun) commands(b docBlock) {
	lines := strings.Split(strings.TrimSuffix(b.text, "\n"), "\n")
	r.sh(0, "onlyone run report -- true") // for check
	for _, line := range lines {
		command, _, _ := strings.Cut(line, " # ")
		if strings.HasPrefix(command, "onlyone doctor ") {
			command += " || test $? = 1" // it warns
		}
		if strings.Contains(command, "--force") {
			command += " --yes" // it asks, at a terminal
		}
		func() {
			defer r.holder("report")()
			r.sh(0, command)
		}()
		r.sh(0, "onlyone resume report; onlyone undrain")
	}
}

func (r *docRun) cron(b docBlock) {
	lines := 0
	for line := range strings.Lines(b.text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' || regexp.MustCompile(`^[A-Z_]+=`).MatchString(line) {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 7 {
			r.t.Fatalf("not a line of /etc/cron.d: %s", line)
		}
		// As cron does: a % is a new line, unless it has a backslash.
		command := strings.ReplaceAll(line[strings.Index(line, " "+fields[5]+" ")+len(fields[5])+2:], `\%`, "%")
		if out := r.sh(0, command); out != "" {
			r.t.Errorf("cron would mail %q", out)
		}
		lines++
	}
	if lines == 0 {
		r.t.Error("no line of a crontab")
	}
}

func (r *docRun) unit(b docBlock) {
	units := []string{filepath.Join(r.dir, "example.service")}
	if start := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(b.text); start != nil {
		r.sh(0, start[1])
		if err := os.WriteFile(units[0], []byte(r.in.Replace(b.text)), 0o644); err != nil {
			r.t.Fatal(err)
		}
	} else {
		command, _, _ := strings.Cut(b.text, "\n")
		r.sh(0, strings.ReplaceAll(command, "/etc/systemd/system", r.dir))
		units, _ = filepath.Glob(filepath.Join(r.dir, "onlyone-*.*"))
		if len(units) == 0 {
			r.t.Fatalf("no unit was written by: %s", command)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		r.t.Skip("systemd-analyze is missing (Debian's systemd)")
	}
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
	for _, unit := range units {
		if strings.Contains(string(out), filepath.Base(unit)) {
			r.t.Errorf("systemd-analyze verify: %s", out)
		}
		if err := os.Remove(unit); err != nil {
			r.t.Error(err)
		}
	}
	if err != nil {
		r.t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

func (r *docRun) rules(b docBlock) {
	s := consultest.Start(r.t, consultest.Options{ACL: true})
	secret, err := s.Token(b.text)
	if err != nil {
		r.t.Fatal(err)
	}
	r.sh(77, "onlyone run -q backup -- true", "CONSUL_HTTP_ADDR="+s.Addr, "ONLYONE_PREFIX=")
	r.sh(0, "onlyone run backup -- true", "CONSUL_HTTP_ADDR="+s.Addr, "ONLYONE_PREFIX=", "CONSUL_HTTP_TOKEN="+secret)
}

func (r *docRun) make(b docBlock) {
	for line := range strings.Lines(b.text) {
		line, _, _ = strings.Cut(line, "#")
		args := strings.Fields(strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "sudo "))
		if len(args) < 2 || args[0] != "make" {
			r.t.Fatalf("not a make: %s", line)
		}
		if out, err := run(".", "make", append([]string{"-n"}, args[1:]...)...); err != nil {
			r.t.Errorf("%s: %v: %s", line, err, out)
		}
	}
}

func (r *docRun) demo(b docBlock) {
	if testing.Short() {
		r.t.Skip("takes 10 s; -short leaves that out")
	}
	command, want, _ := strings.Cut(b.text, "\n")
	if command != "$ make demo" {
		r.t.Fatalf("it begins with %q", command)
	}
	out, err := run(".", "make", "-s", "demo")
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	got, want := shape(out), shape(want)
	if got != want {
		r.t.Errorf("got\n%s\nwant, as on the page,\n%s", got, want)
	}
}

// shape is what is the same each time that the demo is run.
func shape(s string) string {
	s = strings.ReplaceAll(s, "That is slow: this machine is busy with something else.", "")
	s = strings.ReplaceAll(s, "    +", "    + ")
	s = regexp.MustCompile(`v?[0-9]+(\.[0-9]+)*`).ReplaceAllString(s, "N")
	s = regexp.MustCompile(`[━·#.]{10,}`).ReplaceAllString(s, "-")
	s = regexp.MustCompile(`onlyone \S+ \(\S+, goN\)`).ReplaceAllString(s, "onlyone")
	return strings.Join(strings.Fields(s), " ")
}
