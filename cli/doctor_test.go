package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// model serves a model of Consul, whose agent is a client.
func model(t *testing.T, o consulmodel.Options) (m *consulmodel.Model, addr string) {
	t.Helper()
	m = consulmodel.New(o)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/agent/self" {
			fmt.Fprint(w, `{"Config":{"Datacenter":"dc1","NodeName":"web-1","Version":"1.22.1"},"DebugConfig":{"LeaveOnTerm":false}}`)
			return
		}
		m.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return m, s.URL
}

func TestDoctor(t *testing.T) {
	m, addr := model(t, consulmodel.Options{})
	r := onlyone(t, "doctor", "--http-addr", addr, "--runtime-dir", t.TempDir())
	for _, want := range []string{"ok    consul: Consul 1.22.1 at " + addr, "ok    agent: web-1 is a client agent", "ok    session: ", "ok    lock: ", "ok    clock: ", "ok    drain: "} {
		if !strings.Contains(r.stdout, "\n"+want) && !strings.HasPrefix(r.stdout, want) {
			t.Errorf("no %q in:\n%s", want, r.stdout)
		}
	}
	if r.stderr != "" || strings.Contains(r.stdout, "FAIL") {
		t.Errorf("stderr %q, stdout:\n%s", r.stderr, r.stdout)
	}
	if want := strings.Contains(r.stdout, "\nwarn "); (r.code == exitWarnings) != want || r.code > exitWarnings {
		t.Errorf("exit %d, warnings %v", r.code, want) // there may be one of this host
	}
	if len(m.Keys()) > 0 || len(m.Sessions()) > 0 {
		t.Errorf("left: %v %v", m.Keys(), m.Sessions())
	}
	m.LoseLeader()
	if r := onlyone(t, "doctor", "--http-addr", addr); r.code != exitUnavailable || !strings.Contains(r.stdout, "it knows no leader") {
		t.Errorf("exit %d:\n%s", r.code, r.stdout)
	}
}

// The worst finding decides, in a run's order; a hint's lines stand below what they are for;
// nothing that is shown reaches the terminal as it is.
func TestFindings(t *testing.T) {
	for _, test := range []struct {
		codes []int
		want  int
	}{
		{nil, 0}, {[]int{0, 0}, 0}, {[]int{0, exitWarnings, 0}, exitWarnings}, {[]int{exitWarnings, exitInternal}, exitInternal},
		{[]int{exitConfig, exitDenied}, exitDenied}, {[]int{exitDenied, exitConfig}, exitDenied}, {[]int{exitDenied, exitUnavailable, exitWarnings}, exitUnavailable},
		{[]int{exitInternal, exitConfig, exitWarnings}, exitConfig},
	} {
		f := &findings{out: &invocation{stdout: &bytes.Buffer{}}}
		for _, code := range test.codes {
			f.add(finding{Check: "c", Status: "x"}, code)
		}
		if code := exitCode(f.end(nil)); code != test.want {
			t.Errorf("%v: exit %d, want %d", test.codes, code, test.want)
		}
	}
	var out bytes.Buffer
	f := &findings{out: &invocation{stdout: &out}}
	f.ok("a", "fine")
	f.warn("b", "one\ntwo", "evil\x1b[2J\nname")
	f.fail(exitDenied, "c", "", "no")
	if want := "ok    a: fine\nwarn  b: evil\\x1b[2J\\nname\n        one\n        two\nFAIL  c: no\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
