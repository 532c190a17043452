//go:build linux

package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// pinged is a monitoring service: what it was told, as "METHOD PATH" with the rid apart.
type pinged struct {
	URL string

	mu   sync.Mutex
	what []string
	rids []string
}

func newPinged(t *testing.T, hang bool) *pinged {
	p := &pinged{}
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	p.URL = "http://" + serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.what, p.rids = append(p.what, r.Method+" "+r.URL.Path), append(p.rids, r.URL.Query().Get("rid"))
		p.mu.Unlock()
		if hang {
			select {
			case <-r.Context().Done():
			case <-over:
			}
		}
	})) + "/secret"
	return p
}

// want checks what it was told since the last call.
func (p *pinged) want(t *testing.T, what ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.what, what) {
		t.Errorf("it was pinged with %q, want %q", p.what, what)
	}
	if n := slices.Compact(slices.Clone(p.rids)); len(n) > 1 || len(n) == 1 && len(n[0]) != 36 {
		t.Errorf("want one UUID as rid, got %q", p.rids)
	}
	p.what, p.rids = nil, nil
}

// interrupt stops a contender that waits. On a busy machine the time that it has for leaving the
// queue may be too short; then its session ends by its TTL, and its entry is swept by the next.
func (j *job) interrupt(w *proc) {
	j.t.Helper()
	at := consultest.BootNow()
	w.signal(syscall.SIGTERM)
	w.wait(-int(syscall.SIGTERM))
	if w.ended-at > 80*time.Millisecond {
		j.slowLeave = true
		j.t.Cleanup(j.forget)
	}
}

