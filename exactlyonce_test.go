//go:build linux

package main_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestExactlyOnce runs the scripts of docs/exactly-once.md on three hosts, while the one that
// runs is killed again and again.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	t.Run("with a key", func(t *testing.T) {
		r := newBilling(t)
		r.need("curl", "curl")
		// A gateway that takes each key once, and that is cut off in the middle of it, too.
		var mu sync.Mutex
		asked, sent := 0, map[string]string{}
		r.in = strings.NewReplacer("http://mail.example.com", "http://"+serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if key := q.Header.Get("Idempotency-Key"); sent[key] == "" {
				sent[key] = q.FormValue("to")
			}
		})), "/srv/billing", r.dir, "/usr/local/bin", r.dir)
		r.script("billing", r.block("with-key"))
		kills := r.bill(t)
		mu.Lock()
		defer mu.Unlock()
		for i := range customers {
			if key := fmt.Sprintf("billing/2026-11/c%d", i); sent[key] != fmt.Sprintf("c%d@example.com", i) {
				t.Errorf("the mail of %s went to %q", key, sent[key])
			}
		}
		if len(sent) != customers {
			t.Errorf("%d mails for %d customers", len(sent), customers)
		}
		t.Logf("%d kills, %d requests, %d mails", kills, asked, len(sent))
	})
	t.Run("with claims", func(t *testing.T) {
		r := newBilling(t)
		r.in = strings.NewReplacer("/srv/billing", r.dir, "/usr/local/bin", r.dir)
		r.script("send-bill", "echo $1 $2 >>"+r.dir+"/sent; sleep 0.02")
		r.script("billing", r.block("with-claims"))
		kills := r.bill(t)
		sent := map[string]bool{}
		for line := range strings.Lines(readFile(t, filepath.Join(r.dir, "sent"))) {
			if sent[line] {
				t.Errorf("sent twice: %s", line)
			}
			sent[line] = true
		}
		unsure := strings.Fields(r.sh(0, r.block("unsure")))
		for i := range customers {
			known := sent[fmt.Sprintf("c%d c%d@example.com\n", i, i)]
			for _, u := range unsure {
				known = known || strings.HasSuffix(u, fmt.Sprintf("/c%d", i))
			}
			if !known {
				t.Errorf("c%d was forgotten", i)
			}
		}
		if len(unsure) > kills {
			t.Errorf("after %d kills these are unsure: %q", kills, unsure)
		}
		t.Logf("%d kills, %d mails, unsure: %q", kills, len(sent), unsure)
	})
}

const customers = 60

func newBilling(t *testing.T) *recipe {
	r := newRecipe(t)
	r.page = readPage(t, "docs/exactly-once.md")
	var list strings.Builder
	for i := range customers {
		fmt.Fprintf(&list, "c%d c%d@example.com\n", i, i)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "customers"), []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// bill has three hosts contend for the period; who is first is killed, a few times, and replaced.
func (r *recipe) bill(t *testing.T) (kills int) {
	t.Helper()
	start := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", "exec "+r.block("by-hand"))
		cmd.Env, cmd.Dir = r.env, r.dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	hosts := []*exec.Cmd{start(), start(), start()}
	for range 5 {
		time.Sleep(rand.N(400 * time.Millisecond))
		_ = hosts[0].Process.Kill()
		if err := hosts[0].Wait(); err != nil && hosts[0].ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			kills++
		}
		hosts = append(hosts[1:], start())
	}
	for _, h := range hosts {
		if err := h.Wait(); err != nil {
			t.Errorf("a host that wasn't killed: %v", err)
		}
	}
	return kills
}
