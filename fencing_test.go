//go:build linux

package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// A page is the blocks of a page of docs by their names: a block begins with ```sh NAME.
type page map[string]string

func readPage(t *testing.T, file string) page {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := page{}
	for _, m := range regexp.MustCompile("(?ms)^```(\\w+) ([\\w-]+)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		p[m[2]] = m[3]
	}
	if n := strings.Count(string(text), "\n```"); n != 2*len(p) {
		t.Fatalf("%s has %d lines with ```, but %d blocks with names", file, n, len(p))
	}
	return p
}

// recipe is a folder in which blocks of the page are run.
type recipe struct {
	t    *testing.T
	page page
	dir  string
	env  []string
	in   *strings.Replacer // what stands on the page, and what it is in this test
}

func newRecipe(t *testing.T, replace ...string) *recipe {
	t.Parallel()
	s := shared(t, consultest.Version())
	dir := t.TempDir()
	prefix := "fencing/" + unusual.ReplaceAllString(t.Name(), "-")
	t.Cleanup(func() {
		if out, err := exec.Command(s.Binary, "kv", "delete", "-http-addr", s.Addr, "-recurse", prefix).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return &recipe{t: t, page: readPage(t, "docs/fencing.md"), dir: dir,
		env: append(os.Environ(), "CONSUL_HTTP_ADDR="+s.Addr, "ONLYONE_PREFIX="+prefix, "PATH="+dir+":"+filepath.Dir(onlyone)+":"+os.Getenv("PATH")),
		in:  strings.NewReplacer(append(replace, "/srv/reports", dir, "/usr/local/bin", dir)...)}
}

// script makes a program of the page's examples.
func (r *recipe) script(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

// block is a block of the page as it is in this test.
func (r *recipe) block(name string) string {
	r.t.Helper()
	text, ok := r.page[name]
	if !ok {
		r.t.Fatalf("the page has no block %s", name)
	}
	return r.in.Replace(text)
}

// sh runs a script and wants an exit code. It returns what the script wrote.
func (r *recipe) sh(want int, script string, env ...string) string {
	r.t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Env, cmd.Dir = append(r.env, env...), r.dir
	out, err := cmd.CombinedOutput()
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		r.t.Fatal(err)
	}
	if code != want {
		r.t.Fatalf("it ended with %d, want %d:\n%s\n%s", code, want, script, out)
	}
	return string(out)
}

// inRun runs a block as the command of "onlyone run report".
func (r *recipe) inRun(want int, block string, env ...string) {
	r.t.Helper()
	r.script("the-block", block)
	r.sh(want, "exec onlyone run -q report -- ./the-block", env...)
}

// old is a block as an old holder would run it: with a token that is lower than any.
func old(block string) string { return "FENCE_TOKEN=1\n" + block }

func (r *recipe) need(program, pkg string) {
	if _, err := exec.LookPath(program); err != nil {
		r.t.Skipf("%s is missing (Debian's %s)", program, pkg)
	}
}

// TestFencing runs the recipes of docs/fencing.md, each with a newer token and an older one.
func TestFencing(t *testing.T) {
	t.Parallel()
	t.Run("folder", fencingFolder)
	t.Run("SQL", fencingSQL)
	t.Run("Consul KV", fencingKV)
	t.Run("HTTP", fencingHTTP)
	t.Run("verify", fencingVerify)
}

func fencingFolder(t *testing.T) {
	r := newRecipe(t)
	r.script("report", "echo $FENCE_TOKEN >>"+r.dir+"/written")
	r.sh(0, r.block("folder"))
	r.sh(0, r.block("folder"))
	said := r.sh(79, r.block("folder-old"))
	// The message on the page is the one that comes, but for what differs each time.
	changing := regexp.MustCompile(`seen token \d+|from \S+ \(pid \d+\)|at [0-9T:-]+Z`)
	if got, want := changing.ReplaceAllString(said, "*"), changing.ReplaceAllString(r.block("folder-old-says"), "*"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	written, err := os.ReadFile(filepath.Join(r.dir, "written"))
	lines := strings.Fields(string(written))
	if err != nil || len(lines) != 2 || number(t, lines[0]) >= number(t, lines[1]) {
		t.Errorf("the reports wrote %q, %v; want two tokens, the second higher", written, err)
	}

	here := exec.Command("sh", "-c", "exec "+r.block("carried-here"))
	here.Env, here.Dir = r.env, r.dir
	here.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := here.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		_ = here.Process.Kill()
		_ = here.Wait()
		if got := r.sh(0, r.block("carried-there")); ended && !strings.HasSuffix(got, "0\n") {
			t.Errorf("afterwards it prints %q, want 0", got)
		}
	}()
	if !soon(patience, func() bool { return strings.HasSuffix(r.sh(0, r.block("carried-there")), "75\n") }) {
		t.Error("it doesn't print 75")
	}
	ended = true
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func fencingSQL(t *testing.T) {
	r := newRecipe(t)
	r.env = append(r.env, startPostgres(t)...)
	sql := func(text string) string {
		t.Helper()
		return r.sh(0, "psql -qAt -v ON_ERROR_STOP=1 <<'END-OF-SQL'\n"+text+"\nEND-OF-SQL\n")
	}
	sql(r.block("row"))
	r.inRun(0, r.block("row-write"))
	if got := sql("SELECT body, fence > 1 FROM report"); got != "new|t\n" {
		t.Errorf("the row is %q", got)
	}
	sql("UPDATE report SET body = 'newer'")
	r.inRun(79, old(r.block("row-write")))
	if got := sql("SELECT body, fence > 1 FROM report"); got != "newer|t\n" {
		t.Errorf("after the old one's write the row is %q", got)
	}

	sql(r.block("enter"))
	r.inRun(0, r.block("enter-write"))
	r.inRun(0, r.block("enter-write"))
	r.inRun(79, old(r.block("enter-write")))
	if got := sql("SELECT body FROM report; SELECT name, token > 1 FROM fence"); got != "newer, and more, and more\nreport|t\n" {
		t.Errorf("the rows are %q", got)
	}

	// Old and new don't interleave: while a transaction of the old holder is open, the new one's waits.
	open := exec.Command("psql", "-qAt", "-v", "ON_ERROR_STOP=1")
	open.Env, open.SysProcAttr = r.env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := open.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := open.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "BEGIN; SELECT enter_fence('report', token) FROM fence; UPDATE report SET body = 'by the old one';")
	entered := func() string { return sql("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'") }
	if !soon(patience, func() bool { return entered() == "1\n" }) {
		t.Error("the old one's transaction isn't open")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.inRun(0, r.block("enter-write"))
	}()
	if !soon(patience, func() bool {
		return sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "1\n"
	}) {
		t.Error("the new one doesn't wait")
	}
	fmt.Fprintln(in, "COMMIT;")
	in.Close()
	if err := open.Wait(); err != nil {
		t.Error(err)
	}
	<-done
	if got := sql("SELECT body FROM report"); got != "by the old one, and more\n" {
		t.Errorf("the row is %q", got)
	}
}

// startPostgres starts a server of its own and returns the variables by which psql finds it.
func startPostgres(t *testing.T) []string {
	programs := map[string]string{}
	for _, name := range []string{"initdb", "postgres", "psql"} {
		path, err := exec.LookPath(name)
		// Debian has the server's programs elsewhere.
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); err != nil && name != "psql" && len(found) > 0 {
			path, err = found[len(found)-1], nil
		}
		if err != nil {
			t.Skipf("%s is missing (Debian's postgresql)", name)
		}
		programs[name] = path
	}
	// Not in the test's own folder, which another user can't reach.
	dir, err := os.MkdirTemp("", "onlyone-pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			u, err = user.Lookup("nobody")
		}
		if err != nil {
			t.Skip("there is neither a user postgres nor nobody to run PostgreSQL")
		}
		uid, gid := number(t, u.Uid), number(t, u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	port := strconv.Itoa(freePort(t))
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(programs[name], args...)
		cmd.Dir, cmd.SysProcAttr = dir, attr
		cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir)
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := command("initdb", "-D", data, "-U", "test", "-A", "trust", "-E", "UTF8", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	server := command("postgres", "-D", data, "-h", "127.0.0.1", "-p", port, "-k", "", "-F")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // at once
		_ = server.Wait()
	})
	env := []string{"PGHOST=127.0.0.1", "PGPORT=" + port, "PGUSER=test", "PGDATABASE=postgres"}
	var why []byte
	if !soon(patience, func() bool {
		ping := exec.Command(programs["psql"], "-qAtc", "SELECT 1")
		ping.Env = append(os.Environ(), env...)
		why, err = ping.CombinedOutput()
		return err == nil
	}) {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("PostgreSQL doesn't answer after %s: %s\n%s", patience, why, said)
	}
	return env
}

