//go:build booted

package booted

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// atOnce is what a hand-over may take on a busy machine: it is milliseconds. A host that
// isn't known to be dead takes 20 s and more.
const atOnce = 12 * time.Second

func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "", consultest.ChildOptions{})
	j.start(web[0], "running")
	first := j.running(1, web[0])
	// The start of a standby returns, and doesn't wait for the lock.
	j.start(web[1], "standby: 1st of 1, held by web-1 (pid ")
	web[1].sh(t, "systemctl is-active "+j.unit)

	stop := consultest.BootNow()
	web[0].sh(t, "systemctl stop "+j.unit)
	second := j.running(2, web[1])
	j.handOver(stop, second, atOnce)
	web[1].state(t, j.unit, "active", "running")
	if got := web[0].show(t, j.unit, "ActiveState") + " " + web[0].show(t, j.unit, "Result"); got != "inactive success" {
		t.Errorf("after the stop the unit is %q, want inactive success", got)
	}
	if second.Token <= first.Token {
		t.Errorf("tokens %d, %d", first.Token, second.Token)
	}

	// A restart gives the lock away, and comes back as the standby.
	j.start(web[0], "standby")
	web[1].sh(t, "systemctl restart "+j.unit)
	j.running(3, web[0])
	web[1].state(t, j.unit, "active", "standby: 1st of 1, held by web-1")
}

// Only onlyone is killed. With KillMode=mixed systemd kills the guard before it can release;
// ExecStopPost= does it.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"main", "all"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, web[:2], "--stop-timeout 2s", consultest.ChildOptions{IgnoreTerm: true})
			j.start(web[0], "running")
			j.running(1, web[0])
			j.start(web[1], "standby")
			kill := consultest.BootNow()
			web[0].sh(t, "systemctl kill -s KILL --kill-who="+who+" "+j.unit)
			j.handOver(kill, j.running(2, web[1]), atOnce)
			web[0].state(t, j.unit, "active", "standby") // Restart=always
			if log := web[0].journal(j.unit); !strings.Contains(log, "nothing of it is alive, and the lock is released") {
				t.Errorf("nothing says that the lock was released:\n%s", log)
			}
			// Nobody has seen how the command ended, but that there was a run is known.
			if runs := web[1].sh(t, ". /etc/default/onlyone; export CONSUL_HTTP_ADDR; onlyone history --json "+j.lock); !strings.Contains(runs, `"outcome":"failed"`) || !strings.Contains(runs, `"host":"web-1"`) {
				t.Errorf("the record of runs:\n%s", runs)
			}
			if left := web[0].sh(t, "ls /run/"+strings.TrimSuffix(j.unit, ".service")); left != "" {
				t.Errorf("left in the runtime directory: %s", left)
			}
		})
	}
}

// The keeper is stopped, or keeper and guard: then only systemd can act, and does.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	for i, who := range []string{"onlyone", "both"} {
		holder := quiet[2+i]
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, []*host{holder, web[1]}, "--stop-timeout 2s", consultest.ChildOptions{IgnoreTerm: true})
			j.start(holder, "running")
			j.running(1, holder)
			j.start(web[1], "standby")
			pids := fmt.Sprint(j.pid(holder, "onlyone"))
			if who == "both" {
				pids = fmt.Sprint(j.pid(holder, "leaseguard"), " ", pids)
			}
			// The loop turned all the while.
			if n := holder.show(t, j.unit, "NRestarts"); n != "0" {
				t.Errorf("restarted %s times before", n)
			}
			stop := consultest.BootNow()
			holder.sh(t, "kill -STOP "+pids)
			// WatchdogSec is 10 s, and the last WATCHDOG=1 may be 5 s old.
			j.handOver(stop, j.running(2, web[1]), 19*time.Second)
			holder.state(t, j.unit, "active", "standby")
			if log := holder.journal(j.unit); !strings.Contains(log, "Watchdog timeout") {
				t.Errorf("the watchdog didn't fire:\n%s", log)
			}
		})
	}
}

func TestStopOfAStandby(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "", consultest.ChildOptions{})
	j.start(web[0], "running")
	j.start(web[1], "standby")
	begin := time.Now()
	web[1].sh(t, "systemctl stop "+j.unit)
	if took := time.Since(begin); took > atOnce {
		t.Errorf("the stop of a standby took %s", took)
	}
	if got := web[1].show(t, j.unit, "Result"); got != "success" {
		t.Errorf("Result=%s", got)
	}
	if keys := consul.Keys(t, "onlyone/"+j.lock+"/~queue/"); len(keys) > 0 {
		t.Errorf("its queue entry is left: %q", keys)
	}
}

