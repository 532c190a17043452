package consultest

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ChildMain()
	goleak.VerifyTestMain(m)
}

// TestServer: each kind of server starts, can be used, and leaves nothing behind.
func TestServer(t *testing.T) {
	Each(t, func(t *testing.T, version string) {
		var dir string
		var ended chan struct{}
		t.Run("life", func(t *testing.T) {
			s := Start(t, Options{Version: version, ACL: true, Persistent: true})
			dir, ended = s.dir, s.ended
			if _, err := s.Token(`key_prefix "x/" { policy = "read" }`); err != nil {
				t.Error(err)
			}
			if _, err := s.Client().KV().Put(&api.KVPair{Key: "x/y"}, nil); err != nil {
				t.Fatal(err)
			}
			id, _, err := s.Client().Session().Create(&api.SessionEntry{Name: "a/b", TTL: "10s"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			pid := s.cmd.Process.Pid
			s.Kill()
			if _, err := s.Client().Status().Leader(); err == nil {
				t.Error("a killed server answers")
			}
			if err := s.Restart(); err != nil {
				t.Fatal(err)
			}
			ended = s.ended
			if s.cmd.Process.Pid == pid {
				t.Error("the same process after the restart")
			}
			if got := s.Keys(t, "x/"); !slices.Equal(got, []string{"x/y"}) {
				t.Errorf("keys after the restart: %q", got)
			}
			if got := s.Sessions(t, "a"); !slices.Equal(got, []string{id}) {
				t.Errorf("sessions after the restart: %q, want %q", got, id)
			}
			if got := s.Sessions(t, "a/"); len(got) > 0 {
				t.Errorf("sessions of another name: %q", got)
			}
			s.Pause()
			client := http.Client{Timeout: 300 * time.Millisecond}
			if _, err := client.Get("http://" + s.Addr + "/v1/status/leader"); err == nil || !err.(interface{ Timeout() bool }).Timeout() {
				t.Errorf("a paused server: %v, want a timeout", err)
			}
			client.CloseIdleConnections()
			s.Resume()
			if _, err := s.Client().Status().Leader(); err != nil {
				t.Errorf("a resumed server: %v", err)
			}
		})
		select {
		case <-ended:
		default:
			t.Error("the server outlived its test")
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was not removed: %v", dir, err)
		}
	})
}

func TestProxy(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	p := NewProxy(t, s)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	// ask returns the status, or 0 if there was no answer within the limit.
	ask := func(t *testing.T, method, path, body string, limit time.Duration) (int, time.Duration) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+p.Addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		resp, err := (&http.Client{Transport: tr, Timeout: limit}).Do(req)
		if err != nil {
			if !err.(interface{ Timeout() bool }).Timeout() {
				t.Errorf("%s %s: %v, want an answer or silence", method, path, err)
			}
			return 0, time.Since(start)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode, time.Since(start)
	}
	const patience = 10 * time.Second
	value := func(key string) string {
		kv := s.Key(t, key)
		if kv == nil {
			return ""
		}
		return string(kv.Value)
	}

	if code, _ := ask(t, "PUT", "/v1/kv/k", "pass", patience); code != 200 || value("k") != "pass" {
		t.Errorf("pass: %d, the value is %q", code, value("k"))
	}
	lock := `[{"KV":{"Verb":"get","Key":"k"}}]`
	if code, _ := ask(t, "PUT", "/v1/txn", lock, patience); code != 200 || p.LastProof() != 0 {
		t.Errorf("a transaction that proves nothing: %d, proof at %s", code, p.LastProof())
	}

	// A blocking read that is under way when the answers stop.
	watch := make(chan int, 1)
	go func() {
		code, _ := ask(t, "GET", "/v1/kv/k?index="+index(s, t), "", 3*time.Second)
		watch <- code
	}()
	for n, _ := p.Count(); n < 3; n, _ = p.Count() {
		time.Sleep(time.Millisecond)
	}
	p.Set(Hang)
	if code, _ := ask(t, "PUT", "/v1/kv/k", "hang", 200*time.Millisecond); code != 0 || value("k") != "pass" {
		t.Errorf("hang: %d, the value is %q", code, value("k"))
	}
	if code := <-watch; code != 0 {
		t.Errorf("hang: a request that was under way was answered: %d", code)
	}
	p.Set(Fail)
	if code, _ := ask(t, "PUT", "/v1/kv/k", "fail", patience); code != 500 || value("k") != "pass" {
		t.Errorf("fail: %d, the value is %q", code, value("k"))
	}
	p.Set(DropAnswers)
	if code, _ := ask(t, "PUT", "/v1/kv/k", "drop", time.Second); code != 0 || value("k") != "drop" {
		t.Errorf("drop answers: %d, the value is %q", code, value("k"))
	}
	p.SetDelay(time.Second)
	if code, took := ask(t, "PUT", "/v1/kv/k", "late", patience); code != 200 || took < time.Second || value("k") != "late" {
		t.Errorf("delay: %d after %s, the value is %q", code, took, value("k"))
	}
	p.Set(Pass)
	if code, _ := ask(t, "PUT", "/v1/kv/k", "pass", patience); code != 200 {
		t.Errorf("pass again: %d", code)
	}
	n, table := p.Count()
	if want := "GET /v1/kv/k  1\nPUT /v1/kv/k  6\nPUT /v1/txn  1\n"; n != 8 || table != want {
		t.Errorf("%d requests, by kind:\n%swant:\n%s", n, table, want)
	}
}

func index(s *Server, t *testing.T) string {
	_, meta, err := s.Client().KV().Get("k", nil)
	if err != nil {
		t.Error(err)
		return "1"
	}
	return strconv.FormatUint(meta.LastIndex, 10)
}

// TestProblems: the checks find what they are there to find.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		want        string
	}{
		{"fine", "start 5 100 1 a\nend 5 200 1 a\nstart 9 300 2 b\n", ""},
		{"killed", "start 5 100 1 a\nstart 9 300 2 b\nterm 9 400 2 b\nend 9 500 2 b\n", ""},
		{"end too late", "start 5 100 1 a\nstart 9 300 2 b\nend 5 400 1 a\n", "b (pid 2, token 9) started 100ns before the last sign of life of a (pid 1, token 5)"},
		{"sign of life", "start 5 100 1 a\nstart 9 300 2 b\nterm 5 400 1 a\n", "started 100ns before"},
		{"the kernel knows", "start 5 100 1 a\noverlap 9 300 2 b\nstart 9 300 2 b\n", "b (pid 2, token 9) started while another one was alive"},
		{"token falls", "start 5 100 1 a\nend 5 200 1 a\nstart 5 300 2 b\n", "the token fell"},
		{"no token", "start  100 1 a\n", ""},
		{"torn line", "start 5 100 1\n", "malformed"},
		{"nobody ended", "end 5 100 1 a\n", "out of place"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(file, []byte(c.lines), 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := readIntervals(file)
			got := strings.Join(problems(all), "\n")
			if err != nil {
				got = err.Error()
			}
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestChild: two children at once are noticed, even if the first one writes nothing more;
// a killed one isn't in the way.
func TestChild(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	mark := Mark(t.Name())
	start := func(tag string) *exec.Cmd {
		args := Child(file, ChildOptions{Tag: tag, IgnoreTerm: true})
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), mark, "FENCE_TOKEN=7")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for {
			all := ReadIntervals(t, file)
			if len(all) > 0 && all[len(all)-1].Tag == tag {
				return cmd
			}
			time.Sleep(time.Millisecond)
		}
	}
	a, b := start("a"), start("b")
	if got := ReadIntervals(t, file); got[0].Overlaps || !got[1].Overlaps || got[0].Token != 7 {
		t.Errorf("two at once: %+v", got)
	}
	if got := Marked(t.Name()); len(got) != 2 || got[a.Process.Pid] == "" {
		t.Errorf("marked: %v", got)
	}
	death := Death(t, a.Process.Pid)
	select {
	case at := <-death:
		t.Errorf("dead at %s", at)
	case <-time.After(200 * time.Millisecond):
	}
	killed := BootNow()
	for _, cmd := range []*exec.Cmd{a, b} {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if at := <-death; at < killed || at > BootNow() {
		t.Errorf("dead at %s, was killed at %s", at, killed)
	}
	c := start("c")
	if got := ReadIntervals(t, file); got[2].Overlaps {
		t.Errorf("the dead are in the way: %+v", got)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if got := Marked(t.Name()); len(got) != 0 {
		t.Errorf("marked: %v", got)
	}
}