// --ping: the start, then the exit code, under one id; nothing when the command didn't run.
func TestPing(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	p := newPinged(t, false)
	j.run("--ping "+p.URL, "sh", "-c", "exit 3").wait(3)
	p.want(t, "POST /secret/start", "POST /secret/3")
	j.run("--ping "+p.URL, "sh", "-c", "kill -TERM $$").wait(-int(syscall.SIGTERM))
	p.want(t, "POST /secret/start", "POST /secret/143")
	j.run("--once-per id:x --ping "+p.URL, "true").wait(0)
	p.want(t, "POST /secret/start", "POST /secret/0")
	j.run("--once-per id:x --ping "+p.URL, "true").wait(0) // done already
	p.want(t)
	a := j.run("", j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	j.run("-n --ping "+p.URL, "true").wait(75)
	p.want(t)
	w := j.run("--ping "+p.URL, "true")
	j.queued(1)
	j.interrupt(w)
	p.want(t)
	a.signal(syscall.SIGTERM)
	a.wait(-int(syscall.SIGTERM))

	file := filepath.Join(j.dir, "url")
	if err := os.WriteFile(file, []byte(p.URL+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j.run("--ping-file "+file, "true").wait(0)
	p.want(t, "POST /secret/start", "POST /secret/0")
	bad := j.run("--ping-file "+file+"x", "echo", "ran")
	bad.wait(78)
	oneLine(t, bad.stderr(), "cannot read the URL to ping")
}

// A service that doesn't answer holds up the end for 2 s at most, and changes no exit code.
func TestPingThatHangs(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	p := newPinged(t, true)
	a := j.run("--ping "+p.URL, j.child(consultest.ChildOptions{Tag: "a", For: time.Millisecond, Exit: 4})...)
	b := j.run("", j.child(consultest.ChildOptions{Tag: "b", For: time.Millisecond})...)
	a.wait(4)
	b.wait(0)
	lives := j.intervals() // on a busy machine b may have been the first
	end := lives[slices.IndexFunc(lives, func(i consultest.Interval) bool { return i.Tag == "a" })].End
	measured(t, "from the command's end to onlyone's, with a service that hangs", a.ended-end, "2s at most")
	if a.ended-end > 2*time.Second+slack {
		t.Errorf("it took %s", a.ended-end)
	}
	if s := a.stderr(); !strings.Contains(s, "ping") || strings.Contains(s, "secret") {
		t.Errorf("it says:\n%s", s)
	}
}

// --result-file says how each run ended.
func TestResultFile(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	file := filepath.Join(j.dir, "result.json")
	want := func(p *proc, code int, outcome string, childExit any) {
		t.Helper()
		p.wait(code)
		var r map[string]any
		if err := json.Unmarshal([]byte(readFile(t, file)), &r); err != nil {
			t.Fatal(err)
		}
		if code < 0 {
			code = 128 - code
		}
		if r["schema"] != 1.0 || r["name"] != j.name || r["outcome"] != outcome || r["exit"] != float64(code) || r["child_exit"] != childExit || (r["started"] == nil) != (childExit == nil) {
			t.Errorf("%s: the result is %v", outcome, r)
		}
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
	flags := "--result-file " + file + " "
	want(j.run(flags, "sh", "-c", "exit 3"), 3, "exited", 3.0)
	want(j.run(flags, "sh", "-c", "kill -USR1 $$"), -int(syscall.SIGUSR1), "signaled", 138.0)
	want(j.run(flags+"--max-runtime 200ms", "sleep", "1000"), 124, "timeout", 124.0)
	want(j.run(flags+"--once-per id:x", "true"), 0, "exited", 0.0)
	want(j.run(flags+"--once-per id:x", "true"), 0, "done-already", nil)
	script := filepath.Join(j.dir, "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	want(j.run(flags, script), 127, "failed", nil)
	stopped := j.run(flags, j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	want(j.run(flags+"-n", "true"), 75, "conflict", nil)
	waiter := j.run(flags, "true")
	j.queued(1)
	j.interrupt(waiter)
	want(waiter, -int(syscall.SIGTERM), "interrupted", nil)
	stopped.signal(syscall.SIGTERM)
	want(stopped, -int(syscall.SIGTERM), "stopped", 143.0)
	lost := j.run(flags+shortDials, j.child(consultest.ChildOptions{Tag: "b"})...)
	j.running(2)
	if _, err := j.s.Client().KV().Delete(j.lockKey(), nil); err != nil {
		t.Fatal(err)
	}
	lost.wait(79)
	if s := readFile(t, file); !strings.Contains(s, `"outcome": "lost"`) && !strings.Contains(s, `"outcome":"lost"`) || !strings.Contains(s, "the lock key was deleted") {
		t.Errorf("the result is %s", s)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	want(j.run(flags+"--http-addr 127.0.0.1:1", "true"), 69, "failed", nil)
	want(j.run(flags+"--lease 3s", "true"), 78, "failed", nil)
	want(j.run(flags, "no-such-command"), 127, "failed", nil)
	want(j.run(flags+"--token-file "+j.dir+"/missing", "true"), 64, "failed", nil)
	// What an order has stopped isn't started again within the wait: the result is that of the
	// command that was, not of none.
	paused := j.run(flags+"-w 5s", j.child(consultest.ChildOptions{Tag: "c"})...)
	j.running(3)
	j.order("pause", "--for 1h").wait(0)
	want(paused, 75, "stopped", 143.0)
	j.order("resume", "").wait(0)
	// Only the command counts as having run, not the hook after it.
	j.with(flags, []string{"--on-release", "sleep 1"}, "true").wait(0)
	var r struct {
		Ran float64 `json:"run_seconds"`
	}
	if err := json.Unmarshal([]byte(readFile(t, file)), &r); err != nil || r.Ran >= 1 {
		t.Errorf("it ran for %g s (%v), want less than a second", r.Ran, err)
	}
}

// scrape reads metrics as Prometheus does: "name{labels} value" of those that count.
func scrape(t *testing.T, text io.Reader) map[string]float64 {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(text)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				if l.GetName() != "name" {
					key += " " + l.GetValue()
				}
			}
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// --metrics-listen: a scrape while it waits and while it runs; /leader only says yes then.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	port := freePort(t)
	get := func(path string) (int, string) {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
		if err != nil {
			return 0, ""
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(b)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	a := j.run("", j.child(consultest.ChildOptions{Tag: "a"})...)
	j.running(1)
	b := j.run(fmt.Sprintf("--metrics-listen 127.0.0.1:%d", port), j.child(consultest.ChildOptions{Tag: "b"})...)
	j.queued(1)
	// Its place in the queue is told a moment after it is there.
	j.await("its place in the queue", func() bool {
		_, text := get("/metrics")
		return strings.Contains(text, "onlyone_queue_position{name=\""+j.name+"\"} 1\n")
	})
	if code, _ := get("/leader"); code != 503 {
		t.Errorf("/leader says %d while it waits", code)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz says %d", code)
	}
	_, text := get("/metrics")
	if m := scrape(t, strings.NewReader(text)); m["onlyone_held"] != 0 || m["onlyone_state contending"] != 1 || m["onlyone_waiters"] != 1 {
		t.Errorf("while it waits: %v", m)
	}
	a.signal(syscall.SIGTERM)
	a.wait(-int(syscall.SIGTERM))
	child := j.running(2)
	j.await("/leader says yes", func() bool { code, _ := get("/leader"); return code == 200 })
	_, text = get("/metrics")
	if m := scrape(t, strings.NewReader(text)); m["onlyone_held"] != 1 || m["onlyone_state running"] != 1 || m["onlyone_fence_token"] != float64(child.Token) ||
		m["onlyone_lease_remaining_seconds"] <= 0 {
		t.Errorf("while it runs: %v", m)
	}
	taken := j.run(fmt.Sprintf("--metrics-listen 127.0.0.1:%d", port), "echo", "ran")
	taken.wait(78)
	oneLine(t, taken.stderr(), "address already in use")
	b.signal(syscall.SIGTERM)
	b.wait(-int(syscall.SIGTERM))
	if code, _ := get("/leader"); code != 0 {
		t.Errorf("/leader says %d when all is over", code)
	}
}

// --metrics-file: what node_exporter's collector reads, kept through attempts that don't run.
func TestMetricsFile(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	file := filepath.Join(j.dir, "job.prom")
	read := func() map[string]float64 {
		t.Helper()
		return scrape(t, strings.NewReader(readFile(t, file)))
	}
	flags := "--metrics-file " + file + " --once-per "
	j.run(flags+"id:x", "true").wait(0)
	first := read()
	if first["onlyone_last_success_timestamp_seconds"] < float64(time.Now().Unix()-600) || first["onlyone_last_outcome exited"] != 1 || first["onlyone_last_exit_code"] != 0 {
		t.Errorf("after a success: %v", first)
	}
	j.run(flags+"id:x", "true").wait(0)
	j.run(flags+"id:y", "sh", "-c", "exit 3").wait(3)
	m := read()
	if m["onlyone_last_exit_code"] != 3 || m["onlyone_last_success_timestamp_seconds"] != first["onlyone_last_success_timestamp_seconds"] ||
		m["onlyone_attempts_total exited"] != 2 || m["onlyone_attempts_total done-already"] != 1 {
		t.Errorf("after a failure: %v", m)
	}
}

// A token that is deleted while the command runs is silence: the term ends when no check has
// been allowed for the renew deadline, and not before.
func TestTokenDeleted(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		s := consultest.Start(t, consultest.Options{Version: version, ACL: true})
		j := newJob(t, s)
		j.slowLeave = true
		secret, accessor := aclToken(t, s)
		proxy := consultest.NewProxy(t, s)
		a := j.run("-vv "+shortDials+" --http-addr "+proxy.Addr+" --token "+secret, j.child(consultest.ChildOptions{Tag: "a", IgnoreTerm: true})...)
		first := j.running(1)
		j.await("a check of the lock", func() bool { return proxy.LastProof() > first.Start })
		death := consultest.Death(t, first.Pid)
		if _, err := s.Client().ACL().TokenDelete(accessor, nil); err != nil {
			t.Fatal(err)
		}
		died := j.dies(death)
		took := died - proxy.LastProof()
		measured(t, "last proof until the command is dead", took, fmt.Sprintf("limit: %s", shortDeadline+shortKill))
		if took < shortDeadline+shortKill-time.Second || took > shortDeadline+shortKill+slack {
			t.Errorf("the command died %s after the last proof", took)
		}
		a.wait(79)
		if s := a.stderr(); !strings.Contains(s, "cannot prove ownership of the lock: retrying") || !strings.Contains(s, "ownership could not be proven for 3.88s") {
			t.Errorf("it says:\n%s", s)
		}
	})
}

// A token file that is replaced while the command runs is read again when the old token is
// refused: nothing moves.
func TestTokenFileReplaced(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		s := consultest.Start(t, consultest.Options{Version: version, ACL: true})
		j := newJob(t, s)
		file := filepath.Join(j.dir, "token")
		put := func(secret string) {
			t.Helper()
			if err := os.WriteFile(file+".new", []byte(secret+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		old, accessor := aclToken(t, s)
		put(old)
		gate, open := j.gate("gate")
		proxy := consultest.NewProxy(t, s)
		a := j.run(shortDials+" --http-addr "+proxy.Addr+" --token-file "+file, j.child(consultest.ChildOptions{Tag: "a", Until: gate})...)
		j.running(1)
		secret, _ := aclToken(t, s)
		put(secret)
		if _, err := s.Client().ACL().TokenDelete(accessor, nil); err != nil {
			t.Fatal(err)
		}
		at := consultest.BootNow()
		// By then the old token alone would have ended it.
		j.await("proofs with the new token", func() bool { return proxy.LastProof() > at+shortDeadline+shortKill })
		open()
		a.wait(0)
		if all := j.intervals(); len(all) != 1 || all[0].Term != 0 {
			t.Errorf("the job has moved: %+v", all)
		}
	})
}

// aclToken is a token that may do what a run needs.
func aclToken(t *testing.T, s *consultest.Server) (secret, accessor string) {
	t.Helper()
	secret, err := s.Token(`key_prefix "onlyone/" { policy = "write" } session_prefix "" { policy = "write" }`)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := s.Client().ACL().TokenList(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if token, _, err := s.Client().ACL().TokenRead(e.AccessorID, nil); err == nil && token.SecretID == secret {
			return secret, e.AccessorID
		}
	}
	t.Fatal("the token isn't listed")
	return "", ""
}