// A command that takes longer to stop than TimeoutStopSec gets the time, because onlyone asks
// for it; a second stop meanwhile hurries nobody.
func TestStopThatTakesItsTime(t *testing.T) {
	t.Parallel()
	j := newJob(t, []*host{quiet[0], web[1]}, "--stop-timeout 14s", consultest.ChildOptions{IgnoreTerm: true})
	quiet[0].write(t, "/etc/systemd/system/"+j.unit+".d/short.conf", "[Service]\nTimeoutStopSec=8\n")
	quiet[0].sh(t, "systemctl daemon-reload")
	j.start(quiet[0], "running")
	j.running(1, quiet[0])
	j.start(web[1], "standby")
	begin := consultest.BootNow()
	quiet[0].sh(t, "systemctl stop --no-block "+j.unit)
	quiet[0].state(t, j.unit, "deactivating", "stopping")
	quiet[0].sh(t, "systemctl stop "+j.unit)
	next := j.running(2, web[1])
	if took := next.Start - begin; took < 14*time.Second {
		t.Errorf("the next command started %s after the stop, before --stop-timeout 14s was over", took)
	}
	if got := quiet[0].show(t, j.unit, "Result"); got == "timeout" {
		t.Errorf("Result=%s: systemd didn't wait", got)
	}
	if runs := j.runs(); runs[0].Term == 0 {
		t.Error("the command got no SIGTERM")
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "", consultest.ChildOptions{}, "sh", "-c",
		`trap 'echo reloaded on $(hostname) >>`+shared+`/reload' HUP; echo up >>`+shared+`/reload; while :; do sleep 0.1; done`)
	file := filepath.Join(base(), "shared", "reload")
	j.start(web[0], "running")
	j.start(web[1], "standby")
	if !soon(func() bool { b, _ := os.ReadFile(file); return string(b) == "up\n" }) {
		t.Fatal("the command isn't up")
	}
	web[1].sh(t, "systemctl reload "+j.unit) // has nothing to reload, and keeps its place
	web[0].sh(t, "systemctl reload "+j.unit)
	if !soon(func() bool { b, _ := os.ReadFile(file); return string(b) == "up\nreloaded on web-1\n" }) {
		b, _ := os.ReadFile(file)
		t.Errorf("the command wrote %q", b)
	}
	for i, status := range []string{"running", "standby"} {
		web[i].state(t, j.unit, "active", status)
		if n := web[i].show(t, j.unit, "NRestarts"); n != "0" {
			t.Errorf("%s: restarted %s times", web[i].name, n)
		}
	}
}

// Between restarts there is nothing to reload, and onlyone goes on.
func TestReloadWhileResting(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:1], "--restart always --restart-delay 1h", consultest.ChildOptions{}, "true")
	j.start(web[0], "restarting")
	web[0].sh(t, "systemctl reload "+j.unit)
	time.Sleep(3 * time.Second) // it would end at once, and be started again after two
	web[0].state(t, j.unit, "active", "restarting")
	if n := web[0].show(t, j.unit, "NRestarts"); n != "0" {
		t.Errorf("restarted %s times\n%s", n, web[0].journal(j.unit))
	}
}

func TestReboot(t *testing.T) {
	t.Parallel()
	j := newJob(t, []*host{web[3], web[0]}, "", consultest.ChildOptions{})
	web[3].sh(t, "systemctl enable "+j.unit)
	j.start(web[3], "running")
	j.running(1, web[3])
	j.start(web[0], "standby")
	begin := consultest.BootNow()
	_, _ = web[3].try("systemctl poweroff")
	j.handOver(begin, j.running(2, web[0]), 2*atOnce)
	web[3].off(t)
	if err := web[3].start(); err != nil {
		t.Fatal(err)
	}
	web[3].state(t, j.unit, "active", "standby: 1st of 1, held by web-1")
}

// Socket activation: the descriptors are the command's.
func TestSocket(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:1], "", consultest.ChildOptions{}, "/usr/local/bin/booted", "accept")
	socket := strings.TrimSuffix(j.unit, ".service") + ".socket"
	web[0].write(t, "/etc/systemd/system/"+socket, "[Socket]\nListenStream=127.0.0.1:18417\n")
	web[0].sh(t, "systemctl daemon-reload && systemctl start "+socket)
	t.Cleanup(func() { _, _ = web[0].try("systemctl stop " + socket) })
	c, err := net.DialTimeout("tcp", "127.0.0.1:18417", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "token ") || line == "token \n" {
		t.Errorf("the command says %q, %v\n%s", line, err, web[0].journal(j.unit))
	}
}

