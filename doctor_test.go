//go:build linux

package main_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// A doctor that is told to stop half-way leaves nothing in Consul; one that is killed leaves
// nothing for longer than its session lives.
func TestDoctorEnds(t *testing.T) {
	t.Parallel()
	consultest.Each(t, func(t *testing.T, version string) {
		s := shared(t, version)
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGKILL} {
			t.Run(sig.String(), func(t *testing.T) {
				t.Parallel()
				j := newJob(t, s)
				j.slowLeave = sig == syscall.SIGKILL
				proxy := consultest.NewProxy(t, s)
				proxy.SetDelay(150 * time.Millisecond) // some 15 requests: enough time to be hit
				p := j.start(onlyone, "doctor", "--http-addr", proxy.Addr, j.name)
				j.await("a key of doctor's", func() bool { return len(s.Keys(t, "onlyone/"+j.name+"/~doctor/")) > 0 })
				p.signal(sig)
				p.wait(-int(sig))
				if sig != syscall.SIGKILL {
					if left := s.Sessions(t, "onlyone/"+j.name); len(left) > 0 {
						t.Errorf("it has ended, and its session is there")
					}
				}
			})
		}
	})
}

// A Consul that doesn't answer doesn't hold it up.
func TestDoctorHangingConsul(t *testing.T) {
	t.Parallel()
	j := newJob(t, shared(t, consultest.Version()))
	proxy := consultest.NewProxy(t, j.s)
	proxy.Set(consultest.Hang)
	p := j.start(onlyone, "doctor", "--http-addr", proxy.Addr, j.name)
	p.wait(69)
	if !strings.Contains(p.stderr(), "FAIL  consul: cannot use Consul at http://"+proxy.Addr+": no answer in time\n") {
		t.Errorf("it says:\n%s", p.stderr())
	}
	p = j.start(onlyone, "doctor", "--http-addr", proxy.Addr, j.name)
	time.Sleep(100 * time.Millisecond)
	p.signal(syscall.SIGINT)
	p.wait(-int(syscall.SIGINT))
}

// With nothing to warn of it is 0: the exit code follows from what is printed.
func TestDoctorExit(t *testing.T) {
	t.Parallel()
	s := shared(t, consultest.Version())
	out, err := exec.Command(onlyone, "doctor", "--json", "--http-addr", s.Addr).Output()
	var report struct {
		Schema, Exit int
		Checks       []struct{ Check, Status, What, Hint string }
	}
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil || report.Schema != 1 || len(report.Checks) < 10 {
		t.Fatalf("%v, %s", jsonErr, out)
	}
	warned := 0
	for _, c := range report.Checks {
		if c.Status == "warn" {
			warned = 1
		}
	}
	code := 0
	if e, ok := err.(*exec.ExitError); ok {
		code = e.ExitCode()
	}
	if code != warned || report.Exit != code {
		t.Errorf("exit %d, in the report %d, want %d: %s", code, report.Exit, warned, fmt.Sprint(report.Checks))
	}
}
