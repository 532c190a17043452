//go:build booted

package booted

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// periods is how many whole minutes the periodic tests look at.
const periods = 2

// settle is how long after a minute's begin all hosts are done with it.
const settle = 15 * time.Second

// Debian's cron on three hosts, with the packages' example: one run a minute, no mail when all
// is well, one mail when the job fails.
func TestCron(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../../packaging/cron/onlyone.example")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\*/5 .* report -- /usr/local/bin/report$`).FindString(string(example))
	if line == "" {
		t.Fatal("the example has no line for a report")
	}
	every := strings.NewReplacer("*/5", "*", "--once-per 5m", "--once-per 1m")
	fails := strings.NewReplacer(" report ", " cron-fails ", "/usr/local/bin/report", "/usr/local/bin/fails")
	tab := strings.Replace(string(example), line, every.Replace(line)+"\n"+fails.Replace(every.Replace(line)), 1)
	tab = strings.Replace(tab, "127.0.0.1:8500", consul.Addr, 1)
	for _, h := range web[:3] {
		h.sh(t, "useradd --system app")
		h.script(t, "/usr/sbin/sendmail", `cat >>`+shared+`/mail-$(hostname)-$$`)
		h.script(t, "/usr/local/bin/report", `echo "$ONLYONE_PERIOD $(hostname)" >>`+shared+`/cron`)
		h.script(t, "/usr/local/bin/fails", `echo "$ONLYONE_PERIOD $(hostname)" >>`+shared+`/cron-fails; echo "it broke" >&2; exit 3`)
		h.write(t, "/etc/cron.d/report", tab)
		h.sh(t, "systemctl is-active cron")
		t.Cleanup(func() { os.Remove(filepath.Join(h.root, "/etc/cron.d/report")) })
	}
	t.Cleanup(func() {
		for _, h := range web[:3] {
			if t.Failed() {
				t.Logf("%s:\n%s", h.name, h.journal("cron.service"))
			}
		}
	})
	waitMinutes()
	done := oncePerMinute(t, "cron", periods)
	oncePerMinute(t, "cron-fails", periods)
	mails, _ := filepath.Glob(filepath.Join(base(), "shared", "mail-*"))
	failed := 0
	for _, m := range mails {
		b, err := os.ReadFile(m)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(b), "\n\n")
		if !strings.Contains(string(b), "run -q -w 4m --once-per 1m cron-fails") || strings.TrimSpace(body) != "it broke" {
			t.Errorf("an unexpected mail:\n%s", b)
		}
		failed++
	}
	if failed != done {
		t.Errorf("%d mails for %d failures", failed, done)
	}
}

// A timer of "onlyone systemd" on three hosts.
func TestTimer(t *testing.T) {
	t.Parallel()
	for _, h := range web[:3] {
		h.script(t, "/usr/local/bin/tick", `echo "$ONLYONE_PERIOD $(hostname)" >>`+shared+`/timer`)
		h.sh(t, "onlyone systemd --directory /etc/systemd/system --on-calendar '*:0/1' testtimer -- /usr/local/bin/tick")
		if out := h.sh(t, "systemd-analyze verify --man=no /etc/systemd/system/onlyone-testtimer.* 2>&1"); out != "" {
			t.Errorf("systemd-analyze verify says: %s", out)
		}
		h.sh(t, "systemctl daemon-reload && systemctl enable --now onlyone-testtimer.timer")
		t.Cleanup(func() { h.try("systemctl disable --now onlyone-testtimer.timer") })
	}
	waitMinutes()
	oncePerMinute(t, "timer", periods)
	for _, h := range web[:3] {
		if got := h.show(t, "onlyone-testtimer.service", "Result"); got != "success" {
			t.Errorf("%s: Result=%s\n%s", h.name, got, h.journal("onlyone-testtimer.service"))
		}
	}
}

// script makes an executable shell script on the host.
func (h *host) script(t *testing.T, path, text string) {
	t.Helper()
	h.write(t, path, "#!/bin/sh\n"+text+"\n")
	if err := os.Chmod(filepath.Join(h.root, path), 0o755); err != nil {
		t.Fatal(err)
	}
}

// waitMinutes waits until the next minutes have begun and are done.
func waitMinutes() {
	next := time.Now().Truncate(time.Minute).Add(periods * time.Minute).Add(settle)
	time.Sleep(time.Until(next))
}

// oncePerMinute checks that the lines "PERIOD HOST" of a file are of different periods, one
// after the other, and returns how many there are.
func oncePerMinute(t *testing.T, file string, least int) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(base(), "shared", file))
	if err != nil {
		t.Error(err)
		return 0
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	seen := map[string]bool{}
	for _, l := range lines {
		period, host, _ := strings.Cut(l, " ")
		if period == "" || seen[period] {
			t.Errorf("%s: period %q ran twice, the second time on %s", file, period, host)
		}
		seen[period] = true
	}
	if len(seen) < least {
		t.Errorf("%s: %d runs, want %d: %q", file, len(seen), least, lines)
	}
	t.Log(fmt.Sprint(file, ": ", strings.Join(lines, ", ")))
	return len(lines)
}