// systemd-run --scope moves a process out of the service. It is still the command's.
func TestScope(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "kill -s KILL --kill-who=main"} {
		name, _, _ := strings.Cut(how, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := quoted(childOn(web[0], "testscope-"+name, consultest.ChildOptions{IgnoreTerm: true})...)
			j := newJob(t, web[:1], "--stop-timeout 2s", consultest.ChildOptions{}, "sh", "-c", "systemd-run -q --scope "+child+" & wait")
			j.start(web[0], "running")
			run := j.running(1, web[0])
			if group := web[0].sh(t, fmt.Sprintf("cat /proc/%d/cgroup", run.Pid)); strings.Contains(group, j.unit) {
				t.Fatalf("it is still in %s", group)
			}
			web[0].sh(t, "systemctl "+how+" "+j.unit)
			web[0].eventually(t, "the process in a scope of its own is gone", func() bool {
				_, err := web[0].try(fmt.Sprintf("kill -0 %d", run.Pid))
				return err != nil
			})
		})
	}
}

// A term that was kept by mistake, and whose session has ended, does no harm: Consul refuses it.
func TestStaleTerm(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "", consultest.ChildOptions{})
	dir := "/run/" + strings.TrimSuffix(j.unit, ".service")
	j.start(web[0], "running")
	j.running(1, web[0])
	web[0].sh(t, "mkdir -p /var/tmp/kept; cp "+dir+"/*.term /var/tmp/kept/"+j.lock+".term")
	web[0].sh(t, "systemctl stop "+j.unit)
	j.start(web[1], "running")
	second := j.running(2, web[1])
	j.start(web[0], "standby")
	web[0].sh(t, "cp /var/tmp/kept/"+j.lock+".term "+dir+"/onlyone-0.term && systemctl stop "+j.unit)
	kv := consul.Key(t, "onlyone/"+j.lock+"/.lock")
	if kv == nil || kv.Session == "" || kv.ModifyIndex != second.Token {
		t.Errorf("the lock of token %d is now %+v", second.Token, kv)
	}
	web[1].state(t, j.unit, "active", "running")
}

func TestUnprivileged(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "--stop-timeout 2s", consultest.ChildOptions{IgnoreTerm: true})
	for _, h := range j.hosts {
		h.write(t, "/etc/systemd/system/"+j.unit+".d/user.conf", "[Service]\nUser=nobody\nProtectSystem=strict\nReadWritePaths="+shared+"\nProtectHome=yes\nPrivateTmp=yes\n")
		h.sh(t, "systemctl daemon-reload")
	}
	j.start(web[0], "running")
	run := j.running(1, web[0])
	if group := web[0].sh(t, fmt.Sprintf("cat /proc/%d/cgroup", run.Pid)); !strings.Contains(group, j.unit+"/onlyone-") {
		t.Errorf("the command has no cgroup of its own: %s", group)
	}
	j.start(web[1], "standby")
	kill := consultest.BootNow()
	web[0].sh(t, "systemctl kill -s KILL --kill-who=main "+j.unit)
	j.handOver(kill, j.running(2, web[1]), atOnce)
}

func TestNotifyRunning(t *testing.T) {
	t.Parallel()
	j := newJob(t, []*host{web[0], quiet[1]}, "--notify running", consultest.ChildOptions{})
	// Less than what the standby waits: it asks for more.
	quiet[1].write(t, "/etc/systemd/system/"+j.unit+".d/short.conf", "[Service]\nTimeoutStartSec=7\n")
	quiet[1].sh(t, "systemctl daemon-reload")
	j.start(web[0], "running")
	quiet[1].sh(t, "systemctl start --no-block "+j.unit)
	quiet[1].state(t, j.unit, "activating", "standby: 1st of 1")
	time.Sleep(9 * time.Second)
	quiet[1].state(t, j.unit, "activating", "standby")
	if n := quiet[1].show(t, j.unit, "NRestarts"); n != "0" {
		t.Errorf("restarted %s times", n)
	}
	web[0].sh(t, "systemctl stop "+j.unit)
	quiet[1].state(t, j.unit, "active", "running")
}

func TestNotifyChild(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "--notify child", consultest.ChildOptions{}, "/usr/local/bin/booted", "ready")
	for _, h := range j.hosts {
		h.write(t, "/etc/systemd/system/"+j.unit+".d/watchdog.conf", "[Service]\nWatchdogSec=600\n")
		h.sh(t, "systemctl daemon-reload")
	}
	j.start(web[0], `the command itself, watchdog 600000000 for ""`)
	web[1].sh(t, "systemctl start --no-block "+j.unit)
	web[1].state(t, j.unit, "activating", "")
	if !soon(func() bool { return len(consul.Keys(t, "onlyone/"+j.lock+"/~queue/")) == 1 }) {
		t.Error("the standby isn't in the queue")
	}
	web[0].sh(t, "systemctl stop "+j.unit)
	web[1].state(t, j.unit, "active", "the command itself")
}