func fencingKV(t *testing.T) {
	key := "fencing/" + unusual.ReplaceAllString(t.Name(), "-") + "/app"
	r := newRecipe(t, "app/report", key)
	r.need("curl", "curl")
	s := shared(t, consultest.Version())
	r.inRun(0, r.block("kv-write"))
	if kv := s.Key(t, key); kv == nil || string(kv.Value) != "new" {
		t.Errorf("the key is %v", kv)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.sh(0, `exec onlyone run -q report -- sh -c 'echo "ONLYONE_SESSION=$ONLYONE_SESSION" >mine'`)
	before := s.Key(t, key).ModifyIndex
	r.inRun(79, ". ./mine\n"+r.block("kv-write"))
	if kv := s.Key(t, key); kv.ModifyIndex != before {
		t.Error("an old session has written")
	}
}

func fencingHTTP(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	r := newRecipe(t, "127.0.0.1:8080", addr)
	r.need("curl", "curl")
	for name, text := range map[string]string{"service.go": r.block("service"), "go.mod": "module example\n\ngo 1.22\n"} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if said := r.sh(0, "gofmt -l . && go vet . && go build -o service"); said != "" {
		t.Errorf("gofmt and vet say: %s", said)
	}
	file := filepath.Join(r.dir, "document")
	server := exec.Command(filepath.Join(r.dir, "service"), addr, file)
	var said bytes.Buffer
	server.Stderr, server.SysProcAttr = &said, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	defer stop()
	// Not just anybody who listens there: the service, which wants a token.
	if !soon(patience, func() bool {
		resp, err := http.Get("http://" + addr)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusPreconditionRequired
	}) {
		stop()
		t.Fatalf("the service doesn't answer at %s: %s", addr, &said)
	}
	r.inRun(79, "FENCE_TOKEN=\n"+r.block("service-write")) // no token
	r.inRun(0, r.block("service-write"))
	written, err := os.ReadFile(file)
	if !regexp.MustCompile(`^{"Fence":\d+,"Body":"new"}$`).Match(written) {
		t.Errorf("the document is %q, %v", written, err)
	}
	r.inRun(0, strings.Replace(r.block("service-write"), "printf new", "printf newer", 1))
	r.inRun(79, old(r.block("service-write")))
	if now, err := os.ReadFile(file); !strings.Contains(string(now), `"newer"`) {
		t.Errorf("the document is %q, %v", now, err)
	}
}

func fencingVerify(t *testing.T) {
	r := newRecipe(t)
	r.script("publish", "echo published >"+r.dir+"/published")
	// The lock is taken away before the verify: an operator deletes the key. onlyone kills the
	// command when it notices, if verify hasn't ended it before.
	r.script("prepare", fmt.Sprintf("exec %s kv delete $ONLYONE_KEY >/dev/null", shared(t, consultest.Version()).Binary))
	r.sh(79, r.block("verify"))
	if _, err := os.Stat(filepath.Join(r.dir, "published")); err == nil {
		t.Error("it was published without the lock")
	}
	r.script("prepare", "true")
	r.sh(0, r.block("verify"))
	if _, err := os.Stat(filepath.Join(r.dir, "published")); err != nil {
		t.Error(err)
	}
}