// What is typed before "onlyone systemd" is what the command gets.
func TestQuoting(t *testing.T) {
	t.Parallel()
	words := []string{"plain", "", " ", "a b", "$HOME", "${HOME}", "$$", "%i", "%%n", "100%", `"quoted"`, "it's", `back\slash`, `\x41`, `\`, ";", "a;b", "-x", "--", "@-+!:",
		"tab\tnewline\n.", "grüße 世界", "\xff\xfe", "#not", "*", "~", "a=b", "{}", "\x01\x7f", "\u00a0", "'", `'"`}
	j := newJob(t, web[:1], "", consultest.ChildOptions{}, append([]string{"/usr/local/bin/booted", "argv", shared + "/quoting"}, words...)...)
	web[0].sh(t, "systemctl start "+j.unit)
	var got struct{ Argv, Env []string }
	if !soon(func() bool {
		b, err := os.ReadFile(filepath.Join(base(), "shared", "quoting"))
		return err == nil && json.Unmarshal(b, &got) == nil
	}) {
		t.Fatalf("the command wasn't started:\n%s", web[0].journal(j.unit))
	}
	for i, w := range words { // JSON has no bytes that aren't UTF-8
		words[i] = strings.ToValidUTF8(strings.ReplaceAll(w, "\xff\xfe", "\xff \xfe"), "\ufffd")
	}
	for i, g := range got.Argv {
		got.Argv[i] = strings.ReplaceAll(g, "\ufffd\ufffd", "\ufffd \ufffd")
	}
	if !slices.Equal(got.Argv, words) {
		t.Errorf("the command got\n%q\nwant\n%q", got.Argv, words)
	}
	for _, kv := range got.Env {
		if name, _, _ := strings.Cut(kv, "="); name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "WATCHDOG_") {
			t.Errorf("the command has %s", kv)
		}
	}
}

// The template of the packages, as its head says.
func TestTemplate(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../packaging/systemd/onlyone@.service")
	if err != nil {
		t.Fatal(err)
	}
	h := web[2]
	h.write(t, "/etc/systemd/system/onlyone@.service", string(unit))
	h.write(t, "/etc/default/onlyone-template", "COMMAND=/usr/local/bin/booted argv "+shared+"/template \"two words\" 'it is' $HOME %i \\\\x\n")
	h.sh(t, "systemctl daemon-reload; systemctl enable --now onlyone@template")
	t.Cleanup(func() { h.try("systemctl disable --now onlyone@template") })
	var got struct{ Argv, Env []string }
	if !soon(func() bool {
		b, err := os.ReadFile(filepath.Join(base(), "shared", "template"))
		return err == nil && json.Unmarshal(b, &got) == nil
	}) {
		t.Fatalf("the command wasn't started:\n%s", h.journal("onlyone@template"))
	}
	if want := []string{"two words", "it is", "$HOME", "%i"}; len(got.Argv) != 5 || !slices.Equal(got.Argv[:4], want) {
		t.Errorf("the command got %q, want %q", got.Argv, want)
	}
	if !slices.Contains(got.Env, "ONLYONE_NAME=template") {
		t.Errorf("no ONLYONE_NAME=template in %q", got.Env)
	}
	// A lock that is called otherwise than the unit.
	h.write(t, "/etc/default/onlyone-named", "NAME=test/named\nCOMMAND=sleep 1000\n")
	h.sh(t, "systemctl start onlyone@named")
	h.state(t, "onlyone@named", "active", "running")
	if kv := consul.Key(t, "onlyone/test/named/.lock"); kv == nil || kv.Session == "" {
		t.Error("the lock test/named isn't held")
	}
	h.sh(t, "systemctl stop onlyone@named")
	// Without its file it doesn't start, and says why.
	if _, err := h.try("systemctl start onlyone@missing"); err == nil {
		t.Error("onlyone@missing was started")
	}
	h.sh(t, "systemctl stop onlyone@missing; systemctl reset-failed")
	if out := h.sh(t, "systemd-analyze verify --man=no /etc/systemd/system/onlyone@.service 2>&1"); out != "" {
		t.Errorf("systemd-analyze verify says: %s", out)
	}
}

// Holder and standby feed the watchdog, for longer than it waits.
func TestWatchdogIsFed(t *testing.T) {
	t.Parallel()
	j := newJob(t, web[:2], "", consultest.ChildOptions{})
	j.start(web[0], "running")
	j.start(web[1], "standby")
	for _, h := range j.hosts {
		if got := h.show(t, j.unit, "WatchdogUSec"); got != "10s" {
			t.Errorf("%s: WatchdogUSec=%s", h.name, got)
		}
	}
	time.Sleep(25 * time.Second)
	for i, status := range []string{"running", "standby"} {
		web[i].state(t, j.unit, "active", status)
		if n := web[i].show(t, j.unit, "NRestarts"); n != "0" {
			t.Errorf("%s: restarted %s times\n%s", web[i].name, n, web[i].journal(j.unit))
		}
	}
}
